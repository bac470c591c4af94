"""Which packets open a stream, which are of one, and which are refused."""

from __future__ import annotations

from hashlib import sha256
from random import Random
from typing import Any

import pytest

from garlicfarm.i2p.destination import signing_key
from garlicfarm_plugin_i2cp.streaming.limits import Limits
from garlicfarm_plugin_i2cp.streaming.packet import (
    ECHO,
    FROM_INCLUDED,
    MAX_PACKET_SIZE,
    NO_ACK,
    OFFLINE_SIGNATURE,
    RESET,
    SIGNATURE_INCLUDED,
    SYNCHRONIZE,
    Packet,
    decode_packet,
    encode_packet,
)
from garlicfarm_plugin_i2cp.streaming.payload import decode_payload, encode_payload
from garlicfarm_plugin_i2cp.streaming.signatures import verify_packet
from garlicfarm_plugin_i2cp.streaming.stream import Ended, Opened, Readable, Stream
from garlicfarm_plugin_i2cp.streaming.streams import Streams
from tests.publishers.i2cp_keys import bundle
from tests.publishers.streaming.network import NOW_MS, PEERS, SERVICE
from tests.publishers.streaming.play import PEER, PEER_ID, Play, syn, to


def from_peer(sequence: int = 0, destination: bytes = PEER.destination) -> Packet:
    return Packet(0, 7, sequence, 0, flags=SYNCHRONIZE | FROM_INCLUDED, destination=destination)


def test_syn_opens_a_stream_and_is_answered(play: Play) -> None:
    (answer,) = play.give(syn(data=b"GET"), signed_by=PEER)
    opened, readable = play.events
    assert isinstance(opened, Opened)
    assert readable == Readable(opened.stream)
    assert answer.flags == SYNCHRONIZE | FROM_INCLUDED | MAX_PACKET_SIZE | SIGNATURE_INCLUDED
    assert (answer.to_stream, answer.from_stream) == (PEER_ID, opened.stream.id)
    assert (answer.sequence, answer.ack_through, answer.data) == (0, 0, b"")
    assert answer.destination == SERVICE.destination
    assert opened.stream.read(100) == b"GET"
    assert (opened.stream.local_port, opened.stream.peer_port) == (80, 5)
    assert opened.stream.peer == PEER.destination


def test_syn_answer_of_a_bundle_carries_its_offline_signature() -> None:
    keys = bundle(NOW_MS)
    streams = Streams(keys, random=Random(1))
    packet = syn(service=keys.destination)
    streams.receive_payload(encode_payload(encode_packet(packet, PEER.sign), 5, 80), 1.0, NOW_MS)
    ((_, payload),) = streams.take_payloads(1.0)
    data = decode_payload(payload).data
    answer = decode_packet(data)
    assert answer.flags & OFFLINE_SIGNATURE
    verify_packet(data, answer, signing_key(keys.destination), None, NOW_MS)


@pytest.mark.parametrize("is_answered", [False, True])
def test_reset_says_who_sends_it_until_the_peer_has_our_syn(is_answered: bool) -> None:
    keys = bundle(NOW_MS)
    streams = Streams(keys, random=Random(1))
    packet = syn(service=keys.destination, data=b"GET")
    streams.receive_payload(encode_payload(encode_packet(packet, PEER.sign), 5, 80), 1.0, NOW_MS)
    streams.take_payloads(1.0)
    opened = streams.take_events()[0]
    assert isinstance(opened, Opened)
    if is_answered:
        ack = encode_packet(Packet(opened.stream.id, PEER_ID, 0, 0))
        streams.receive_payload(encode_payload(ack, 5, 80), 1.1, NOW_MS)
    opened.stream.reset()
    ((_, payload),) = streams.take_payloads(1.2)
    data = decode_payload(payload).data
    reset = decode_packet(data)
    named = 0 if is_answered else FROM_INCLUDED | OFFLINE_SIGNATURE
    assert reset.flags == RESET | SIGNATURE_INCLUDED | named
    if not is_answered:  # Java I2P has no other key to verify it with
        assert reset.destination == keys.destination
        verify_packet(data, reset, signing_key(keys.destination), None, NOW_MS)


