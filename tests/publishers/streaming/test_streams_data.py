"""Data of a stream, packet by packet: acknowledged, sent again, limited in both directions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from garlicfarm_plugin_i2cp.streaming.limits import Limits
from garlicfarm_plugin_i2cp.streaming.packet import DELAY_REQUESTED, RESET, Packet, encode_packet
from garlicfarm_plugin_i2cp.streaming.payload import encode_payload
from garlicfarm_plugin_i2cp.streaming.stream import Ended, Stream, Writable
from tests.publishers.streaming.old_i2pd import OldI2pd
from tests.publishers.streaming.play import PEER, Play, syn, to


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
    assert (play.streams.counts.sent, play.streams.counts.resent) == (4, 0)  # one was the SYN
    (again,) = play.give(to(stream, 0, 1, [1]))
    assert again.sequence == 1
    assert (play.streams.counts.sent, play.streams.counts.resent) == (5, 1)


def test_round_trip_is_the_middle_one_of_the_open_streams(play: Play) -> None:
    assert play.streams.round_trip_s is None
    streams: list[Stream] = []
    for round_trip_s in (0.5, 0.1, 9.0, 0.3):
        (answer,) = play.give(syn(id_=len(streams) + 1), signed_by=PEER)
        play.now_s += round_trip_s
        play.give(Packet(answer.from_stream, answer.to_stream, 0, 0))
        (opened,) = play.events
        streams.append(opened.stream)
    assert play.streams.round_trip_s == pytest.approx(0.3)
    streams[1].reset()
    assert play.streams.round_trip_s == pytest.approx(0.5)


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


def test_streams_of_one_peer_take_turns_and_send_no_more_than_its_router_can_decrypt_after_a_loss() -> None:
    """i2pd's ratchet knows 160 tags ahead. What is acknowledged leaves its room to those that wait."""
    play = Play(Limits(send_buffer_bytes=1 << 20))
    streams = [play.open(id_=id_) for id_ in range(1, 33)]
    in_flight = Counter[int]()

    def count(packets: Sequence[Packet]) -> None:
        in_flight.update(packet.to_stream for packet in packets if packet.sequence)
        assert in_flight.total() <= 128 + 2 * 32  # two each at once

    for stream in streams:
        stream.write(bytes(1 << 20))
    count(play.take())
    assert set(in_flight) == {stream.peer_id for stream in streams}
    for _ in range(40):
        for stream in streams:
            stream.write(bytes(1 << 20))
            in_flight[stream.peer_id] = 0
            count(play.give(to(stream, 0, stream.next_sequence - 1)))
    assert 128 - 16 < in_flight.total() <= 128
    assert {16} <= {*in_flight.values()} <= {0, 16, 32}
    assert min(stream.next_sequence for stream in streams) > 150
    for stream in streams[1:]:
        stream.reset()
    for _ in range(40):
        in_flight.clear()
        streams[0].write(bytes(1 << 20))
        count(play.give(to(streams[0], 0, streams[0].next_sequence - 1)))
    assert in_flight == {streams[0].peer_id: 128}


def test_packet_after_which_none_may_follow_asks_for_an_acknowledgement_at_once() -> None:
    play = Play(Limits(send_buffer_bytes=1 << 20))
    stream = play.open()
    stream.write(bytes(1 << 20))
    packets = play.take()
    assert [(packet.delay_ms, len(packet.data)) for packet in packets] == [(None, 1812)] * 5 + [(0, 1810)]
    assert not any(packet.delay_ms == 0 for packet in play.after(60))  # they are sent again as they are


def test_each_turn_ends_with_a_packet_that_asks_for_an_acknowledgement_at_once() -> None:
    play = Play(Limits(send_buffer_bytes=1 << 20))
    stream = play.open()
    for _ in range(6):
        stream.write(bytes(1 << 20))
        play.now_s += 0.1
        packets = play.give(to(stream, 0, stream.next_sequence - 1)) or play.take()
    assert [packet.delay_ms for packet in packets] == ([None] * 15 + [0]) * 8


def test_stream_that_begins_does_not_wait_for_those_that_send_much() -> None:
    play = Play(Limits(send_buffer_bytes=1 << 20))
    many = [play.open(id_=id_) for id_ in range(1, 33)]
    for stream in many:
        stream.write(bytes(1 << 20))
    assert len(play.take()) > 128
    late = play.open(id_=33)
    late.write(bytes(1000))
    late.close()
    assert [packet.to_stream for packet in play.take()] == [33, 33]


def test_turn_of_a_stream_that_ends_or_has_nothing_to_send_goes_to_the_next_one() -> None:
    play = Play(Limits(send_buffer_bytes=1 << 20))
    first, *others = [play.open(id_=id_) for id_ in range(1, 33)]
    for stream in others:
        stream.write(bytes(1 << 20))
    waiting = play.take()[-1].to_stream
    first.write(bytes(1812) * 3)
    assert len(play.take()) == 2  # the third waits for a turn
    for stream in others:
        if stream.peer_id != waiting:
            stream.reset()
    left = [packet.to_stream for packet in play.take()]
    assert left.count(1) == 1
    assert left.count(waiting) > 2


def test_no_packet_is_further_from_the_first_in_flight_than_java_i2p_keeps() -> None:
    play = Play(Limits(send_buffer_bytes=1 << 20))
    stream = play.open()
    stream.write(bytes(1 << 20))
    play.take()
    for _ in range(50):
        play.give(to(stream, 0, stream.next_sequence - 1, [1]))
    assert stream.next_sequence == 131


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


