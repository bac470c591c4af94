"""Hostile packets: nothing raises, everything is counted, and open streams are not touched."""

from __future__ import annotations

import gzip
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garlicfarm_plugin_i2cp.streaming.limits import Limits
from garlicfarm_plugin_i2cp.streaming.packet import (
    CLOSE,
    DELAY_REQUESTED,
    FROM_INCLUDED,
    NO_ACK,
    RESET,
    SYNCHRONIZE,
    Packet,
    encode_packet,
)
from garlicfarm_plugin_i2cp.streaming.payload import encode_payload
from garlicfarm_plugin_i2cp.streaming.stream import Opened
from garlicfarm_plugin_i2cp.streaming.streams import Streams
from tests.publishers.streaming.network import NOW_MS, PEERS, SERVICE, Network, Served

LIMITS = Limits(streams=8, streams_per_peer=4, half_open=4, early_packets=6)
IDS = st.sampled_from([0, 1, 2, 3, 2**32 - 1])
NUMBERS = st.one_of(st.integers(0, 8), st.sampled_from([255, 512, 513, 2**31, 2**32 - 1]))


class Counting(Random):
    def __init__(self) -> None:
        super().__init__(0)
        self.last = 0

    def getrandbits(self, bits: int) -> int:
        self.last += 1
        return self.last


