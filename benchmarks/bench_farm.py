"""Shared by the benchmarks: a farm of processes, a client that posts, entries, figures and limits."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from garlicfarm.client.farm import open_farm_client
from garlicfarm.credentials.users import UserStore
from garlicfarm.errors import NoQuorum, OutcomeUnknown, ProposalDropped
from garlicfarm.lab.processes import NodeProcess, ProcessFarm, process_farm
from garlicfarm.publishing.documents import StatusDocument
from garlicfarm.publishing.entries import encode_status
from garlicfarm.setup.provision import FarmPlan
from garlicfarm.transport import Transport

QUICK: Mapping[str, float] = {
    "election_timeout_min_s": 0.4,
    "election_timeout_max_s": 1.4,
    "heartbeat_s": 0.1,
    "rpc_timeout_s": 1.0,
}
"""``[farm.raft]`` for the figures of failover and restart."""

NODE_COMMAND = (sys.executable, "-m", "garlicfarm", "node", "start")
VALUE_BYTES = 200
PROCESS_CLOCK = 2
"""CPUCLOCK_SCHED of Linux, for a process rather than a thread"""
USER, PASSWORD = "bench", "a benchmark's password"
RETRY_S = 0.01


class RetryingClient:
    """Repeats each post until it is acknowledged: on a busy machine a farm may lose its leader.

    ``post``: a client's. ``unknown``: the number of unknown outcomes so far; as many entries may be in the
    log twice.
    """

    def __init__(self, post: Callable[..., Awaitable[tuple[int, int]]]) -> None:
        self._post = post
        self.unknown = 0

    async def post(self, *what: object) -> tuple[int, int]:
        """Post an entry; (index, term) of the acknowledged one."""
        while True:
            try:
                return await self._post(*what)
            except OutcomeUnknown:
                self.unknown += 1
            except (NoQuorum, ProposalDropped):
                pass
            await trio.sleep(RETRY_S)


@asynccontextmanager
async def bench_farm(
    plan: FarmPlan, nodes: int = 3, command: Sequence[str] = NODE_COMMAND
) -> AsyncIterator[ProcessFarm]:
    """A running farm with the user ``bench``, in ``BENCH_DIR`` or the directory of temporary files."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as temporary:
        directory = Path(temporary) / "farm"
        async with process_farm(directory, nodes, plan, command=command, start=False) as farm:
            for node in farm.nodes.values():
                UserStore(node.directory / "data" / "users").add(USER, "writer", PASSWORD)
                await farm.start(node.id)
            yield farm


@asynccontextmanager
async def retrying_client(
    endpoints: Mapping[int, str], farm_id: bytes, transport: Transport | None = None
) -> AsyncIterator[RetryingClient]:
    """A client on the Raft wire that follows the leader; over TLS by default."""
    async with open_farm_client(
        endpoints,
        farm=FarmPlan().name,
        user=USER,
        password=PASSWORD,
        transport=(lambda scheme: transport) if transport else None,
        farm_id=farm_id,
    ) as client:
        yield RetryingClient(client.post)


async def status(node: NodeProcess, farm: str) -> dict[str, Any]:
    """What a node says of a farm."""
    async with node.client() as client:
        return await client.status(farm)


async def leader_of(node: NodeProcess, farm: str) -> int:
    """The leader that a node knows, as soon as it knows one."""
    while (leader := (await status(node, farm))["leader"]) is None:  # noqa: ASYNC110 - another process
        await trio.sleep(0.1)
    return leader


def note(number: int, size: int = VALUE_BYTES) -> bytes:
    """A user's note of this many bytes."""
    config: dict[str, object] = {"by": USER, "text": ""}
    document = StatusDocument(
        cluster="farm", date=time.time_ns() // 1_000_000, id=0, sequence=number, config=config
    )
    config["text"] = "x" * (size - len(encode_status(document)))
    return encode_status(document)


def resident_mb(pid: int) -> tuple[float, float]:
    """A process's current and peak memory."""
    text = Path(f"/proc/{pid}/status").read_text()
    now, peak = (int(re.search(rf"{key}:\s+(\d+) kB", text)[1]) for key in ("VmRSS", "VmHWM"))  # type: ignore[index]
    return now / 1024, peak / 1024


def cpu_s(pids: Sequence[int]) -> float:
    """User and system time of processes, including their threads: by the CPU clock of each
    (clock_getcpuclockid), which knows nanoseconds."""
    return sum(time.clock_gettime(~pid << 3 | PROCESS_CLOCK) for pid in pids)


def percentile(values: Sequence[float], share: float) -> float:
    """The percentile by nearest rank."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def command_line(doc: str) -> argparse.ArgumentParser:
    """The parser of a benchmark with this docstring."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def report(figure: str, judged: float, at_most: float, **values: object) -> bool:
    """Print a figure as a line of JSON; return whether it is within its limit."""
    ok = judged <= at_most
    line = {"figure": figure, "ok": ok, "judged": round(judged, 3), "at_most": at_most, **values}
    print(json.dumps({**line, "load": round(os.getloadavg()[0], 2)}), flush=True)
    return ok