@pytest.mark.parametrize(
    ("offered", "used"), [(1812, 1812), (1730, 1730), (None, 1730), (60_000, 1812), (100, 512), (0, 1730)]
)
def test_data_of_a_packet_is_the_smaller_of_both_limits(play: Play, offered: int | None, used: int) -> None:
    stream = play.open(max_data=offered)
    stream.write(bytes(3000))
    assert len(play.take()[0].data) == used


def test_syn_that_comes_again_gets_its_answer_again_but_opens_nothing(play: Play) -> None:
    (answer,) = play.give(syn(), signed_by=PEER)
    assert play.give(syn(), signed_by=PEER) == []
    play.now_s += 1.0
    assert play.give(syn(), signed_by=PEER) == [answer]
    assert len(play.streams) == 1


def test_syn_for_another_destination_is_refused(play: Play) -> None:
    assert play.give(syn(service=PEERS[1].destination), signed_by=PEER) == []
    assert play.streams.refused == {"SYN for another destination": 1}


def test_syn_of_a_stream_that_has_ended_opens_nothing(play: Play, stream: Stream) -> None:
    play.give(to(stream, 1, flags=RESET), signed_by=PEER)
    play.streams.take_events()
    assert play.give(syn(), signed_by=PEER) == []
    assert play.events == []
    assert play.streams.refused == {"for a stream that has ended": 1}


@pytest.mark.parametrize(
    ("packet", "signed_by", "cause"),
    [
        (syn(), None, "unsigned"),
        (syn(), PEERS[1], "bad signature"),
        (syn(id_=0), PEER, "malformed SYN"),
        (Packet(0, 7, 0, 0, flags=SYNCHRONIZE), PEER, "malformed SYN"),
        (
            Packet(0, 7, 1, 0, (), SYNCHRONIZE | FROM_INCLUDED, 0, None, PEER.destination),
            PEER,
            "malformed SYN",
        ),
        (from_peer(destination=bytes(387)), PEER, "unsupported key type"),
    ],
)
def test_syn_that_is_not_in_order_is_refused(play: Play, packet: Packet, signed_by: Any, cause: str) -> None:
    assert play.give(packet, signed_by=signed_by) == []
    assert play.streams.refused == {cause: 1}
    assert len(play.streams) == 0


def test_packets_before_their_syn_wait_for_it(play: Play) -> None:
    assert play.give(Packet(0, PEER_ID, 2, 0, flags=NO_ACK, data=b"two")) == []
    assert play.give(Packet(0, PEER_ID, 1, 0, flags=NO_ACK, data=b"one")) == []
    play.give(syn(), signed_by=PEER)
    (opened, _) = play.events
    assert opened.stream.read(100) == b"onetwo"


def test_packets_whose_syn_never_comes_are_forgotten() -> None:
    play = Play(Limits(early_packets=3))
    for number in range(5):
        play.give(Packet(0, number + 1, 1, 0, flags=NO_ACK, data=b"early"))
    assert play.streams.refused == {"no such stream": 2}
    play.after(10.0)
    assert play.streams.refused == {"no such stream": 5}
    play.give(syn(id_=5), signed_by=PEER)
    assert play.events == []


def test_packets_that_found_their_syn_leave_room_for_others() -> None:
    play = Play(Limits(early_packets=2))
    for id_ in (1, 2, 3):
        for sequence in (1, 2):
            play.give(Packet(0, id_, sequence, 0, flags=NO_ACK, data=b"early"))
        play.give(syn(id_=id_), signed_by=PEER)
    assert play.streams.refused == {}


