"""The packets that a real i2pd has sent (tests/data/streaming): all are taken, in order."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from garlicfarm.i2p.destination import FILLER_BYTES, make_destination
from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm_plugin_i2cp.streaming.packet import (
    CLOSE,
    ECHO,
    RESET,
    SIGNATURE_INCLUDED,
    SYNCHRONIZE,
    Packet,
    decode_packet,
    encode_packet,
)
from garlicfarm_plugin_i2cp.streaming.payload import decode_payload
from garlicfarm_plugin_i2cp.streaming.stream import Ended, Opened, Stream
from garlicfarm_plugin_i2cp.streaming.streams import Streams

DATA = Path(__file__).parents[2] / "data" / "streaming"
SCENARIOS = sorted(path.stem for path in DATA.glob("*.jsonl"))
RECORDED_MS = int(datetime(2026, 11, 22, tzinfo=UTC).timestamp()) * 1000
SEED = bytes(range(32))


class Line(msgspec.Struct, frozen=True):
    """One packet. ``data``: its bytes."""

    at_s: float
    is_i2pds: bool
    payload: bytes
    data: bytes
    packet: Packet


def lines(scenario: str) -> list[Line]:
    found = []
    for text in (DATA / f"{scenario}.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        payload = bytes.fromhex(line["payload"])
        data = decode_payload(payload).data
        found.append(Line(line["ms"] / 1000, line["from"] == "i2pd", payload, data, decode_packet(data)))
    return found


def keys() -> DestinationKeys:
    public = Ed25519PrivateKey.from_private_bytes(SEED).public_key().public_bytes_raw()
    return DestinationKeys(destination=make_destination(public, bytes(FILLER_BYTES)), seed=SEED)


class Recorded(Random):
    """Gives the stream the id that the recording's had."""

    id = 0

    def getrandbits(self, bits: int) -> int:
        return self.id


class Replay:
    """A service that sends what it sent when this was recorded, before i2pd acknowledges it."""

    def __init__(self, recorded: list[Line]) -> None:
        ours = [line.packet for line in recorded if not line.is_i2pds]
        self.to_send = {packet.sequence: packet for packet in ours if packet.sequence}
        random = Recorded()
        random.id = ours[0].from_stream if ours else 1
        self.streams = Streams(keys(), random=random)
        self.stream: Stream | None = None
        self.ended = ""
        self.received = b""
        self.sent: list[Packet] = []

    def give(self, line: Line) -> None:
        packet = line.packet
        if self.stream is not None:
            while self.stream.next_sequence <= packet.ack_through:
                self._send_next(line.at_s)
        self.streams.receive_payload(line.payload, line.at_s, RECORDED_MS)
        self.take(line.at_s)

    def _send_next(self, now_s: float) -> None:
        assert self.stream is not None
        packet = self.to_send[self.stream.next_sequence]
        if packet.flags & CLOSE:
            self.stream.close()
        else:
            self.stream.write(packet.data)
        self.take(now_s)
        assert self.stream.next_sequence == packet.sequence + 1

    def take(self, now_s: float) -> None:
        for _, payload in self.streams.take_payloads(now_s):
            self.sent.append(decode_packet(decode_payload(payload).data))
        for event in self.streams.take_events():
            if isinstance(event, Opened):
                self.stream = event.stream
            if isinstance(event, Ended):
                self.ended = event.reason
        if self.stream is not None:
            self.received += self.stream.read(1 << 20)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_packets_of_i2pd_are_written_as_they_were_read(scenario: str) -> None:
    unsigned = [line for line in lines(scenario) if not line.packet.flags & SIGNATURE_INCLUDED]
    for line in unsigned:
        assert encode_packet(line.packet) == line.data


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_stream_of_i2pd_arrives_in_order_and_none_of_it_is_refused(scenario: str) -> None:
    recorded = lines(scenario)
    replay = Replay(recorded)
    sent: dict[int, Packet] = {}
    for line in recorded:
        if line.is_i2pds:
            replay.give(line)
            if line.packet.sequence or line.packet.flags & SYNCHRONIZE:
                sent[line.packet.sequence] = line.packet
    assert replay.streams.refused == {}
    assert replay.received == b"".join(sent[sequence].data for sequence in sorted(sent))
    if any(packet.flags & CLOSE for packet in sent.values()):
        assert replay.stream is not None
        assert replay.stream.is_at_eof
    has_closed_both = any(packet.flags & CLOSE for packet in replay.to_send.values())
    assert replay.ended == ("closed" if has_closed_both else "")


def test_each_ping_of_i2pd_is_answered() -> None:
    recorded = lines("ping")
    replay = Replay(recorded)
    for line in recorded:
        replay.give(line)
    pings = [line.packet.to_stream for line in recorded if line.packet.flags & ECHO]
    assert [packet.from_stream for packet in replay.sent if packet.flags & ECHO] == pings


def test_syn_that_i2pd_repeats_is_answered_again() -> None:
    replay = Replay(lines("syn-resent"))
    for line in lines("syn-resent"):
        replay.give(line)
    assert not any(packet.flags & RESET for packet in replay.sent)
    assert sum(bool(packet.flags & SYNCHRONIZE) for packet in replay.sent) >= 4
    assert len(replay.streams) == 1
