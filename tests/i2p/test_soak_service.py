"""The soak of a service kills, counts and judges as it says; its routers are made up."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
import trio.testing

from garlicfarm.lab.site import Client, Fetch
from tests.crash.crash_checks import Violation
from tests.i2p import soak_service
from tests.i2p.soak_service import DOWN_S, LIVES_S, Killer, availability, kinds


class Router:
    def __init__(self, number: int) -> None:
        self.id = number


class Routers(list[Router]):
    """A network of routers that start within 3 s, and what happened to them."""

    def __init__(self) -> None:
        super().__init__(map(Router, range(1, 6)))
        self.down: set[int] = set()
        self.told: list[tuple[str, int]] = []

    def is_running(self, router_id: int) -> bool:
        return router_id not in self.down

    def kill(self, router_id: int) -> None:
        assert not self.down, "two at a time"
        self.down.add(router_id)
        self.told.append(("kill", router_id))

    async def start(self, router_id: int) -> None:
        assert router_id in self.down
        await trio.sleep(3)
        self.down.remove(router_id)
        self.told.append(("start", router_id))


@pytest.fixture
def routers() -> Any:
    return Routers()


async def test_routers_die_one_at_a_time_and_come_back(routers, autojump_clock):
    killer = Killer(routers, routers[:3], random.Random(1))
    with trio.move_on_after(3600):
        await killer.run()
    assert {victim for _, victim in routers.told} == {1, 2, 3}
    assert killer.kills >= 3600 // (LIVES_S[1] + DOWN_S[1] + 3) > 10
    assert killer.ended == 0
    pairs = list(zip(routers.told[::2], routers.told[1::2], strict=False))
    assert all(killed == ("kill", back[1]) and back[0] == "start" for killed, back in pairs)


async def test_router_that_ends_by_itself_is_started_and_counted(routers, nursery, autojump_clock):
    killer = Killer(routers, routers[:3], random.Random(1))
    nursery.start_soon(killer.run)
    await trio.sleep(10)
    routers.down.add(5)
    await trio.sleep(10)
    assert routers.told == [("start", 5)]
    assert (killer.kills, killer.ended) == (0, 1)


def test_availability_counts_the_requests_that_began_between() -> None:
    client = Client("http://127.0.0.1:1", "site.b32.i2p")
    assert availability(client, 10.0, 20.0) == {"requests": 0, "answered_percent": 0.0, "longest_s": 10.0}
    for began_s, text in ((9.0, None), (11.0, "node 1"), (12.0, None), (17.0, "node 2"), (20.0, None)):
        client.fetches.append(Fetch(began_s, began_s + 0.5, text))
    assert availability(client, 10.0, 20.0) == {"requests": 3, "answered_percent": 66.67, "longest_s": 6.0}


def test_kinds_leave_out_names_and_numbers() -> None:
    lines = [
        "12:12:40@780/none - i2pd v2.45.1 (0.9.57) starting...",
        "12:12:41@780/warn - SSU2: Session with 198.18.0.12:12345 was not established after 5 seconds",
        "12:12:42@12/warn - SSU2: Session with 198.18.0.13:12345 was not established after 5 seconds",
        "12:12:43@12/error - Profiling: No profile yet for e8Rxt5lgeBeRNTTg8GIB-xT~mWk-tNJySlNd8pYNhO8=",
        "12:12:43@12/error - Reseed: Can't load reseed certificates from /tmp/a-1/certs/reseed",
        "12:12:43@12/info - NetDb: LeaseSet2 updated: abc",
        "a line of another program",
    ]
    assert kinds(lines) == {
        "warn: SSU2: Session with N was not established after N seconds": 2,
        "error: Profiling: No profile yet for HASH": 1,
        "error: Reseed: Can't load reseed certificates from PATH": 1,
    }


async def test_client_that_is_not_served_any_more_is_a_violation(nursery, monkeypatch, autojump_clock):
    monkeypatch.setattr(soak_service, "SERVED_S", 20.0)
    served, lonely = (Client("http://127.0.0.1:1", "site.b32.i2p") for _ in range(2))

    async def serve(client: Client) -> None:
        await trio.sleep(5)
        client.fetches.append(Fetch(trio.current_time() - 1, trio.current_time(), "node 1"))

    nursery.start_soon(serve, served)
    with pytest.raises(Violation, match="are no longer served: lonely"):
        await soak_service.wait_served({"served": served, "lonely": lonely}, "are no longer served")
    nursery.start_soon(serve, served)
    nursery.start_soon(serve, lonely)
    await soak_service.wait_served({"served": served, "lonely": lonely}, "are no longer served")
