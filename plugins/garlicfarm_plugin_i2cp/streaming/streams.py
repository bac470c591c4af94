"""All incoming streams of one destination: which packet belongs to which, and what is refused.

A packet names its stream by the id that we chose, and by that of the peer. Both must match: they are all that
shows who sent it, since I2CP does not say. What opens or ends a stream is signed. The first packets may come
before the peer knows our id, and even before its SYN: then they wait for it for a while.

A stream is half-open until its peer has acknowledged our SYN, and costs little: anyone can sign SYNs with
destinations made up for them. Then it is open and served. One whose data comes first is served at once, as
long as few are. Where there is no place left, the least active stream gives way, whoever has it; where all
are active, it waits. Peers that were answered are remembered: the half-open streams and signatures of others
take nothing from theirs.

What has ended leaves a tombstone for a time, if it was served: it answers a peer that did not notice, and a
SYN that is replayed, or late, opens nothing.

Source: I2P's streaming specification; streaming documentation, "Setup", "Ping / Pong".
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from hashlib import sha256
from itertools import chain, islice
from random import Random

import msgspec

from garlicfarm.i2p.destination import signing_key
from garlicfarm.i2p.signing import Verifier
from garlicfarm_plugin_i2cp.streaming.congestion import PeerWindow
from garlicfarm_plugin_i2cp.streaming.incoming import Incoming, Peer
from garlicfarm_plugin_i2cp.streaming.limits import (
    DEFAULT_LIMITS,
    BufferPool,
    Limits,
    MinuteLimit,
    RateLimit,
)
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
from garlicfarm_plugin_i2cp.streaming.signatures import cost_of, verify_packet
from garlicfarm_plugin_i2cp.streaming.stream import (
    Counts,
    Ended,
    Event,
    Keys,
    Opened,
    Readable,
    Shared,
    Stream,
)
from garlicfarm_plugin_i2cp.streaming.turns import Turns

EARLY_S = 10.0
"""How long packets wait for their SYN (i2pd)."""
TOMBSTONE_S = 120.0
MAX_TOMBSTONES = 2048
MAX_RESETS_OF_A_TOMBSTONE = 8
RESET_AGAIN_S, RESETS_AGAIN = 1.0, 2
"""A RESET of ours may be lost. It also answers what the peer sends later, but one that only receives sends
nothing, and one that knows the next publisher sends it there."""
LATE_ANSWER_S = 1.0
"""Between two answers of one tombstone."""
MAX_SIGNATURES_OF_A_STREAM = 16
"""That are verified after its SYN. It needs one."""
ACTIVE_S = (0.0, 8.0, 20.0)
"""By a stream's rank: one that has carried something new within this time gives way to no stranger's."""
WAITS_S = 30.0
"""For a place, once its peer has acknowledged our SYN."""
WAITING_TURN_S = 0.5
EARLY_PART = 8
"""At most this part of the streams are strangers' that are served before they are open."""
HALF_OPEN_BYTES = 8192
"""So much data of a stream that is not served yet is enough."""
MAX_SERVED = 8192
"""Peers that are remembered."""
MAX_TURNED_AWAY = 8192
ASKS_AGAIN_S = 3.0
"""A SYN that comes again after this time is of one who waits: i2pd and Java I2P repeat theirs after 9 s."""
PONG_DATA_BYTES = 32
LATELY_S = 60.0
MAX_ADDRESSED = 256
"""Peers at once."""
_HASH_WORDS = 8


class _RefusedError(Exception):
    """A packet is dropped; its argument is the cause."""


class _Early(msgspec.Struct, frozen=True):
    payload: Payload
    packet: Packet
    until_s: float


