"""All streams of a destination, packet by packet: payloads in; payloads, events and refusals out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from random import Random
from typing import Any

import pytest

from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm_plugin_i2cp.streaming import (
    Ended,
    Established,
    Limits,
    Opened,
    Readable,
    Stream,
    Streams,
    Writable,
)
from garlicfarm_plugin_i2cp.streaming.limits import DEFAULT_LIMITS
from garlicfarm_plugin_i2cp.streaming.packet import (
    CLOSE,
    DELAY_REQUESTED,
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
from garlicfarm_plugin_i2cp.streaming.signatures import verifier_of, verify_packet
from tests.publishers.i2cp_keys import bundle
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
                long_term = verifier_of(SERVICE.destination)
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
        (opened, *_) = self.streams.take_events()
        assert isinstance(opened, Opened)
        assert answer.from_stream == opened.stream.id
        self.now_s += 0.1
        assert self.give(to(opened.stream)) == []
        assert self.events == [Established(opened.stream)]
        return opened.stream

    @property
    def events(self) -> list[Any]:
        return self.streams.take_events()


@pytest.fixture
def play() -> Play:
    return Play()


@pytest.fixture
def stream(play: Play) -> Stream:
    return play.open()


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


def from_peer(sequence: int = 0, destination: bytes = PEER.destination) -> Packet:
    return Packet(0, 7, sequence, 0, flags=SYNCHRONIZE | FROM_INCLUDED, destination=destination)


# SYN


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
    verify_packet(data, answer, verifier_of(keys.destination), None, NOW_MS)


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
    (opened,) = play.events
    assert opened.stream.read(100) == b""


def test_packets_that_found_their_syn_leave_room_for_others() -> None:
    play = Play(Limits(early_packets=2))
    for id_ in (1, 2, 3):
        for sequence in (1, 2):
            play.give(Packet(0, id_, sequence, 0, flags=NO_ACK, data=b"early"))
        play.give(syn(id_=id_), signed_by=PEER)
    assert play.streams.refused == {}


# limits


def test_streams_beyond_the_limits_are_refused() -> None:
    play = Play(Limits(streams=3, streams_per_peer=2))
    for id_ in (1, 2, 3):
        play.give(syn(id_=id_), signed_by=PEER)
    assert play.streams.refused == {"too many streams of a peer": 1}
    play.streams.receive_payload(
        encode_payload(encode_packet(syn(peer=PEERS[1]), PEERS[1].sign), 5, 80), play.now_s, NOW_MS
    )
    play.give_bytes(encode_payload(encode_packet(syn(peer=PEERS[2]), PEERS[2].sign), 5, 80))
    assert play.streams.refused == {"too many streams of a peer": 1, "too many streams": 1}
    assert len(play.streams) == 3


def test_peers_beyond_the_limit_of_a_second_are_refused_unless_they_are_known() -> None:
    """The router looks up the LeaseSet of each that it has to answer."""
    play = Play(Limits(new_peers_per_s=1))
    play.open().reset()
    play.take()
    for peer in PEERS[:3]:
        play.give_bytes(encode_payload(encode_packet(syn(peer=peer, id_=9), peer.sign), 5, 80))
    assert play.streams.refused == {"too many new peers": 2}
    assert len(play.streams) == 1
    play.now_s += 1
    play.give_bytes(encode_payload(encode_packet(syn(peer=PEERS[1], id_=9), PEERS[1].sign), 5, 80))
    assert len(play.streams) == 2
    for _ in range(8):  # all end, and are forgotten
        play.now_s += 100
        play.streams.take_payloads(play.now_s)
    for peer in PEERS[2:0:-1]:
        play.give_bytes(encode_payload(encode_packet(syn(peer=peer, id_=10), peer.sign), 5, 80))
    assert len(play.streams) == 1


def test_streams_that_never_acknowledge_make_room_for_others() -> None:
    play = Play(Limits(half_open=2))
    established = play.open(id_=9)
    for id_ in (1, 2):
        play.give(syn(id_=id_), signed_by=PEER)
    first = play.events[0].stream
    answers = play.give(syn(id_=3), signed_by=PEER)
    assert [answer.flags & RESET for answer in answers] == [RESET, 0]
    assert Ended(first, "crowded_out") in play.events
    assert established.ended is None
    assert len(play.streams) == 3


def test_syn_answer_that_is_never_acknowledged_ends_the_stream(play: Play) -> None:
    play.give(syn(), signed_by=PEER)
    stream = play.events[0].stream
    sent = [play.after(seconds) for seconds in (8.9, 0.2, 18.0, 36.0)]
    assert [[each.flags & SYNCHRONIZE for each in packets] for packets in sent] == [[], [1], [1], [1]]
    assert play.after(45.0)[0].flags & RESET
    assert play.events == [Ended(stream, "timed_out")]


# data


def test_data_is_acknowledged_after_a_tenth_of_the_round_trip(play: Play, stream: Stream) -> None:
    assert play.give(to(stream, 1, data=b"data")) == []
    assert play.streams.wake_s == pytest.approx(play.now_s + 0.01)
    (ack,) = play.after(0.01)
    assert (ack.sequence, ack.ack_through, ack.nacks, ack.flags) == (0, 1, (), 0)
    assert play.after(0.01) == []


def test_missing_packets_are_named_at_once(play: Play, stream: Stream) -> None:
    (ack,) = play.give(to(stream, 4, data=b"4"))
    assert (ack.ack_through, ack.nacks) == (4, (1, 2, 3))
    (ack,) = play.give(to(stream, 2, data=b"2"))
    assert (ack.ack_through, ack.nacks) == (4, (1, 3))
    play.give(to(stream, 1, data=b"1"))
    (ack,) = play.give(to(stream, 3, data=b"3"))
    assert (ack.ack_through, ack.nacks) == (4, ())
    assert stream.read(100) == b"1234"


def test_packet_that_comes_again_is_acknowledged_at_once_and_read_once(play: Play, stream: Stream) -> None:
    play.give(to(stream, 1, data=b"1"))
    (ack,) = play.give(to(stream, 1, data=b"1"))
    assert ack.ack_through == 1
    assert stream.read(100) == b"1"


def test_packet_ahead_that_comes_again_is_kept_once(play: Play, stream: Stream) -> None:
    play.give(to(stream, 2, data=b"22"))
    play.give(to(stream, 2, data=b"22"))
    assert play.streams.buffered == 2


def test_many_packets_are_acknowledged_without_delay(play: Play, stream: Stream) -> None:
    for sequence in range(1, 16):
        assert play.give(to(stream, sequence, data=b"x")) == []
    (ack,) = play.give(to(stream, 16, data=b"x"))
    assert ack.ack_through == 16


def test_packet_that_asks_for_it_is_acknowledged_at_once(play: Play, stream: Stream) -> None:
    packet = to(stream, 1, data=b"1", flags=DELAY_REQUESTED)
    packet.delay_ms = 0
    (ack,) = play.give(packet)
    assert ack.ack_through == 1


def test_data_acknowledges_so_that_no_ack_follows(play: Play, stream: Stream) -> None:
    play.give(to(stream, 1, data=b"question"))
    stream.write(b"answer")
    (answer,) = play.take()
    assert (answer.sequence, answer.ack_through, answer.data) == (1, 1, b"answer")
    assert play.after(0.5)[0].sequence == 1  # sent again
    assert play.give(to(stream, 0, 1)) == []
    assert play.after(60.0) == []


def test_packet_reported_missing_twice_is_sent_again(play: Play, stream: Stream) -> None:
    stream.write(bytes(1812) * 3)
    assert [packet.sequence for packet in play.take()] == [1, 2, 3]
    play.now_s += 0.32
    assert play.give(to(stream, 0, 1, [1])) == []
    (again,) = play.give(to(stream, 0, 1, [1]))
    assert again.sequence == 1


def test_packet_reported_missing_is_not_sent_again_while_it_may_be_late(play: Play, stream: Stream) -> None:
    stream.write(bytes(1812) * 3)
    play.take()
    play.now_s += 0.1
    play.give(to(stream, 0, 2, [1]))
    assert play.give(to(stream, 0, 3, [1])) == []
    (again,) = play.after(play.streams.wake_s - play.now_s)
    assert again.sequence == 1


def test_window_grows_with_acknowledgements_to_its_limit() -> None:
    play = Play(Limits(window=16, send_buffer_bytes=1 << 20))
    stream = play.open()
    stream.write(bytes(1 << 20))
    sizes, through = [], 0
    for _ in range(5):
        sent = len(play.after(0.1))
        sizes.append(sent)
        through += sent
        play.give_bytes(encode_payload(encode_packet(to(stream, 0, through)), 5, 80))
    assert sizes == [6, 12, 16, 16, 16]


def test_window_counts_no_packet_that_was_lost_and_came_after_all(play: Play, stream: Stream) -> None:
    stream.write(bytes(1812) * 4)
    play.take()
    assert len(play.after(0.4)) == 1
    assert play.give(to(stream, 0, 4)) == []
    stream.write(bytes(1812) * 20)
    assert len(play.take()) == 5


def test_streams_of_one_peer_together_send_no_more_than_its_router_can_decrypt_after_a_loss() -> None:
    """i2pd's ratchet knows 160 tags ahead. What has all acknowledged leaves its share to the others."""
    play = Play(Limits(send_buffer_bytes=1 << 20))
    streams = [play.open(id_=id_) for id_ in range(1, 33)]
    in_flight = Counter[int]()

    def count(packets: Sequence[Packet]) -> None:
        in_flight.update(packet.to_stream for packet in packets if packet.sequence)

    for stream in streams:
        stream.write(bytes(1 << 20))
    count(play.take())
    assert in_flight.total() <= 6 + 31 * 6
    for _ in range(40):
        for stream in streams:
            in_flight[stream.peer_id] = 0
            count(play.give(to(stream, 0, stream.next_sequence - 1)))
    assert set(in_flight.values()) == {4}
    for stream in streams[1:]:
        stream.reset()
    for _ in range(40):
        in_flight.clear()
        streams[0].write(bytes(1 << 20))
        count(play.give(to(streams[0], 0, streams[0].next_sequence - 1)))
    assert in_flight == {streams[0].peer_id: 128}


