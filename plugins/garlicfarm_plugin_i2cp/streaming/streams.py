"""All incoming streams of one destination: which packet belongs to which, and what is refused.

A packet names its stream by the id that we chose, and by that of the peer. Both must match: they are all that
shows who sent it, since I2CP does not say. What opens or ends a stream is signed. The first packets may come
before the peer knows our id, and even before its SYN: then they wait for it for a while.

What has ended leaves a tombstone for a time: it answers a peer that did not notice, and a SYN that is
replayed, or late, opens nothing.

Source: I2P's streaming specification; streaming documentation, "Setup", "Ping / Pong".
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count, islice
from random import Random

import msgspec

from garlicfarm_plugin_i2cp.streaming.congestion import PeerWindow
from garlicfarm_plugin_i2cp.streaming.limits import DEFAULT_LIMITS, BufferPool, Limits, RateLimit
from garlicfarm_plugin_i2cp.streaming.packet import (
    CLOSE,
    ECHO,
    NO_ACK,
    RESET,
    SIGNATURE_INCLUDED,
    SYNCHRONIZE,
    Packet,
    decode_packet,
    encode_packet,
)
from garlicfarm_plugin_i2cp.streaming.payload import STREAMING, Payload, decode_payload, encode_payload
from garlicfarm_plugin_i2cp.streaming.signatures import Verifier, verifier_of, verify_packet
from garlicfarm_plugin_i2cp.streaming.stream import (
    Counts,
    Ended,
    Established,
    Event,
    Keys,
    Opened,
    Readable,
    Shared,
    Stream,
)

EARLY_S = 10.0
"""How long packets wait for their SYN (i2pd)."""
TOMBSTONE_S = 120.0
MAX_TOMBSTONES = 2048
MAX_RESETS_OF_A_TOMBSTONE = 8
PONG_DATA_BYTES = 32
LATELY_S = 60.0
MAX_ADDRESSED = 256
"""Peers at once."""
_HASH_WORDS = 8
_FEW_TIMERS = 64
_PACKETS_IN_TURN = 16
"""What one stream may send before the next may."""


class _RefusedError(Exception):
    """A packet is dropped; its argument is the cause."""


class _Early(msgspec.Struct, frozen=True):
    payload: Payload
    packet: Packet
    until_s: float


@dataclass(slots=True, eq=False)
class _Peer:
    """``streams``: by the peer's ids, tombstones too; ``window``: of the ``open`` ones together."""

    open: int = 0
    streams: dict[int, _Incoming] = field(default_factory=dict)
    window: PeerWindow = field(default_factory=PeerWindow)


@dataclass(slots=True, eq=False)
class _Incoming:
    """A stream until it is forgotten. ``wake_s``: its timer. Of a tombstone: it is forgotten at ``until_s``;
    RESET answers as often as ``resets`` says, or the payload ``last_ack`` does, or nothing."""

    stream: Stream
    peer_hash: bytes
    verifiers: tuple[Verifier, Verifier]
    wake_s: float | None = None
    until_s: float = 0.0
    last_ack: bytes | None = None
    resets: int = 0