class _Entrance:
    """Of strangers, or of the peers that were served before. ``half_open``: the oldest first."""

    def __init__(self, limits: Limits) -> None:
        self.half_open: dict[Incoming, None] = {}
        self.signatures = RateLimit(limits.signatures_per_s)


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
        self._admits: Callable[[bytes], bool] = lambda peer_hash: True
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
        self._by_id: dict[int, Incoming] = {}  # tombstones too
        self._by_peer_id: dict[int, list[Incoming]] = {}
        self._peers: dict[bytes, Peer] = {}
        self._open: dict[Incoming, None] = {}
        self._served_early: dict[Incoming, None] = {}
        self._waiting: dict[Incoming, float] = {}
        self._waiting_turn_s = 0.0
        self._strangers, self._known = _Entrance(limits), _Entrance(limits)
        self._served: OrderedDict[bytes, None] = OrderedDict()
        self._turned_away: OrderedDict[tuple[bytes, int], float] = OrderedDict()
        self._early: OrderedDict[int, list[_Early]] = OrderedDict()
        self._early_count = 0
        self._tombstones: deque[Incoming] = deque()
        self._resets: deque[tuple[float, int, Stream, bytes]] = deque(maxlen=MAX_TOMBSTONES)
        self._pongs = RateLimit(limits.pongs_per_s)
        self._ping_signatures = RateLimit(limits.signatures_per_s // 10)
        self._new_peers = RateLimit(limits.new_peers_per_s)
        self._asking_again = RateLimit(limits.new_peers_per_s)
        self._repeated_syns = RateLimit(limits.new_peers_per_s)
        self._connections = MinuteLimit(limits.connections_per_minute)
        self._turns = Turns()
        self._events: dict[Event, None] = {}
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

    @property
    def has_work(self) -> bool:
        """Whether something waits for `take_payloads` or `take_events`."""
        return self._turns.has_work or bool(self._events)

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

    def _receive_for(self, incoming: Incoming, payload: Payload, packet: Packet, now_ms: int) -> None:
        stream, flags = incoming.stream, packet.flags
        if stream.ended is not None:
            self._answer_late(incoming, packet)
            return
        if packet.from_stream != stream.peer_id and not (flags & RESET and not packet.from_stream):
            raise _RefusedError("wrong stream ids")
        if flags & SYNCHRONIZE:
            raise _RefusedError("unexpected SYN")
        if not incoming.is_served and packet.data and stream.unread >= HALF_OPEN_BYTES:
            raise _RefusedError("too early")
        if flags & CLOSE and not stream.may_take(packet.sequence):
            packet.flags = flags = flags & ~CLOSE  # it came before
        if flags & (CLOSE | RESET):
            incoming.signatures += 1
            if incoming.signatures > MAX_SIGNATURES_OF_A_STREAM:
                raise _RefusedError("too many signatures")
            self._verify(payload, packet, *incoming.verifiers, self._known.signatures, now_ms)
        if not stream.receive(packet, self._now_s):
            raise _RefusedError("acknowledges what was not sent")
        if incoming.places is not self._open and stream.ended is None and stream.is_established:
            self._on_established(incoming)
        if not incoming.is_remembered and stream.rank == 2:
            incoming.is_remembered = True
            self._remember(incoming.peer_hash)

    def _receive_syn(self, payload: Payload, packet: Packet, now_ms: int) -> None:
        if packet.destination is None or not packet.from_stream or packet.sequence:
            raise _RefusedError("malformed SYN")
        if len(packet.nacks) == _HASH_WORDS and tuple(packet.nacks) != self._hash_words:
            raise _RefusedError("SYN for another destination")
        peer_hash = self._admit(packet.destination)
        peer = self._peers.get(peer_hash)
        if peer is not None and (same := peer.streams.get(packet.from_stream)) is not None:
            self._receive_syn_again(same, packet)
            return
        is_known = peer_hash in self._served
        entrance = self._known if is_known else self._strangers
        verifiers = self._verify_first(payload, packet, packet.destination, entrance.signatures, now_ms)
        if not is_known:
            self._admit_stranger((peer_hash, packet.from_stream))
        if not self._connections.admit(peer_hash, self._now_s):
            raise _RefusedError("too many streams of a peer in a minute")
        if peer is not None and peer.open >= self._limits.streams_per_peer:
            own = [each for each in peer.streams.values() if each.stream.ended is None]
            if not self._make_room(own, is_known=False):
                raise _RefusedError("too many streams of a peer")
        if len(entrance.half_open) >= self._limits.half_open:
            self._crowd_out(next(iter(entrance.half_open)))
        self._open_half(payload, packet, peer_hash, verifiers, is_known=is_known)
        for early in self._take_early(packet.from_stream):
            try:
                self._receive(early.payload, early.packet, now_ms)
            except _RefusedError as error:
                self.refused[str(error)] += 1

    def _receive_syn_again(self, incoming: Incoming, packet: Packet) -> None:
        stream = incoming.stream
        if stream.ended is not None:
            self._answer_late(incoming, packet)
        elif incoming.is_known or stream.is_established or self._repeated_syns.admit(self._now_s):
            stream.receive_syn_again(self._now_s)
        else:
            raise _RefusedError("too many new peers")

    def _admit_stranger(self, syn: tuple[bytes, int]) -> None:
        """A SYN of a peer that was not served before, as the peer's hash and id."""
        if self._new_peers.admit(self._now_s):
            return
        since_s = self._turned_away.setdefault(syn, self._now_s)
        if self._now_s < since_s + ASKS_AGAIN_S or not self._asking_again.admit(self._now_s):
            if len(self._turned_away) > MAX_TURNED_AWAY:
                self._turned_away.popitem(last=False)
            raise _RefusedError("too many new peers")
        del self._turned_away[syn]

    def _remember(self, peer_hash: bytes) -> None:
        """The peer is served."""
        self._served[peer_hash] = None
        self._served.move_to_end(peer_hash)
        if len(self._served) > MAX_SERVED:
            self._served.popitem(last=False)

    def _receive_ping(self, payload: Payload, packet: Packet, now_ms: int) -> None:
        if not packet.to_stream:
            raise _RefusedError("unexpected pong")
        if packet.destination is None:
            raise _RefusedError("malformed ping")
        self._admit(packet.destination)
        self._verify_first(payload, packet, packet.destination, self._ping_signatures, now_ms)
        if not self._pongs.admit(self._now_s):
            raise _RefusedError("too many pings")
        pong = Packet(0, packet.to_stream, 0, 0, flags=ECHO, data=packet.data[:PONG_DATA_BYTES])
        encoded = encode_payload(encode_packet(pong), payload.to_port, payload.from_port)
        self._turns.answer((packet.destination, packet.to_stream), packet.destination, encoded)

    def _admit(self, destination: bytes) -> bytes:
        """The hash of a destination that is not banned."""
        peer_hash = sha256(destination).digest()
        if not self._admits(peer_hash):
            raise _RefusedError("banned")
        return peer_hash

    def _verify_first(
        self, payload: Payload, packet: Packet, destination: bytes, budget: RateLimit, now_ms: int
    ) -> tuple[Verifier, Verifier]:
        """Check a packet that says itself who sent it; its sender's long-term key, and the one that signs."""
        try:
            long_term = signing_key(destination)
        except ValueError:
            raise _RefusedError("unsupported key type") from None
        return long_term, self._verify(payload, packet, long_term, None, budget, now_ms)

    def _verify(
        self,
        payload: Payload,
        packet: Packet,
        long_term: Verifier,
        transient: Verifier | None,
        budget: RateLimit,
        now_ms: int,
    ) -> Verifier:
        if not packet.flags & SIGNATURE_INCLUDED:
            raise _RefusedError("unsigned")
        if not budget.admit(self._now_s, cost_of(packet, long_term, transient)):
            raise _RefusedError("too many signatures")
        try:
            return verify_packet(payload.data, packet, long_term, transient, now_ms)
        except ValueError:
            raise _RefusedError("bad signature") from None

    # streams begin and end

    def _open_half(
        self,
        payload: Payload,
        syn: Packet,
        peer_hash: bytes,
        verifiers: tuple[Verifier, Verifier],
        *,
        is_known: bool,
    ) -> None:
        id_ = 0
        while not id_ or id_ in self._by_id:
            id_ = self._random.getrandbits(32)
        peer = self._peers.setdefault(peer_hash, Peer())
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
        places = (self._known if is_known else self._strangers).half_open
        incoming = Incoming(stream, peer_hash, verifiers, is_known, places)
        self._by_id[id_] = peer.streams[stream.peer_id] = incoming
        self._by_peer_id.setdefault(stream.peer_id, []).append(incoming)
        places[incoming] = None
        peer.open += 1
        if syn.data or syn.flags & CLOSE:
            self._on_event(Readable(stream))
        self._on_change(stream)

    @property
    def _has_room(self) -> bool:
        return len(self._open) + len(self._served_early) < self._limits.streams

    def _serve(self, incoming: Incoming, places: dict[Incoming, None]) -> None:
        del incoming.places[incoming]
        if not incoming.is_served:
            incoming.is_served = True
            self._events[Opened(incoming.stream)] = None
        incoming.places = places
        places[incoming] = None

    def _on_early_data(self, incoming: Incoming) -> None:
        few = len(self._served_early) * EARLY_PART < self._limits.streams
        if self._has_room and (few or incoming.is_known):
            self._serve(incoming, self._served_early)

    def _on_established(self, incoming: Incoming) -> None:
        if incoming in self._waiting:
            return
        if incoming.is_served or self._finds_room(incoming):
            self._serve(incoming, self._open)
        else:
            self._waiting[incoming] = self._now_s + WAITS_S

    def _finds_room(self, incoming: Incoming) -> bool:
        served = chain(self._open, self._served_early)
        return self._has_room or self._make_room(served, is_known=incoming.is_known)

    def _serve_waiting(self) -> None:
        if self._now_s < self._waiting_turn_s:
            return
        self._waiting_turn_s = self._now_s + WAITING_TURN_S
        for incoming, until_s in list(self._waiting.items()):
            if self._finds_room(incoming):
                del self._waiting[incoming]
                self._serve(incoming, self._open)
            elif until_s <= self._now_s:
                self.refused["too many streams"] += 1
                incoming.stream.reset()
            else:
                break

    def _make_room(self, streams: Iterable[Incoming], *, is_known: bool) -> bool:
        """End the least active of ``streams``. ``is_known``: for a peer served before. Returns False: all
        are too active."""
        least = min(
            (
                each
                for each in streams
                if each.stream.active_s <= self._now_s - ACTIVE_S[each.stream.rank]
                or (is_known and not each.is_known)
            ),
            key=lambda each: (each.stream.rank, each.is_known, each.stream.active_s),
            default=None,
        )
        if least is not None:
            self._crowd_out(least)
        return least is not None

    def _crowd_out(self, incoming: Incoming) -> None:
        self.refused["crowded out"] += 1
        incoming.stream.end("crowded_out")

    def reset_all(self) -> None:
        """Reset every stream."""
        for incoming in list(self._by_id.values()):
            if incoming.stream.ended is None:
                incoming.stream.reset()

    def restrict(self, admits: Callable[[bytes], bool]) -> None:
        """From now on only peers whose hashes of destinations ``admits`` takes may open streams, and those of
        others end."""
        self._admits = admits
        for peer_hash, peer in list(self._peers.items()):
            if not admits(peer_hash):
                for incoming in list(peer.streams.values()):
                    incoming.stream.end("banned")

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
        for peer, ack in islice(acks.items(), MAX_ADDRESSED):
            self._turns.answer(peer, peer, ack)

    def _on_change(self, stream: Stream) -> None:
        if stream.ended is None:
            self._turns.touch(self._by_id[stream.id])

    def _on_event(self, event: Event) -> None:
        incoming = self._by_id[event.stream.id]
        if not incoming.is_served and isinstance(event, Readable):
            self._on_early_data(incoming)
        if incoming.is_served:
            self._events[event] = None
        if isinstance(event, Ended):
            self._bury(incoming)

    def _bury(self, incoming: Incoming) -> None:
        """Nothing is left of a stream that was half-open; its peer may open it again."""
        stream = incoming.stream
        self._peers[incoming.peer_hash].open -= 1
        same = self._by_peer_id[stream.peer_id]
        same.remove(incoming)
        if not same:
            del self._by_peer_id[stream.peer_id]
        del incoming.places[incoming]
        was_waiting = self._waiting.pop(incoming, None) is not None
        self._turns.end(incoming)
        if was_waiting and stream.ended != "reset_by_peer":
            self._turns.answer(stream, stream.peer, stream.encode_reset(stream.next_sequence))
        if not incoming.is_served:
            self._forget(incoming)
            return
        if stream.ended == "closed":
            has_ack_due = stream.has_ack_due
            incoming.last_ack = stream.encode_ack()
            if has_ack_due:
                self._turns.answer(stream, stream.peer, incoming.last_ack)
        elif stream.ended != "reset_by_peer":
            incoming.resets = MAX_RESETS_OF_A_TOMBSTONE
            reset = stream.encode_reset(stream.next_sequence)
            self._turns.answer(stream, stream.peer, reset)
            if stream.ended == "reset":
                self._resets.append((self._now_s + RESET_AGAIN_S, RESETS_AGAIN, stream, reset))
        incoming.until_s = self._now_s + TOMBSTONE_S
        self._tombstones.append(incoming)
        if len(self._tombstones) > MAX_TOMBSTONES:
            self._forget(self._tombstones.popleft())

    def _forget(self, incoming: Incoming) -> None:
        del self._by_id[incoming.stream.id]
        peer = self._peers[incoming.peer_hash]
        del peer.streams[incoming.stream.peer_id]
        if not peer.streams:
            del self._peers[incoming.peer_hash]

    def _answer_late(self, tombstone: Incoming, packet: Packet) -> None:
        """Answer a packet for a stream that has ended."""
        stream = tombstone.stream
        if packet.from_stream != stream.peer_id or packet.flags & RESET or self._now_s < tombstone.answers_s:
            raise _RefusedError("for a stream that has ended")
        if tombstone.resets:
            tombstone.resets -= 1
            self._turns.answer(stream, stream.peer, stream.encode_reset(_expected(packet)))
        elif tombstone.last_ack is not None and packet.sequence:
            self._turns.answer(stream, stream.peer, tombstone.last_ack)
        else:
            raise _RefusedError("for a stream that has ended")
        tombstone.answers_s = self._now_s + LATE_ANSWER_S

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
        self._turns.wake(now_s)
        self._serve_waiting()
        return self._turns.take(now_s, limit)

    def take_events(self) -> list[Event]:
        """What has happened since the last call, each once."""
        events = list(self._events)
        self._events.clear()
        return events

    @property
    def wake_s(self) -> float | None:
        """When to call `take_payloads` at the latest; None: there is nothing to wait for. What only waits for
        room (``limit``) does not count."""
        times = [self._waiting_turn_s] if self._waiting else []
        times += [self._resets[0][0]] if self._resets else []
        wake_s = self._turns.wake_s
        return min(times if wake_s is None else [wake_s, *times], default=None)

    def _expire(self, now_s: float) -> None:
        while self._resets and self._resets[0][0] <= now_s:
            _, left, stream, reset = self._resets.popleft()
            self._turns.answer(stream, stream.peer, reset)
            if left > 1:
                self._resets.append((now_s + RESET_AGAIN_S, left - 1, stream, reset))
        while self._tombstones and self._tombstones[0].until_s <= now_s:
            self._forget(self._tombstones.popleft())
        while self._early and next(iter(self._early.values()))[0].until_s <= now_s:
            self._drop_early()


def _expected(packet: Packet) -> int:
    """The sequence number of ours that the sender of ``packet`` waits for."""
    if packet.flags & (SYNCHRONIZE | NO_ACK):
        return 0
    return packet.nacks[0] if packet.nacks else min(packet.ack_through + 1, 0xFFFF_FFFF)
