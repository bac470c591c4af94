"""The faults, by kind: each strikes, holds for a moment, and heals what it did."""

from __future__ import annotations

import random
import signal
from collections.abc import Awaitable, Callable, Sequence
from itertools import product
from typing import NamedTuple

import trio

from garlicfarm.lab.tun_network import LinkFaults
from tests.chaos.chaos_farm import ChaosFarm
from tests.chaos.descriptors import starve
from tests.chaos.disk_hangs import hang_disks
from tests.chaos.endless import endless
from tests.chaos.extreme_numbers import extreme_numbers
from tests.chaos.flood import flood

Strike = Callable[[ChaosFarm, random.Random], Awaitable[str]]


class Kind(NamedTuple):
    """``needs``: the pytest marker of what a machine may lack (network
    namespaces, FUSE), or nothing. What ``strike`` returns says what
    it did, for people."""

    needs: str
    strike: Strike


def draw(kinds: Sequence[str], faults: int, seed: int) -> list[str]:
    """So many faults in an order of the seed's, every kind about equally often."""
    rnd = random.Random(seed)
    drawn: list[str] = []
    while len(drawn) < faults:
        drawn += rnd.sample(kinds, len(kinds))
    return drawn[:faults]


def _hold_s(rnd: random.Random, longest: float = 3.0) -> float:
    """Below and above what an election takes."""
    return round(rnd.uniform(0.3, longest), 1)


async def _leader_first(farm: ChaosFarm, rnd: random.Random) -> list[int]:
    """All nodes, the leader and then the others in some order."""
    leader = await farm.who_leads()
    others = [node for node in farm.nodes if node != leader]
    return [leader, *rnd.sample(others, len(others))]


async def _victims(farm: ChaosFarm, rnd: random.Random, *numbers: int) -> list[int]:
    """One of these numbers of nodes (0: all), mostly with the leader among them."""
    nodes = await _leader_first(farm, rnd)
    number = rnd.choice(numbers) or len(nodes)
    return nodes[:number] if number == len(nodes) or rnd.random() < 0.6 else nodes[1 : number + 1]


def _list(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))


# The network


async def _cut_apart(farm: ChaosFarm, some: Sequence[int], for_s: float) -> str:
    rest = [node for node in farm.nodes if node not in some]
    cut = [*product(some, rest), *product(rest, some)]
    await farm.break_links(LinkFaults(cut=cut), for_s)
    return f"{_list(some)} apart from {_list(rest)} for {for_s} s"


