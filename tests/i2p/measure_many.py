"""Measures the same service again and again through one router's SAM, as remote sensing does; prints one JSON
document: how many measurements reached the service, and whether the router still runs.

In a network namespace: python -m tests.i2p.measure_many DIRECTORY COUNT. An i2pd whose client closes a stream
and its session at once (see `SamSession.connect`) ends here after some ten measurements.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from hashlib import sha256
from pathlib import Path

import trio

from garlicfarm.errors import RouterError
from garlicfarm.lab.i2pd import i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.net.sam import sam_endpoint
from garlicfarm_plugin_i2pcontrol.measurement import measure
from tests.i2p.measured_over_i2p import SERVICE_PORT, answer, is_reached

HANG_GUARD_S = 3600.0
AT_ONCE = 4
USED_AGAIN_S = 25.0
"""i2pd uses a stream that it forgot to end every 20 s, and has freed its destination after 5 s."""
PLANS = [RouterPlan(has_leaf=False, has_sam=True, is_floodfill=False), RouterPlan(), RouterPlan()]


async def main(directory: Path, count: int) -> None:
    reached = 0
    async with i2pd_network(directory, PLANS) as network, trio.open_nursery() as serving:
        asker, served = network[0], network[1]
        leaf = sha256(served.leaf).digest()

        async def measure_on() -> None:
            nonlocal reached
            while reached < count and network.is_running(asker.id):
                try:
                    found = await measure(sam_endpoint(asker.sam), leaf, 0)
                except RouterError:  # it has no tunnels yet, or has ended
                    await trio.sleep(1)
                else:
                    reached += is_reached(found)

        serving.start_soon(partial(trio.serve_tcp, answer, SERVICE_PORT, host=served.address))
        with trio.fail_after(HANG_GUARD_S):
            async with trio.open_nursery() as measuring:
                for _ in range(AT_ONCE):
                    measuring.start_soon(measure_on)
        await trio.sleep(USED_AGAIN_S)
        print(json.dumps({"reached": reached, "is_running": network.is_running(asker.id)}), flush=True)
        serving.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]))
