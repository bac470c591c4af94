"""Nodes with 100,000 entries of 200 bytes in their logs, in farms of three processes.

Memory and restart once with the application ``log`` and no snapshot, so that a start has to apply all
entries; once with the application ``publisher`` (users' notes) and the default retention.

* ``memory``: the peak resident memory of any of the three processes, while the log grew and after restarts:
  at most 90 MB.
* ``restart``: time from the start of the process (`garlicfarm node start`, after a SIGKILL) until it has
  checked its store, applied everything that it had applied before, and knows the leader: median at most
  2.5 s. The node is a follower: restarting the leader would also measure an election (`failover.py`).

* ``retention_cpu_ratio``: the CPU time of an entry in a farm that drops one old entry for each new one
  (default retention: 100,000 entries, a snapshot every 10,000), as a multiple of the same in a farm that
  does not drop any yet; 64 outstanding, over two snapshots, both farms in turn. Goal: ``goals.toml``.

* ``surplus_ms``, only with ``--kept N …``, and nothing else then: how long it takes after a snapshot to
  find which entries may be deleted while ``keep_entries`` are kept: at most 5 ms, however many.

JSON lines; exit code 1 if a limit is exceeded or the goal missed. Waiting for a busy processor counts too;
``cpu_s``, of the restarted process, and ``load`` show it. Run by `make bench`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

import trio

from benchmarks.bench_farm import (
    QUICK,
    VALUE_BYTES,
    RetryingClient,
    bench_farm,
    command_line,
    cpu_s,
    note,
    percentile,
    report,
    resident_mb,
    retrying_client,
    status,
)
from benchmarks.goals import read_goals, report_goal
from garlicfarm.lab.processes import FAST, ProcessFarm
from garlicfarm.setup.provision import FarmPlan
from garlicfarm.storage.log_index import LogIndex, Positions
from garlicfarm.wire import ValueType

MEMORY_AT_MOST_MB = 90.0
RESTART_AT_MOST_S = 2.5
SURPLUS_AT_MOST_MS = 5.0
BATCH = 100
OUTSTANDING = 64
ALL_APPLIED_S = 60.0
NEVER = 10**9


def value(number: int) -> bytes:
    return os.urandom(VALUE_BYTES)


async def fill(farm: ProcessFarm, entries: int, make: Callable[[int], bytes]) -> None:
    async with retrying_client(farm.endpoints, farm.farm_id) as client:
        for first in range(0, entries, BATCH):
            await client.post([make(number) for number in range(first, min(first + BATCH, entries))])


async def status_with(farm: ProcessFarm, node_id: int, entries: int) -> dict[str, int]:
    """A node's status, once it has applied this many entries and knows a leader."""
    while True:
        told = await status(farm.nodes[node_id], farm.name)
        if told["applied"] >= entries and told["leader"]:
            return told
        await trio.sleep(0.01)


async def measure(application: str, make: Callable[[int], bytes], entries: int, restarts: int) -> bool:
    retention = {"snapshot_every_entries": NEVER} if application == "log" else {}
    plan = FarmPlan(application=application, raft=QUICK, retention=retention)
    async with bench_farm(plan) as farm:
        await fill(farm, entries, make)
        with trio.fail_after(ALL_APPLIED_S):
            held = [(await status_with(farm, node_id, entries))["applied"] for node_id in farm.nodes]
        resident, peaks = zip(*(resident_mb(node.pid) for node in farm.nodes.values()), strict=True)
        times, listens, cpu, restarted = [], [], [], []
        for _ in range(restarts):
            leader = (await status_with(farm, 1, 0))["leader"]
            node = next(node for node in farm.nodes.values() if node.id != leader)
            applied = (await status_with(farm, node.id, entries))["applied"]
            await farm.kill(node.id)
            begun = trio.current_time()
            with trio.fail_after(ALL_APPLIED_S):
                await farm.start(node.id)
                listens.append(trio.current_time() - begun)
                told = await status_with(farm, node.id, applied)
            times.append(trio.current_time() - begun)
            cpu.append(cpu_s([node.pid]))
            restarted.append(resident_mb(node.pid)[1])
    kept = report(
        "long_log_memory_mb",
        max(*peaks, *restarted),
        MEMORY_AT_MOST_MB,
        application=application,
        entries=min(held),
        resident_mb=[round(each, 1) for each in resident],
        peak_mb=[round(each, 1) for each in peaks],
        peak_after_restart_mb=round(max(restarted), 1),
    )
    quick = report(
        "restart_p50_s",
        percentile(times, 0.5),
        RESTART_AT_MOST_S,
        application=application,
        entries=told["applied"] - told["first_index"] + 1,
        restarts=restarts,
        min_s=round(min(times), 3),
        max_s=round(max(times), 3),
        cpu_s=round(percentile(cpu, 0.5), 2),
        listens_p50_s=round(percentile(listens, 0.5), 3),
    )
    return kept and quick