def test_no_packet_is_further_from_the_first_in_flight_than_nacks_reach() -> None:
    play = Play(Limits(send_buffer_bytes=1 << 20))
    stream = play.open()
    stream.write(bytes(1 << 20))
    play.take()
    for _ in range(50):
        play.give(to(stream, 0, stream.next_sequence - 1, [1]))
    assert stream.next_sequence == 251


def test_timeouts_send_one_packet_after_ever_longer_times_and_then_end(play: Play, stream: Stream) -> None:
    stream.write(bytes(1812) * 4)
    assert len(play.take()) == 4
    times = []
    while stream.ended is None:
        at_s = play.now_s
        packets = play.after(play.streams.wake_s - at_s)
        times.append(play.now_s - at_s)
        assert len(packets) == 1
    assert packets[0].flags & RESET
    assert len(times) == 11
    assert times[:3] == pytest.approx([0.35, 0.7, 1.4])
    assert times[-1] == 45.0
    assert play.events == [Ended(stream, "timed_out")]


def test_acknowledgement_of_what_was_not_sent_is_refused(play: Play, stream: Stream) -> None:
    play.give(to(stream, 0, 1))
    play.give(to(stream, 1, 2**32 - 1, data=b"data"))
    assert play.streams.refused == {"acknowledges what was not sent": 2}
    assert stream.read(10) == b""