PACKETS = st.builds(
    Packet,
    *(IDS, IDS, NUMBERS, NUMBERS),
    nacks=st.lists(NUMBERS, max_size=8).map(tuple),
    flags=st.integers(0, 0xFFFF) | st.sampled_from([0, SYNCHRONIZE | FROM_INCLUDED | NO_ACK, CLOSE, RESET]),
    delay_ms=st.none() | st.sampled_from([0, 1, 60_000, 65_535]),
    destination=st.none() | st.sampled_from([peer.destination for peer in PEERS]),
    max_data=st.none() | st.integers(0, 0xFFFF),
    data=st.binary(max_size=40),
)
FIRST_SYN = Packet(0, 1, 0, 0, (), SYNCHRONIZE | FROM_INCLUDED, 0, None, PEERS[0].destination)
SIGNERS = st.sampled_from([None, *PEERS[:2]])
SYNS = st.builds(
    lambda peer, id_, flags, data: (
        Packet(0, id_, 0, 0, (), SYNCHRONIZE | FROM_INCLUDED | flags, 0, None, peer.destination, data=data),
        peer,
    ),
    st.sampled_from(PEERS[:2]),
    st.integers(1, 3),
    st.sampled_from([0, NO_ACK, CLOSE]),
    st.binary(max_size=40),
)
FOLLOWING = st.builds(
    lambda to, id_, sequence, through, nacks, flags, delay_ms, data: Packet(
        *(to, id_, sequence, through, nacks, flags),
        delay_ms=delay_ms if flags & DELAY_REQUESTED else None,
        data=data,
    ),
    *(st.integers(0, 4), st.integers(1, 3), NUMBERS, st.integers(0, 3)),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from([0, 0, NO_ACK, CLOSE, RESET, DELAY_REQUESTED]),
    st.sampled_from([0, 1, 60_000, 65_535]),
    st.binary(max_size=40) | st.just(bytes(1812)),
)
STEPS = st.lists(
    st.tuples(
        st.one_of(
            st.binary(max_size=40),
            st.tuples(PACKETS, SIGNERS),
            SYNS,
            *(st.tuples(FOLLOWING, SIGNERS) for _ in range(3)),
        ),
        st.sampled_from([0.0, 0.3, 20.0]),
        st.sampled_from(["", "read", "write", "close", "reset"]),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_any_packets_raise_nothing_and_leave_nothing_behind(steps: list[tuple]) -> None:
    streams = Streams(SERVICE, random=Counting(), limits=LIMITS)
    now_s, opened = 0.0, []
    for given_, wait_s, action in [((FIRST_SYN, PEERS[0]), 0.0, ""), *steps]:
        payload = given_
        if not isinstance(given_, bytes):
            packet, signer = given_
            payload = encode_payload(encode_packet(packet, signer and signer.sign), 0, 0)
        streams.receive_payload(payload, now_s, NOW_MS)
        now_s += wait_s
        assert len(streams.take_payloads(now_s, 100)) <= 100
        opened += [event.stream for event in streams.take_events() if isinstance(event, Opened)]
        for stream in opened:
            if action == "read":
                stream.read(10)
            elif action == "write":
                stream.write(bytes(5000))
            elif action:
                getattr(stream, action)()
        assert len(streams) <= LIMITS.streams + 2 * LIMITS.half_open
    while (wake_s := streams.wake_s) is not None:
        assert wake_s > now_s
        now_s = wake_s
        streams.take_payloads(now_s)
    for stream in opened:
        stream.read(1 << 20)
    assert streams.buffered == 0
    streams.take_payloads(now_s + 1000.0)  # tombstones and early packets are forgotten
    streams.take_events()
    tables = {name: table for name, table in vars(streams).items() if isinstance(table, dict | list)}
    assert {name for name, table in tables.items() if table} <= {"refused", "_served", "_turned_away"}


def test_flood_of_syns_leaves_open_streams_alone() -> None:
    network = Network(1, limits=LIMITS, serve=lambda stream: Served(stream, b"answer" * 9000))
    initiator = network.add(PEERS[3], to_send=b"request" * 9000)
    network.run(0.5)
    flags = SYNCHRONIZE | FROM_INCLUDED | NO_ACK
    for number in range(400):
        peer = PEERS[number % 3]
        syn = Packet(0, 1000 + number, 0, 0, flags=flags, destination=peer.destination)
        network.to_service(encode_payload(encode_packet(syn, peer.sign), 0, 0))
        network.step()
        network.now_s += 0.001
        assert len(network.streams) <= 2 * LIMITS.half_open + 1
    network.run(60.0, lambda: initiator.is_done)
    assert initiator.received == b"answer" * 9000
    assert network.streams.refused["crowded out"] > 0


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x1f\x8b", bytes(100), gzip.compress(bytes(100_000_000)), gzip.compress(b"short")[:-1]],
    ids=["empty", "cut", "zeros", "bomb", "without its end"],
)
def test_payload_that_is_none_is_counted(payload: bytes) -> None:
    streams = Streams(SERVICE, random=Random(1))
    streams.receive_payload(payload, 0.0, NOW_MS)
    assert streams.refused == {"malformed payload": 1}
    assert streams.take_payloads(0.0) == []
    assert streams.wake_s is None


def test_nacks_of_everything_again_and_again_send_no_more_than_the_window_each_round_trip() -> None:
    network = Network(1, serve=lambda stream: Served(stream, bytes(400_000)))
    initiator = network.add(to_send=b"x", closes=False)
    network.run(0.2)
    (stream,) = network.by_stream
    for _ in range(1000):
        nacks = list(range(1, 200))
        attack = Packet(stream.id, initiator.stream, 0, stream.next_sequence - 1, nacks)
        network.to_service(encode_payload(encode_packet(attack), 0, 80))
        sent = network.streams.take_payloads(network.now_s)
        assert len(sent) <= 128
        network.now_s += 0.0001
    assert len(network.streams.take_payloads(network.now_s)) == 0


def test_choke_for_ever_ends_when_the_peer_falls_silent() -> None:
    network = Network(1, serve=lambda stream: Served(stream, bytes(400_000)))
    initiator = network.add(to_send=b"x", closes=False)
    network.run(0.1)
    (stream,) = network.by_stream
    initiator.failure = "silent"
    choke = Packet(stream.id, initiator.stream, 0, 0, (), DELAY_REQUESTED, 0, 65_535)
    network.to_service(encode_payload(encode_packet(choke), 0, 80))
    network.run(600.0, lambda: not network.streams)
    assert stream.ended == "timed_out"
