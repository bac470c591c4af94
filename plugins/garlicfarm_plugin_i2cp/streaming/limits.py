"""How much the streams of a destination may use, each and together."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict

import msgspec

_FLOOR_BYTES = 16 * 1024
"""What a stream may buffer in each direction even where all streams together have used up their share, so
that none can stop the others."""
_PART = 16
"""A buffer takes at most this part of the free bytes, so that later ones get some, too."""

_MINUTE_S = 60.0
_KNOWN_PEERS = 8192


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """``streams``: served at once; ``streams_per_peer``: of one destination, with those that are half-open.
    ``half_open``: whose SYN answer was not acknowledged, of peers that were served before, and as many of
    others; another makes the oldest end. ``receive_buffer_bytes``, ``send_buffer_bytes``: of one stream.
    ``buffer_bytes``: of all together, in both directions. ``window``: packets in flight.
    ``early_packets``: that came before their SYN, of all peers. ``signatures_per_s``: that are verified, of
    peers that were not served before, and as many of others; one that costs more than Ed25519's counts as
    several (`signatures.COSTS`). ``new_peers_per_s``: of those that were not served before, how many are
    answered, and how many more that ask again; the router looks up the LeaseSet of each.
    ``connections_per_minute``: that one destination may open; ``bytes_per_minute``: that its streams carry,
    both ways together; 0: any number. ``idle_s``: a stream ends after so long without a packet of its peer;
    ``half_closed_s``: the same, once our CLOSE was acknowledged."""

    streams: int = 256
    streams_per_peer: int = 64
    half_open: int = 2048
    receive_buffer_bytes: int = 512 * 1024
    send_buffer_bytes: int = 256 * 1024
    buffer_bytes: int = 64 * 1024 * 1024
    window: int = 128
    early_packets: int = 64
    pongs_per_s: int = 10
    signatures_per_s: int = 500
    new_peers_per_s: int = 50
    connections_per_minute: int = 0
    bytes_per_minute: int = 0
    idle_s: float = 3600.0
    half_closed_s: float = 300.0


DEFAULT_LIMITS = Limits()
_MAX_STREAMS = 1024


def limits_for(open_files: int) -> Limits:
    """Those in a process that may have so many files and sockets open. Each stream takes a socket: all
    together a quarter of them, so that the node's files and links have theirs."""
    streams = min(_MAX_STREAMS, open_files // 4)
    return Limits(streams=streams, streams_per_peer=streams // 4)


class RateLimit:
    """Admits so many in each second of a clock."""

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._second = 0
        self._count = 0

    def admit(self, now_s: float, count: int = 1) -> bool:
        """Whether so many more are within the limit; then they count."""
        if self._second != int(now_s):
            self._second, self._count = int(now_s), 0
        if self._count + count > self._per_s:
            return False
        self._count += count
        return True


class MinuteLimit:
    """Admits so many of each peer in each minute of a clock; 0: all."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._minute = 0
        self._counts: Counter[bytes] = Counter()

    def admit(self, peer_hash: bytes, now_s: float) -> bool:
        """Whether one more is within the limit; then it counts."""
        if not self._per_minute:
            return True
        if self._minute != int(now_s // 60):
            self._minute = int(now_s // 60)
            self._counts.clear()
        if self._counts[peer_hash] >= self._per_minute:
            return False
        self._counts[peer_hash] += 1
        return True


class ByteLimit:
    """How fast each peer's bytes pass: a minute's share at once after a minute without any, and then as many
    as the time that goes by is worth; 0: any. It knows the last peers that sent or got some, and takes
    another for one that had none."""

    def __init__(self, per_minute: int) -> None:
        self._s_per_byte = _MINUTE_S / per_minute if per_minute else 0.0
        self._worth_s: OrderedDict[bytes, float] = OrderedDict()  # until when all that passed is paid for

    def pass_(self, peer_hash: bytes, count: int, now_s: float) -> float:
        """Count bytes that pass. Returns when more may, on the same clock."""
        if not self._s_per_byte:
            return now_s
        begin_s = max(self._worth_s.get(peer_hash, -math.inf), now_s - _MINUTE_S)
        self._worth_s[peer_hash] = worth_s = begin_s + count * self._s_per_byte
        self._worth_s.move_to_end(peer_hash)
        if len(self._worth_s) > _KNOWN_PEERS:
            self._worth_s.popitem(last=False)
        return max(now_s, worth_s)


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