@pytest.mark.parametrize("sequence", [514, 2**31, 2**32 - 1])
def test_sequence_number_far_ahead_is_not_kept(play: Play, stream: Stream, sequence: int) -> None:
    (ack,) = play.give(to(stream, sequence, data=b"far"))
    assert (ack.ack_through, ack.nacks) == (0, ())
    assert play.streams.buffered == 0


def test_nacks_never_exceed_what_a_packet_can_name(play: Play, stream: Stream) -> None:
    play.give(to(stream, 200, data=b"x"))
    (ack,) = play.give(to(stream, 500, data=b"x"))
    assert (ack.ack_through, len(ack.nacks)) == (200, 199)
    (ack,) = play.give(to(stream, 400, data=b"x"))
    assert (ack.ack_through, len(ack.nacks)) == (200, 199)


def test_write_takes_what_there_is_room_for_and_says_when_there_is_more() -> None:
    play = Play(Limits(send_buffer_bytes=10_000))
    stream = play.open()
    assert stream.write(bytes(20_000)) == 10_000
    assert stream.write(b"x") == 0
    sent = len(play.take())
    assert play.events == [Writable(stream)]
    play.give(to(stream, 0, sent))
    assert play.events == []
    assert stream.write(bytes(1000)) == 1000


def test_choked_peer_gets_nothing_new_until_it_is_not(play: Play, stream: Stream) -> None:
    choke = to(stream, flags=DELAY_REQUESTED)
    choke.delay_ms = 61_000
    play.give(choke)
    stream.write(b"data")
    assert play.take() == []
    (probe,) = play.after(1.0)
    assert probe.data == b"data"
    stream.write(b"more")
    assert play.take() == []
    (packet,) = play.give(to(stream, 0, 1))
    assert packet.data == b"more"


