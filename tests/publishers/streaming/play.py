"""All streams of a destination, packet by packet: payloads in; payloads, events and refusals out."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from random import Random
from typing import Any

from garlicfarm.i2p.destination import signing_key
from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm_plugin_i2cp.streaming.limits import DEFAULT_LIMITS, Limits
from garlicfarm_plugin_i2cp.streaming.packet import (
    CLOSE,
    FROM_INCLUDED,
    MAX_PACKET_SIZE,
    NO_ACK,
    RESET,
    SYNCHRONIZE,
    Packet,
    decode_packet,
    encode_packet,
)
from garlicfarm_plugin_i2cp.streaming.payload import decode_payload, encode_payload
from garlicfarm_plugin_i2cp.streaming.signatures import verify_packet
from garlicfarm_plugin_i2cp.streaming.stream import Opened, Stream
from garlicfarm_plugin_i2cp.streaming.streams import Streams
from tests.publishers.streaming.network import NOW_MS, PEERS, SERVICE

PEER = PEERS[0]
PEER_ID = 0x11111111


class Play:
    """One `Streams`, and the time; packets go in and come out decoded."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.streams = Streams(SERVICE, random=Random(1), limits=limits)
        self.now_s = 1000.0

    def give(self, packet: Packet, *, signed_by: DestinationKeys | None = None) -> list[Packet]:
        """Send a packet to the service; what it sends at once."""
        sign = signed_by.sign if signed_by else None
        self.give_bytes(encode_payload(encode_packet(packet, sign), 5, 80))
        return self.take()

    def give_bytes(self, payload: bytes) -> None:
        self.streams.receive_payload(payload, self.now_s, NOW_MS)

    def take(self) -> list[Packet]:
        packets = []
        for peer, payload in self.streams.take_payloads(self.now_s):
            decoded = decode_payload(payload)
            packet = decode_packet(decoded.data)
            assert (decoded.from_port, decoded.to_port) == (80, 5)
            if packet.flags & (SYNCHRONIZE | CLOSE | RESET):
                long_term = signing_key(SERVICE.destination)
                verify_packet(decoded.data, packet, long_term, None, NOW_MS)
            assert peer == PEER.destination
            packets.append(packet)
        return packets

    def after(self, seconds: float) -> list[Packet]:
        self.now_s += seconds
        return self.take()

    def open(self, **changes: Any) -> Stream:
        """A stream whose SYN answer is acknowledged."""
        (answer,) = self.give(syn(**changes), signed_by=PEER)
        self.now_s += 0.1
        assert self.give(Packet(answer.from_stream, answer.to_stream, 0, 0)) == []
        (opened,) = self.events
        assert isinstance(opened, Opened)
        return opened.stream

    @property
    def events(self) -> list[Any]:
        return self.streams.take_events()


def syn(
    *,
    peer: DestinationKeys = PEER,
    id_: int = PEER_ID,
    max_data: int | None = 1812,
    service: bytes = SERVICE.destination,
    data: bytes = b"",
    flags: int = 0,
) -> Packet:
    digest = sha256(service).digest()
    size = MAX_PACKET_SIZE if max_data is not None else 0
    return Packet(
        *(0, id_, 0, 0),
        nacks=[int.from_bytes(digest[at : at + 4], "big") for at in range(0, 32, 4)],
        flags=SYNCHRONIZE | FROM_INCLUDED | NO_ACK | size | flags,
        destination=peer.destination,
        max_data=max_data,
        data=data,
    )


def to(
    stream: Stream,
    sequence: int = 0,
    through: int = 0,
    nacks: Sequence[int] = (),
    data: bytes = b"",
    flags: int = 0,
) -> Packet:
    return Packet(stream.id, stream.peer_id, sequence, through, nacks, flags, data=data)


class Crowd:
    """Peers of one `Streams`. ``sent``: all that was sent to them; ``events``: all that came about."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.play = Play(limits)
        self.sent: list[Packet] = []
        self.events: list[Any] = []

    def receive(self, packet: Packet, signed_by: DestinationKeys | None = None) -> None:
        sign = signed_by.sign if signed_by else None
        self.play.give_bytes(encode_payload(encode_packet(packet, sign), 5, 80))

    def give(self, packet: Packet, signed_by: DestinationKeys | None = None) -> list[Packet]:
        """What is sent at once."""
        self.receive(packet, signed_by)
        return self.take()

    def take(self, limit: int = 1024) -> list[Packet]:
        payloads = self.play.streams.take_payloads(self.play.now_s, limit)
        packets = [decode_packet(decode_payload(payload).data) for _, payload in payloads]
        self.sent += packets
        self.events += self.play.events
        return packets

    def try_answer(self, packet: Packet, peer: DestinationKeys) -> Packet | None:
        """The answer to a SYN."""
        sent = [each for each in self.give(packet, peer) if each.flags & SYNCHRONIZE]
        return sent[0] if sent else None

    def answer(self, packet: Packet, peer: DestinationKeys) -> Packet:
        answer = self.try_answer(packet, peer)
        assert answer is not None
        return answer

    def try_open(self, peer: DestinationKeys, *, id_: int = PEER_ID, data: bytes = b"") -> Stream | None:
        """A stream whose SYN answer is acknowledged, if there is one."""
        if (answer := self.try_answer(syn(peer=peer, id_=id_, data=data), peer)) is None:
            return None
        self.play.now_s += 0.1
        self.give(Packet(answer.from_stream, answer.to_stream, 0, 0))
        opened = [event.stream for event in self.events if isinstance(event, Opened)]
        return next((stream for stream in opened if stream.id == answer.from_stream), None)

    def open(self, peer: DestinationKeys, *, id_: int = PEER_ID, data: bytes = b"") -> Stream:
        stream = self.try_open(peer, id_=id_, data=data)
        assert stream is not None
        return stream
