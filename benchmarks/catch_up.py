"""The cost of catching up a member that lacks 100,000 entries of 200 bytes, in a farm of three processes.

The member is killed, the others append this many entries, and it is started again. The nodes run an
application whose state is all entries, so that a snapshot is as large as the log that it replaces.

* ``catch_up_log``, ``catch_up_snapshot``: time from the leader's connection to the member until the member
  has applied everything; with all of these entries in the leader's log, and with none. As a multiple of the
  time of a reference copy (`reference_copy.py`) just before and just after: at most 3.5, and 1.
* ``catch_up_log_rate``, ``catch_up_snapshot_rate``: the leader's commits per second for a client with 64
  entries outstanding, before and after the catch-up (mean), as a multiple of those during it: at most
  1 / 0.6.
* ``snapshot_leader_mb``, ``snapshot_member_mb``: for a state of 32 MiB, the peak resident memory during the
  transfer above that at rest. Rest includes the state once, which the application holds in memory anyway.
  At most 24 MB.

Medians of the rounds, one JSON line each; exit code 1 if a limit is exceeded. Run by `make bench`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from bisect import bisect
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import trio

from benchmarks.bench_farm import (
    VALUE_BYTES,
    RetryingClient,
    bench_farm,
    command_line,
    percentile,
    report,
    resident_mb,
    retrying_client,
    status,
)
from benchmarks.reference_copy import reference_copy
from garlicfarm import logs
from garlicfarm.application import Application
from garlicfarm.config import load
from garlicfarm.lab.processes import FAST, NodeProcess, ProcessFarm
from garlicfarm.node import serve
from garlicfarm.setup.provision import FarmPlan

BY_LOG_AT_MOST, BY_SNAPSHOT_AT_MOST = 3.5, 1.0
RATE_AT_LEAST = 0.6
ABOVE_IDLE_AT_MOST_MB = 24.0
STATE_BYTES = 32 << 20
OUTSTANDING = 64
BATCH = 1000
NEVER = 10**9
DEADLINE_S = 120.0
SETTLED_S, STEADY_S = 1.0, 3.0
REST_S = 2.0

CLEAR, MARK = b"clear", b"mark"


class Kept(Application):
    """All entries since the last ``clear``. Records the time when each ``mark`` is applied."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._entries: list[bytes] = []

    def apply(self, index: int, term: int, entry: bytes) -> None:
        if entry.startswith(MARK):
            with self._notes.open("a") as file:
                file.write(f"{entry.decode()} {time.time()}\n")
        elif entry == CLEAR:
            self._entries.clear()
        else:
            self._entries.append(entry)

    def snapshot(self) -> bytes:
        return b"".join(self._entries)

    def restore(self, data: bytes) -> None:
        self._entries = [data]


def run_node(config_file: Path) -> None:
    """A node of the benchmark: `garlicfarm node start` with an application of its own."""
    config = load(config_file, os.environ)

    async def main() -> None:
        await serve(config, applications={"log": lambda farm: Kept(config.base_dir / "notes")})

    with logs.configured("info", "text", sys.stderr):
        trio.run(main)


def noted(node: NodeProcess, mark: str) -> float | None:
    """The time when a node applied a mark."""
    try:
        lines = (node.directory / "notes").read_text().splitlines()
    except FileNotFoundError:
        return None
    return next((float(line.split()[1]) for line in lines if line.split()[0] == mark), None)


def connected(leader: NodeProcess, peer: int, since: float) -> float:
    """The time when a leader first connected to a member after ``since``."""
    lines = leader.log_file.read_text().splitlines()
    found = [line for line in lines if f" peer={peer} " in f"{line} " and "event=peer-connected" in line]
    times = [datetime.fromisoformat(line.split()[0]).timestamp() for line in found]
    return next(at for at in times if at > since)