def test_stream_that_is_not_read_chokes_its_peer_and_unchokes_it() -> None:
    play = Play(Limits(receive_buffer_bytes=8192))
    stream = play.open()
    for sequence in (1, 2, 3):
        play.give(to(stream, sequence, data=bytes(1800)))
    (ack,) = play.after(1.0)
    assert (ack.ack_through, ack.delay_ms) == (3, 65_535)
    stream.read(1800)
    assert play.take() == []
    stream.read(3600)
    (ack,) = play.take()
    assert (ack.ack_through, ack.delay_ms) == (3, None)


def test_streams_that_hold_what_all_may_buffer_do_not_choke_another() -> None:
    play = Play(Limits(buffer_bytes=1 << 20, receive_buffer_bytes=1 << 19))
    for number in range(40):  # the first packet of each is missing
        hog = play.open(id_=number + 1)
        for sequence in range(2, 300):
            play.give(to(hog, sequence, data=bytes(1800)))
    stream = play.open()
    for sequence in range(1, 100):
        play.give(to(stream, sequence, data=bytes(1800)))
        assert stream.read(1800) == bytes(1800)
    acks = [packet for packet in play.after(0.2) if packet.from_stream == stream.id]
    assert [(ack.ack_through, ack.delay_ms) for ack in acks] == [(99, None)]
    for sequence in range(100, 106):
        play.give(to(stream, sequence, data=bytes(1800)))
    acks = [packet for packet in play.after(0.2) if packet.from_stream == stream.id]
    assert [(ack.ack_through, ack.delay_ms) for ack in acks] == [(105, 65_535)]


def test_streams_leave_each_other_a_part_of_what_all_may_buffer() -> None:
    play = Play(Limits(buffer_bytes=16 << 20, receive_buffer_bytes=1 << 19))
    for number in range(33):
        hog = play.open(id_=number + 1)
        for sequence in range(2, 300):
            play.give(to(hog, sequence, data=bytes(1800)))
    stream = play.open()
    used = play.streams.buffered
    for sequence in range(1, 40):
        play.give(to(stream, sequence, data=bytes(1800)))
    assert play.streams.buffered == used + 39 * 1800


