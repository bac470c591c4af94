"""A router plugin with defects costs figures, and never a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from garlicfarm.errors import NotSupported, RouterError
from garlicfarm.i2p.encoding import encode
from garlicfarm.node.guarded_router import AGAIN_S, GuardedRouter
from garlicfarm.router import DestinationStatus, RemoteStatus, Router, RouterStatus
from garlicfarm_plugin_simulated import SimulatedRouter
from tests.node.support.service_farm import service_farm

HASH = bytes(range(32))


class Log:
    """``errors``: what was logged as one."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def error(self, event: str, **fields: object) -> None:
        self.errors.append(f"{event}: {fields['cause']}")


class Scripted(Router):
    """Answers with what it is told to, or raises that. ``enters``: how often it was entered, and ``fails``:
    raised inside, once it is entered that often."""

    def __init__(self) -> None:
        super().__init__(None, Path())
        self.answer: Any = None
        self.enters = 0
        self.fails: dict[int, Exception] = {}

    async def __aenter__(self) -> Scripted:
        self.enters += 1
        if self.enters in self.fails:
            raise self.fails[self.enters]
        return self

    def _answer(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def get_local_router_status(self) -> RouterStatus:
        return self._answer()

    async def get_local_leaf_status(self, leaf: bytes) -> DestinationStatus:
        return self._answer()

    async def get_remote_measured_status(self, master_or_leaf: bytes) -> RemoteStatus | None:
        return self._answer()

    async def answer_tests(self) -> None:
        self._answer()


@pytest.fixture
def plugin() -> Scripted:
    return Scripted()


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
async def guarded(plugin: Scripted, log: Any, nursery: trio.Nursery) -> GuardedRouter:
    made = GuardedRouter(plugin, "scripted", log)
    nursery.start_soon(made.run)
    await made.is_tried.wait()
    return made


async def test_answers_and_what_a_plugin_may_raise_pass(guarded, plugin, log):
    plugin.answer = RouterStatus(uptime=5)
    assert await guarded.get_local_router_status() == RouterStatus(uptime=5)
    plugin.answer = RemoteStatus(hash=encode(HASH), fetch_time_ms=5)
    assert await guarded.get_remote_measured_status(HASH) == plugin.answer
    plugin.answer = None
    assert await guarded.get_remote_measured_status(HASH) is None
    for error in (RouterError("down"), NotSupported("never"), trio.TooSlowError()):
        plugin.answer = error
        with pytest.raises(type(error)) as raised:
            await guarded.get_local_router_status()
        assert raised.value is error
    assert log.errors == []


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (KeyError("bw"), "KeyError: 'bw'"),
        (ExceptionGroup("two", [ZeroDivisionError("by zero")]), "ZeroDivisionError: by zero"),
        (None, "TypeError: it answers with NoneType, not with RouterStatus"),
        (RouterStatus(uptime=-1), "Expected `int` >= 0"),
        (RouterStatus(uptime="long"), "Expected `int"),  # type: ignore[arg-type]
    ],
)
async def test_defect_is_told_once_and_counts_as_silence(guarded, plugin, log, answer, cause):
    plugin.answer = answer
    for _ in range(3):
        with pytest.raises(RouterError, match="the router plugin scripted has failed") as raised:
            await guarded.get_local_router_status()
    assert cause in str(raised.value)
    (told,) = log.errors
    assert told.startswith("router-defect: ")
    assert cause in told
    plugin.answer = RouterStatus(uptime=5)
    assert await guarded.get_local_router_status() == plugin.answer
    assert await guarded.answer_tests() is None
    plugin.answer = answer
    with pytest.raises(RouterError):
        await guarded.get_local_router_status()
    assert len(log.errors) == 2


async def test_method_that_fails_beside_one_that_answers_is_told_once(guarded, plugin, log):
    for _ in range(3):
        plugin.answer = RouterStatus(uptime=5)
        await guarded.get_local_router_status()
        plugin.answer = KeyError("bw")
        with pytest.raises(RouterError, match="has failed in get_local_leaf_status: KeyError"):
            await guarded.get_local_leaf_status(HASH)
    assert len(log.errors) == 1


async def test_answers_about_another_destination_are_defects(guarded, plugin, log):
    other = encode(bytes(32))
    plugin.answer = RemoteStatus(hash=other, fetch_time_ms=5)
    with pytest.raises(RouterError, match="about another destination"):
        await guarded.get_remote_measured_status(HASH)
    plugin.answer = DestinationStatus(destination=other)
    with pytest.raises(RouterError, match="about another destination"):
        await guarded.get_local_leaf_status(HASH)


async def test_what_it_says_of_itself_is_checked(guarded, plugin, log):
    assert (guarded.control, guarded.measures_served) == (None, False)
    plugin.control = HASH
    assert guarded.control == HASH
    plugin.control = "all"
    assert guarded.control is None
    assert len(log.errors) == 1


async def test_plugin_that_fails_as_it_is_entered_is_entered_again(plugin, log, nursery, autojump_clock):
    plugin.fails = {1: OSError("no such file"), 2: OSError("no such file")}
    plugin.answer = RouterStatus(uptime=5)
    made = GuardedRouter(plugin, "scripted", log)
    nursery.start_soon(made.run)
    await made.is_tried.wait()
    with pytest.raises(RouterError, match="OSError: no such file"):
        await made.get_local_router_status()
    await trio.sleep(2 * AGAIN_S + 1)
    assert await made.get_local_router_status() == plugin.answer
    assert plugin.enters == 3
    assert len(log.errors) == 1


async def test_nodes_go_on_without_the_figures_of_a_plugin_that_fails(tmp_path, monkeypatch):
    asked = 0

    async def fail(router: SimulatedRouter) -> RouterStatus:
        nonlocal asked
        asked += 1
        raise KeyError("bw")

    monkeypatch.setattr(SimulatedRouter, "get_local_router_status", fail)
    async with service_farm(tmp_path, monkeypatch) as farm:
        await farm.publisher()
        assert asked >= 3
        assert all(farm.fold().newest(member)[1].router is None for member in (1, 2, 3))
