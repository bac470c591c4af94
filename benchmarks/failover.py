"""The pause of the commits of a farm of three when its leader is lost, with the preset `clearnet`.

Three processes with TLS and fsync; a client posts one entry after the other and follows the leader.

* By default the leader gets SIGKILL, and the time runs until the client gets the first acknowledgement of a
  later term: detection, election, search for the new leader, commit. Then the node is started again.
* ``--silent``: it gets SIGSTOP, as if its machine had lost power: no connection ends, and nothing is refused.
  At that moment three clients post an entry: a `FarmClient` that is connected to the silent leader, one that
  has no connection yet (the others still name the silent leader to it), and an `AdminClient` that is
  connected to that node. The time of each runs until it has an acknowledgement; a post whose outcome is
  unknown is repeated. Then the process goes on.

The next round begins when all three have caught up. Prints JSON lines; exit code 1 if one misses its goal
(``goals.toml``). Run by `make bench`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio

from benchmarks.bench_farm import (
    PASSWORD,
    USER,
    VALUE_BYTES,
    RetryingClient,
    bench_farm,
    command_line,
    percentile,
    retrying_client,
    status,
)
from benchmarks.goals import read_goals, report_goal
from garlicfarm.client import AdminClient
from garlicfarm.credentials.certificates import pin_of_file
from garlicfarm.lab.processes import ProcessFarm
from garlicfarm.setup.provision import FarmPlan

ROUND_TIMEOUT_S = 60.0
STEADY_S = 0.5


class Posts:
    """Posts one entry after the other, and stores the term of the last acknowledged one."""

    def __init__(self, client: RetryingClient) -> None:
        self._client = client
        self._acknowledged = trio.Event()
        self.term = 0
        self.acknowledged = 0

    async def run(self) -> None:
        while True:
            _, self.term = await self._client.post([bytes(VALUE_BYTES)])
            self.acknowledged += 1
            acknowledged, self._acknowledged = self._acknowledged, trio.Event()
            acknowledged.set()

    async def later_term(self, term: int) -> None:
        """Wait until an entry of a term above ``term`` is acknowledged."""
        while self.term <= term:
            await self._acknowledged.wait()


async def leader_of_all(farm: ProcessFarm) -> tuple[int, int]:
    """(leader, term), once all nodes name the same and have applied everything committed before."""
    committed: int | None = None
    while True:
        seen = [await status(node, farm.name) for node in farm.nodes.values()]
        (leader, term), *others = {(each["leader"], each["term"]) for each in seen}
        level = committed is not None and all(each["applied"] >= committed for each in seen)
        if leader and level and not others:
            return leader, term
        committed = max(each["commit"] for each in seen)
        await trio.sleep(0.05)


async def failover_s(farm: ProcessFarm, posts: Posts) -> float:
    leader, term = await leader_of_all(farm)
    await posts.later_term(term - 1)
    await trio.sleep(STEADY_S)
    begun = trio.current_time()
    await farm.kill(leader)
    await posts.later_term(term)
    took = trio.current_time() - begun
    await farm.start(leader)
    return took


SILENT_FIGURES = ("failover_connected_p50_s", "failover_silent_p50_s", "failover_admin_p50_s")


@asynccontextmanager
async def retrying_admin_client(farm: ProcessFarm, first: int) -> AsyncIterator[RetryingClient]:
    """The same over the admin API, which asks the node ``first`` first."""
    urls = [
        f"{node.url}?pin={pin_of_file(node.directory / 'data' / 'tls' / 'node.crt')}"
        for node in sorted(farm.nodes.values(), key=lambda node: node.id != first)
    ]
    async with AdminClient(urls, user=USER, password=PASSWORD) as client:
        yield RetryingClient(partial(client.post, farm.name))


async def silence_s(farm: ProcessFarm) -> Sequence[float]:
    """One value for each of the `SILENT_FIGURES`."""
    leader, _ = await leader_of_all(farm)
    process = farm.nodes[leader].process
    assert process is not None
    entry = bytes(VALUE_BYTES)
    endpoints = {
        node: farm.endpoints[node] for node in sorted(farm.endpoints, key=lambda node: node == leader)
    }
    took: dict[str, float] = {}

    async def measure(figure: str, post: Callable[[], Awaitable[object]]) -> None:
        await post()
        took[figure] = trio.current_time() - begun

    async with (
        retrying_client(endpoints, farm.farm_id) as connected,
        retrying_client(endpoints, farm.farm_id) as new,
        retrying_admin_client(farm, leader) as admin,
    ):
        posts = (partial(connected.post, [entry]), partial(new.post, [entry]), partial(admin.post, entry))
        for post in (posts[0], posts[2]):
            await post()
        await trio.sleep(STEADY_S)
        process.send_signal(signal.SIGSTOP)
        begun = trio.current_time()
        try:
            async with trio.open_nursery() as nursery:
                for figure, post in zip(SILENT_FIGURES, posts, strict=True):
                    nursery.start_soon(measure, figure, post)
        finally:
            process.send_signal(signal.SIGCONT)
    return [took[figure] for figure in SILENT_FIGURES]


async def measure_silence(rounds: int) -> bool:
    """Of a leader that falls silent."""
    times = []
    async with bench_farm(FarmPlan(application="log")) as farm:
        for _ in range(rounds):
            with trio.fail_after(ROUND_TIMEOUT_S):
                times.append(await silence_s(farm))
    goals = read_goals()
    are_met = [
        report_goal(goals, figure, each, p90_s=round(percentile(each, 0.9), 3), max_s=round(max(each), 3))
        for figure, each in zip(SILENT_FIGURES, zip(*times, strict=True), strict=True)
    ]
    return all(are_met)


async def measure(kills: int) -> bool:
    """Of a leader that is killed."""
    times = []
    async with (
        bench_farm(FarmPlan(application="log")) as farm,
        retrying_client(farm.endpoints, farm.farm_id) as client,
    ):
        posts = Posts(client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(posts.run)
            for _ in range(kills):
                with trio.fail_after(ROUND_TIMEOUT_S):
                    times.append(await failover_s(farm, posts))
            nursery.cancel_scope.cancel()
    goals = read_goals()
    is_usually_short = report_goal(
        goals,
        "failover_p50_s",
        times,
        p90_s=round(percentile(times, 0.9), 3),
        acknowledged=posts.acknowledged,
    )
    return report_goal(goals, "failover_max_s", [max(times)], kills=kills) and is_usually_short


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--kills", type=int, default=20, help="how often the leader is lost (default 20)")
    parser.add_argument("--silent", action="store_true", help="stop its process instead of killing it")
    options = parser.parse_args()
    return 0 if trio.run(measure_silence if options.silent else measure, options.kills) else 1


if __name__ == "__main__":
    sys.exit(main())
