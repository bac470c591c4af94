"""One incoming stream: both halves, when to acknowledge, and how it ends.

Theory of operation. The peer's SYN makes the stream; ours answers it and carries no data, so that the first
round trip is measured. Every packet that is sent acknowledges what has come. Without one to send, an ACK goes
out after a short delay; at once, if a packet was missing, came twice, or the peer asks for it.

Each direction ends with CLOSE. The stream has ended when ours is acknowledged and the peer's has come. RESET
ends both at once; so do too many timeouts, and silence.

Source: I2P's streaming specification; streaming documentation, "Close", "Other Parameters".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

import msgspec

from garlicfarm.i2p.offline_signature import OfflineSignature
from garlicfarm_plugin_i2cp.streaming.congestion import PeerWindow
from garlicfarm_plugin_i2cp.streaming.limits import BufferPool, Limits
from garlicfarm_plugin_i2cp.streaming.packet import (
    CHOKE_MS,
    CLOSE,
    DELAY_REQUESTED,
    FROM_INCLUDED,
    MAX_PACKET_SIZE,
    NO_ACK,
    OFFLINE_SIGNATURE,
    RESET,
    SYNCHRONIZE,
    Packet,
    encode_packet,
)
from garlicfarm_plugin_i2cp.streaming.payload import encode_payload
from garlicfarm_plugin_i2cp.streaming.receiving import ReceiveHalf
from garlicfarm_plugin_i2cp.streaming.sending import SendHalf

EndReason: TypeAlias = Literal[
    "closed", "reset", "reset_by_peer", "timed_out", "idle", "crowded_out", "banned"
]

MAX_DATA_BYTES = 1812
"""Of a packet that fits two tunnel messages, between destinations with ECIES keys (proposal 155)."""
DEFAULT_MAX_DATA_BYTES = 1730
"""Of a peer that names none."""
MIN_MAX_DATA_BYTES = 512
_CHOKED_MS = 65_535
"""What a choked stream requests: more than 60,000, and i2pd does not shrink its window for it."""
UNCHOKING_PACKETS = 8
"""So many packets end a choke, since some may be lost: Java I2P sends again only once one of them requests a
lesser delay."""
MAX_ACK_DELAY_S = 0.2
MIN_ACK_DELAY_S = 0.002
ACK_DELAY_PART = 10
"""An ACK waits for a tenth of the round trip, as i2pd."""
PACKETS_PER_ACK = 16


class Keys(Protocol):
    """What signs for the destination: `garlicfarm.i2p.keys.DestinationKeys` has this form."""

    @property
    def destination(self) -> bytes: ...
    @property
    def offline(self) -> OfflineSignature | None: ...
    def sign(self, data: bytes) -> bytes: ...


class Counts(msgspec.Struct):
    """Packets that were sent, and those of them that were sent again."""

    sent: int = 0
    resent: int = 0


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What all streams of a destination have in common. ``on_change``: a stream may have something to send,
    or another time to wake. ``on_event``: something has happened to it."""

    keys: Keys
    limits: Limits
    pool: BufferPool
    counts: Counts
    on_change: Callable[[Stream], None]
    on_event: Callable[[Event], None]


