"""The sending half of a stream: bytes to packets, and those again that were lost.

A packet is lost when the peer has reported it missing twice, or when nothing was acknowledged for as long as
`RoundTrip` says; then all in flight are. What is lost is sent again before anything new, as the window
allows.

Source: I2P's streaming specification, "Packet Format" (NACKs); streaming documentation, "Windowing", "Other
Parameters"; RFC 6298, RFC 6675.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from garlicfarm_plugin_i2cp.streaming.byte_queue import ByteQueue
from garlicfarm_plugin_i2cp.streaming.congestion import CongestionWindow, PeerWindow, RoundTrip
from garlicfarm_plugin_i2cp.streaming.limits import BufferPool
from garlicfarm_plugin_i2cp.streaming.packet import CLOSE, SYNCHRONIZE

MAX_TIMEOUTS = 10
"""In a row, before the stream ends (i2pd; Java I2P: 8)."""
MAX_TIMEOUTS_OF_SYN = 1
"""The peer sends its own again, and then has another answer."""
MAX_TIMEOUTS_OF_CLOSE = 4
"""Where nothing but CLOSE is missing: i2pd answers with its own, and forgets the stream at once."""
NACKS_OF_A_LOSS = 2
ASKING_BYTES = 2
"""Which a packet that asks for an ACK has more."""
MIN_REPEAT_S = 1.0
"""Between two answers to the same SYN."""
_MAX_SPAN = 130
"""From the first packet in flight to the last: as far ahead as Java I2P keeps packets, and drops others."""


@dataclass(slots=True, eq=False)
class Sent:
    """A packet in flight. ``is_lost``: it waits to be sent again. ``asks``: for an ACK at once, since nothing
    may follow it before."""

    sequence: int
    flags: int
    data: bytes
    sent_s: float = 0.0
    times: int = 0
    nacks: int = 0
    is_lost: bool = False
    asks: bool = False


class SendHalf:
    """Begins with SYN. ``max_data``: the bytes of data in a packet. ``peer``: shared by all its streams.
    ``on_turn``: there may be a `next_packet` again."""

    def __init__(
        self,
        max_data: int,
        window: int,
        limit: int,
        pool: BufferPool,
        peer: PeerWindow,
        on_turn: Callable[[], None],
    ) -> None:
        self.next_sequence = 0
        self.acknowledged = 0
        """Packets, SYN too."""
        self.is_choked = False
        """The peer wants nothing new."""
        self.round_trip = RoundTrip()
        self._max_data = max_data
        self._window = CongestionWindow(window)
        self._limit = limit
        self._pool = pool
        self._peer = peer
        self._on_turn = on_turn
        self._at_once = PeerWindow.AT_ONCE
        """So many packets need no turn."""
        self._turn = 0
        """So many are left of it."""
        self._held = 0
        """As the peer's window knows: `_turn`, and what is in flight and not lost."""
        self._buffer = ByteQueue()
        self._in_flight: dict[int, Sent] = {}
        self._in_flight_bytes = 0
        self._suspects: dict[int, Sent] = {}
        """Reported missing, and perhaps only late."""
        self._lost: deque[Sent] = deque()
        self._lost_count = 0
        self._recovery_through = -1
        self._timeouts = 0
        self._timer_s: float | None = None
        self.is_closing = False
        self._close_sent = False
        self._probe = False

    # what the application does

    def write(self, data: bytes) -> int:
        """Take as much as there is room for; how much that was."""
        taken = min(len(data), self._pool.room(len(self._buffer), self._limit))
        self._buffer.append(data[:taken])
        self._pool.used += taken
        return taken

    @property
    def has_room(self) -> bool:
        """Whether at least half of the buffer is free."""
        return len(self._buffer) <= self._pool.limit(self._limit) // 2

    def close(self) -> None:
        """Send CLOSE after what was written."""
        self.is_closing = True

    def clear(self) -> None:
        """Forget all bytes, and send nothing more."""
        self._pool.used -= len(self._buffer) + self._in_flight_bytes
        self._buffer.clear()
        self._in_flight.clear()
        self._suspects.clear()
        self._lost.clear()
        self._in_flight_bytes = self._lost_count = self._turn = 0
        self._timer_s = None
        self._peer.leave(self)
        self._hold()

    def begin_turn(self, packets: int) -> None:
        """So many packets of the peer's window are this stream's."""
        self._turn += packets
        self._held += packets
        self._on_turn()

    # what the peer says

    def receive_ack(self, through: int, nacks: Sequence[int], now_s: float) -> bool:
        """Returns False: it acknowledges what was not sent."""
        if through >= self.next_sequence:
            return False
        missing = set(nacks) if nacks else ()
        done = []
        for sequence, sent in self._in_flight.items():
            if sequence > through:
                break
            if sequence not in missing:
                done.append(sent)
        if done:
            self._on_acknowledged(done, now_s)
        for sequence in nacks:
            if (reported := self._in_flight.get(sequence)) is not None:
                self._on_nack(reported, now_s)
        self._hold()
        return True

    def _on_acknowledged(self, done: list[Sent], now_s: float) -> None:
        self.acknowledged += len(done)
        was_full = len(self._in_flight) - self._lost_count >= self._window.size
        for sent in done:
            del self._in_flight[sent.sequence]
            self._suspects.pop(sent.sequence, None)
            self._in_flight_bytes -= len(sent.data)
            self._pool.used -= len(sent.data)
            if sent.is_lost:
                sent.is_lost = False
                self._lost_count -= 1
        once = next((sent for sent in done if sent.times == 1), None)
        if once is not None:  # of others it is unknown which one arrived (Karn)
            self.round_trip.on_sample(now_s - once.sent_s)
        if was_full:
            self._window.on_acknowledged(len(done))
        self._timeouts = 0
        self._timer_s = now_s + self.round_trip.timeout_s(0) if self._in_flight else None

    def _on_nack(self, sent: Sent, now_s: float) -> None:
        sent.nacks += 1
        if not sent.is_lost and sent.nacks >= NACKS_OF_A_LOSS:
            self._suspects[sent.sequence] = sent

    def _find_lost(self, now_s: float) -> None:
        """Of what was reported missing: what others did not merely pass on the way."""
        late_s = self.round_trip.late_s
        for sent in [each for each in self._suspects.values() if each.sent_s + late_s <= now_s]:
            del self._suspects[sent.sequence]
            if sent.sequence > self._recovery_through:
                self._recovery_through = self.next_sequence - 1
                self._window.on_loss()
            self._mark_lost(sent)

    def on_choke(self) -> None:
        """The peer lives, and wants nothing new."""
        self.is_choked = True
        self._timeouts = 0

    def repeat_syn(self, now_s: float) -> None:
        """The peer has no answer to its SYN yet."""
        sent = self._in_flight.get(0)
        if sent is not None and now_s - sent.sent_s >= MIN_REPEAT_S:
            self._mark_lost(sent)
            self._hold()

    # what is sent

    def next_packet(self, now_s: float) -> Sent | None:
        """The next packet that may be sent now."""
        if self._suspects:
            self._find_lost(now_s)
        sent = self._take_next(now_s)
        if sent is None:
            self._turn = 0  # others wait
        else:
            sent.sent_s = now_s
            sent.times += 1
            sent.nacks = 0
            if self._timer_s is None:
                self._timer_s = now_s + self.round_trip.timeout_s(self._timeouts)
        self._hold()
        return sent

    def _take_next(self, now_s: float) -> Sent | None:
        room = self._window.size - len(self._in_flight) + self._lost_count
        if room <= 0:
            return None
        if not self._lost_count and not self._has_new(now_s):
            if not self._in_flight:
                self._at_once = PeerWindow.AT_ONCE
            return None
        if self._at_once:
            self._at_once -= 1
        else:
            if not self._turn:
                self._peer.ask(self)
            if not self._turn:
                return None
            self._turn -= 1
            room = min(room, self._turn + 1)
        return self._next_lost() if self._lost_count else self._next_new(asks=room == 1)

    def _next_lost(self) -> Sent:
        while not (sent := self._lost.popleft()).is_lost:
            pass  # it was acknowledged since
        sent.is_lost = False
        self._lost_count -= 1
        return sent

    def _has_new(self, now_s: float) -> bool:
        if self._close_sent or (self.is_choked and not self._probe and self.next_sequence):
            if self._buffer and not self._in_flight and self._timer_s is None:
                self._timer_s = now_s + self.round_trip.timeout_s(self._timeouts)
            return False
        if self._in_flight and self.next_sequence - next(iter(self._in_flight)) >= _MAX_SPAN:
            return False
        return bool(self.next_sequence == 0 or self._buffer or self.is_closing)

    def _next_new(self, *, asks: bool) -> Sent:
        if self.next_sequence == 0:
            sent = Sent(0, SYNCHRONIZE, b"")
        elif self._buffer:
            size = self._max_data - ASKING_BYTES if asks else self._max_data
            sent = Sent(self.next_sequence, 0, self._buffer.take(size), asks=asks)
        else:
            self._close_sent = True
            sent = Sent(self.next_sequence, CLOSE, b"")
        self._probe = False
        self.next_sequence += 1
        self._in_flight[sent.sequence] = sent
        self._in_flight_bytes += len(sent.data)
        return sent

    def _mark_lost(self, sent: Sent) -> None:
        if not sent.is_lost:
            sent.is_lost = True
            self._lost_count += 1
            self._lost.append(sent)

    def _hold(self) -> None:
        held = len(self._in_flight) - self._lost_count + self._turn
        more, self._held = held - self._held, held
        if more:
            self._peer.hold(more)

    # time

    @property
    def wake_s(self) -> float | None:
        if not self._suspects or self._timer_s is None:
            return self._timer_s
        first_s = min(each.sent_s for each in self._suspects.values())
        return min(self._timer_s, first_s + self.round_trip.late_s)

    def on_time(self, now_s: float) -> bool:
        """Returns False: the peer is gone."""
        if self._timer_s is None or now_s < self._timer_s:
            return True
        self._timeouts += 1
        if self._timeouts > self._max_timeouts:
            return False
        if self._in_flight:
            self._window.on_timeout()
            self._recovery_through = self.next_sequence - 1
            self._suspects.clear()
            self._lost.clear()
            self._lost_count = 0
            for sent in self._in_flight.values():
                sent.is_lost = False
                self._mark_lost(sent)
        else:
            self._probe = True
        self._timer_s = now_s + self.round_trip.timeout_s(self._timeouts)
        self._hold()
        return True

    @property
    def _max_timeouts(self) -> int:
        if not self.is_established:
            return MAX_TIMEOUTS_OF_SYN
        return MAX_TIMEOUTS_OF_CLOSE if self.is_delivered else MAX_TIMEOUTS

    @property
    def is_established(self) -> bool:
        """The peer has acknowledged SYN."""
        return self.next_sequence > 0 and 0 not in self._in_flight

    @property
    def is_delivered(self) -> bool:
        """All is acknowledged but for CLOSE, which was sent."""
        return self._close_sent and len(self._in_flight) <= 1 and not self._in_flight_bytes

    @property
    def is_finished(self) -> bool:
        """All is acknowledged, and CLOSE too."""
        return self._close_sent and not self._in_flight