async def _halves(farm: ChaosFarm, rnd: random.Random) -> str:
    return await _cut_apart(farm, rnd.sample(farm.nodes, len(farm.nodes) // 2), _hold_s(rnd))


async def _isolate_leader(farm: ChaosFarm, rnd: random.Random) -> str:
    return await _cut_apart(farm, (await _leader_first(farm, rnd))[:1], _hold_s(rnd))


async def _isolate_one(farm: ChaosFarm, rnd: random.Random) -> str:
    return await _cut_apart(farm, [rnd.choice((await _leader_first(farm, rnd))[1:])], _hold_s(rnd))


async def _one_way(farm: ChaosFarm, rnd: random.Random) -> str:
    nodes, for_s = await _leader_first(farm, rnd), _hold_s(rnd)
    one = nodes.pop(0 if rnd.random() < 0.5 else 1)
    heard_by = nodes if rnd.random() < 0.7 else nodes[:1]
    if rnd.random() < 0.5:
        cut = [(one, other) for other in heard_by]
        what = f"nothing from {one} reaches {_list(heard_by)}"
    else:
        cut = [(other, one) for other in heard_by]
        what = f"nothing from {_list(heard_by)} reaches {one}"
    await farm.break_links(LinkFaults(cut=cut), for_s)
    return f"{what} for {for_s} s"


async def _delay(farm: ChaosFarm, rnd: random.Random) -> str:
    faults = LinkFaults(delay_s=round(rnd.uniform(0.01, 0.15), 3), jitter_s=round(rnd.uniform(0, 0.2), 3))
    for_s = _hold_s(rnd)
    await farm.break_links(faults, for_s)
    late = f"{faults.delay_s * 1000:.0f} to {(faults.delay_s + faults.jitter_s) * 1000:.0f} ms"
    return f"packets {late} late for {for_s} s"


async def _loss(farm: ChaosFarm, rnd: random.Random) -> str:
    faults = LinkFaults(loss=round(rnd.uniform(0.05, 0.4), 2), double=round(rnd.uniform(0, 0.2), 2))
    for_s = _hold_s(rnd)
    lost = await farm.break_links(faults, for_s)
    return f"{faults.loss:.0%} lost ({lost} packets), {faults.double:.0%} doubled for {for_s} s"


# Processes


async def _pause(farm: ChaosFarm, rnd: random.Random) -> str:
    victims, for_s = await _victims(farm, rnd, 1, 1, 2), _hold_s(rnd)
    farm.signal(signal.SIGSTOP, victims)
    try:
        await trio.sleep(for_s)
    finally:
        farm.signal(signal.SIGCONT, victims)
    return f"{_list(victims)} stopped for {for_s} s"


async def _kill(farm: ChaosFarm, rnd: random.Random) -> str:
    victims, for_s = await _victims(farm, rnd, 1, 1, 1, 2, 0), _hold_s(rnd, 1.5)
    await farm.kill(victims)
    await trio.sleep(for_s)
    await farm.start(victims)
    return f"{_list(victims)} killed, down for {for_s} s"


async def _clock(farm: ChaosFarm, rnd: random.Random) -> str:
    victims = await _victims(farm, rnd, 1, 1, 2, 0)
    off_s = rnd.choice((-1, 1)) * round(10 ** rnd.uniform(0, 8.5))
    await farm.progress()
    for victim in victims:
        farm.clocks[victim].off_s = off_s
    await farm.until("nothing was committed while clocks were wrong", farm.progress)
    await trio.sleep(_hold_s(rnd, 1.5))
    for victim in victims:
        farm.clocks[victim].off_s = 0.0
    return f"wall clock of {_list(victims)} jumped by {off_s} s and back"


async def _descriptors(farm: ChaosFarm, rnd: random.Random) -> str:
    victims, for_s = await _victims(farm, rnd, 1, 1, 2, 0), _hold_s(rnd)
    connections = await starve(farm, victims, for_s)
    return f"{connections} plain connections to {_list(victims)}, without any descriptor left for {for_s} s"


# Disks


async def _full(farm: ChaosFarm, rnd: random.Random) -> str:
    victims = await _victims(farm, rnd, 1, 1, 2)
    await farm.fail_disks(victims, "full", _hold_s(rnd, 1.0))
    await farm.start(victims)
    return f"no space for {_list(victims)}, which ended and started again"


async def _sync_error(farm: ChaosFarm, rnd: random.Random) -> str:
    victims = await _victims(farm, rnd, 1, 1, 1 + len(farm.nodes) // 2, 0)
    await farm.fail_disks(victims, "sync", _hold_s(rnd, 1.0))
    then = ""
    if rnd.random() < 0.7:  # what the failed sync dropped was readable until now
        lost = await farm.lose_unsynced(victims, 0.0, rnd.getrandbits(32))
        then = f", lost {lost} unsynced changes"
    await farm.start(victims)
    return f"a sync failed at {_list(victims)}, which ended{then} and started again"


async def _hang(farm: ChaosFarm, rnd: random.Random) -> str:
    victims = await _victims(farm, rnd, 1, 1, (len(farm.nodes) - 1) // 2)
    led = await hang_disks(farm, victims, _hold_s(rnd))
    return f"disks of {_list(victims)} hung; meanwhile {led} led"


async def _power(farm: ChaosFarm, rnd: random.Random) -> str:
    victims = await _victims(farm, rnd, 1, 1, 2, 0)
    await farm.kill(victims)
    lost = await farm.lose_unsynced(victims, rnd.choice((0.0, 0.0, 0.5)), rnd.getrandbits(32))
    await trio.sleep(_hold_s(rnd, 1.0))
    await farm.start(victims)
    return f"power cut at {_list(victims)}, {lost} changes were unsynced"


KINDS = {
    "halves": Kind("netns", _halves),
    "isolate-leader": Kind("netns", _isolate_leader),
    "isolate-one": Kind("netns", _isolate_one),
    "one-way": Kind("netns", _one_way),
    "delay": Kind("netns", _delay),
    "loss": Kind("netns", _loss),
    "pause": Kind("", _pause),
    "kill": Kind("", _kill),
    "clock": Kind("", _clock),
    "full": Kind("fuse", _full),
    "sync-error": Kind("fuse", _sync_error),
    "disk-hangs": Kind("fuse", _hang),
    "power": Kind("fuse", _power),
    "flood": Kind("", flood),
    "endless-message": Kind("", endless),
    "descriptors": Kind("", _descriptors),
    "extreme-numbers": Kind("", extreme_numbers),
}
