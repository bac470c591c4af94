"""A node that owes an answer is asked something else, and given up only where another one answers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
import trio.testing

from garlicfarm.client.https import TRANSPORT_ERRORS
from garlicfarm.client.silence import NodeSilent, SilenceWatch
from tests.running import background

Clock = trio.testing.MockClock


class FakeHttpsClient:
    """A node that answers questions after ``delay_s``, with ``error`` if there is one. ``began``: when it was
    asked."""

    patience_s = 1.0
    most_at_a_time = 0
    at_a_time = 0

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.error: Exception | None = None
        self.heard = -math.inf
        self.began: list[float] = []

    async def ask(self) -> None:
        self.began.append(trio.current_time())
        FakeHttpsClient.at_a_time += 1
        FakeHttpsClient.most_at_a_time = max(FakeHttpsClient.most_at_a_time, FakeHttpsClient.at_a_time)
        try:
            await trio.sleep(self.delay_s)
        finally:
            FakeHttpsClient.at_a_time -= 1
        if self.error is not None:
            raise self.error
        self.heard = trio.current_time()


def watch(*nodes: FakeHttpsClient) -> Any:
    """The watch of nodes whose URLs are their places."""
    return SilenceWatch(lambda: {str(place): node for place, node in enumerate(nodes)})  # type: ignore[misc]


async def answer_after(seconds: float) -> str:
    await trio.sleep(seconds)
    return "answer"


async def test_node_that_is_silent_is_given_up_for_one_that_answers(autojump_clock: Clock) -> None:
    nodes = silent, gone, well = [FakeHttpsClient(math.inf), FakeHttpsClient(math.inf), FakeHttpsClient()]
    with pytest.raises(NodeSilent) as caught:
        await watch(*nodes).unless_silent(silent, trio.sleep_forever)
    assert caught.value.other == "2"
    assert trio.current_time() == pytest.approx(5 * FakeHttpsClient.patience_s)
    assert (silent.began, gone.began, well.began) == ([1.0], [3.0], [5.0])


async def test_node_that_is_slow_is_waited_for_as_long_as_it_takes(autojump_clock: Clock) -> None:
    slow, well = nodes = FakeHttpsClient(0.5), FakeHttpsClient()
    assert await watch(*nodes).unless_silent(slow, lambda: answer_after(30)) == "answer"
    assert slow.began == [1.0, *(1.0 + 2.5 * n for n in range(1, 12))]
    assert well.began == []


async def test_node_that_hears_questions_late_is_given_more_and_more_time(autojump_clock: Clock) -> None:
    """As one that was never asked before, far away."""
    far = FakeHttpsClient(9.0)
    assert await watch(far, FakeHttpsClient(9.0)).unless_silent(far, lambda: answer_after(40)) == "answer"
    assert len(far.began) < 6
    assert far.heard > 0


@pytest.mark.parametrize("delay_s", [0.0, math.inf])
async def test_while_no_other_answers_it_is_waited_for(delay_s: float, autojump_clock: Clock) -> None:
    silent, other = nodes = FakeHttpsClient(math.inf), FakeHttpsClient(delay_s)
    other.error = TRANSPORT_ERRORS[0]("refused")
    assert await watch(*nodes).unless_silent(silent, lambda: answer_after(100)) == "answer"
    assert 0 < len(silent.began) < 10


async def test_node_that_refuses_connections_is_waited_for(autojump_clock: Clock) -> None:
    """It is being stopped, and answers what it took."""
    ending, well = nodes = FakeHttpsClient(), FakeHttpsClient()
    ending.error = TRANSPORT_ERRORS[0]("refused")
    assert await watch(*nodes).unless_silent(ending, lambda: answer_after(9)) == "answer"
    assert ending.began
    assert well.began == []


async def test_only_node_is_asked_nothing(autojump_clock: Clock) -> None:
    only = FakeHttpsClient(math.inf)
    assert await watch(only).unless_silent(only, lambda: answer_after(100)) == "answer"
    assert only.began == []


async def test_time_that_a_request_needs_to_get_there_does_not_count(autojump_clock: Clock) -> None:
    node, well = FakeHttpsClient(math.inf), FakeHttpsClient()
    assert await watch(node, well).unless_silent(node, lambda: answer_after(15.9), grace_s=15) == "answer"
    assert node.began == []


async def test_tasks_that_wait_for_one_node_share_its_questions(autojump_clock: Clock) -> None:
    node, well = FakeHttpsClient(), FakeHttpsClient()
    under_test = watch(node, well)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(under_test.unless_silent, node, lambda: answer_after(10.5))
    assert len(node.began) == 5
    node.delay_s = math.inf
    given_up: list[float] = []

    async def wait() -> None:
        with pytest.raises(NodeSilent):
            await under_test.unless_silent(node, trio.sleep_forever)
        given_up.append(trio.current_time())

    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(wait)
    assert len(node.began) == 6
    assert given_up == [pytest.approx(begun + 3.0)] * 20
    with pytest.raises(NodeSilent):
        await under_test.unless_silent(node, trio.sleep_forever)
    assert len(node.began) == 7, "what was found before says nothing about now"


async def test_one_question_at_a_time_is_asked(autojump_clock: Clock) -> None:
    nodes = [FakeHttpsClient(0.9) for _ in range(3)]
    under_test = watch(*nodes)
    FakeHttpsClient.most_at_a_time = 0
    async with trio.open_nursery() as nursery:
        for node in nodes:
            for _ in range(3):
                nursery.start_soon(under_test.unless_silent, node, lambda: answer_after(20))
    assert all(node.began for node in nodes)
    assert FakeHttpsClient.most_at_a_time == 1


async def test_error_of_the_answer_is_raised_as_it_is(autojump_clock: Clock) -> None:
    async def fail() -> None:
        await trio.sleep(5)
        raise KeyError("x")

    node, well = FakeHttpsClient(), FakeHttpsClient()
    with pytest.raises(KeyError):
        await watch(node, well).unless_silent(node, fail)


async def test_answer_is_not_lost_where_the_caller_is_cancelled_when_it_comes(autojump_clock: Clock) -> None:
    node, well = FakeHttpsClient(), FakeHttpsClient()
    with trio.CancelScope() as scope:

        async def connect() -> str:
            await trio.sleep(2.5)
            scope.cancel()
            return "a connection to be closed"

        assert await watch(node, well).unless_silent(node, connect) == "a connection to be closed"


async def test_caller_that_is_cancelled_leaves_no_question_behind(autojump_clock: Clock) -> None:
    node, well = FakeHttpsClient(math.inf), FakeHttpsClient()
    async with background(lambda: watch(node, well).unless_silent(node, trio.sleep_forever)):
        await trio.sleep(2)
        assert FakeHttpsClient.at_a_time == 1
    assert FakeHttpsClient.at_a_time == 0
