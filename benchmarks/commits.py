"""Commits per second of a farm of three processes: TLS, fsync, application ``log``, external clients.

Prints one JSON line per number of outstanding entries. The clients run in a process of their own, which also
reads the CPU time of the node processes and the machine's speed (`Yardstick`). `make bench` compares the same
loads with those of other systems (`compare.py`).
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
import trio

from benchmarks.bench_farm import (
    VALUE_BYTES,
    RetryingClient,
    bench_farm,
    command_line,
    cpu_s,
    retrying_client,
)
from benchmarks.samples import Load, Sample
from benchmarks.yardstick import Yardstick
from garlicfarm.lab.processes import FAST, ProcessFarm
from garlicfarm.setup.provision import FarmPlan
from garlicfarm.transport import Transport

WARM_UP = Load(1, VALUE_BYTES, 1.0)
"""Elects a leader, connects."""


def fdatasync_ms(directory: Path, count: int = 200) -> float:
    """Median time of appending 4 KiB and fdatasync, in the nodes' directory."""
    times = []
    with (directory / "probe").open("wb") as file:
        for _ in range(count):
            file.write(bytes(4096))
            file.flush()
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000


async def synced(farm: ProcessFarm) -> tuple[int, float]:
    """Fsyncs and entries of all nodes so far."""
    batches, entries = 0, 0.0
    for node in farm.nodes.values():
        async with node.client() as client:
            text = await client.metrics()
        batches += int(float(re.search(r"storage_batch_entries_count\{.*?\} (\S+)", text)[1]))
        entries += float(re.search(r"storage_batch_entries_sum\{.*?\} (\S+)", text)[1])
    return batches, entries


async def drive(
    load: Load,
    pids: Sequence[int],
    endpoints: dict[int, str],
    farm_id: bytes,
    transport: Transport | None = None,
) -> Sample:
    """The clients' side: as many tasks as entries are outstanding, each with one of its own at a time.
    ``pids``: of the nodes."""
    latencies: list[float] = []
    value = os.urandom(load.size_bytes)

    async def one(client: RetryingClient, until: float) -> None:
        while (begun := trio.current_time()) < until:
            await client.post([value])
            latencies.append(trio.current_time() - begun)

    yardstick = Yardstick()
    async with retrying_client(endpoints, farm_id, transport) as client:
        await client.post([value])
        fast_us = yardstick.measure_us()
        nodes_s, client_s, begun = cpu_s(pids), time.process_time(), trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(load.outstanding):
                nursery.start_soon(one, client, begun + load.seconds)
        took = trio.current_time() - begun
        nodes_s, client_s = cpu_s(pids) - nodes_s, time.process_time() - client_s
        yardstick_us = (fast_us + yardstick.measure_us()) / 2
    latencies.sort()
    return Sample(
        commits=len(latencies),
        seconds=took,
        p50_ms=latencies[len(latencies) // 2] * 1000,
        p99_ms=latencies[len(latencies) * 99 // 100] * 1000,
        nodes_cpu_s=nodes_s,
        client_cpu_s=client_s,
        yardstick_us=yardstick_us,
        unknown=client.unknown,
    )


async def run_driver(load: Load, farm: ProcessFarm, measured: Collection[int] = ()) -> Sample:
    """The load, from a process of its own. ``measured``: the nodes whose CPU time counts, by default all."""
    pids = [farm.nodes[node_id].pid for node_id in measured or farm.nodes]
    arguments = [json.dumps(each) for each in (load, pids, farm.endpoints)]
    done = await trio.run_process(
        [sys.executable, "-m", "benchmarks.commits", "--drive", *arguments, farm.farm_id.hex()],
        capture_stdout=True,
    )
    return msgspec.json.decode(done.stdout, type=Sample)


async def samples(nodes: int, loads: Sequence[Load]) -> list[Sample]:
    """One farm, under one load after the other."""
    async with bench_farm(FarmPlan(application="log", raft=FAST), nodes) as farm:
        await run_driver(WARM_UP, farm)
        return [await run_driver(load, farm) for load in loads]


async def measure(load: Load) -> dict[str, object]:
    async with bench_farm(FarmPlan(application="log", raft=FAST)) as farm:
        await run_driver(WARM_UP, farm)
        sync_ms = fdatasync_ms(farm.nodes[1].directory)
        batches, entries = await synced(farm)
        sample = await run_driver(load, farm)
        batches_after, entries_after = await synced(farm)
    return {
        "outstanding": load.outstanding,
        "commits_per_s": round(sample.commits_per_s),
        "p50_ms": round(sample.p50_ms, 2),
        "p99_ms": round(sample.p99_ms, 2),
        "unknown": sample.unknown,
        "cpu_us_per_entry": round(sample.nodes_cpu_us, 1),
        "client_cpu_us_per_entry": round(sample.client_cpu_us, 1),
        "yardstick_us": round(sample.yardstick_us, 2),
        "entries_per_fsync": round((entries_after - entries) / max(1, batches_after - batches), 1),
        "fdatasync_ms": round(sync_ms, 2),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    if sys.argv[1:2] == ["--drive"]:
        load, pids, endpoints, farm_id = sys.argv[2:]
        members = {int(key): value for key, value in json.loads(endpoints).items()}
        sample = trio.run(drive, Load(*json.loads(load)), json.loads(pids), members, bytes.fromhex(farm_id))
        sys.stdout.buffer.write(msgspec.json.encode(sample))
        return
    parser = command_line(__doc__)
    parser.add_argument("--outstanding", type=int, nargs="+", default=[1, 64, 1024])
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    for outstanding in options.outstanding:
        line = trio.run(measure, Load(outstanding, VALUE_BYTES, options.seconds))
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
