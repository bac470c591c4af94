"""How a stream ends, packet by packet, and what its peer is told."""

from __future__ import annotations

import pytest

from garlicfarm_plugin_i2cp.streaming.limits import Limits
from garlicfarm_plugin_i2cp.streaming.packet import CLOSE, RESET, SIGNATURE_INCLUDED, encode_packet
from garlicfarm_plugin_i2cp.streaming.payload import encode_payload
from garlicfarm_plugin_i2cp.streaming.stream import Ended, Readable, Stream
from tests.publishers.streaming.network import PEERS
from tests.publishers.streaming.play import PEER, PEER_ID, Play, syn, to


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


def test_what_a_peer_sends_after_its_close_is_dropped(play: Play, stream: Stream) -> None:
    play.give(to(stream, 1, flags=CLOSE), signed_by=PEER)
    play.give(to(stream, 2, data=b"after the end"))
    assert stream.read(100) == b""
    assert stream.is_at_eof


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
    assert play.give(to(stream, 1, 0, data=b"unaware")) == []
    for _ in range(20):
        play.now_s += 1
        play.give(to(stream, 1, 0, data=b"unaware"))
    assert play.streams.refused["for a stream that has ended"] == 14


def test_reset_before_the_answer_to_syn_is_its_answer(play: Play) -> None:
    play.give_bytes(encode_payload(encode_packet(syn(data=b"GET"), PEER.sign), 5, 80))
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


def test_reset_is_sent_three_times_since_the_peer_may_send_nothing_more(play: Play, stream: Stream) -> None:
    stream.write(b"data")
    play.take()
    stream.reset()
    sent = [play.take()]
    while (wake_s := play.streams.wake_s) is not None:
        sent.append(play.after(wake_s - play.now_s))
    assert [len(packets) for packets in sent] == [1, 1, 1]
    assert all(packets == sent[0] for packets in sent)
    assert sent[0][0].flags & RESET
