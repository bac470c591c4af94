"""A connection that keeps itself up: each request answered or failed, once, on streams in memory."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio
import trio.testing

from garlicfarm.errors import (
    AuthError,
    GarlicFarmError,
    OutcomeUnknown,
    RemoteProtocolError,
    TransportError,
    UnreachableError,
)
from garlicfarm.net.handshake import Established
from garlicfarm.net.link import QUEUE_LIMIT, Backoff, RpcClient
from garlicfarm.net.sender import SEND_NOW_BYTES
from garlicfarm.wire import Limits, RequestDecoder
from garlicfarm.wire.messages import LogEntry, Request, ValueType
from tests.node.support.link_in_memory import (
    POST,
    TIMEOUT_S,
    VOTE,
    Clock,
    SendsNow,
    Server,
    Told,
    answer,
    closing,
    config,
    echoing,
    link,
    silent,
    vote,
)
from tests.running import background


async def test_answers_are_paired_with_requests_in_order(autojump_clock: Clock) -> None:
    told, server = Told(), Server(echoing)
    under_test = link(server.connect, told)
    async with server.serving(under_test.run):
        for tag, term in ((7, 70), (3, 30)):
            under_test.send(tag, vote(term))  # before it is connected
        await trio.sleep(0.01)
        assert under_test.connected
        under_test.send(5, POST)
        under_test.send(4, vote(40))
        await trio.sleep(0.01)
    assert told.answers == [(7, 70), (3, 30), (5, 0), (4, 40)]
    assert told.failures == []
    assert told.changes == ["up"]


@pytest.mark.parametrize("room", [1 << 30, 30])
async def test_what_is_flushed_leaves_at_once_in_one_piece_and_in_order(
    room: int, autojump_clock: Clock
) -> None:
    told, server, streams = Told(), Server(echoing), list[SendsNow]()

    def pair() -> tuple[trio.abc.Stream, trio.abc.Stream]:
        ours, theirs = trio.testing.memory_stream_pair()
        streams.append(SendsNow(ours, theirs))
        streams[0].room = room
        return streams[0], theirs

    server.pair = pair
    under_test = link(server.connect, told)
    async with server.serving(under_test.run):
        await trio.testing.wait_all_tasks_blocked()
        with trio.testing.assert_no_checkpoints():
            under_test.flush()  # there is nothing
            for tag in (1, 2):
                under_test.add(tag, vote(tag))
            under_test.flush()
            under_test.add(3, vote(3))
            under_test.flush()
        await trio.sleep(0.01)
        under_test.add(
            4,
            Request(POST.type, 1, 2, 4, entries=(LogEntry(0, ValueType.APPLICATION, bytes(SEND_NOW_BYTES)),)),
        )
        under_test.flush()
        under_test.add(5, vote(5))
        under_test.flush()
        await trio.sleep(0.01)
    assert told.answers == [(number, number) for number in range(1, 6)]
    ways = [(way, len(data)) for way, data in streams[0].sends]
    if room > 1000:
        assert ways == [("now", 90), ("now", 45), ("task", 45 + 13 + SEND_NOW_BYTES + 45)]
    else:  # the task sends the rest first
        assert ways == [("now", 90), ("task", 45), ("task", 45 + 13 + SEND_NOW_BYTES + 45)]


async def test_leftover_of_the_handshake_is_the_beginning_of_an_answer(autojump_clock: Clock) -> None:
    async def rest(stream: trio.abc.Stream, number: int) -> None:
        await stream.receive_some()
        await stream.send_all(answer(9)[10:])
        await silent(stream, number)

    told, server = Told(), Server(rest, leftover=answer(9)[:10])
    under_test = link(server.connect, told)
    async with server.serving(under_test.run):
        under_test.send(1, VOTE)
        await trio.sleep(0.01)
    assert told.answers == [(1, 9)]


async def test_server_that_accepts_and_never_answers_is_cut_after_the_deadline(autojump_clock: Clock) -> None:
    told, server = Told(), Server(silent)
    under_test = link(server.connect, told)
    async with server.serving(under_test.run):
        await trio.sleep(50)  # an idle connection has no deadline
        assert server.attempts == [0]
        under_test.send(1, VOTE)
        await trio.sleep(1)
        under_test.send(2, VOTE)
        await trio.sleep(0.999)
        assert told.failures == []
        await trio.sleep(0.002)
        assert told.failures == [(1, True), (2, True)]
        await trio.sleep(0.1)
    assert server.attempts == [0, pytest.approx(52.1)]
    assert told.changes == ["up", "UnreachableError: no answer within 2 s", "up"]


async def test_shorter_timeout_is_in_force_until_a_connection_fails_and_again_after_an_answer(
    autojump_clock: Clock,
) -> None:
    """A path on which each answer takes longer than the shorter one must not lose every connection by it."""

    async def slow(stream: trio.abc.Stream, number: int) -> None:
        with suppress(trio.BrokenResourceError):
            while await stream.receive_some():
                await trio.sleep(1.5)
                await stream.send_all(answer())

    told, server = Told(), Server(slow)
    under_test = link(server.connect, told)
    under_test.answer_timeout_s = 0.5
    async with server.serving(under_test.run):
        for tag in range(4):
            under_test.send(tag, VOTE)
            await trio.sleep(2.5)
    assert told.failures == [(0, True), (2, True)]
    assert [tag for tag, _ in told.answers] == [1, 3]
    assert told.changes == ["up", "UnreachableError: no answer within 0.5 s"] * 2 + ["up"]


async def test_server_that_is_given_up_loses_its_connection_and_may_get_another(
    autojump_clock: Clock,
) -> None:
    told, server = Told(), Server(silent)
    under_test = link(server.connect, told)
    async with server.serving(under_test.run):
        for tag in (1, 2):
            await trio.sleep(1)
            assert under_test.silent_since is None
            under_test.send(tag, VOTE)
            await trio.sleep(0.5)
            assert under_test.silent_since == pytest.approx(trio.current_time() - 0.5)
            under_test.give_up("it is not needed")
            await trio.sleep(0.1)
            assert told.failures[-1] == (tag, True)
    assert told.changes == ["up", "UnreachableError: it is not needed"] * 2
    assert len(server.attempts) == 2


async def test_each_answer_moves_the_deadline_to_the_next_request(autojump_clock: Clock) -> None:
    async def slow(stream: trio.abc.Stream, number: int) -> None:
        while await stream.receive_some():
            await trio.sleep(1.5)
            await stream.send_all(answer())

    told, server = Told(), Server(slow)
    under_test = link(server.connect, told)
    async with server.serving(under_test.run):
        for tag in range(5):
            under_test.send(tag, VOTE)
            await trio.sleep(0.8)
            assert under_test.silent_since == pytest.approx(trio.current_time() - 0.8)
            await trio.sleep(0.8)
        assert len(told.answers) == 5
        assert under_test.rtt_s == under_test.least_rtt_s == pytest.approx(1.5)
    assert told.changes == ["up"]


async def test_server_that_does_not_read_is_cut_after_the_deadline(autojump_clock: Clock) -> None:
    async def deaf(stream: trio.abc.Stream, number: int) -> None:
        await trio.sleep_forever()

    told, server = Told(), Server(deaf)
    server.pair = trio.testing.lockstep_stream_pair
    under_test = link(server.connect, told)
    async with server.serving(under_test.run):
        under_test.send(1, VOTE)
        await trio.sleep(1)
        under_test.send(2, VOTE)
        await trio.sleep(1.01)
    assert told.failures == [(1, True), (2, False)]


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (answer(source=3), "member 2 answers as 3"),
        (answer(to=POST), "APPEND_ENTRIES_RESPONSE answers REQUEST_VOTE_REQUEST"),
        (answer() * 2, "an answer to nothing"),
        (b"\xff" * 26, "type 255"),
    ],
)
async def test_wrong_answer_breaks_the_connection(reply: bytes, fault: str, autojump_clock: Clock) -> None:
    async def wrong(stream: trio.abc.Stream, number: int) -> None:
        await stream.receive_some()
        await stream.send_all(reply)
        await silent(stream, number)

    told, server = Told(), Server(wrong)
    under_test = link(server.connect, told)
    async with server.serving(under_test.run):
        under_test.send(1, VOTE)
        await trio.sleep(0.01)
    assert fault in told.changes[1]
    assert "RemoteProtocolError" in told.changes[1]
    assert len(told.answers) + len(told.failures) == 1


async def test_waits_grow_until_the_server_answers_also_if_it_lets_us_in(autojump_clock: Clock) -> None:
    async def moody(stream: trio.abc.Stream, number: int) -> None:
        if number == 6:
            await stream.receive_some()
            await stream.send_all(answer())

    told, server = Told(), Server(moody)
    under_test = link(server.connect, told)
    async with server.serving(under_test.run):
        await trio.sleep(2.35)
        under_test.send(1, VOTE)
        await trio.sleep(0.4)
    assert server.attempts == pytest.approx([0, 0.1, 0.3, 0.7, 1.5, 2.3, 2.45, 2.65])
    assert told.answers == [(1, 0)]


def test_backoff_is_jittered_doubles_and_ends_at_the_longest() -> None:
    for lot in (0.0, 0.25, 0.999):
        backoff = Backoff(lambda lot=lot: lot, first_s=0.1, longest_s=5.0)  # type: ignore[misc]
        waits = [backoff.wait_s(failures) for failures in (1, 2, 3, 7, 1000)]
        assert waits == pytest.approx([base * (0.5 + lot) for base in (0.1, 0.2, 0.4, 5.0, 5.0)])


async def test_request_fails_at_once_while_the_link_waits_and_a_poke_ends_the_wait(
    autojump_clock: Clock,
) -> None:
    told, server = Told(), Server(echoing)
    refuse = True

    async def connect() -> Established:
        if refuse:
            raise UnreachableError("nobody there")
        return await server.connect()

    under_test = link(connect, told)
    async with server.serving(under_test.run):
        await trio.sleep(0.31)  # now it waits for 0.4 s
        under_test.send(1, VOTE)
        assert told.failures == [(1, False)]
        refuse = False
        under_test.poke()
        await trio.testing.wait_all_tasks_blocked()
        assert server.attempts == [pytest.approx(0.31)]
        under_test.send(2, VOTE)
        await trio.sleep(0.01)
    assert told.answers == [(2, 1)]
    assert told.changes == ["UnreachableError: nobody there"] * 3 + ["up"]


async def test_lazy_link_connects_only_for_a_request(autojump_clock: Clock) -> None:
    told, server = Told(), Server(closing)
    under_test = link(server.connect, told, lazy=True)
    async with server.serving(under_test.run):
        await trio.sleep(10)
        under_test.send(1, VOTE)
        await trio.sleep(10)
        assert server.attempts == [10]  # it failed, and nobody wants the connection any more
        under_test.send(2, VOTE)
        await trio.sleep(10)
    assert server.attempts == [10, 20]
    assert [tag for tag, _ in told.failures] == [1, 2]


async def test_lazy_link_that_cannot_connect_tries_once_per_request(autojump_clock: Clock) -> None:
    told, attempts = Told(), list[float]()

    async def connect() -> Established:
        attempts.append(trio.current_time())
        raise UnreachableError("nobody there")

    under_test = link(connect, told, lazy=True)
    async with background(under_test.run):
        under_test.send(1, VOTE)
        await trio.sleep(10)
    assert attempts == [0]
    assert told.failures == [(1, False)]


async def test_queue_is_bounded(autojump_clock: Clock) -> None:
    told = Told()
    under_test = link(trio.sleep_forever, told)  # type: ignore[arg-type]
    for tag in range(QUEUE_LIMIT + 1):
        under_test.send(tag, VOTE)
    assert told.failures == [(QUEUE_LIMIT, False)]


@pytest.mark.parametrize("sent", [True, False])
async def test_cancelled_link_reports_what_is_open_and_closes_its_stream(
    sent: bool, autojump_clock: Clock
) -> None:
    """A member whose endpoint changed: the core must not wait for answers that nobody reads."""
    closed = trio.Event()

    async def until_closed(stream: trio.abc.Stream, number: int) -> None:
        await silent(stream, number)
        closed.set()

    told, server = Told(), Server(until_closed)

    async def never() -> Established:
        await trio.sleep_forever()
        raise AssertionError

    async with trio.open_nursery() as server.nursery:
        with trio.move_on_after(1):
            async with trio.open_nursery() as nursery:
                under_test = link(server.connect if sent else never, told)
                nursery.start_soon(under_test.run)
                under_test.send(1, VOTE)
        assert told.failures == [(1, sent)]
        under_test.send(2, VOTE)
        assert told.failures[1:] == [(2, False)]
        if sent:
            await closed.wait()


@pytest.mark.parametrize("seed", range(20))
async def test_every_request_is_answered_or_failed_exactly_once(seed: int, autojump_clock: Clock) -> None:
    lots = random.Random(seed)

    async def moody(stream: trio.abc.Stream, number: int) -> None:
        decoder = RequestDecoder(Limits())
        try:
            while data := await stream.receive_some():
                decoder.receive_data(data)
                while (request := decoder.next_message()) is not None:
                    await trio.sleep(lots.choice((0, 0, 0.01, 0.5)))
                    mood = lots.random()
                    if mood < 0.03:
                        return
                    if mood < 0.05:
                        await trio.sleep(10)
                    noise = b"\0" if mood > 0.98 else b""
                    await stream.send_all(noise + answer(request.term))
        except trio.BrokenResourceError:
            pass

    told, server, tags = Told(), Server(moody), 300

    async def connect() -> Established:
        await trio.sleep(lots.choice((0, 0.1)))
        if lots.random() < 0.3:
            raise lots.choice((UnreachableError("no"), AuthError("no"), RemoteProtocolError("no")))
        return await server.connect()

    async with trio.open_nursery() as server.nursery:
        under_test = link(connect, told, lazy=bool(seed % 2))
        async with background(under_test.run):
            for tag in range(tags):
                under_test.send(tag, vote(tag))
                await trio.sleep(lots.choice((0, 0, 0, 0.05, 1)))
        server.nursery.cancel_scope.cancel()
    reported = Counter([tag for tag, _ in told.answers] + [tag for tag, _ in told.failures])
    assert reported == Counter(range(tags))
    assert all(tag == term for tag, term in told.answers)
    assert told.answers
    assert told.failures


def rpc_client(connect: Callable[[], Awaitable[Established]]) -> RpcClient:
    return RpcClient(config(connect, lazy=True))


async def test_calls_of_many_tasks_share_one_connection(autojump_clock: Clock) -> None:
    server, results = Server(echoing), dict[int, int]()
    under_test = rpc_client(server.connect)
    async with server.serving(under_test.run):

        async def one(term: int) -> None:
            results[term] = (await under_test.call(vote(term))).next_index

        async with trio.open_nursery() as nursery:
            for term in range(50):
                nursery.start_soon(one, term)
    assert results == {term: term for term in range(50)}
    assert len(server.attempts) == 1


async def test_call_that_was_sent_and_not_answered_has_an_unknown_outcome(autojump_clock: Clock) -> None:
    server = Server(silent)
    under_test = rpc_client(server.connect)
    async with server.serving(under_test.run):
        with pytest.raises(OutcomeUnknown):
            await under_test.call(POST)
        assert trio.current_time() == TIMEOUT_S


@pytest.mark.parametrize(
    "error", [UnreachableError("x"), TransportError("x"), AuthError("x"), RemoteProtocolError("x")]
)
async def test_call_that_was_never_sent_says_what_is_wrong(
    error: GarlicFarmError, autojump_clock: Clock
) -> None:
    async def connect() -> Established:
        raise error

    under_test = rpc_client(connect)
    async with background(under_test.run):
        with pytest.raises(type(error), match="x"):
            await under_test.call(POST)


async def test_cancelled_call_does_not_disturb_the_pairing_of_others(autojump_clock: Clock) -> None:
    async def slow(stream: trio.abc.Stream, number: int) -> None:
        await trio.sleep(1)
        await echoing(stream, number)

    server = Server(slow)
    under_test = rpc_client(server.connect)
    async with server.serving(under_test.run):
        with trio.move_on_after(0.5):
            await under_test.call(vote(1))
        assert (await under_test.call(vote(2))).next_index == 2


async def test_server_that_answers_one_after_another_keeps_the_connection_however_long_all_take(
    autojump_clock: Clock,
) -> None:
    async def slow(stream: trio.abc.Stream, number: int) -> None:
        decoder = RequestDecoder(Limits())
        while data := await stream.receive_some():
            decoder.receive_data(data)
            while (request := decoder.next_message()) is not None:
                await trio.sleep(0.75 * TIMEOUT_S)
                await stream.send_all(answer(request.term, to=request))

    told, server = Told(), Server(slow)
    under_test = link(server.connect, told)
    async with server.serving(under_test.run):
        for number in range(8):
            under_test.send(number, vote(number))
        await trio.sleep(7 * TIMEOUT_S)
    assert told.answers == [(number, number) for number in range(8)]
    assert told.changes == ["up"]


async def test_call_that_is_too_slow_leaves_the_connection_and_other_calls_alone(
    autojump_clock: Clock,
) -> None:
    async def slow(stream: trio.abc.Stream, number: int) -> None:
        await trio.sleep(1.5)
        await echoing(stream, number)

    server = Server(slow)
    under_test = rpc_client(server.connect)
    async with server.serving(under_test.run):
        ended: dict[int, float] = {}

        async def late(term: int, deadline: float) -> None:
            with pytest.raises(trio.TooSlowError):
                await under_test.call(vote(term), deadline)
            ended[term] = trio.current_time()

        async with trio.open_nursery() as nursery:
            for term, deadline in enumerate((0.5, 1.0, 0.25, 1.0, 0.75)):
                nursery.start_soon(late, term, deadline)
            assert (await under_test.call(vote(7), 1.75)).next_index == 7
        assert trio.current_time() == 1.5
    assert ended == {0: 0.5, 1: 1.0, 2: 0.25, 3: 1.0, 4: 0.75}
    assert len(server.attempts) == 1


async def test_call_whose_deadline_has_passed_is_too_slow_at_once(autojump_clock: Clock) -> None:
    server = Server(silent)
    under_test = rpc_client(server.connect)
    async with server.serving(under_test.run):
        await trio.sleep(1)
        with pytest.raises(UnreachableError, match="not sent in time"):
            await under_test.call(vote(1), 0.5)
        assert trio.current_time() == 1
        with pytest.raises(trio.TooSlowError):  # it was sent
            await under_test.call(vote(1), 2)
        with pytest.raises((trio.TooSlowError, UnreachableError)):  # as the link's task was sooner or not
            await under_test.call(vote(1), 0.5)
        assert trio.current_time() == 2


async def test_call_that_waits_too_long_for_a_connection_is_certainly_not_sent(autojump_clock: Clock) -> None:
    server = Server(echoing)

    async def connect() -> Established:
        await trio.sleep(2)
        return await server.connect()

    under_test = RpcClient(config(connect, timeout_s=10.0, lazy=True), unsent_timeout_s=0.5)
    async with server.serving(under_test.run):
        for begun in (0.0, 0.5):
            assert trio.current_time() == begun
            with pytest.raises(UnreachableError, match="not sent in time"):
                await under_test.call(vote(1), 10)
        await trio.sleep(0.7)
        assert (await under_test.call(vote(3), 10)).next_index == 3  # the same connection, now up
        assert trio.current_time() == 2
    assert len(server.attempts) == 1


async def test_calls_that_are_cancelled_at_their_deadline_end_once(autojump_clock: Clock) -> None:
    server = Server(silent)
    ended = 0

    async def one() -> None:
        nonlocal ended
        with trio.move_on_at(1.0):
            with pytest.raises(trio.TooSlowError):
                await under_test.call(vote(1), 1.0)
        ended += 1

    under_test = rpc_client(server.connect)
    async with server.serving(under_test.run), trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(one)
    assert ended == 20


@pytest.mark.parametrize("seed", range(10))
async def test_every_call_ends_once_as_answered_late_failed_or_cancelled(
    seed: int, autojump_clock: Clock
) -> None:
    lots = random.Random(seed)

    async def moody(stream: trio.abc.Stream, number: int) -> None:
        decoder = RequestDecoder(Limits())
        while data := await stream.receive_some():
            decoder.receive_data(data)
            while (request := decoder.next_message()) is not None:
                await trio.sleep(lots.choice((0, 0.01, 0.1)))
                if lots.random() < 0.04:
                    return
                await stream.send_all(answer(request.term))

    server, ends = Server(moody), Counter[str]()

    async def one(term: int) -> None:
        await trio.sleep(lots.uniform(0, 5))
        begun, timeout_s = trio.current_time(), lots.choice((0.05, 0.5, math.inf))
        with trio.move_on_after(lots.choice((0.03, 0.3, math.inf))) as scope:
            try:
                response = await under_test.call(vote(term), begun + timeout_s)
            except trio.TooSlowError:
                assert trio.current_time() == begun + timeout_s
                ends["late"] += 1
            except (OutcomeUnknown, TransportError):
                ends["failed"] += 1
            else:
                assert response.next_index == term
                ends["answered"] += 1
        if scope.cancelled_caught:
            ends["cancelled"] += 1

    under_test = rpc_client(server.connect)
    async with server.serving(under_test.run), trio.open_nursery() as nursery:
        for term in range(200):
            nursery.start_soon(one, term)
    assert sum(ends.values()) == 200
    assert min(ends[end] for end in ("late", "failed", "answered", "cancelled")) > 0
