"""Resident memory of a follower: 1,000 entries of 200 bytes, its status polled each second.

Prints one JSON line; exit code 1 if ``memory_mb``, after the last of these seconds, misses its goal
(``goals.toml``). Run by `make bench`.
"""

from __future__ import annotations

import os
import sys

import trio

from benchmarks.bench_farm import VALUE_BYTES, RetryingClient, bench_farm, command_line, resident_mb
from benchmarks.goals import read_goals, report_goal
from garlicfarm.lab.processes import FAST
from garlicfarm.setup.provision import FarmPlan

ENTRIES = 1000


async def measure(seconds: float) -> bool:
    async with bench_farm(FarmPlan(application="log", raft=FAST)) as farm:
        async with farm.nodes[1].client() as client:
            await RetryingClient(client.post).post(farm.name, b"elect")
            leader = (await client.status(farm.name))["leader"]
        follower = next(node for node in farm.nodes.values() if node.id != leader)
        at_start, _ = resident_mb(follower.pid)
        async with follower.client() as client:
            begun = trio.current_time()
            retrying_client = RetryingClient(client.post)
            for number in range(ENTRIES):
                await retrying_client.post(farm.name, os.urandom(VALUE_BYTES))
                if number % 100 == 0:
                    await client.status(farm.name)
            while trio.current_time() - begun < seconds:
                await client.status(farm.name)
                await trio.sleep(1)
            applied = (await client.status(farm.name))["applied"]
        now, peak = resident_mb(follower.pid)
    return report_goal(
        read_goals(),
        "memory_mb",
        [now],
        follower_entries=applied,
        seconds=seconds,
        at_start_mb=round(at_start, 1),
        peak_mb=round(peak, 1),
    )


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    return 0 if trio.run(measure, parser.parse_args().seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