def test_packets_beyond_the_buffer_are_dropped_unacknowledged() -> None:
    play = Play(Limits(receive_buffer_bytes=4096))
    stream = play.open()
    for sequence in range(1, 6):
        play.give(to(stream, sequence, data=bytes(1800)))
    (ack,) = play.after(1.0) or play.give(to(stream, 5, data=bytes(1800)))
    assert ack.ack_through == 3
    assert play.streams.buffered == 5400


def test_stream_that_lasts_keeps_no_timers_of_the_past(play: Play, stream: Stream) -> None:
    for sequence in range(1, 2000):
        play.give(to(stream, sequence, data=b"x"))
        assert play.after(0.2)
    assert len(vars(play.streams)["_timers"]) < 100


# the end


def test_close_of_both_sides_ends_the_stream(play: Play, stream: Stream) -> None:
    stream.write(b"bye")
    stream.close()
    data, close = play.take()
    assert (data.data, data.flags) == (b"bye", 0)
    assert (close.sequence, close.flags) == (2, CLOSE | SIGNATURE_INCLUDED)
    assert stream.write(b"more") == 0
    (ack,) = play.give(to(stream, 1, 2, data=b"you too", flags=CLOSE), signed_by=PEER)
    assert (ack.sequence, ack.ack_through) == (0, 1)
    assert play.events == [Readable(stream), Ended(stream, "closed")]
    assert not stream.is_at_eof
    assert stream.read(100) == b"you too"
    assert stream.is_at_eof
    assert (len(play.streams), play.streams.buffered) == (0, 0)


def test_close_that_comes_again_is_acknowledged_again(play: Play, stream: Stream) -> None:
    stream.close()
    play.take()
    play.give(to(stream, 1, 1, flags=CLOSE), signed_by=PEER)
    (ack,) = play.give(to(stream, 1, 1, flags=CLOSE), signed_by=PEER)
    assert ack.ack_through == 1
    play.after(120.0)
    assert play.give(to(stream, 1, 1, flags=CLOSE), signed_by=PEER) == []
    assert play.streams.refused == {"no such stream": 1}


def test_stream_of_a_peer_that_closed_may_still_be_written_to(play: Play, stream: Stream) -> None:
    play.give(to(stream, 1, flags=CLOSE), signed_by=PEER)
    assert stream.is_at_eof
    assert stream.write(b"late") == 4
    assert play.take()[0].data == b"late"


@pytest.mark.parametrize("flags", [CLOSE, RESET])
@pytest.mark.parametrize("signed_by", [None, PEERS[1]])
def test_close_and_reset_of_another_are_refused(play, stream, flags, signed_by):
    play.give(to(stream, 1, flags=flags), signed_by=signed_by)
    assert sum(play.streams.refused.values()) == 1
    assert stream.ended is None
    assert not stream.is_at_eof


def test_reset_of_the_peer_ends_the_stream_and_forgets_its_bytes(play: Play, stream: Stream) -> None:
    play.give(to(stream, 1, data=b"data"))
    stream.write(b"data")
    play.streams.take_events()
    assert play.give(to(stream, 2, flags=RESET), signed_by=PEER) == []
    assert play.events == [Ended(stream, "reset_by_peer")]
    assert stream.read(10) == b""
    assert play.streams.buffered == 0


def test_reset_is_told_to_the_peer_in_the_place_that_it_waits_for(play: Play, stream: Stream) -> None:
    stream.write(b"data")
    play.take()
    stream.reset()
    assert play.events == [Ended(stream, "reset")]
    (reset,) = play.take()
    assert (reset.sequence, reset.flags) == (2, RESET | SIGNATURE_INCLUDED)
    (again,) = play.give(to(stream, 1, 0, data=b"unaware"))
    assert (again.sequence, again.flags) == (1, RESET | SIGNATURE_INCLUDED)
    for _ in range(20):
        play.give(to(stream, 1, 0, data=b"unaware"))
    assert play.streams.refused["for a stream that has ended"] == 13


