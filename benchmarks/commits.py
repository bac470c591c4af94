"""Commits per second of a farm of three processes: TLS, fsync, application ``log``, external clients.

Prints one JSON line per number of outstanding entries. The clients run in a process of their own; the
CPU time is that of the three node processes. Run by `make bench`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import time
from pathlib import Path

import trio

from benchmarks.bench_farm import VALUE_BYTES, RetryingClient, bench_farm, cpu_s, retrying_client
from garlicfarm.lab.processes import FAST, ProcessFarm
from garlicfarm.setup.provision import FarmPlan
from garlicfarm.transport import Transport


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
    outstanding: int,
    seconds: float,
    endpoints: dict[int, str],
    farm_id: bytes,
    transport: Transport | None = None,
) -> dict:
    """The clients' side: ``outstanding`` tasks, each with one entry of its own at a time."""
    latencies: list[float] = []
    value = os.urandom(VALUE_BYTES)

    async def one(client: RetryingClient, until: float) -> None:
        while (begun := trio.current_time()) < until:
            await client.post([value])
            latencies.append(trio.current_time() - begun)

    async with retrying_client(endpoints, farm_id, transport) as client:
        await client.post([value])
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(outstanding):
                nursery.start_soon(one, client, begun + seconds)
        took = trio.current_time() - begun
    latencies.sort()
    return {
        "commits": len(latencies),
        "seconds": took,
        "p50_ms": latencies[len(latencies) // 2] * 1000,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1000,
        "unknown": client.unknown,
    }


async def measure(outstanding: int, seconds: float) -> dict:
    async with bench_farm(FarmPlan(application="log", raft=FAST)) as farm:
        pids = [node.process.pid for node in farm.nodes.values()]
        await run_driver(1, 1.0, farm)  # elect, connect, warm up
        sync_ms = fdatasync_ms(farm.nodes[1].directory)
        cpu, (batches, entries) = cpu_s(pids), await synced(farm)
        cpu = cpu_s(pids)
        result = await run_driver(outstanding, seconds, farm)
        cpu = cpu_s(pids) - cpu
        batches_after, entries_after = await synced(farm)
        commits = result["commits"]
        return {
            "outstanding": outstanding,
            "commits_per_s": round(commits / result["seconds"]),
            "p50_ms": round(result["p50_ms"], 2),
            "p99_ms": round(result["p99_ms"], 2),
            "unknown": result["unknown"],
            "cpu_us_per_entry": round(cpu / commits * 1e6, 1),
            "entries_per_fsync": round((entries_after - entries) / max(1, batches_after - batches), 1),
            "fdatasync_ms": round(sync_ms, 2),
            "load": os.getloadavg()[0],
        }


async def run_driver(outstanding: int, seconds: float, farm: ProcessFarm) -> dict:
    arguments = [str(outstanding), str(seconds), json.dumps(farm.endpoints), farm.farm_id.hex()]
    done = await trio.run_process(
        [sys.executable, "-m", __spec__.name, "--drive", *arguments], capture_stdout=True
    )
    return json.loads(done.stdout)


def main() -> None:
    if sys.argv[1:2] == ["--drive"]:
        outstanding, seconds, endpoints, farm_id = sys.argv[2:]
        members = {int(key): value for key, value in json.loads(endpoints).items()}
        result = trio.run(drive, int(outstanding), float(seconds), members, bytes.fromhex(farm_id))
        print(json.dumps(result))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outstanding", type=int, nargs="+", default=[1, 64, 1024])
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    for outstanding in options.outstanding:
        print(json.dumps(trio.run(measure, outstanding, options.seconds)), flush=True)


if __name__ == "__main__":
    main()
