"""What 50 watchers of live events on one node cost its farm: the leader of three, the worst place for them.

The same load with the watchers and without, in turns. Of each pair of turns:

* ``watchers_rate_ratio``: commits per second with the watchers as a multiple of those without. In it is what
  the watchers do themselves, which would be on other machines: ``watching_cores``.
* ``watchers_leader_cores``: CPU time of the leader in a second that is not for the entries, by what they cost
  without watchers.

The watchers are one process. Each is sent every entry, as `AdminClient.events` is. It counts the bytes, to
check that all came, and has the kernel throw them away: this is about the node.

The load is far beyond what watchers are sent at once: they fall behind during a turn, and catch up after it.

Prints JSON lines; exit code 1 if a figure misses a goal that was reached (``goals.toml``). By `make bench`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from subprocess import PIPE
from typing import Any

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, RejectConnection, Request

from benchmarks.bench_farm import PASSWORD, USER, VALUE_BYTES, bench_farm, command_line, leader_of, status
from benchmarks.commits import WARM_UP, run_driver
from benchmarks.goals import read_goals, report_goal
from benchmarks.samples import Load, Sample
from garlicfarm.client.https import HttpsClient
from garlicfarm.client.trust import client_tls
from garlicfarm.credentials.certificates import pin_of_file
from garlicfarm.feed.binary_format import HEAD_BYTES, MEDIA_TYPE
from garlicfarm.lab.processes import FAST, NodeProcess, ProcessFarm
from garlicfarm.setup.provision import FarmPlan

WATCHERS = 50
OUTSTANDING = 64
NOWHERE = bytearray(1 << 22)
RECORD_BYTES = HEAD_BYTES + VALUE_BYTES


async def watch(
    client: HttpsClient, farm: str, count: Callable[[int], None], task_status: trio.TaskStatus[None]
) -> None:
    """One watcher, until cancelled; ``count`` is told how many bytes have come."""
    target = f"/v1/farms/{farm}/events?kinds=entry"
    for _ in range(2):
        web = WSConnection(ConnectionType.CLIENT)
        login = client.authorization("GET", target)
        headers = [(b"Accept", MEDIA_TYPE.encode())]
        headers += [] if login is None else [(b"Authorization", login.encode())]
        async with await client.open_stream() as stream:
            await stream.send_all(
                web.send(Request(host=client.authority, target=target, extra_headers=headers))
            )
            answer = None
            while answer is None:
                web.receive_data(bytes(await stream.receive_some()))
                answer = next(iter(web.events()), None)
            if isinstance(answer, RejectConnection):
                offered = (value for name, value in answer.headers if name == b"www-authenticate")
                client.learn([value.decode() for value in offered])
                continue
            assert isinstance(answer, AcceptConnection), answer
            task_status.started()
            connection = stream.transport_stream.socket
            while size_bytes := await connection.recv_into(NOWHERE, flags=socket.MSG_TRUNC):
                count(size_bytes)
    raise AssertionError("a watcher was disconnected")


async def watch_all(url: str, pin: str, farm: str, count: int) -> None:
    """The watchers' process: says that all are connected; at each line of stdin, once so many bytes have come
    to each, how many came to all, and its CPU time."""
    counts = Counter[int]()
    client = HttpsClient(url, user=USER, password=PASSWORD, tls=client_tls(pin=pin, ca=None))
    async with trio.open_nursery() as nursery:
        for number in range(count):
            counts[number] = 0
            await nursery.start(watch, client, farm, lambda more, to=number: counts.update({to: more}))
        print("ready", flush=True)
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            with trio.fail_after(60):
                while min(counts.values()) < int(line):  # noqa: ASYNC110 - they are counted as they come
                    await trio.sleep(0.05)
            print(json.dumps([counts.total(), time.process_time()]), flush=True)
        nursery.cancel_scope.cancel()


class Watching:
    """The watchers' process; `counted` asks it what has come."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process

    async def line(self) -> bytes:
        assert self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            more = await self._process.stdout.receive_some()
            assert more, "the watchers have ended"
            line += more
        return line

    async def counted(self, least_bytes: int) -> tuple[int, float]:
        """Bytes, and CPU time in seconds, once each watcher has this many."""
        assert self._process.stdin is not None
        await self._process.stdin.send_all(b"%d\n" % least_bytes)
        size_bytes, cpu_s = json.loads(await self.line())
        return size_bytes, cpu_s


