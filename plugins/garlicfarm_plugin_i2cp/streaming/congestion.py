"""How long to wait for an acknowledgement, and how many packets may be in flight.

Source: I2P's streaming documentation, "Windowing" and "Other Parameters"; RFC 6298; RFC 5681. Windows count
packets.
"""

from __future__ import annotations

from typing import Protocol

INITIAL_TIMEOUT_S = 9.0
MIN_TIMEOUT_S = 0.1
MAX_TIMEOUT_S = 45.0
INITIAL_WINDOW = 6
MIN_WINDOW = 1
_ALPHA = 0.125
_BETA = 0.25
_ACK_DELAY_S = 0.25
"""What a peer may wait before it acknowledges: i2pd up to 0.2 s."""
_AFTER_LOSS = 0.7
"""The part of the window that is kept: as CUBIC (RFC 9438), since tunnels lose packets without congestion."""


class RoundTrip:
    """The estimate of the round trip, and the time after which a packet is sent again."""

    def __init__(self) -> None:
        self.smoothed_s: float | None = None
        self._deviation_s = 0.0
        self._timeout_s = INITIAL_TIMEOUT_S

    def on_sample(self, sample_s: float) -> None:
        """A packet that was sent once was acknowledged after ``sample_s``."""
        if self.smoothed_s is None:
            self.smoothed_s, self._deviation_s = sample_s, sample_s / 2
        else:
            self._deviation_s += _BETA * (abs(self.smoothed_s - sample_s) - self._deviation_s)
            self.smoothed_s += _ALPHA * (sample_s - self.smoothed_s)
        variation_s = max(4 * self._deviation_s, _ACK_DELAY_S)
        self._timeout_s = min(max(self.smoothed_s + variation_s, MIN_TIMEOUT_S), MAX_TIMEOUT_S)

    @property
    def late_s(self) -> float:
        """After so long, a packet that others have passed is not late but lost."""
        return 0.0 if self.smoothed_s is None else self.smoothed_s + 4 * self._deviation_s

    def timeout_s(self, timeouts: int) -> float:
        """How long to wait after so many timeouts in a row."""
        return min(self._timeout_s * 2.0 ** min(timeouts, 16), MAX_TIMEOUT_S)


class CongestionWindow:
    """Slow start, then one packet more each round trip."""

    def __init__(self, limit: int) -> None:
        self._limit = float(limit)
        self._size = float(min(INITIAL_WINDOW, limit))
        self._threshold = self._limit

    @property
    def size(self) -> int:
        return int(self._size)

    def on_acknowledged(self, packets: int) -> None:
        """``packets`` were acknowledged while the window was full."""
        growth = packets if self._size < self._threshold else packets / self._size
        self._size = min(self._size + growth, self._limit)

    def on_loss(self) -> None:
        """The peer reports a loss, the first in this window."""
        self._threshold = self._size = max(self._size * _AFTER_LOSS, 2.0)

    def on_timeout(self) -> None:
        self._threshold = max(self._size / 2, 2.0)
        self._size = float(MIN_WINDOW)


class Sender(Protocol):
    def begin_turn(self, packets: int) -> None:
        """It may send so many packets more, and says by `PeerWindow.hold` once it holds fewer."""


class PeerWindow:
    """Shares the packets that one peer may have to expect among the streams that send to it.

    All of a peer's streams use one ratchet session of the routers. i2pd drops what it cannot pass on, and its
    receiving side knows a few hundred of the next session tags: once it has missed as many packets in a row,
    it can decrypt nothing more, and every stream hangs for minutes.

    A stream sends `AT_ONCE` packets, and waits for a turn of `TURN` for more, behind all that wait already.
    The peer answers many packets in a row with one ACK. If each of 50 streams had two in flight, there would
    be an ACK for every second packet, and both routers would compute half as much again.
    """

    LIMIT = 128
    TURN = 16
    AT_ONCE = 2

    def __init__(self) -> None:
        self._room = self.LIMIT
        self._waiting: dict[Sender, None] = {}

    def ask(self, sender: Sender) -> None:
        """It waits for a turn, which may begin at once."""
        self._waiting[sender] = None
        self._begin_turns()

    def leave(self, sender: Sender) -> None:
        """It waits no longer."""
        self._waiting.pop(sender, None)

    def hold(self, packets: int) -> None:
        """A stream holds so many packets more, or fewer: in flight, or of its turn."""
        self._room -= packets
        self._begin_turns()

    def _begin_turns(self) -> None:
        while self._waiting and self._room >= self.TURN:
            sender = next(iter(self._waiting))
            del self._waiting[sender]
            self._room -= self.TURN
            sender.begin_turn(self.TURN)
