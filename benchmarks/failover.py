"""The pause of the commits of a farm of three when its leader is killed.

Three processes with TLS and fsync, election timeout 0.4 to 1.4 s; a client posts one entry after the other
and follows the leader. The leader gets SIGKILL, and the time runs until the client gets the first
acknowledgement of a later term: detection, election, search for the new leader, commit. Then the node is
started again, and the next round begins when all three have caught up.

Prints one JSON line; exit code 1 if the median is above 1.5 s. Run by `make bench`.
"""

from __future__ import annotations

import argparse
import sys

import trio

from benchmarks.bench_farm import (
    QUICK,
    VALUE_BYTES,
    RetryingClient,
    bench_farm,
    percentile,
    report,
    retrying_client,
)
from garlicfarm.lab.processes import ProcessFarm
from garlicfarm.setup.provision import FarmPlan

P50_AT_MOST_S = 1.5
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
        seen = []
        for node in farm.nodes.values():
            async with node.client() as client:
                seen.append(await client.status(farm.name))
        (leader, term), *others = {(status["leader"], status["term"]) for status in seen}
        level = committed is not None and all(status["applied"] >= committed for status in seen)
        if leader and level and not others:
            return leader, term
        committed = max(status["commit"] for status in seen)
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


async def measure(kills: int) -> bool:
    times = []
    async with (
        bench_farm(FarmPlan(application="log", raft=QUICK)) as farm,
        retrying_client(farm.endpoints, farm.farm_id) as client,
    ):
        posts = Posts(client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(posts.run)
            for _ in range(kills):
                with trio.fail_after(ROUND_TIMEOUT_S):
                    times.append(await failover_s(farm, posts))
            nursery.cancel_scope.cancel()
    p50 = percentile(times, 0.5)
    return report(
        "failover_p50_s",
        p50,
        P50_AT_MOST_S,
        kills=kills,
        p90_s=round(percentile(times, 0.9), 3),
        max_s=round(max(times), 3),
        election_timeout_s=[QUICK["election_timeout_min_s"], QUICK["election_timeout_max_s"]],
        acknowledged=posts.acknowledged,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    return 0 if trio.run(measure, parser.parse_args().kills) else 1


if __name__ == "__main__":
    sys.exit(main())