@asynccontextmanager
async def watching(node: NodeProcess, farm: str, count: int) -> AsyncIterator[Watching]:
    """Watchers at this node, in a process of their own."""
    pin = pin_of_file(node.directory / "data" / "tls" / "node.crt")
    command = [sys.executable, "-m", "benchmarks.watchers", "--watch", str(node.url), pin, farm, str(count)]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(partial(trio.run_process, command, stdin=PIPE, stdout=PIPE))
        watchers = Watching(process)
        assert await watchers.line() == b"ready\n"
        yield watchers
        await process.stdin.aclose()


async def leader_and_commit(farm: ProcessFarm) -> tuple[int, int]:
    """The leader's id, and its commit index."""
    leader = await leader_of(farm.nodes[1], farm.name)
    return leader, (await status(farm.nodes[leader], farm.name))["commit"]


async def measure(rounds: int, seconds: float, count: int) -> bool:
    load = Load(OUTSTANDING, VALUE_BYTES, seconds)
    pairs: list[tuple[Sample, Sample]] = []
    sent_mb, watching_s, changed = 0.0, 0.0, 0
    async with bench_farm(FarmPlan(application="log", raft=FAST)) as farm:
        await run_driver(WARM_UP, farm)
        for _ in range(rounds):
            leader, _ = await leader_and_commit(farm)
            without = await run_driver(load, farm, [leader])
            _, index = await leader_and_commit(farm)
            async with watching(farm.nodes[leader], farm.name, count) as watchers:
                before = await watchers.counted(0)
                sample = await run_driver(load, farm, [leader])
                after = await watchers.counted(0)
                now, last_index = await leader_and_commit(farm)
                if now == leader:
                    await watchers.counted((last_index - index) * RECORD_BYTES)
            if now != leader:
                changed += 1
                continue
            pairs.append((without, sample))
            sent_mb += (after[0] - before[0]) / 1e6
            watching_s += after[1] - before[1]
    assert pairs, "the leader changed in each round"
    total_s = sum(sample.seconds for _, sample in pairs)
    return report(pairs, count, mb_s=sent_mb / total_s, watching_cores=watching_s / total_s, changed=changed)


def report(
    pairs: list[tuple[Sample, Sample]], count: int, *, mb_s: float, watching_cores: float, changed: int
) -> bool:
    goals = read_goals()
    rates = [sample.commits_per_s / without.commits_per_s for without, sample in pairs]
    cores = [
        (sample.nodes_cpu_us - without.nodes_cpu_us) * sample.commits_per_s / 1e6 for without, sample in pairs
    ]
    more: dict[str, Any] = {
        "watchers": count,
        "commits_per_s": [round(sample.commits_per_s) for _, sample in pairs],
        "without": [round(without.commits_per_s) for without, _ in pairs],
        "sent_mb_s": round(mb_s, 1),
        "watching_cores": round(watching_cores, 2),
        "other_leader": changed,
        "cores": os.cpu_count(),
    }
    ok = report_goal(goals, "watchers_rate_ratio", rates, **more)
    leader_us: dict[str, Any] = {
        "leader_us": [round(sample.nodes_cpu_us, 1) for _, sample in pairs],
        "without": [round(without.nodes_cpu_us, 1) for without, _ in pairs],
    }
    return report_goal(goals, "watchers_leader_cores", cores, watchers=count, **leader_us) and ok


def main() -> int:
    if sys.argv[1:2] == ["--watch"]:
        url, pin, farm, count = sys.argv[2:]
        trio.run(watch_all, url, pin, farm, int(count))
        return 0
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--watchers", type=int, default=WATCHERS)
    options = parser.parse_args()
    return 0 if trio.run(measure, options.rounds, options.seconds, options.watchers) else 1


if __name__ == "__main__":
    sys.exit(main())
