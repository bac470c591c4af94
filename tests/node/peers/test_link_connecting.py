"""How a link is let in: in time, over a second stream beside one that leads nowhere, or told why not."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from garlicfarm.errors import (
    AuthError,
    UnreachableError,
)
from garlicfarm.net.handshake import Established
from garlicfarm.net.link import RpcClient
from tests.node.support.link_in_memory import (
    POST,
    TIMEOUT_S,
    VOTE,
    Clock,
    Told,
    config,
    link,
)
from tests.running import background, wait_until


async def test_connecting_has_the_same_deadline(autojump_clock: Clock) -> None:
    told, begun = Told(), list[float]()

    async def connect() -> Established:
        begun.append(trio.current_time())
        await trio.sleep_forever()
        raise AssertionError

    under_test = link(connect, told)
    async with background(under_test.run):
        await trio.sleep(1.9)
        under_test.send(1, VOTE)
        await trio.sleep(0.3)
    assert begun == [pytest.approx(when) for when in (0, TIMEOUT_S / 3, TIMEOUT_S * 2 / 3, 2.1)]
    assert told.failures == [(1, False)]
    (change,) = told.changes
    assert change.startswith("UnreachableError: not let in within 2 s; is that node up?")


async def test_refusals_that_come_too_late_do_not_hide_the_first(autojump_clock: Clock) -> None:
    told, attempts = Told(), 0

    async def connect() -> Established:
        nonlocal attempts
        attempts += 1
        await trio.sleep(0.25 if attempts == 1 else 2 * TIMEOUT_S)
        raise AuthError("b refused user '1'")

    under_test = link(connect, told)
    async with background(under_test.run):
        await trio.sleep(2 * TIMEOUT_S)
    first, then = told.changes
    assert first == "AuthError: b refused user '1'"
    assert then == "UnreachableError: not let in within 2 s; before that, b refused user '1'"


async def test_link_keeps_what_the_server_told_when_it_let_it_in_last(autojump_clock: Clock) -> None:
    told, tells = Told(), iter([(1, 2, 3), (4, 5, 6), None])

    async def connect() -> Established:
        ours, _ = trio.testing.memory_stream_pair()
        return Established(ours, "farm", "1", frozenset(), None, None, b"", told=next(tells))

    under_test = link(connect, told)
    assert under_test.told is None
    async with background(under_test.run):
        await wait_until(lambda: under_test.connected)
        for expected in ((1, 2, 3), (4, 5, 6), None):
            assert under_test.told == expected
            if expected is not None:
                await under_test.try_handshake()


def opens_after(*seconds: float) -> tuple[Callable[[], Awaitable[Established]], list[trio.abc.Stream]]:
    """A server whose n-th stream is let in after so long, or, inf, never; and its ends of the streams."""
    far: list[trio.abc.Stream] = []

    async def connect() -> Established:
        ours, theirs = trio.testing.memory_stream_pair()
        far.append(theirs)
        try:
            await trio.sleep(seconds[len(far) - 1])
        except trio.Cancelled:
            await ours.aclose()
            raise
        return Established(ours, "farm", "1", frozenset(), None, None, b"")

    return connect, far


@pytest.mark.parametrize(
    ("let_in_after", "up_at", "taken"),
    [
        ((0.1,), 0.1, 0),
        ((math.inf, 0.1), TIMEOUT_S / 3 + 0.1, 1),
        ((math.inf, math.inf, 0.1), TIMEOUT_S * 2 / 3 + 0.1, 2),
        ((1.5, math.inf, math.inf), 1.5, 0),  # slow, but there: what was begun after it is let go
        ((1.0, 1.0, 1.0), 1.0, 0),
        ((math.inf, TIMEOUT_S, math.inf, 0.1), TIMEOUT_S + 0.2, 3),  # all in vain, and again
    ],
)
async def test_stream_that_leads_nowhere_costs_a_third_of_the_time_and_only_one_is_kept(
    let_in_after: tuple[float, ...], up_at: float, taken: int, autojump_clock: Clock
) -> None:
    told = Told()
    connect, far = opens_after(*let_in_after)
    under_test = link(connect, told)
    async with background(under_test.run):
        await trio.sleep(up_at - 0.01)
        assert not under_test.connected
        await trio.sleep(0.02)
        assert under_test.connected
        took_s, ok = under_test.handshake or (0, False)
        assert ok
        assert took_s == pytest.approx(up_at if taken < 3 else 0.1)
        for number, stream in enumerate(far):
            with trio.move_on_after(0.01) as waited:
                assert await stream.receive_some() == b""
            assert waited.cancelled_caught == (number == taken)


async def test_two_streams_let_in_at_once_leave_one(autojump_clock: Clock) -> None:
    told, far, answers = Told(), list[trio.abc.Stream](), trio.Event()

    async def connect() -> Established:
        ours, theirs = trio.testing.memory_stream_pair()
        far.append(theirs)
        await answers.wait()
        return Established(ours, "farm", "1", frozenset(), None, None, b"")

    under_test = link(connect, told)
    async with background(under_test.run):
        await trio.sleep(TIMEOUT_S / 2)
        answers.set()
        await trio.testing.wait_all_tasks_blocked()
        assert under_test.connected
        closed = 0
        for stream in far:
            with trio.move_on_after(0.01):
                assert await stream.receive_some() == b""
                closed += 1
        assert (len(far), closed) == (2, 1)


async def test_handshake_that_is_tried_leaves_the_connection_that_is_up_alone(autojump_clock: Clock) -> None:
    told = Told()
    connect, far = opens_after(0.1, 0.2, math.inf, math.inf, math.inf)
    under_test = link(connect, told)
    async with background(under_test.run):
        await trio.sleep(0.2)
        await under_test.try_handshake()
        assert under_test.handshake == (pytest.approx(0.2), True)
        assert await far[1].receive_some() == b""
        await under_test.try_handshake()
        assert under_test.handshake == (pytest.approx(TIMEOUT_S), False)
        assert under_test.connected
        assert told.changes == ["up"]
        with trio.move_on_after(0.01) as waited:
            await far[0].receive_some()
        assert waited.cancelled_caught


async def test_failure_of_a_later_stream_is_told_at_once(autojump_clock: Clock) -> None:
    told, begun = Told(), list[float]()

    async def connect() -> Established:
        begun.append(trio.current_time())
        if len(begun) == 1:
            await trio.sleep_forever()
        raise AuthError("refused user '1'")

    under_test = link(connect, told)
    async with background(under_test.run):
        await trio.sleep(TIMEOUT_S / 3 + 0.01)
    assert told.changes == ["AuthError: refused user '1'"]
    assert under_test.handshake == (pytest.approx(TIMEOUT_S / 3), False)


async def test_caller_that_may_wait_long_for_answers_connects_as_soon_as_others(
    autojump_clock: Clock,
) -> None:
    async def connect() -> Established:
        await trio.sleep_forever()
        raise AssertionError

    rpc_client = RpcClient(config(connect, timeout_s=60.0, connect_timeout_s=2.0))
    async with background(rpc_client.run):
        with pytest.raises(UnreachableError, match="not let in within 2 s"):
            await rpc_client.call(POST)
        assert trio.current_time() == 2.0
