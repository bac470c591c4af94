"""How i2pd 2.55 and 2.56 send: a model of ``Stream`` in libi2pd/Streaming.cpp, as far as it is about a peer
that chokes, or acknowledges nothing."""

from __future__ import annotations

from garlicfarm_plugin_i2cp.streaming.packet import CHOKE_MS, Packet
from garlicfarm_plugin_i2cp.streaming.stream import Stream
from tests.publishers.streaming.play import Play, to

TICK_S = 0.011
WINDOW = 40
CHOKED_WINDOW = 3
PACKET_BYTES = 1800
MAX_ATTEMPTS = 10
LONG_REPEAT_S = 9.0


class OldI2pd:
    """Sends ``count`` packets, over a path with this round trip."""

    def __init__(self, play: Play, stream: Stream, count: int, round_trip_s: float) -> None:
        self.play, self.stream, self.count = play, stream, count
        self._round_trip_s = round_trip_s
        self._first_repeat_s = self._repeat_s = 1.3 * round_trip_s + 0.05
        self._attempts = 0
        self._next = 1
        self._in_flight: dict[int, float] = {}
        self._window = WINDOW
        self._choked_at: int | None = None
        """What it would have sent next when it was choked."""
        self._may_send = False
        self._sent_s = 0.0
        self._answers: list[tuple[float, Packet]] = []

    @property
    def is_done(self) -> bool:
        return self._next > self.count and not self._in_flight

    def tick(self) -> None:
        """What happens within 11 ms."""
        self._answers += [(self.play.now_s + self._round_trip_s, each) for each in self.play.after(TICK_S)]
        while self._answers and self._answers[0][0] <= self.play.now_s:
            self._receive(self._answers.pop(0)[1])
        if self.play.now_s <= self._sent_s + self._round_trip_s / self._window:
            return
        self._may_send = True
        is_silent = self.play.now_s >= self._sent_s + self._repeat_s
        due = [
            each
            for each, at in self._in_flight.items()
            if is_silent and at + self._repeat_s <= self.play.now_s
        ]
        if self._choked_at is not None:
            self._send(due[:1])
        elif due:
            self._attempts += 1
            assert self._attempts <= MAX_ATTEMPTS, "it has given up"
            if self._attempts > 1:
                self._repeat_s = LONG_REPEAT_S
            self._send(due[:1])
        else:
            self._send(self._new())

    def _receive(self, answer: Packet) -> None:
        if answer.delay_ms is not None and answer.delay_ms >= CHOKE_MS and self._choked_at is None:
            self._choked_at, self._window = self._next, CHOKED_WINDOW
        acknowledged = [
            each for each in self._in_flight if each <= answer.ack_through and each not in answer.nacks
        ]
        for each in acknowledged:
            del self._in_flight[each]
            self._attempts, self._repeat_s = 0, self._first_repeat_s
        if self._choked_at is not None and answer.ack_through > self._choked_at:
            self._choked_at, self._window = None, WINDOW
        if acknowledged and self._may_send:
            self._send(self._new())

    def _new(self) -> list[int]:
        room = max(0, self._window - len(self._in_flight))
        new = [*range(self._next, min(self._next + room, self.count + 1))]
        self._next += len(new)
        return new

    def _send(self, sequences: list[int]) -> None:
        for sequence in sequences:
            self._in_flight[sequence] = self._sent_s = self.play.now_s
            self._may_send = False
            payload = sequence.to_bytes(4, "big") * (PACKET_BYTES // 4)
            answers = self.play.give(to(self.stream, sequence, data=payload))
            self._answers += [(self.play.now_s + self._round_trip_s, each) for each in answers]