def test_packet_for_no_stream_is_refused(play: Play, stream: Stream) -> None:
    wrong = to(stream, 1, data=b"x")
    wrong.from_stream += 1
    play.give(wrong)
    play.give(Packet(stream.id + 1, PEER_ID, 1, 0, data=b"x"))
    play.give(to(stream, 0, flags=SYNCHRONIZE))
    assert play.streams.refused == {"wrong stream ids": 1, "no such stream": 1, "unexpected SYN": 1}
    assert stream.read(10) == b""


def test_packet_after_a_reset_may_acknowledge_all_there_can_be(play: Play, stream: Stream) -> None:
    stream.reset()
    play.after(0.0)
    (answer,) = play.give(to(stream, 1, 2**32 - 1, data=b"x"))
    assert answer.flags & RESET


def test_data_without_our_id_is_refused_where_two_peers_use_the_same(play: Play) -> None:
    play.open()
    assert play.give(Packet(0, PEER_ID, 1, 0, flags=NO_ACK, data=b"one")) == []
    play.give_bytes(encode_payload(encode_packet(syn(peer=PEERS[1]), PEERS[1].sign), 5, 80))
    play.give_bytes(encode_payload(encode_packet(Packet(0, PEER_ID, 2, 0, flags=NO_ACK)), 5, 80))
    assert play.streams.refused == {"ambiguous stream": 1}


def ping(data: bytes = b"") -> Packet:
    return Packet(77, 0, 0, 0, (), ECHO | FROM_INCLUDED, 0, None, PEER.destination, None, data=data)


def test_ping_is_answered_with_the_beginning_of_its_data(play: Play) -> None:
    (pong,) = play.give(ping(bytes(range(40))), signed_by=PEER)
    assert (pong.to_stream, pong.from_stream, pong.flags) == (0, 77, ECHO)
    assert pong.data == bytes(range(32))
    assert len(play.streams) == 0


def test_pings_beyond_the_limit_unsigned_and_pongs_are_refused() -> None:
    play = Play(Limits(pongs_per_s=2))
    play.give(ping())
    for _ in range(3):
        play.give(ping(), signed_by=PEER)
    play.give(Packet(0, 77, 0, 0, flags=ECHO))
    assert play.streams.refused == {"unsigned": 1, "too many pings": 1, "unexpected pong": 1}
    play.now_s += 1.0
    assert len(play.give(ping(), signed_by=PEER)) == 1


def test_banned_peer_is_refused_and_its_streams_end() -> None:
    banned = sha256(PEER.destination).digest()
    play = Play()
    stream = play.open()
    play.streams.restrict(lambda peer_hash: peer_hash != banned)
    assert [packet.flags & RESET for packet in play.take()] == [RESET]
    assert play.events == [Ended(stream, "banned")]
    for packet in (syn(), syn(id_=9), ping()):
        assert play.give(packet, signed_by=PEER) == []
    assert play.streams.refused == {"banned": 3}
    play.streams.restrict(lambda peer_hash: peer_hash == banned)
    play.open(id_=9)
    assert len(play.streams) == 1


def test_payload_of_another_protocol_is_refused(play: Play) -> None:
    payload = bytearray(encode_payload(b"datagram", 0, 0))
    payload[9] = 17
    play.give_bytes(bytes(payload))
    assert play.streams.refused == {"another protocol": 1}


def test_no_more_payloads_are_taken_than_there_is_room_for(play: Play) -> None:
    streams = [play.open(id_=id_) for id_ in (1, 2)]
    for stream in streams:
        stream.write(bytes(1812) * 6)
    taken = []
    while payloads := play.streams.take_payloads(play.now_s, 4):
        assert len(payloads) <= 4
        taken += [decode_packet(decode_payload(payload).data) for _, payload in payloads]
    assert sorted((packet.from_stream, packet.sequence) for packet in taken) == sorted(
        (stream.id, sequence) for stream in streams for sequence in range(1, 7)
    )
