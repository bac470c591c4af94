"""A cluster of PySyncObj on this machine, for `compare.py`.

PySyncObj is a library: its client is a part of the leader, so that an entry saves one hop. It sends in
plaintext, and its journal is a mapped file that is never synced: what it acknowledged can be lost with the
machine's power. ``appendEntriesUseBatch=False``: by default it waits for the next tick of 50 ms, so that one
entry at a time takes 0.2 s.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from subprocess import PIPE

import msgspec
import trio

from benchmarks.bench_farm import cpu_s, percentile
from benchmarks.samples import Load, Sample
from garlicfarm.lab.processes import free_ports, terminate

READY_S = 60.0
LINE_BYTES = 1 << 16


def version() -> str | None:
    """None if PySyncObj is not installed."""
    try:
        return importlib.metadata.version("pysyncobj")
    except importlib.metadata.PackageNotFoundError:
        return None


# ---------------------------------------------------------------------- a node


def node(address: str, journal: str, *partners: str) -> None:
    """One node. For each line of JSON on stdin it prints one: of null whether it leads; of a load and the
    pids of all nodes, as the leader, the sample. The end of stdin ends it."""
    from pysyncobj import SyncObj, SyncObjConf, replicated

    class Log(SyncObj):
        @replicated
        def append(self, value: bytes) -> None:
            """Only the journal stores entries."""

    never = 10**9
    log = Log(
        address,
        list(partners),
        SyncObjConf(
            journalFile=journal,
            appendEntriesUseBatch=False,
            logCompactionMinEntries=never,
            logCompactionMinTime=never,
        ),
    )
    for line in sys.stdin:
        order = json.loads(line)
        if order is None:
            answer: object = log.getStatus()["leader"] == log.selfNode
        else:
            load, pids = order
            answer = post(log, Load(*load), pids)
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.flush()
    os._exit(0)


def post(log, load: Load, pids: Sequence[int]) -> Sample:
    """The client: each entry follows from the callback of the one before, in PySyncObj's own thread."""
    latencies: list[float] = []
    value = os.urandom(load.size_bytes)
    ended: SimpleQueue[int] = SimpleQueue()

    def append(refused: int = 0) -> None:
        begun = time.perf_counter()

        def committed(result: object, error: int) -> None:
            now = time.perf_counter()
            if not error:
                latencies.append(now - begun)
            if now < until:
                append(refused + bool(error))
            else:
                ended.put(refused + bool(error))

        log.append(value, callback=committed)

    before, begun = cpu_s(pids), time.perf_counter()
    until = begun + load.seconds
    for _ in range(load.outstanding):
        append()
    refused = sum(ended.get() for _ in range(load.outstanding))
    took = time.perf_counter() - begun
    return Sample(
        commits=len(latencies),
        seconds=took,
        p50_ms=percentile(latencies, 0.5) * 1000,
        p99_ms=percentile(latencies, 0.99) * 1000,
        nodes_cpu_s=cpu_s(pids) - before,
        unknown=refused,
    )


# ---------------------------------------------------------------------- the cluster


async def asked(process: trio.Process, order: object) -> bytes:
    """A node's line of JSON in answer to one."""
    await process.stdin.send_all(json.dumps(order).encode() + b"\n")
    answer = b""
    while not answer.endswith(b"\n"):
        part = await process.stdout.receive_some(LINE_BYTES)
        if not part:
            raise EOFError("a node of PySyncObj ended")
        answer += part
    return answer


async def start(nursery: trio.Nursery, stem: Path, address: str, addresses: Sequence[str]) -> trio.Process:
    command = [sys.executable, "-m", "benchmarks.pysyncobj_cluster", address, f"{stem}.journal"]
    command += [other for other in addresses if other != address]
    with stem.with_suffix(".log").open("wb") as log:
        run = partial(trio.run_process, stdin=PIPE, stdout=PIPE, stderr=log, deliver_cancel=terminate)
        return await nursery.start(run, command)


@asynccontextmanager
async def pysyncobj_cluster(nodes: int) -> AsyncIterator[tuple[trio.Process, list[int]]]:
    """The leader, and the pids of all."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as temporary:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(nodes)]
        async with trio.open_nursery() as nursery:
            processes: list[trio.Process] = []
            for number, address in enumerate(addresses, 1):
                processes.append(await start(nursery, Path(temporary, f"node{number}"), address, addresses))
            with trio.fail_after(READY_S):
                while True:
                    leads = [await asked(process, None) == b"true\n" for process in processes]
                    if any(leads):
                        break
                    await trio.sleep(0.1)
            yield processes[leads.index(True)], [process.pid for process in processes]
            nursery.cancel_scope.cancel()


async def samples(nodes: int, loads: Sequence[Load]) -> list[Sample]:
    """One cluster, under one load after the other."""
    async with pysyncobj_cluster(nodes) as (leader, pids):
        answers = [await asked(leader, (load, pids)) for load in loads]
    return [msgspec.json.decode(answer, type=Sample) for answer in answers]


if __name__ == "__main__":
    node(*sys.argv[1:])