class Stream:
    """An incoming stream. `Streams` makes it.

    ``peer``: the peer's destination, binary. ``local_port``, ``peer_port``: I2CP's, 0: none. ``ended``: why
    it has ended; None: it has not. ``heard_s``: when a packet of the peer came last. ``active_s``: when it
    last carried something that was new, in either direction."""

    def __init__(
        self,
        shared: Shared,
        *,
        id_: int,
        syn: Packet,
        ports: tuple[int, int],
        peer_window: PeerWindow,
        now_s: float,
    ) -> None:
        assert syn.destination is not None
        self.id = id_
        self.peer = syn.destination
        self.peer_id = syn.from_stream
        self.peer_port, self.local_port = ports
        self.ended: EndReason | None = None
        self._keys = shared.keys
        self._counts = shared.counts
        self._limits = limits = shared.limits
        self._on_change = shared.on_change
        self._on_event = shared.on_event
        self._max_data = max(MIN_MAX_DATA_BYTES, min(syn.max_data or DEFAULT_MAX_DATA_BYTES, MAX_DATA_BYTES))
        self._send = SendHalf(
            self._max_data,
            limits.window,
            limits.send_buffer_bytes,
            shared.pool,
            peer_window,
            lambda: self._on_change(self),
        )
        self._receive = ReceiveHalf(limits.receive_buffer_bytes, shared.pool)
        self.heard_s = self.active_s = now_s
        self._has_data = bool(syn.data)
        self._ack_s: float | None = None
        self._unacknowledged = 0
        self._unchoking = 0
        """In how many packets the peer has to be told, once it is choked no longer."""
        self._wants_room = False
        self._is_addressed = False
        """The peer has sent to our id, so it has our SYN, and the keys that verify what we sign."""
        self._receive.receive_first(syn.data, is_close=bool(syn.flags & CLOSE))

    def __repr__(self) -> str:
        return f"<Stream {self.id:08x}{f' {self.ended}' if self.ended else ''}>"

    # what the application does

    def read(self, size: int) -> bytes:
        """At most ``size`` received bytes; b"": there are none now (see `is_at_eof`, `ended`). What was
        received before the stream was closed stays readable."""
        was_full = self._receive.is_full
        data = self._receive.read(size)
        if data and was_full and self.ended is None and not self._receive.look():
            self._ack_s = float("-inf")
            self._on_change(self)
        return data

    @property
    def is_at_eof(self) -> bool:
        """The peer has closed, and all was read."""
        return self._receive.is_closed and self._receive.is_empty

    def write(self, data: bytes) -> int:
        """Take as much as there is room for. Returns how much that was: `Writable` follows, if it was not
        all. 0 after `close`, `reset` or the end."""
        if self.ended is not None or self._send.is_closing:
            return 0
        taken = self._send.write(data)
        self._wants_room = taken < len(data)
        if taken:
            self._on_change(self)
        return taken

    def close(self) -> None:
        """Write no more: CLOSE is sent after what was written. Reading goes on, but i2pd's streams end in
        both directions when they receive it."""
        if self.ended is None and not self._send.is_closing:
            self._send.close()
            self._on_change(self)

    def reset(self) -> None:
        """End now, and tell the peer; forget all bytes, also those of a stream that has ended."""
        self.end("reset")
        self._receive.clear()

    # what `Streams` does

    @property
    def is_established(self) -> bool:
        """The peer has acknowledged our SYN."""
        return self._send.is_established

    @property
    def rank(self) -> Literal[0, 1, 2]:
        """0: it has carried nothing; 1: data of a peer that receives; 2: what the peer has acknowledged."""
        if self._send.acknowledged > 1:
            return 2
        return 1 if self._send.acknowledged and self._has_data else 0

    @property
    def unread(self) -> int:
        """Bytes that have come and were not read."""
        return self._receive.buffered

    def may_take(self, sequence: int) -> bool:
        """Whether packet ``sequence`` may bring something new."""
        return self._receive.is_new(sequence)

    @property
    def round_trip_s(self) -> float | None:
        """Its estimate; None: nothing was acknowledged yet."""
        return self._send.round_trip.smoothed_s

    @property
    def next_sequence(self) -> int:
        return self._send.next_sequence

    def end(self, reason: EndReason) -> None:
        """Once; later reasons are ignored."""
        if self.ended is not None:
            return
        self.ended = reason
        self._send.clear()
        if reason != "closed":
            self._receive.clear()
        self._on_event(Ended(self, reason))
        self._on_change(self)

    def receive(self, packet: Packet, now_s: float) -> bool:
        """Take a packet whose ids and signature were checked. Returns False: it acknowledges what was not
        sent, and nothing of it was taken."""
        self.heard_s = now_s
        flags, acknowledged = packet.flags, self._send.acknowledged
        self._is_addressed |= packet.to_stream == self.id
        if flags & RESET:
            self.end("reset_by_peer")
            return True
        if not flags & (SYNCHRONIZE | NO_ACK) and not self._send.receive_ack(
            packet.ack_through, packet.nacks, now_s
        ):
            return False
        if self._send.acknowledged > acknowledged:
            self.active_s = now_s
        if not flags & SYNCHRONIZE:
            self._take_delay(packet.delay_ms, now_s)
        if packet.sequence or flags & SYNCHRONIZE:
            self._take_data(packet, now_s)
        if self._wants_room and self._send.has_room:
            self._wants_room = False
            self._on_event(Writable(self))
        self._check_end()
        self._on_change(self)
        return True

    def receive_syn_again(self, now_s: float) -> None:
        """The SYN that made this stream came once more: the answer was lost, or is late."""
        if self.is_established:
            self._ack_s = now_s
        else:
            self._send.repeat_syn(now_s)
        self._on_change(self)

    def take_packets(self, now_s: float, limit: int) -> list[bytes]:
        """The payloads to send now, at most ``limit``; there may be more if there are as many."""
        payloads: list[bytes] = []
        if self.ended is not None or not self._is_alive(now_s):
            return payloads
        while len(payloads) < limit and (sent := self._send.next_packet(now_s)) is not None:
            asks = sent.asks and sent.times == 1
            payloads.append(self._encode(sent.sequence, sent.flags, sent.data, asks=asks))
            self._counts.sent += 1
            self._counts.resent += sent.times > 1
        if self._ack_s is not None and self._ack_s <= now_s and len(payloads) < limit:
            payloads.append(self._encode(0, 0))
        if self._wants_room and self._send.has_room:
            self._wants_room = False
            self._on_event(Writable(self))
        return payloads

    @property
    def has_ack_due(self) -> bool:
        return self._ack_s is not None

    @property
    def wake_s(self) -> float:
        """When to call `take_packets` at the latest."""
        times = [self.heard_s + self._silence_s]
        if self._ack_s is not None:
            times.append(self._ack_s)
        if self._send.wake_s is not None:
            times.append(self._send.wake_s)
        return min(times)

    def encode_ack(self) -> bytes:
        """The payload of an ACK without data, which also answers the peer's packets after the end."""
        return self._encode(0, 0)

    def encode_reset(self, sequence: int) -> bytes:
        """The payload of RESET. ``sequence``: the one that the peer waits for, since i2pd takes it in its
        turn."""
        return self._encode(sequence, RESET)

    # inside

    def _take_delay(self, delay_ms: int | None, now_s: float) -> None:
        if delay_ms is not None and delay_ms >= CHOKE_MS:
            self._send.on_choke()
            return
        self._send.is_choked = False
        if delay_ms == 0:
            self._ack_s = now_s

    def _take_data(self, packet: Packet, now_s: float) -> None:
        is_next = packet.sequence == self._receive.through + 1
        had_gap = self._receive.has_gap
        has_news = self._receive.receive(packet.sequence, packet.data, is_close=bool(packet.flags & CLOSE))
        if has_news:
            self._has_data = True
            self.active_s = now_s
            self._on_event(Readable(self))
        self._unacknowledged += 1
        if packet.sequence and packet.flags & DELAY_REQUESTED:
            self._receive.can_be_choked = True
        if not is_next or had_gap or self._unacknowledged >= PACKETS_PER_ACK or packet.flags & CLOSE:
            self._ack_s = now_s
        elif self._ack_s is None:
            self._ack_s = now_s + self._ack_delay_s

    @property
    def _ack_delay_s(self) -> float:
        round_trip_s = self._send.round_trip.smoothed_s or 0.0
        return min(max(round_trip_s / ACK_DELAY_PART, MIN_ACK_DELAY_S), MAX_ACK_DELAY_S)

    @property
    def _silence_s(self) -> float:
        return self._limits.half_closed_s if self._send.is_finished else self._limits.idle_s

    def _is_alive(self, now_s: float) -> bool:
        if now_s >= self.heard_s + self._silence_s:
            self.end("idle")
        elif not self._send.on_time(now_s):
            self.end("closed" if self._send.is_delivered and self._receive.is_closed else "timed_out")
        return self.ended is None

    def _check_end(self) -> None:
        if self._send.is_finished and self._receive.is_closed:
            self.end("closed")

    def _encode(self, sequence: int, flags: int, data: bytes = b"", *, asks: bool = False) -> bytes:
        """Every packet acknowledges what has come, unless the peer is held, and chokes it or not. ``asks``:
        for an ACK at once. Java I2P waits for half a second otherwise, i2pd for a tenth of the round trip."""
        through, nacks = self._receive.acknowledgement()
        packet = Packet(self.peer_id, self.id, sequence, through, nacks, flags, data=data)
        self._ack_s = None
        self._unacknowledged = 0
        if self._receive.is_full and self._receive.can_be_choked:
            self._unchoking = UNCHOKING_PACKETS
            packet.delay_ms = _CHOKED_MS
        elif self._unchoking:
            self._unchoking -= 1
            packet.delay_ms = 0
        elif asks:
            packet.delay_ms = 0
        if packet.delay_ms is not None:
            packet.flags |= DELAY_REQUESTED
        if flags & SYNCHRONIZE:
            packet.flags |= MAX_PACKET_SIZE
            packet.max_data = self._max_data
        if flags & SYNCHRONIZE or (flags & RESET and not self._is_addressed):
            packet.flags |= FROM_INCLUDED
            packet.destination = self._keys.destination
            if self._keys.offline is not None:
                packet.flags |= OFFLINE_SIGNATURE
                packet.signed_options = self._keys.offline.encode()
        sign = self._keys.sign if flags & (SYNCHRONIZE | CLOSE | RESET) else None
        return encode_payload(encode_packet(packet, sign), self.local_port, self.peer_port)


class Opened(msgspec.Struct, frozen=True):
    """A stream is to be served: its peer has acknowledged our SYN, or has sent data with its own."""

    stream: Stream


class Readable(msgspec.Struct, frozen=True):
    """There are new bytes to read, or the end of them."""

    stream: Stream


class Writable(msgspec.Struct, frozen=True):
    """There is room again, after a `Stream.write` that took less than all."""

    stream: Stream


class Ended(msgspec.Struct, frozen=True):
    """The last event of a stream. ``closed``: both sides have closed, and the peer has all that was written;
    ``reset``: by us; ``timed_out``: the peer acknowledges nothing; ``idle``: it sends nothing;
    ``crowded_out``: another one needed its place; ``banned``: see `Streams.restrict`."""

    stream: Stream
    reason: EndReason


Event: TypeAlias = Opened | Readable | Writable | Ended