class Lagging:
    """A farm with one member that is down and lacks entries."""

    def __init__(self, farm: ProcessFarm, client: RetryingClient, *, compacted: bool) -> None:
        self.farm = farm
        self.client = client
        self._compacted = compacted
        self._marks = 0

    async def status(self, node_id: int) -> dict[str, int]:
        return await status(self.farm.nodes[node_id], self.farm.name)

    async def leave_behind(self, entries: int, size: int = VALUE_BYTES) -> tuple[NodeProcess, NodeProcess]:
        """Kill a follower and post entries; (leader, follower) once the leader holds them or, with
        compaction, holds none of them."""
        leader = (await self.status(1))["leader"]
        follower = next(node_id for node_id in self.farm.nodes if node_id != leader)
        held = (await self.status(follower))["last_index"]
        await self.farm.kill(follower)
        await self.client.post([CLEAR])
        batch = max(1, min(BATCH, (512 << 10) // size))
        for first in range(0, entries, batch):
            await self.client.post([os.urandom(size) for _ in range(min(batch, entries - first))])
        while self._compacted and (await self.status(leader))["first_index"] <= held + 1:  # noqa: ASYNC110
            await trio.sleep(0.1)
        return self.farm.nodes[leader], self.farm.nodes[follower]

    async def bring_back(self, leader: NodeProcess, follower: NodeProcess) -> tuple[float, float]:
        """Start the follower; the times when the leader connected to it and when it had caught up."""
        self._marks += 1
        mark = f"{MARK.decode()}-{self._marks}"
        await self.client.post([mark.encode()])
        since = time.time()
        await self.farm.start(follower.id)
        while (done := noted(follower, mark)) is None:  # noqa: ASYNC110 - another process notes it
            await trio.sleep(0.05)
        return connected(leader, follower.id, since), done


@asynccontextmanager
async def lagging(entries: int, *, compacted: bool) -> AsyncIterator[Lagging]:
    snapshots = {"snapshot_every_entries": entries, "keep_entries": 1}
    retention = snapshots if compacted else {"snapshot_every_entries": NEVER}
    plan = FarmPlan(application="log", raft=FAST, retention=retention)
    command = (sys.executable, "-m", __spec__.name, "--node")
    async with (
        bench_farm(plan, command=command) as farm,
        retrying_client(farm.endpoints, farm.farm_id) as client,
    ):
        await client.post([b"elect"])
        with trio.fail_after(DEADLINE_S):
            yield Lagging(farm, client, compacted=compacted)


async def timed(round_: Lagging, entries: int) -> tuple[float, float]:
    """Seconds that a member takes to catch up, and that a reference copy takes."""
    leader, follower = await round_.leave_behind(entries)
    before = await reference_copy(entries, VALUE_BYTES)
    began, done = await round_.bring_back(leader, follower)
    after = await reference_copy(entries, VALUE_BYTES)
    return done - began, (before + after) / 2


async def under_load(round_: Lagging, entries: int) -> tuple[float, float, float, float, int]:
    """Commits per second before, during and after a catch-up, its duration, and the number of unknown
    outcomes at the client that makes the load."""
    leader, follower = await round_.leave_behind(entries)
    farm = round_.farm
    arguments = [json.dumps(farm.endpoints), farm.farm_id.hex()]
    times = leader.directory / "commits"
    async with trio.open_nursery() as nursery:
        command = [sys.executable, "-m", __spec__.name, "--drive", str(times), *arguments]
        driver = await nursery.start(trio.run_process, command)
        while not times.exists():  # noqa: ASYNC110 - another process makes the file
            await trio.sleep(0.02)
        await trio.sleep(SETTLED_S + STEADY_S)
        until = time.time()
        began, done = await round_.bring_back(leader, follower)
        await trio.sleep(SETTLED_S + STEADY_S)
        times.with_name("enough").touch()
        await driver.wait()
    commits, unknown = json.loads(times.read_text())

    def rate(since: float, until: float) -> float:
        return (bisect(commits, until) - bisect(commits, since)) / (until - since)

    after = done + SETTLED_S
    return (
        rate(until - STEADY_S, until),
        rate(began, done),
        rate(after, after + STEADY_S),
        done - began,
        unknown,
    )


async def drive(times: Path, endpoints: dict[int, str], farm_id: bytes) -> tuple[list[float], int]:
    """The client that makes the load; the times of its commits, and the number of unknown outcomes."""
    commits: list[float] = []
    value = os.urandom(VALUE_BYTES)

    async def one(client: RetryingClient) -> None:
        while not enough.exists():
            await client.post([value])
            commits.append(time.time())

    enough = times.with_name("enough")
    async with retrying_client(endpoints, farm_id) as client:
        await client.post([value])
        times.touch()  # noqa: ASYNC240
        async with trio.open_nursery() as nursery:
            for _ in range(OUTSTANDING):
                nursery.start_soon(one, client)
    return commits, client.unknown


async def measure(entries: int, rounds: int, *, compacted: bool) -> bool:
    name = "catch_up_snapshot" if compacted else "catch_up_log"
    took, reference, rates, loaded, unknown = [], [], [], [], 0
    for _ in range(rounds):
        async with lagging(entries, compacted=compacted) as round_:
            seconds, reference_seconds = await timed(round_, entries)
            took.append(seconds)
            reference.append(reference_seconds)
            *three, seconds, unknown_here = await under_load(round_, entries)
            rates.append(three)
            loaded.append(seconds)
            unknown += unknown_here + round_.client.unknown
    quick = report(
        name,
        percentile([ours / theirs for ours, theirs in zip(took, reference, strict=True)], 0.5),
        BY_SNAPSHOT_AT_MOST if compacted else BY_LOG_AT_MOST,
        entries=entries,
        seconds=[round(each, 3) for each in took],
        reference_seconds=[round(each, 3) for each in reference],
    )
    fast = report(
        f"{name}_rate",
        percentile([(before + after) / 2 / during for before, during, after in rates], 0.5),
        1 / RATE_AT_LEAST,
        commits_per_s=[[round(rate) for rate in three] for three in rates],
        seconds=[round(each, 3) for each in loaded],
        unknown=unknown,
    )
    return quick and fast


def forget_peak(node: NodeProcess) -> float:
    """Resident memory now; resets the peak."""
    Path(f"/proc/{node.pid}/clear_refs").write_text("5")
    return resident_mb(node.pid)[0]


async def memory() -> bool:
    count, size = STATE_BYTES >> 19, 1 << 19
    async with lagging(count, compacted=True) as round_:
        await trio.sleep(REST_S)
        empty = {node.id: resident_mb(node.pid)[0] for node in round_.farm.nodes.values()}
        leader, follower = await round_.leave_behind(count, size)
        await trio.sleep(REST_S)
        rest = forget_peak(leader)
        began, done = await round_.bring_back(leader, follower)
        peaks = [resident_mb(node.pid)[1] for node in (leader, follower)]
        await trio.sleep(REST_S)
        after = resident_mb(follower.pid)[0]
    state_mb = STATE_BYTES / (1 << 20)
    seconds = round(done - began, 3)
    return all(
        [
            report(
                "snapshot_leader_mb", peaks[0] - rest, ABOVE_IDLE_AT_MOST_MB, rest_mb=rest, seconds=seconds
            ),
            report(
                "snapshot_member_mb",
                peaks[1] - empty[follower.id] - state_mb,
                ABOVE_IDLE_AT_MOST_MB,
                empty_mb=empty[follower.id],
                state_mb=state_mb,
                peak_mb=peaks[1],
                after_mb=after,
            ),
        ]
    )


def results(entries: int, rounds: int) -> Iterator[bool]:
    yield trio.run(lambda: measure(entries, rounds, compacted=False))
    yield trio.run(lambda: measure(entries, rounds, compacted=True))
    yield trio.run(memory)


def main() -> int:
    if sys.argv[1:3] == ["--node", "--config"]:
        run_node(Path(sys.argv[3]))
        return 0
    if sys.argv[1:2] == ["--drive"]:
        times, endpoints, farm_id = sys.argv[2:]
        members = {int(key): value for key, value in json.loads(endpoints).items()}
        done = trio.run(drive, Path(times), members, bytes.fromhex(farm_id))
        Path(times).write_text(json.dumps(done))
        return 0
    parser = command_line(__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    return 0 if all(list(results(options.entries, options.rounds))) else 1


if __name__ == "__main__":
    sys.exit(main())
