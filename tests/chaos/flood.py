"""A fault that needs no broken machine: users who flood a farm with the most costly documents there are.

The chaos farm's application judges nothing, so this strikes a farm of its own beside it, of application
``publisher``. Its leader has to lead on, in its term, and a user who posts one note after the other, to any
node, has to get each of them committed. How fast is left to the machine.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import TYPE_CHECKING

import trio

from garlicfarm.client.farm import FarmClient, open_farm_client
from garlicfarm.credentials.users import UserStore
from garlicfarm.errors import NoQuorum, OutcomeUnknown, ProposalDropped
from garlicfarm.lab.processes import ProcessFarm, process_farm
from garlicfarm.setup.provision import FarmPlan
from tests.crash.crash_checks import Violation
from tests.crash.crash_client import PASSWORD
from tests.crash.watched_farm import WatchedFarm

if TYPE_CHECKING:
    from tests.chaos.chaos_farm import ChaosFarm

NODES = 3
USERS = 4
CONNECTIONS = 4  # of each user
POSTS = 4  # that each connection has outstanding
MESSAGE_BYTES = 1_000_000
QUIET_NOTES = 5  # the flood lasts until so many are committed
EMPTY_OBJECTS = 2_000  # 4,096 values are allowed, an empty object counts twice


class _FloodedFarm(WatchedFarm):
    """Whose answers may take their time, on a busy machine."""

    patience_s = 90.0
    ask_s = 30.0


async def flood(chaos: ChaosFarm, rnd: random.Random) -> str:
    """Strike as `faults.Kind` says."""
    directory = chaos.directory / f"flood-{rnd.getrandbits(64):x}"
    directory.mkdir()
    async with process_farm(directory / "farm", NODES, FarmPlan(), start=False) as processes:
        for node in processes.nodes.values():
            users = UserStore(node.directory / "data" / "users")
            for number in range(USERS):
                users.add(f"flood{number}", "writer", PASSWORD)
        farm = _FloodedFarm(processes, directory, rnd)
        await farm.start(processes.nodes)
        await farm.until("there was no leader", farm.leader)
        await farm.until("no note was committed", farm.post_fresh)
        before = await _leads(farm)
        committed = await _flooded(farm, processes, before)
        _, states = await farm.settle()
        if len({*states.values()}) != 1:
            raise Violation("after the flood, nodes have different states at one index")
    return f"{committed} requests of a flood committed at member {before[0]}, which led on"


async def _leads(farm: WatchedFarm) -> tuple[int, int]:
    """The leader and its term, as it says itself."""
    leader = await farm.until("there was no leader", farm.leader)
    node = farm.farm.nodes[leader]
    status = await farm.until("the leader did not answer", lambda: farm.ask(node, lambda c: c.status("farm")))
    return leader, status["term"]


async def _flooded(farm: WatchedFarm, processes: ProcessFarm, before: tuple[int, int]) -> int:
    """Flood until the quiet user has had its notes committed; how many requests were committed meanwhile.
    ``before``: the leader and its term, which have to stay."""
    numbers, committed, told = itertools.count(), 0, Counter[str]()

    async def post(client: FarmClient, user: str) -> None:
        nonlocal committed
        while True:
            try:
                await client.post(_documents(user, next(numbers)))
            except (OutcomeUnknown, NoQuorum, ProposalDropped) as error:
                told[type(error).__name__] += 1
                continue  # it is too much at a time, and the flood goes on
            committed += 1

    async def begun() -> int | None:
        return committed or None

    async def connection(user: str) -> None:
        async with (
            open_farm_client(
                processes.endpoints,
                farm="farm",
                user=user,
                password=PASSWORD,
                farm_id=processes.farm_id,
            ) as client,
            trio.open_nursery() as posts,
        ):
            for _ in range(POSTS):
                posts.start_soon(post, client, user)

    async with trio.open_nursery() as nursery:
        for user in range(USERS):
            for _ in range(CONNECTIONS):
                nursery.start_soon(connection, f"flood{user}")
        try:
            await farm.until("none of the flood was committed", begun)
        except Violation as error:
            raise Violation(f"{error}: {told}") from error
        for _ in range(QUIET_NOTES):
            await farm.until("under the flood, no quiet note was committed", farm.post_fresh)
            if (after := await _leads(farm)) != before:
                raise Violation(f"under the flood, leader and term went from {before} to {after}")
        nursery.cancel_scope.cancel()
    return committed


def _documents(user: str, number: int) -> list[bytes]:
    """A request of notes that take as long to judge as notes may."""
    empty = b",".join([b"{}"] * EMPTY_OBJECTS)
    form = b'{"cluster":"farm","date":1,"id":0,"config":{"by":"%b","number":%d,"x":[%b]}}'
    note = form % (user.encode(), number, empty)
    return [note] * (MESSAGE_BYTES // (len(note) + 13))
