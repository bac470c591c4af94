"""The soak of a service: routers of the farm that publishes it are killed at random, one at a time.

Three nodes with a router each publish a site through I2CP; the nodes reach each other over loopback. A
router is killed every two minutes or so, whether it serves or not, and started again up to a minute later.
Three clients have routers of their own: two ask each second, one once a minute, as most visitors do.
Tells the availability of each, and what i2pd logged.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import trio

from garlicfarm.lab.i2pd import I2pdNetwork, I2pdRouter
from garlicfarm.lab.service import Service, i2cp_service
from garlicfarm.lab.site import Client
from tests.crash.crash_checks import Violation

ASKS_EACH_S = {"busy-1": 1.0, "busy-2": 1.0, "visitor": 60.0}
SERVED_S = 300.0
"""So long routers and farm have before the first client is served, and any client after the last kill."""
LIVES_S, DOWN_S = (60.0, 180.0), (5.0, 60.0)
LOOK_S = 1.0
MOST_KINDS = 20

_LINE = re.compile(r"[\d:]+@\d+/(warn|error|critical|fatal) - (.*)")
_VARIABLE = (
    (re.compile(r"(?<!\w)/\S+"), "PATH"),
    (re.compile(r"[\w~-]{40,}=*"), "HASH"),
    (re.compile(r"(?<![\w.])\d[\d.:]*\b"), "N"),
)

Tell = Callable[..., None]


class Killer:
    """Kills routers that serve, one at a time, and starts them again; starts those that end by themselves.
    ``kills``: how many there were. ``ended``: how many ended by themselves."""

    def __init__(self, network: I2pdNetwork, victims: Iterable[I2pdRouter], choice: random.Random) -> None:
        self._network = network
        self._victims = [each.id for each in victims]
        self._random = choice
        self._down: int | None = None
        self._order = trio.Lock()
        self.kills = self.ended = 0

    async def run(self) -> NoReturn:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_running)
            while True:
                await trio.sleep(self._random.uniform(*LIVES_S))
                async with self._order:
                    self._down = self._random.choice(self._victims)
                    self._network.kill(self._down)
                    self.kills += 1
                await trio.sleep(self._random.uniform(*DOWN_S))
                async with self._order:
                    await self._network.start(self._down)
                    self._down = None

    async def _keep_running(self) -> NoReturn:
        while True:
            for router in list(self._network):
                async with self._order:
                    if router.id != self._down and not self._network.is_running(router.id):
                        self.ended += 1
                        await self._network.start(router.id)
            await trio.sleep(LOOK_S)


def availability(client: Client, since_s: float, until_s: float) -> dict[str, float]:
    """Of the requests that began between these moments of Trio's clock: how many, how many had an answer,
    and the longest time without the end of one, s."""
    asked = [each for each in client.fetches if since_s <= each.began_s < until_s]
    moments = [each.ended_s for each in asked if each.text is not None]
    return {
        "requests": len(asked),
        "answered_percent": round(100 * len(moments) / len(asked), 2) if asked else 0.0,
        "longest_s": round(longest_gap(moments, since_s, until_s), 1),
    }


def longest_gap(moments: Iterable[float], begun: float, ended: float) -> float:
    """The longest time without one of the moments between ``begun`` and ``ended``, in s."""
    within = [moment for moment in sorted(moments) if begun < moment < ended]
    return max(after - before for before, after in pairwise([begun, *within, ended]))


def kinds(lines: Iterable[str]) -> Counter[str]:
    """How often i2pd logged each kind of warning and error: its words without names and numbers."""
    found: Counter[str] = Counter()
    for line in lines:
        if matched := _LINE.match(line):
            level, text = matched.groups()
            for pattern, word in _VARIABLE:
                text = pattern.sub(word, text)
            found[f"{level}: {text.strip()}"] += 1
    return found


def logged(service: Service) -> Mapping[str, int]:
    """The most frequent kinds, of all routers together."""
    texts = (router.data_dir.joinpath("i2pd.log").read_text(errors="replace") for router in service.network)
    return dict(kinds(line for text in texts for line in text.splitlines()).most_common(MOST_KINDS))


async def service_lives(directory: Path, minutes: float, seed: int, tell: Tell) -> None:
    """Raises `Violation` where a client is not served once all routers are back."""
    async with i2cp_service(directory, len(ASKS_EACH_S)) as (service, _):
        clients = {
            name: Client(router.proxy, service.host, each_s)
            for (name, each_s), router in zip(ASKS_EACH_S.items(), service.clients, strict=True)
        }
        killer = Killer(service.network, service.servers, random.Random(seed))
        async with trio.open_nursery() as nursery:
            for client in clients.values():
                nursery.start_soon(client.run)
            await wait_served(clients, "were never served")
            since_s = trio.current_time()
            with trio.move_on_after(60 * minutes):
                await killer.run()
            until_s = trio.current_time()
            for router in service.servers:
                if not service.network.is_running(router.id):
                    await service.network.start(router.id)
            for name, client in clients.items():
                tell("availability", client=name, **availability(client, since_s, until_s))
            tell("routers", seed=seed, kills=killer.kills, ended_by_themselves=killer.ended)
            tell("logged", kinds=logged(service))
            await wait_served(clients, "are no longer served")
            nursery.cancel_scope.cancel()


async def wait_served(clients: Mapping[str, Client], otherwise: str) -> None:
    waiting = set(clients)

    async def wait(name: str) -> None:
        await clients[name].wait_answered()
        waiting.remove(name)

    with trio.move_on_after(SERVED_S):
        async with trio.open_nursery() as nursery:
            for name in clients:
                nursery.start_soon(wait, name)
    if waiting:
        raise Violation(f"within {SERVED_S:g} s, clients {otherwise}: {', '.join(sorted(waiting))}")