def test_reset_before_the_answer_to_syn_is_its_answer(play: Play) -> None:
    play.give_bytes(encode_payload(encode_packet(syn(), PEER.sign), 5, 80))
    play.streams.take_events()[0].stream.reset()
    (reset,) = play.take()
    assert (reset.to_stream, reset.sequence) == (PEER_ID, 0)
    assert reset.flags & RESET


def test_reset_all_resets_all(play: Play) -> None:
    streams = [play.open(id_=id_) for id_ in (1, 2, 3)]
    play.streams.reset_all()
    assert play.events == [Ended(stream, "reset") for stream in streams]
    assert [packet.to_stream for packet in play.take()] == [1, 2, 3]


def test_peers_heard_of_lately_get_an_ack_each_when_they_are_addressed(play: Play) -> None:
    """Unsigned: i2pd would check a signature with the key of the LeaseSet that comes along."""
    first = play.open()
    second = play.open(id_=2)
    play.streams.address_peers(play.now_s)
    (ack,) = play.take()
    assert (ack.sequence, ack.flags, ack.data) == (0, 0, b"")
    assert ack.to_stream in (first.peer_id, second.peer_id)
    play.now_s += 61
    play.streams.address_peers(play.now_s)
    assert play.take() == []


def test_peer_whose_streams_have_closed_is_addressed_and_one_that_may_not_exist_is_not() -> None:
    play = Play(Limits(half_open=1))
    stream = play.open(id_=9)
    for id_ in (1, 2):
        play.give(syn(id_=id_), signed_by=PEER)
    play.streams.address_peers(play.now_s)
    assert [each.to_stream for each in play.take()] == [9]
    stream.close()
    (close,) = play.take()
    play.give(to(stream, 1, close.sequence, flags=CLOSE), signed_by=PEER)
    assert stream.ended == "closed"
    play.streams.address_peers(play.now_s)
    assert [(each.to_stream, each.flags) for each in play.take()] == [(9, 0)]


def test_stream_without_a_sign_of_life_ends() -> None:
    play = Play(Limits(idle_s=100.0))
    stream = play.open()
    play.after(99.0)
    assert stream.ended is None
    play.after(1.1)
    assert play.events == [Ended(stream, "idle")]


def test_stream_with_signs_of_life_does_not_end() -> None:
    play = Play(Limits(idle_s=100.0))
    stream = play.open()
    for _ in range(5):
        play.after(60.0)
        play.give(to(stream))
    assert stream.ended is None


def test_close_that_the_peer_answers_by_silence_ends_the_stream_soon() -> None:
    play = Play(Limits(half_closed_s=10.0))
    stream = play.open()
    stream.close()
    play.take()
    play.give(to(stream, 0, 1))
    play.after(10.1)
    assert play.events == [Ended(stream, "idle")]


def test_close_that_i2pd_does_not_acknowledge_since_it_has_closed_ends_well(play, stream):
    play.give(to(stream, 1, flags=CLOSE), signed_by=PEER)
    play.streams.take_events()
    stream.close()
    closes = 0
    while stream.ended is None:
        closes += len([packet for packet in play.take() if packet.flags & CLOSE])
        play.now_s = play.streams.wake_s
    assert closes == 5
    assert play.events == [Ended(stream, "closed")]


# others


def test_packet_for_no_stream_is_refused(play: Play, stream: Stream) -> None:
    wrong = to(stream, 1, data=b"x")
    wrong.from_stream += 1
    play.give(wrong)
    play.give(Packet(stream.id + 1, PEER_ID, 1, 0, data=b"x"))
    play.give(to(stream, 0, flags=SYNCHRONIZE))
    assert play.streams.refused == {"wrong stream ids": 1, "no such stream": 1, "unexpected SYN": 1}
    assert stream.read(10) == b""


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
    assert play.streams.refused == {"unsigned": 1, "too many pings": 2, "unexpected pong": 1}
    play.now_s += 1.0
    assert len(play.give(ping(), signed_by=PEER)) == 1


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
