"""What a real i2pd has sent, packet by packet, as tests/data/streaming/README.md describes it.

Each recording is played again: the packets of i2pd are given to `Streams` at their times, and what the
service wrote then is written when it was. `Streams` chooses the stream's recorded id, or no signature would
match.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from garlicfarm.i2p.encoding import b32_address
from garlicfarm_plugin_i2cp.streaming.packet import (
    CLOSE,
    ECHO,
    RESET,
    SIGNATURE_INCLUDED,
    Packet,
    decode_packet,
    encode_packet,
)
from garlicfarm_plugin_i2cp.streaming.payload import decode_payload, encode_payload
from garlicfarm_plugin_i2cp.streaming.stream import Ended, Opened, Stream
from garlicfarm_plugin_i2cp.streaming.streams import Streams
from tools.record_streaming import described, service_keys

RECORDINGS = Path(__file__).parents[2] / "data" / "streaming"
NOW_MS = 1_795_305_600_000
"""The day of the recording."""
REQUESTS = {
    "client-signs-offline": b"signed offline",
    "data-resent": b"first" + b"more" * 3 + bytes(8000),
    "out-of-order-nacked": b"send",
    "ping": b"",
    "reset-by-server": b"reset me",
    "syn-resent": b"",
    "upload-closed-by-client": bytes(range(256)) * 80,
}
"""What the client has sent in each recording, but ``get``."""
BOTH_CLOSE = {"get", "out-of-order-nacked"}
CLIENT_CLOSES = {"client-signs-offline", "data-resent", "upload-closed-by-client"}


def read(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORDINGS / f"{name}.jsonl").read_text().splitlines()]


class Recorded(Random):
    """Chooses the ids that were recorded."""

    def __init__(self, id_: int) -> None:
        super().__init__(0)
        self._id = id_

    def getrandbits(self, k: int, /) -> int:
        return self._id


class Replay:
    """A recording, played. ``spoilt``: the number of a packet of i2pd that is changed. ``received``: what the
    service got. ``sent``: its packets, and ``peers``: to which destinations."""

    def __init__(self, name: str, *, spoilt: int | None = None) -> None:
        packets = [(line, packet_in(bytes.fromhex(line["payload"]))) for line in read(name)]
        ours = {packet.sequence: packet for line, packet in packets if line["from"] == "us"}
        id_ = next((packet.from_stream for packet in ours.values()), 1)
        self.streams = Streams(service_keys(), random=Recorded(id_))
        self.received = b""
        self.sent: list[Packet] = []
        self.peers: set[bytes] = set()
        self.stream: Stream | None = None
        self.ended = ""
        self._ours = ours
        self._written = 0
        number = 0
        for line, packet in packets:
            now_s = 1000.0 + line["ms"] / 1000
            if line["from"] == "i2pd":
                payload = bytes.fromhex(line["payload"])
                self.streams.receive_payload(spoil(payload) if number == spoilt else payload, now_s, NOW_MS)
                number += 1
            self._work(now_s)
            if line["from"] == "us" and packet.sequence and self.stream is not None:
                self._write(self.stream, packet, now_s)

    def _work(self, now_s: float) -> None:
        for event in self.streams.take_events():
            match event:
                case Opened(stream):
                    assert self.stream is None
                    self.stream = stream
                case Ended(_, reason):
                    self.ended = reason
        if self.stream is not None:
            self.received += self.stream.read(1 << 20)
        for peer, payload in self.streams.take_payloads(now_s):
            self.peers.add(peer)
            self.sent.append(packet_in(payload))

    def _write(self, stream: Stream, packet: Packet, now_s: float) -> None:
        """All up to ``packet``: what was recorded in another order is written in order."""
        while self._written < packet.sequence:
            self._written += 1
            ours = self._ours[self._written]
            stream.write(ours.data)
            if ours.flags & CLOSE:
                stream.close()
            if ours.flags & RESET:
                stream.reset()
            self._work(now_s)


def spoil(payload: bytes) -> bytes:
    """The same with another last byte, of its data or its signature."""
    decoded = decode_payload(payload)
    data = decoded.data[:-1] + bytes([decoded.data[-1] ^ 1])
    return encode_payload(data, decoded.from_port, decoded.to_port)


def packet_in(payload: bytes) -> Packet:
    return decode_packet(decode_payload(payload).data)


def signed(name: str) -> list[int]:
    """The numbers of the packets of i2pd that are signed. What is sent again is not checked again."""
    packets = [packet_in(bytes.fromhex(line["payload"])) for line in read(name) if line["from"] == "i2pd"]
    first: dict[tuple[int, int, int], int] = {}
    for number, packet in enumerate(packets):
        if packet.flags & SIGNATURE_INCLUDED:
            is_ping = packet.flags & ECHO
            first.setdefault((packet.flags, packet.sequence, packet.to_stream if is_ping else 0), number)
    return list(first.values())


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_recorded_packets_are_taken_and_what_the_client_has_sent_comes_out(name: str) -> None:
    replay = Replay(name)
    assert replay.streams.refused == {}
    assert replay.received == REQUESTS[name]
    is_at_eof = replay.stream is not None and replay.stream.is_at_eof
    assert is_at_eof == (name in CLIENT_CLOSES | BOTH_CLOSE)
    assert len(replay.peers) == 1


@pytest.mark.parametrize("name", ["get", *REQUESTS])
def test_recordings_describe_their_packets_as_the_tool_does(name: str) -> None:
    for line in read(name):
        assert described(bytes.fromhex(line["payload"])) == line["what"]


@pytest.mark.parametrize("name", ["get", *REQUESTS])
def test_recorded_packets_are_written_as_they_were_read(name: str) -> None:
    for line in read(name):
        data = decode_payload(bytes.fromhex(line["payload"])).data
        packet = decode_packet(data)
        assert packet.flags & SIGNATURE_INCLUDED or encode_packet(packet) == data


def test_recorded_request_of_a_proxy_comes_out_of_its_first_packet() -> None:
    replay = Replay("get")
    assert replay.streams.refused == {}
    lines = replay.received.decode().splitlines()
    host = b32_address(service_keys().destination)
    assert lines[:2] == ["GET / HTTP/1.1", f"Host: {host}"]
    assert replay.received.endswith(b"\r\n\r\n")
    assert replay.ended == "closed"


@pytest.mark.parametrize("name", sorted(BOTH_CLOSE))
def test_recorded_stream_that_both_sides_close_has_ended(name: str) -> None:
    assert Replay(name).ended == "closed"


def test_what_recorded_acks_report_missing_twice_is_sent_again() -> None:
    """i2pd got the packets in another order than they are sent here. It asked for 2 once, for 3 and 5 more
    often."""
    times = Counter(packet.sequence for packet in Replay("out-of-order-nacked").sent if packet.sequence)
    assert times == {1: 1, 2: 1, 3: 2, 4: 1, 5: 2, 6: 1, 7: 1}


def test_recorded_pings_are_answered_with_their_ids() -> None:
    pongs = [packet for packet in Replay("ping").sent if packet.flags & ECHO]
    assert [f"{pong.from_stream:08x}" for pong in pongs] == [
        *("a49ab4bd", "675b48a0", "3c7909ef", "1f88b571", "0721058b")
    ]


@pytest.mark.parametrize(
    ("name", "number"), [(name, at) for name in ["get", *REQUESTS] for at in signed(name)]
)
def test_recorded_packet_with_another_last_byte_is_refused(name: str, number: int) -> None:
    assert Replay(name, spoilt=number).streams.refused["bad signature"] == 1
