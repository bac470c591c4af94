"""Makes the farm of compose.yaml, each node's files in its own volume; does nothing where it is made.

The nodes dial one another by the names of their services, over TLS with pinned certificates, and each
stands beside a simulated router.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from base64 import b64encode
from pathlib import Path

from garlicfarm.master_key import mint_master_key
from garlicfarm.provision import FarmPlan, MemberPlan, create_farm
from garlicfarm.testing.processes import FAST
from garlicfarm.testing.simulated_router import simulated_destination

VOLUMES = {number: Path(f"/farm/node-{number}") for number in (1, 2, 3)}


def member(number: int) -> MemberPlan:
    """What the node of service ``node<number>`` has of its own."""
    return MemberPlan(
        endpoint=f"ssl://node{number}:27150",
        listen="ssl://0.0.0.0:27150",
        router={"plugin": "simulated", "seed": number},
        leaves=(b64encode(simulated_destination(number), b"-~").decode(),),
    )


def main() -> None:
    made = [(volume / "garlicfarm.toml").is_file() for volume in VOLUMES.values()]
    if all(made):
        return
    if any(made):
        sys.exit("some of the volumes hold a node and some do not; remove all: docker compose down -v")
    with tempfile.TemporaryDirectory() as directory:
        key_file = Path(directory) / "master.key"
        plan = FarmPlan(raft=FAST, master=mint_master_key(key_file), master_key_file=key_file)
        farm = create_farm(Path(directory) / "farm", {number: member(number) for number in VOLUMES}, plan)
        for number, volume in VOLUMES.items():
            shutil.rmtree(volume / "data", ignore_errors=True)  # of an init that was interrupted
            shutil.copytree(farm.directories[number] / "data", volume / "data")
        # Last: a volume with a configuration has everything else.
        for number, volume in VOLUMES.items():
            shutil.copy2(farm.directories[number] / "garlicfarm.toml", volume)


if __name__ == "__main__":
    main()
