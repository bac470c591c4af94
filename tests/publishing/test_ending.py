"""A member lets go in order: told, handed over, followed, and only then the end; or at a bound."""

from __future__ import annotations

from typing import Any

import pytest

from garlicfarm.publishing.ending import JAVA_LINGER_MS, LINGER_MS, Ending, Situation

BOUND_MS = 40_000


class Drawn:
    """An ending and its situation, which a test changes step by step; at first a member of several that
    publishes."""

    def __init__(self, **now: int) -> None:
        self.ending = Ending()
        self.now: dict[str, Any] = {
            "is_told": False,
            "is_free": False,
            "others_can": True,
            "others_drain": False,
            "is_followed": False,
            "linger_ms": 0,
        } | now

    def step(self, now_ms: int = 0, **now: int) -> tuple[str, bool]:
        self.now |= now
        self.ending.step(now_ms, Situation(**self.now))
        return self.ending.state, self.ending.is_aside


def stopping(**now: int) -> Drawn:
    drawn = Drawn(**now)
    drawn.ending.stop(0, BOUND_MS)
    return drawn


def test_drained_member_stands_aside_while_another_one_can_and_comes_back() -> None:
    drawn = Drawn()
    assert drawn.step() == ("serving", False)
    drawn.ending.drain(True)
    assert drawn.step() == ("drained", True)
    assert drawn.step(10**9, others_can=False) == ("drained", False)  # the last one that can publish does
    assert drawn.step(10**9, others_can=True) == ("drained", True)
    drawn.ending.drain(False)
    assert drawn.step() == ("serving", False)
    assert not drawn.ending.is_draining


@pytest.mark.parametrize("linger_ms", [LINGER_MS, JAVA_LINGER_MS, 0])
def test_stop_ends_once_the_successor_publishes_and_clients_know(linger_ms: int) -> None:
    drawn = stopping()
    assert drawn.step() == ("telling", True)
    assert drawn.step(is_free=True) == ("telling", True)  # it is told first
    assert drawn.step(is_free=False, is_told=True) == ("handing over", True)
    assert drawn.step(is_followed=True) == ("handing over", True)
    assert drawn.step(is_followed=False, is_free=True) == ("succeeding", True)
    assert not drawn.ending.is_final
    assert drawn.step(1000, is_followed=True, linger_ms=linger_ms)[0] == "lingering"
    if linger_ms:
        assert drawn.step(1000 + linger_ms - 1)[0] == "lingering"
    assert drawn.step(1000 + linger_ms) == ("over", True)
    assert drawn.ending.is_final


@pytest.mark.parametrize("is_told", [True, False])
def test_stop_without_a_successor_is_released_at_three_quarters_of_the_bound(is_told: bool) -> None:
    drawn = stopping(is_told=is_told)
    drawn.step()
    assert drawn.step(BOUND_MS * 3 // 4 - 1)[0] in ("telling", "handing over")
    assert drawn.step(BOUND_MS * 3 // 4) == ("releasing", True)
    assert drawn.ending.is_final  # it publishes nothing any more, whatever the farm says
    assert drawn.step(BOUND_MS - 1, is_free=is_told)[0] == ("over" if is_told else "releasing")
    assert drawn.step(BOUND_MS)[0] == "over"


def test_successor_that_does_not_publish_is_waited_for_until_the_bound_for_it() -> None:
    drawn = stopping(is_told=True, is_free=True)
    assert [drawn.step()[0], drawn.step()[0]] == ["handing over", "succeeding"]
    assert drawn.step(BOUND_MS * 3 // 4 - 1)[0] == "succeeding"
    assert drawn.step(BOUND_MS * 3 // 4)[0] == "over"


@pytest.mark.parametrize("is_told", [True, False])
def test_stop_does_not_wait_where_nobody_is_left_to_take_over(is_told: bool) -> None:
    drawn = stopping(is_told=is_told, others_can=False, others_drain=True)
    assert drawn.step() == ("releasing", True)
    assert drawn.step(is_told=True, is_free=True)[0] == "over"


def test_stop_waits_for_a_quorum_while_another_member_could_take_over() -> None:
    assert stopping(others_drain=True).step() == ("telling", True)


def test_stop_waits_for_another_member_that_may_come() -> None:
    drawn = stopping(is_told=True, others_can=False)
    assert drawn.step() == ("handing over", False)  # and publishes meanwhile
    assert drawn.step(others_can=True) == ("handing over", True)


def test_drained_member_that_stops_goes_the_same_way_and_once() -> None:
    drawn = Drawn(is_told=True, is_free=True, is_followed=True)
    drawn.ending.drain(True)
    drawn.ending.stop(0, BOUND_MS)
    seen: list[Any] = [drawn.step()[0] for _ in range(4)]
    assert seen == ["handing over", "succeeding", "lingering", "over"]
    drawn.ending.stop(5, BOUND_MS)
    drawn.ending.drain(False)
    assert drawn.step() == ("over", True)
