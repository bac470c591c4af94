"""Members that answer too slowly for the election timeout are told of, and honest hiccups are not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import count

import pytest
import trio
import trio.testing

from garlicfarm.net.handshake import Established
from garlicfarm.net.link import Backoff
from garlicfarm.node.peers import SAMPLES, Peers, PeerTimings
from garlicfarm.wire import Limits, RequestDecoder, encode_response
from garlicfarm.wire.messages import (
    ClusterServer,
    LogEntry,
    MessageType,
    Request,
    Response,
    ValueType,
)

Clock = trio.testing.MockClock
HEARTBEAT_S = 1.5
ELECTION_S = 3.0
QUICK_S, LIMIT_S, SLOW_S = 0.5, 0.75, 0.8


class Slow:
    """Member 1, and members 2 and 3, which answer each request after ``delay_s``."""

    def __init__(self) -> None:
        self.delay_s = {2: QUICK_S, 3: QUICK_S}
        self.told: list[tuple[float, int, float, float]] = []
        self.answers = 0
        self._tags = count()
        self._theirs: list[trio.abc.Stream] = []
        self.nursery: trio.Nursery
        self.peers = Peers(
            1,
            self._dial,
            PeerTimings(
                rpc_timeout_s=3.0,
                call_timeout_s=3.0,
                heartbeat_s=HEARTBEAT_S,
                election_timeout_min_s=ELECTION_S,
            ),
            Backoff(lambda: 0.5),
            events=self,
        )

    def on_response(self, seq: int, response: Response) -> None:
        self.answers += 1

    def on_received(self) -> None:
        pass

    def on_unreachable(self, peer: int, seq: int) -> None:
        pytest.fail("every request is answered")

    def on_connected(self, peer: int, extensions: frozenset[str]) -> None:
        pass

    def on_connection_change(self, peer: int, error: Exception | None) -> None:
        pass

    def on_process_gone(self, peer: int) -> None:
        pass

    def on_slow_peer(self, peer: int, p99_s: float, limit_s: float) -> None:
        self.told.append((trio.current_time(), peer, p99_s, limit_s))

    async def _dial(self, member: int, endpoint: str) -> Established:
        ours, theirs = trio.testing.memory_stream_pair()
        self._theirs.append(theirs)
        self.nursery.start_soon(self._serve, member, theirs)
        return Established(ours, "farm", "1", frozenset(), None, None, b"")

    async def _serve(self, member: int, stream: trio.abc.Stream) -> None:
        decoder = RequestDecoder(Limits())
        while data := await _received(stream):
            decoder.receive_data(data)
            await trio.sleep(self.delay_s[member])
            while decoder.next_message() is not None:
                answer = Response(MessageType.APPEND_ENTRIES_RESPONSE, member, 1, 1, 1, True)
                await stream.send_all(encode_response(answer))

    async def hang_up(self) -> None:
        for stream in self._theirs:
            await trio.aclose_forcefully(stream)
        await trio.testing.wait_all_tasks_blocked()

    def send(self, member: int, *values: bytes) -> None:
        entries = tuple(LogEntry(1, ValueType.APPLICATION, value) for value in values)
        request = Request(MessageType.APPEND_ENTRIES_REQUEST, 1, member, 1, entries=entries)
        self.peers.send(member, next(self._tags), request)
        self.peers.flush()

    async def beat(self, times: int, *members: int, slow: Iterable[int] = ()) -> None:
        """Heartbeats to members; member 2 is slow to answer those with the numbers ``slow``."""
        for number in range(times):
            self.delay_s[2] = SLOW_S if number in slow else QUICK_S
            for member in members:
                self.send(member)
            await trio.sleep(HEARTBEAT_S)


@asynccontextmanager
async def started() -> AsyncIterator[Slow]:
    slow = Slow()
    async with trio.open_nursery() as slow.nursery:
        slow.nursery.start_soon(slow.peers.run)
        slow.peers.follow(tuple(ClusterServer(member, f"ssl://member{member}") for member in (1, 2, 3)))
        await trio.testing.wait_all_tasks_blocked()
        yield slow
        slow.nursery.cancel_scope.cancel()


async def _received(stream: trio.abc.Stream) -> bytes | bytearray:
    try:
        return await stream.receive_some()
    except trio.ClosedResourceError:
        return b""


async def test_round_trip_p99_over_a_quarter_of_the_election_timeout_is_told_of_that_member(
    autojump_clock: Clock,
) -> None:
    async with started() as slow:
        await slow.beat(SAMPLES, 2, 3, slow={7, 42})
        ((_, member, p99_s, limit_s),) = slow.told
        assert (member, p99_s, limit_s) == (2, pytest.approx(SLOW_S), LIMIT_S)
        assert slow.answers == 2 * SAMPLES


async def test_one_slow_round_trip_of_a_hundred_is_not_told(autojump_clock: Clock) -> None:
    async with started() as slow:
        await slow.beat(5 * SAMPLES, 2, slow={7, 42 + SAMPLES, 43 + 2 * SAMPLES})
        assert slow.told == []


async def test_fewer_round_trips_than_a_hundred_are_not_judged(autojump_clock: Clock) -> None:
    async with started() as slow:
        await slow.beat(SAMPLES - 1, 2, slow=range(SAMPLES))
        assert slow.told == []
        await slow.beat(1, 2, slow={0})
        assert len(slow.told) == 1


@pytest.mark.slow
async def test_slow_member_is_told_of_once_an_hour_while_it_stays_slow(autojump_clock: Clock) -> None:
    async with started() as slow:
        hour = round(3600 / HEARTBEAT_S)
        await slow.beat(SAMPLES + 2 * hour + 1, 2, slow=range(3 * hour))
        first, second, third = (at for at, *_ in slow.told)
        assert second - first == pytest.approx(3600, abs=HEARTBEAT_S)
        assert third - second == pytest.approx(3600, abs=HEARTBEAT_S)
        await slow.beat(SAMPLES + hour, 2)
        assert len(slow.told) == 3


async def test_requests_that_one_hiccup_delays_together_are_one_round_trip(autojump_clock: Clock) -> None:
    async with started() as slow:
        await slow.beat(SAMPLES, 2)
        slow.delay_s[2] = SLOW_S
        for _ in range(64):
            slow.send(2, b"an entry")
        await trio.sleep(HEARTBEAT_S)
        assert slow.answers == SAMPLES + 64
        await slow.beat(10, 2)
        assert slow.told == []
        await slow.beat(1, 2, slow={0})
        assert len(slow.told) == 1


async def test_round_trip_of_some_time_ago_is_not_reported(autojump_clock: Clock) -> None:
    async with started() as slow:
        assert slow.peers.rtt_s(2, ELECTION_S) is None
        await slow.beat(1, 2)
        await trio.sleep(ELECTION_S - HEARTBEAT_S)
        assert slow.peers.rtt_s(2, ELECTION_S) == pytest.approx(QUICK_S)
        await trio.sleep(ELECTION_S)
        assert slow.peers.rtt_s(2, ELECTION_S) is None


async def test_round_trip_is_not_reported_of_a_connection_that_has_ended(autojump_clock: Clock) -> None:
    async with started() as slow:
        await slow.beat(1, 2)
        assert slow.peers.rtt_s(2, ELECTION_S) == pytest.approx(QUICK_S)
        await slow.hang_up()
        assert slow.peers.rtt_s(2, ELECTION_S) is None
