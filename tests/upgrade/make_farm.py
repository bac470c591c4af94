"""Makes the nodes of a farm with the garlicfarm that this process finds: by that release, not by this tree.

Run as a file by `upgrade_farm`. stdin: an `Order`; stdout: the `MadeFarm`. Both as JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from garlicfarm.setup.provision import FarmPlan, MemberPlan, create_farm


class Order(msgspec.Struct):
    """The arguments of `create_farm`."""

    out: Path
    members: dict[int, MemberPlan]
    farm: FarmPlan


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order, dec_hook=lambda kind, text: kind(text))
    made = create_farm(order.out, order.members, order.farm)
    sys.stdout.buffer.write(msgspec.json.encode(made, enc_hook=str))


if __name__ == "__main__":
    main()