async def cpu_us(farm: ProcessFarm, entries: int) -> float:
    """The CPU time of the nodes, per entry."""
    pids = [node.pid for node in farm.nodes.values()]

    async def post(client: RetryingClient) -> None:
        for number in range(entries // OUTSTANDING):
            await client.post([value(number)])

    async with retrying_client(farm.endpoints, farm.farm_id) as client:
        await client.post([value(0)])
        before = cpu_s(pids)
        async with trio.open_nursery() as nursery:
            for _ in range(OUTSTANDING):
                nursery.start_soon(post, client)
        return (cpu_s(pids) - before) / (entries // OUTSTANDING * OUTSTANDING) * 1e6


async def measure_retention(entries: int, rounds: int) -> bool:
    every = entries // 10
    retention = {"keep_entries": entries, "snapshot_every_entries": every}
    plan = FarmPlan(application="log", raft=FAST, retention=retention)
    costs = []
    async with bench_farm(plan) as short, bench_farm(plan) as full:
        await fill(full, entries + every, value)
        for _ in range(rounds):
            costs.append([await cpu_us(farm, 2 * every) for farm in (short, full)])
        first = (await status_with(full, 1, 0))["first_index"]
        assert first > 1, "retention has dropped no entry"
    return report_goal(
        read_goals(),
        "retention_cpu_ratio",
        [at_limit / below for below, at_limit in costs],
        cpu_us_per_entry=[[round(each, 1) for each in pair] for pair in costs],
        keep_entries=entries,
        first_index=first,
    )


def measure_kept(kept: Sequence[int], every: int, rounds: int) -> bool:
    """What `LogIndex` takes to find, and to forget, the entries that a snapshot makes unnecessary."""
    medians = []
    for keep in kept:
        index, finding, dropping = LogIndex(1), list[float](), list[float]()
        append_entries(index, keep)
        for _ in range(rounds):
            append_entries(index, every)
            begun = time.perf_counter()
            surplus = index.surplus(index.last, keep, 1 << 62)
            found = time.perf_counter()
            index.drop(surplus)
            finding.append((found - begun) * 1e3)
            dropping.append((time.perf_counter() - found) * 1e3)
        medians.append(percentile(finding, 0.5))
        dropped_ms = round(percentile(dropping, 0.5), 2)
        report(
            "surplus_ms", medians[-1], SURPLUS_AT_MOST_MS, keep_entries=keep, every=every, drop_ms=dropped_ms
        )
    return max(medians) <= SURPLUS_AT_MOST_MS


def append_entries(index: LogIndex, entries: int) -> None:
    for first in range(index.last + 1, index.last + 1 + entries, BATCH):
        positions = Positions()
        for number in range(first, first + BATCH):
            positions.add(number, number << 8, VALUE_BYTES, ValueType.APPLICATION)
        index.append(positions)


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=8, help="of the cost at the limit of retention")
    parser.add_argument("--kept", type=int, nargs="+", help="only what so many kept entries cost a snapshot")
    options = parser.parse_args()
    if options.kept:
        return 0 if measure_kept(options.kept, options.entries // 10, options.rounds) else 1
    ok = [
        trio.run(measure, application, make, options.entries, options.restarts)
        for application, make in (("log", value), ("publisher", note))
    ]
    ok.append(trio.run(measure_retention, options.entries, options.rounds))
    return 0 if all(ok) else 1


if __name__ == "__main__":
    sys.exit(main())