class Streams:
    """The incoming streams of one destination. Sans-I/O.

    ``now_s``: s of any monotonic clock. ``now_ms``: ms since 1970, by which offline signatures expire.
    ``refused`` counts what was dropped, by cause; ``counts``, the packets with data, SYN or CLOSE that were
    sent.

    After each use of this or of a stream, call `take_payloads` and `take_events`, and again at `wake_s`.
    """

    def __init__(self, keys: Keys, *, random: Random, limits: Limits = DEFAULT_LIMITS) -> None:
        self.refused: Counter[str] = Counter()
        self.counts = Counts()
        self._random = random
        self._limits = limits
        self._pool = BufferPool(limits.buffer_bytes)
        self._shared = Shared(
            keys=keys,
            limits=limits,
            pool=self._pool,
            counts=self.counts,
            on_change=self._on_change,
            on_event=self._on_event,
        )
        self._hash_words = tuple(
            int.from_bytes(sha256(keys.destination).digest()[at : at + 4], "big") for at in range(0, 32, 4)
        )
        self._by_id: dict[int, _Incoming] = {}  # tombstones too
        self._by_peer_id: dict[int, list[_Incoming]] = {}
        self._peers: dict[bytes, _Peer] = {}
        self._half_open: dict[_Incoming, None] = {}
        self._early: OrderedDict[int, list[_Early]] = OrderedDict()
        self._early_count = 0
        self._tombstones: deque[_Incoming] = deque()
        self._answers: list[tuple[bytes, bytes]] = []
        self._pongs = RateLimit(limits.pongs_per_s)
        self._new_peers = RateLimit(limits.new_peers_per_s)
        self._changed: dict[_Incoming, None] = {}
        self._events: dict[Event, None] = {}
        self._timers: list[tuple[float, int, _Incoming]] = []
        self._numbers = count()
        self._now_s = 0.0

    def __len__(self) -> int:
        """How many streams have not ended."""
        return len(self._by_id) - len(self._tombstones)

    @property
    def buffered(self) -> int:
        """Bytes that wait in all streams, in both directions."""
        return self._pool.used

    @property
    def round_trip_s(self) -> float | None:
        """The middle one of the streams that have not ended, the lower one of two; None: no such stream has
        been acknowledged anything."""
        open_ = (each.stream for each in self._by_id.values() if each.stream.ended is None)
        known = sorted(found for stream in open_ if (found := stream.round_trip_s) is not None)
        return known[(len(known) - 1) // 2] if known else None

    def use_keys(self, keys: Keys) -> None:
        """They sign for the streams that are opened from now on, for the same destination."""
        self._shared = msgspec.structs.replace(self._shared, keys=keys)

    def has_met(self, peer_hash: bytes) -> bool:
        """Whether the destination with this 32-byte hash has a stream here, or had one lately."""
        return peer_hash in self._peers

    # what comes in

    def receive_payload(self, payload: bytes, now_s: float, now_ms: int) -> None:
        """Take the gzip bytes of one MessagePayload. Never raises: what is refused is counted."""
        self._now_s = now_s
        try:
            try:
                decoded = decode_payload(payload)
            except ValueError:
                raise _RefusedError("malformed payload") from None
            if decoded.protocol != STREAMING:
                raise _RefusedError("another protocol")
            try:
                packet = decode_packet(decoded.data)
            except ValueError:
                raise _RefusedError("malformed packet") from None
            self._receive(decoded, packet, now_ms)
        except _RefusedError as error:
            self.refused[str(error)] += 1

    def _receive(self, payload: Payload, packet: Packet, now_ms: int) -> None:
        if packet.flags & ECHO:
            self._receive_ping(payload, packet, now_ms)
        elif packet.to_stream:
            incoming = self._by_id.get(packet.to_stream)
            if incoming is None:
                raise _RefusedError("no such stream")
            self._receive_for(incoming, payload, packet, now_ms)
        elif packet.flags & SYNCHRONIZE:
            self._receive_syn(payload, packet, now_ms)
        else:
            known = self._by_peer_id.get(packet.from_stream, ())
            if len(known) == 1:
                self._receive_for(known[0], payload, packet, now_ms)
            elif known:
                raise _RefusedError("ambiguous stream")
            else:
                self._keep_early(payload, packet)

    def _receive_for(self, incoming: _Incoming, payload: Payload, packet: Packet, now_ms: int) -> None:
        stream, flags = incoming.stream, packet.flags
        if stream.ended is not None:
            self._answer_late(incoming, packet)
            return
        if packet.from_stream != stream.peer_id and not (flags & RESET and not packet.from_stream):
            raise _RefusedError("wrong stream ids")
        if flags & SYNCHRONIZE:
            raise _RefusedError("unexpected SYN")
        if flags & (CLOSE | RESET):
            self._verify(payload, packet, *incoming.verifiers, now_ms)
        if not stream.receive(packet, self._now_s):
            raise _RefusedError("acknowledges what was not sent")
        if stream.is_established and incoming in self._half_open:
            del self._half_open[incoming]
            self._on_event(Established(stream))

    def _receive_syn(self, payload: Payload, packet: Packet, now_ms: int) -> None:
        if packet.destination is None or not packet.from_stream or packet.sequence:
            raise _RefusedError("malformed SYN")
        if len(packet.nacks) == _HASH_WORDS and tuple(packet.nacks) != self._hash_words:
            raise _RefusedError("SYN for another destination")
        peer_hash = sha256(packet.destination).digest()
        peer = self._peers.get(peer_hash)
        if peer is not None and (known := peer.streams.get(packet.from_stream)) is not None:
            if known.stream.ended is None:
                known.stream.receive_syn_again(self._now_s)
            else:
                self._answer_late(known, packet)
            return
        if len(self) >= self._limits.streams:
            raise _RefusedError("too many streams")
        if peer is not None and peer.open >= self._limits.streams_per_peer:
            raise _RefusedError("too many streams of a peer")
        if peer is None and not self._new_peers.admit(self._now_s):
            raise _RefusedError("too many new peers")
        verifiers = self._verify_first(payload, packet, packet.destination, now_ms)
        if len(self._half_open) >= self._limits.half_open:
            next(iter(self._half_open)).stream.end("crowded_out")
        self._open(payload, packet, peer_hash, verifiers)
        for early in self._take_early(packet.from_stream):
            try:
                self._receive(early.payload, early.packet, now_ms)
            except _RefusedError as error:
                self.refused[str(error)] += 1

    def _receive_ping(self, payload: Payload, packet: Packet, now_ms: int) -> None:
        if not packet.to_stream:
            raise _RefusedError("unexpected pong")
        if packet.destination is None:
            raise _RefusedError("malformed ping")
        if not self._pongs.admit(self._now_s):
            raise _RefusedError("too many pings")
        self._verify_first(payload, packet, packet.destination, now_ms)
        pong = Packet(0, packet.to_stream, 0, 0, flags=ECHO, data=packet.data[:PONG_DATA_BYTES])
        self._answers.append(
            (packet.destination, encode_payload(encode_packet(pong), payload.to_port, payload.from_port))
        )

    def _verify_first(
        self, payload: Payload, packet: Packet, destination: bytes, now_ms: int
    ) -> tuple[Verifier, Verifier]:
        """Check a packet that says itself who sent it; its sender's long-term key, and the one that signs."""
        try:
            long_term = verifier_of(destination)
        except ValueError:
            raise _RefusedError("unsupported key type") from None
        return long_term, self._verify(payload, packet, long_term, None, now_ms)

    def _verify(
        self, payload: Payload, packet: Packet, long_term: Verifier, transient: Verifier | None, now_ms: int
    ) -> Verifier:
        if not packet.flags & SIGNATURE_INCLUDED:
            raise _RefusedError("unsigned")
        try:
            return verify_packet(payload.data, packet, long_term, transient, now_ms)
        except ValueError:
            raise _RefusedError("bad signature") from None

    # streams begin and end

    def _open(
        self, payload: Payload, syn: Packet, peer_hash: bytes, verifiers: tuple[Verifier, Verifier]
    ) -> None:
        id_ = 0
        while not id_ or id_ in self._by_id:
            id_ = self._random.getrandbits(32)
        peer = self._peers.setdefault(peer_hash, _Peer())
        if not peer.open:
            peer.window = PeerWindow()
        stream = Stream(
            self._shared,
            id_=id_,
            syn=syn,
            ports=(payload.from_port, payload.to_port),
            peer_window=peer.window,
            now_s=self._now_s,
        )
        incoming = _Incoming(stream, peer_hash, verifiers)
        self._by_id[id_] = peer.streams[stream.peer_id] = incoming
        self._by_peer_id.setdefault(stream.peer_id, []).append(incoming)
        self._half_open[incoming] = None
        peer.open += 1
        self._on_event(Opened(stream))
        if syn.data or syn.flags & CLOSE:
            self._on_event(Readable(stream))
        self._on_change(stream)

    def reset_all(self) -> None:
        """Reset every stream."""
        for incoming in list(self._by_id.values()):
            if incoming.stream.ended is None:
                incoming.stream.reset()

    def address_peers(self, now_s: float) -> None:
        """Send an ACK to each peer that was heard of in the last minute, a number of them at most. An ACK for
        a stream that the peer has forgotten is dropped there."""
        since_s = now_s - LATELY_S
        acks: dict[bytes, bytes] = {}
        for incoming in self._by_id.values():
            stream = incoming.stream
            if stream.ended is not None or not stream.is_established or stream.peer in acks:
                continue
            if stream.heard_s >= since_s:
                acks[stream.peer] = stream.encode_ack()
        for tombstone in reversed(self._tombstones):
            if tombstone.last_ack is not None and tombstone.stream.heard_s >= since_s:
                acks.setdefault(tombstone.stream.peer, tombstone.last_ack)
        self._answers += islice(acks.items(), MAX_ADDRESSED)

    def _on_change(self, stream: Stream) -> None:
        if stream.ended is None:
            self._changed[self._by_id[stream.id]] = None

    def _on_event(self, event: Event) -> None:
        self._events[event] = None
        if isinstance(event, Ended):
            self._bury(self._by_id[event.stream.id])

    def _bury(self, incoming: _Incoming) -> None:
        stream = incoming.stream
        self._peers[incoming.peer_hash].open -= 1
        same = self._by_peer_id[stream.peer_id]
        same.remove(incoming)
        if not same:
            del self._by_peer_id[stream.peer_id]
        self._half_open.pop(incoming, None)
        self._changed.pop(incoming, None)
        incoming.wake_s = None
        if stream.ended == "closed":
            has_ack_due = stream.has_ack_due
            incoming.last_ack = stream.encode_ack()
            if has_ack_due:
                self._answers.append((stream.peer, incoming.last_ack))
        elif stream.ended != "reset_by_peer":
            incoming.resets = MAX_RESETS_OF_A_TOMBSTONE
            self._answers.append((stream.peer, stream.encode_reset(stream.next_sequence)))
        incoming.until_s = self._now_s + TOMBSTONE_S
        self._tombstones.append(incoming)
        while len(self._tombstones) > MAX_TOMBSTONES:
            self._forget_tombstone()

    def _forget_tombstone(self) -> None:
        tombstone = self._tombstones.popleft()
        del self._by_id[tombstone.stream.id]
        peer = self._peers[tombstone.peer_hash]
        del peer.streams[tombstone.stream.peer_id]
        if not peer.streams:
            del self._peers[tombstone.peer_hash]

    def _answer_late(self, tombstone: _Incoming, packet: Packet) -> None:
        """Answer a packet for a stream that has ended."""
        stream = tombstone.stream
        if packet.from_stream != stream.peer_id or packet.flags & RESET:
            raise _RefusedError("for a stream that has ended")
        if tombstone.resets:
            tombstone.resets -= 1
            self._answers.append((stream.peer, stream.encode_reset(_expected(packet))))
        elif tombstone.last_ack is not None and packet.sequence:
            self._answers.append((stream.peer, tombstone.last_ack))
        else:
            raise _RefusedError("for a stream that has ended")

    # packets that come before their SYN

    def _keep_early(self, payload: Payload, packet: Packet) -> None:
        if not packet.from_stream or packet.flags & RESET:
            raise _RefusedError("no such stream")
        self._early.setdefault(packet.from_stream, []).append(_Early(payload, packet, self._now_s + EARLY_S))
        self._early_count += 1
        if self._early_count > self._limits.early_packets:
            self._drop_early()

    def _take_early(self, peer_id: int) -> list[_Early]:
        early = self._early.pop(peer_id, [])
        self._early_count -= len(early)
        return [each for each in early if each.until_s > self._now_s]

    def _drop_early(self) -> None:
        """Those of the stream that has waited longest."""
        _, early = self._early.popitem(last=False)
        self._early_count -= len(early)
        self.refused["no such stream"] += len(early)

    # what goes out

    def take_payloads(self, now_s: float, limit: int = 1024) -> list[tuple[bytes, bytes]]:
        """What is to be sent now: (the peer's destination, gzip bytes for SendMessage), each once.

        Runs the timers that are due. ``limit``: the room for what is returned; more may be there when as many
        came, and comes with the next call.
        """
        self._now_s = now_s
        self._expire(now_s)
        while self._timers and self._timers[0][0] <= now_s:
            at_s, _, incoming = heapq.heappop(self._timers)
            if incoming.wake_s == at_s:
                incoming.wake_s = None
                self._changed[incoming] = None
        taken = self._answers[:limit]
        del self._answers[:limit]
        while self._changed and len(taken) < limit:
            incoming = next(iter(self._changed))
            del self._changed[incoming]
            stream = incoming.stream
            in_turn = min(_PACKETS_IN_TURN, limit - len(taken))
            payloads = stream.take_packets(now_s, in_turn)
            taken += [(stream.peer, payload) for payload in payloads]
            if stream.ended is None:
                if len(payloads) == in_turn:
                    self._changed[incoming] = None
                else:
                    self._set_timer(incoming)
        if len(taken) < limit and self._answers:  # of streams that have just ended
            room = limit - len(taken)
            taken += self._answers[:room]
            del self._answers[:room]
        return taken

    def take_events(self) -> list[Event]:
        """What has happened since the last call, each once."""
        events = list(self._events)
        self._events.clear()
        return events

    @property
    def wake_s(self) -> float | None:
        """When to call `take_payloads` at the latest; None: there is nothing to wait for. What only waits for
        room (``limit``) does not count."""
        while self._timers and self._timers[0][2].wake_s != self._timers[0][0]:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _set_timer(self, incoming: _Incoming) -> None:
        at_s = incoming.stream.wake_s
        if incoming.wake_s is None or at_s < incoming.wake_s:
            incoming.wake_s = at_s
            heapq.heappush(self._timers, (at_s, next(self._numbers), incoming))
        if len(self._timers) > 2 * len(self) + _FEW_TIMERS:  # most were replaced by earlier ones
            self._timers = [timer for timer in self._timers if timer[2].wake_s == timer[0]]
            heapq.heapify(self._timers)

    def _expire(self, now_s: float) -> None:
        while self._tombstones and self._tombstones[0].until_s <= now_s:
            self._forget_tombstone()
        while self._early and next(iter(self._early.values()))[0].until_s <= now_s:
            self._drop_early()


def _expected(packet: Packet) -> int:
    """The sequence number of ours that the sender of ``packet`` waits for."""
    if packet.flags & (SYNCHRONIZE | NO_ACK):
        return 0
    return packet.nacks[0] if packet.nacks else min(packet.ack_through + 1, 0xFFFF_FFFF)
