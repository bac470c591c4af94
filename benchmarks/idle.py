"""The CPU time of each node in a farm of three that gets no posts, with the preset `clearnet`.

``idle_cpu_s_per_hour``: the mean of the three, scaled from the measured time, on the reference machine
(`Yardstick`). One JSON line; exit code 1 if it misses its goal (``goals.toml``). Run by `make bench`.
"""

from __future__ import annotations

import sys

import trio

from benchmarks.bench_farm import bench_farm, command_line, cpu_s, retrying_client
from benchmarks.goals import read_goals, report_goal
from benchmarks.yardstick import Yardstick
from garlicfarm.setup.provision import FarmPlan

SETTLE_S = 10.0
HOUR_S = 3600.0


async def measure(seconds: float) -> bool:
    yardstick = Yardstick()
    async with bench_farm(FarmPlan(application="log", preset="clearnet")) as farm:
        async with retrying_client(farm.endpoints, farm.farm_id) as client:
            await client.post([b"elect"])
        await trio.sleep(SETTLE_S)
        pids = [node.pid for node in farm.nodes.values()]
        before, begun = [cpu_s([pid]) for pid in pids], trio.current_time()
        await trio.sleep(seconds)
        took = trio.current_time() - begun
        nodes = [(cpu_s([pid]) - cpu) / took * HOUR_S for pid, cpu in zip(pids, before, strict=True)]
    goals, yardstick_us = read_goals(), yardstick.measure_us()
    return report_goal(
        goals,
        "idle_cpu_s_per_hour",
        [goals.scaled(sum(nodes) / len(nodes), yardstick_us)],
        nodes=[round(each, 1) for each in nodes],
        yardstick_us=round(yardstick_us, 2),
        seconds=seconds,
    )


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    return 0 if trio.run(measure, parser.parse_args().seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
