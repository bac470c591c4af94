"""What starting costs: the CPU-seconds of `node start` until it serves, and of one `status`.

A farm of one, over TLS, started several times. A node serves once it has written ``admin.url``: all listeners
are open, and its farm runs. The rest of the package, such as the pages of the admin API, is imported when it
is first asked for; ``answered`` is the CPU time of the same process once it has answered one `status`.

One JSON line for each figure, the median of all runs. Run by `make bench`.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence

import trio

from benchmarks.bench_farm import bench_farm, command_line, cpu_s, report
from garlicfarm.lab.processes import FAST, NodeProcess
from garlicfarm.setup.provision import FarmPlan

START_CPU_S = 0.5
STATUS_CPU_S = 0.3


def status_cpu_s(node: NodeProcess) -> float:
    """User and system time of one `garlicfarm status`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    config = str(node.directory / "garlicfarm.toml")
    command = (sys.executable, "-m", "garlicfarm", "status", "--config", config)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


async def measure(runs: int) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
    """CPU-seconds of a node until it serves, until it has answered, and of the `status` that asked."""
    served, answered, asked = [], [], []
    async with bench_farm(FarmPlan(raft=FAST), 1) as farm:
        node = farm.nodes[1]
        for _ in range(runs + 1):  # the first one compiles
            await farm.stop(1)
            await farm.start(1)
            served.append(cpu_s([node.pid]))
            asked.append(await trio.to_thread.run_sync(status_cpu_s, node))
            answered.append(cpu_s([node.pid]))
    return served[1:], answered[1:], asked[1:]


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--runs", type=int, default=7, help="starts (default 7)")
    served, answered, asked = trio.run(measure, parser.parse_args().runs)
    median = statistics.median
    ok = report(
        "start_cpu_s", median(served), START_CPU_S, worst=max(served), answered=round(median(answered), 3)
    )
    ok &= report("status_cpu_s", median(asked), STATUS_CPU_S, worst=round(max(asked), 3))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