def give_as_java(play: Play, stream: Stream) -> None:
    """The first packet, empty, which asks for an acknowledgement."""
    packet = to(stream, 1, flags=DELAY_REQUESTED)
    packet.delay_ms = 0
    (ack,) = play.give(packet)
    assert ack.ack_through == 1


@pytest.mark.parametrize("round_trip_s", [0.002, 0.05, 0.4, 1.5])
def test_i2pd_whose_upload_is_read_slowly_goes_on(round_trip_s: float) -> None:
    play = Play(Limits(receive_buffer_bytes=1 << 17))
    stream = play.open()
    peer = OldI2pd(play, stream, count=400, round_trip_s=round_trip_s)
    received = bytearray()
    begun_s = play.now_s
    while not peer.is_done:
        peer.tick()
        assert play.now_s < begun_s + 300, f"it has stopped at {len(received)} bytes"
        if len(received) < (play.now_s - begun_s) * 40_000:
            received += stream.read(4096)
    received += stream.read(1 << 20)
    assert received == b"".join(each.to_bytes(4, "big") * 450 for each in range(1, 401))
    assert play.streams.buffered == 0


def test_i2pd_whose_upload_is_not_read_for_ten_minutes_does_not_give_up() -> None:
    play = Play(Limits(receive_buffer_bytes=1 << 17))
    stream = play.open()
    peer = OldI2pd(play, stream, count=100, round_trip_s=0.4)
    begun_s = play.now_s
    while play.now_s < begun_s + 600:
        peer.tick()
    assert not peer.is_done
    while not peer.is_done:
        peer.tick()
        stream.read(4096)
        assert play.now_s < begun_s + 700


def test_peer_that_is_held_is_never_acknowledged_more_than_it_has_sent() -> None:
    play = Play(Limits(receive_buffer_bytes=8192))
    stream = play.open()
    for sequence in (1, 2, 3):
        play.give(to(stream, sequence, data=bytes(1800)))
    told = []
    for _ in range(40):
        told += [ack.ack_through for ack in play.give(to(stream, 3, data=bytes(1800)))]
    assert told == [*[0] * 6, *[1] * 6, *[2] * 6, *[3] * 22]
    stream.read(5400)
    assert [ack.ack_through for ack in play.take()] == [3]
    for sequence in (4, 5, 6):
        play.give(to(stream, sequence, data=bytes(1800)))
    assert [ack.ack_through for ack in play.after(1.0)] == [3]


def test_stream_that_is_not_read_chokes_its_peer_and_unchokes_it() -> None:
    play = Play(Limits(receive_buffer_bytes=8192))
    stream = play.open()
    give_as_java(play, stream)
    for sequence in (2, 3, 4):
        play.give(to(stream, sequence, data=bytes(1800)))
    (ack,) = play.after(1.0)
    assert (ack.ack_through, ack.delay_ms) == (4, 65_535)
    stream.read(1800)
    assert play.take() == []
    stream.read(3600)
    (ack,) = play.take()
    assert (ack.ack_through, ack.delay_ms) == (4, 0)
    told = []
    for sequence in range(5, 15):
        play.give(to(stream, sequence, data=b"x"))
        (ack,) = play.after(1.0)
        told.append(ack.delay_ms)
    assert told == 7 * [0] + 3 * [None], "some of them may be lost, and Java I2P waits for one"


def test_streams_that_hold_what_all_may_buffer_do_not_choke_another() -> None:
    play = Play(Limits(buffer_bytes=1 << 20, receive_buffer_bytes=1 << 19))
    for number in range(40):  # the first packet of each is missing
        hog = play.open(id_=number + 1)
        for sequence in range(2, 300):
            play.give(to(hog, sequence, data=bytes(1800)))
        play.after(1.0)
    stream = play.open()
    for sequence in range(1, 100):
        play.give(to(stream, sequence, data=bytes(1800)))
        assert stream.read(1800) == bytes(1800)
    acks = [packet for packet in play.after(0.2) if packet.from_stream == stream.id]
    assert [(ack.ack_through, ack.delay_ms) for ack in acks] == [(99, None)]
    for sequence in range(100, 106):
        play.give(to(stream, sequence, data=bytes(1800)))
    acks = [packet for packet in play.after(0.2) if packet.from_stream == stream.id]
    assert [(ack.ack_through, ack.delay_ms) for ack in acks] == [(99, None)]


def test_streams_leave_each_other_a_part_of_what_all_may_buffer() -> None:
    play = Play(Limits(buffer_bytes=16 << 20, receive_buffer_bytes=1 << 19))
    for number in range(33):
        hog = play.open(id_=number + 1)
        for sequence in range(2, 300):
            play.give(to(hog, sequence, data=bytes(1800)))
        play.after(1.0)
    stream = play.open()
    used = play.streams.buffered
    for sequence in range(1, 40):
        play.give(to(stream, sequence, data=bytes(1800)))
    assert play.streams.buffered == used + 39 * 1800


def test_packets_beyond_the_buffer_are_dropped_unacknowledged() -> None:
    play = Play(Limits(receive_buffer_bytes=4096))
    stream = play.open()
    give_as_java(play, stream)
    for sequence in range(2, 7):
        play.give(to(stream, sequence, data=bytes(1800)))
    (ack,) = play.after(1.0) or play.give(to(stream, 6, data=bytes(1800)))
    assert ack.ack_through == 4
    assert play.streams.buffered == 5400


def test_stream_that_lasts_keeps_no_timers_of_the_past(play: Play, stream: Stream) -> None:
    for sequence in range(1, 2000):
        play.give(to(stream, sequence, data=b"x"))
        assert play.after(0.2)
    assert len(vars(vars(play.streams)["_turns"])["_timers"]) < 100
