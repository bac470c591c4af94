"""How much the streams of a destination may use, each and together."""

from __future__ import annotations

import msgspec

_FLOOR_BYTES = 16 * 1024
"""What a stream may buffer in each direction even where all streams together have used up their share, so
that none can stop the others."""
_PART = 16
"""A buffer takes at most this part of the free bytes, so that later ones get some, too."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """``streams``: open at once, ``streams_per_peer``: of one destination. ``half_open``: with a SYN answer
    that was not acknowledged; another makes the oldest end. ``receive_buffer_bytes``,
    ``send_buffer_bytes``: of one stream. ``buffer_bytes``: of all together, in both directions. ``window``:
    packets in flight. ``early_packets``: that came before their SYN, of all peers. ``idle_s``: a stream
    ends after so long without a packet of its peer; ``half_closed_s``: the same, once our CLOSE was
    acknowledged. ``new_peers_per_s``: that have had no stream lately; the router looks up the LeaseSet of
    each."""

    streams: int = 256
    streams_per_peer: int = 64
    half_open: int = 128
    receive_buffer_bytes: int = 512 * 1024
    send_buffer_bytes: int = 256 * 1024
    buffer_bytes: int = 64 * 1024 * 1024
    window: int = 128
    early_packets: int = 64
    pongs_per_s: int = 10
    new_peers_per_s: int = 50
    idle_s: float = 3600.0
    half_closed_s: float = 300.0


DEFAULT_LIMITS = Limits()
_MAX_STREAMS = 1024


def limits_for(open_files: int) -> Limits:
    """Those in a process that may have so many files and sockets open. Each stream takes a socket: all
    together a quarter of them, so that the node's files and links have theirs."""
    streams = min(_MAX_STREAMS, open_files // 4)
    return Limits(streams=streams, streams_per_peer=streams // 4, half_open=streams // 2)


class RateLimit:
    """Admits so many in each second of a clock."""

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._second = 0
        self._count = 0

    def admit(self, now_s: float) -> bool:
        """Whether one more is within the limit; then it counts."""
        if self._second != int(now_s):
            self._second, self._count = int(now_s), 0
        if self._count >= self._per_s:
            return False
        self._count += 1
        return True


class BufferPool:
    """Counts the bytes that all streams buffer."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0

    def limit(self, own: int) -> int:
        """How many bytes a buffer may hold now whose own limit is ``own``."""
        return min(own, max(_FLOOR_BYTES, (self._limit - self.used) // _PART))

    def room(self, used: int, own: int) -> int:
        """How many more bytes that buffer may take if it holds ``used``."""
        return max(0, self.limit(own) - used)
