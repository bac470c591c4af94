"""Which stream, peer or packet gives way where there is no place left."""

from __future__ import annotations

import pytest

from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm_plugin_i2cp.streaming.limits import Limits
from garlicfarm_plugin_i2cp.streaming.packet import CLOSE, NO_ACK, RESET, SYNCHRONIZE, Packet
from garlicfarm_plugin_i2cp.streaming.payload import encode_payload
from garlicfarm_plugin_i2cp.streaming.stream import Ended, Opened, Stream
from tests.publishers.i2cp_keys import long_term_keys
from tests.publishers.streaming.play import PEER, PEER_ID, Crowd, Play, syn, to
from tests.publishers.streaming.signed_syns import signed_syn


def strangers(count: int) -> list[DestinationKeys]:
    return [long_term_keys(1000 + number) for number in range(count)]


def served(crowd: Crowd, peer: DestinationKeys = PEER) -> None:
    """Let a peer be answered."""
    stream = crowd.open(peer, id_=4000, data=b"GET")
    stream.write(b"answer")
    crowd.take()
    crowd.give(to(stream, 0, 1))
    stream.reset()
    crowd.take()


def ended(crowd: Crowd) -> list[Stream]:
    return [event.stream for event in crowd.events if isinstance(event, Ended)]


def opened(crowd: Crowd) -> int:
    return sum(isinstance(event, Opened) for event in crowd.events)


def test_stream_that_has_carried_nothing_gives_way_before_the_one_that_has_been_silent_for_longer() -> None:
    crowd = Crowd(Limits(streams=3))
    first, second, third = (crowd.open(peer) for peer in strangers(3))
    crowd.give(to(first, 1, data=b"GET"))
    crowd.play.now_s += 100
    crowd.give(to(third))  # a sign of life, but nothing new
    crowd.open(PEER)
    assert ended(crowd) == [second]
    assert second.ended == "crowded_out"
    assert crowd.play.streams.refused == {"crowded out": 1}


def test_stream_that_gives_way_is_reset() -> None:
    crowd = Crowd(Limits(streams=1))
    first = crowd.open(PEER)
    answers = [crowd.answer(syn(peer=peer, id_=7), peer) for peer in strangers(1)]
    resets = [packet for packet in crowd.sent if packet.flags & RESET]
    assert resets == []  # one that is half-open takes no place
    crowd.give(Packet(answers[0].from_stream, 7, 0, 0))
    assert [packet.to_stream for packet in crowd.sent if packet.flags & RESET] == [first.peer_id]


def test_stream_waits_for_a_place_while_all_others_are_active() -> None:
    crowd = Crowd(Limits(streams=2))
    active = [crowd.open(peer, data=b"GET") for peer in strangers(2)]
    assert crowd.try_open(PEER, data=b"GET") is None
    wake_s = crowd.play.streams.wake_s
    assert wake_s is not None
    assert wake_s <= crowd.play.now_s + 0.5
    crowd.play.now_s += 5
    crowd.give(to(active[1], 1, data=b"more"))
    assert ended(crowd) == []
    crowd.play.now_s += 5
    crowd.take()
    assert ended(crowd) == [active[0]]
    assert isinstance(crowd.events[-1], Opened)
    assert crowd.events[-1].stream.read(10) == b"GET"
    assert crowd.play.streams.refused == {"crowded out": 1}


def test_stream_that_has_waited_in_vain_is_reset() -> None:
    crowd = Crowd(Limits(streams=1))
    active = crowd.open(PEER, data=b"GET")
    assert crowd.try_open(strangers(1)[0]) is None
    for sequence in range(1, 7):
        crowd.play.now_s += 5
        crowd.give(to(active, sequence, data=b"more"))
    assert [packet.to_stream for packet in crowd.sent if packet.flags & RESET] == [PEER_ID]
    assert crowd.play.streams.refused == {"too many streams": 1}
    assert crowd.play.streams.wake_s > crowd.play.now_s + 10
    assert len(crowd.play.streams) == 1


def test_stream_that_gives_way_while_it_waits_is_reset() -> None:
    crowd = Crowd(Limits(streams=1, streams_per_peer=1))
    crowd.open(strangers(1)[0], data=b"GET")
    assert crowd.try_open(PEER, id_=1) is None
    crowd.answer(syn(id_=2), PEER)
    assert [packet.to_stream for packet in crowd.sent if packet.flags & RESET] == [1]


def test_stream_with_an_answer_may_be_silent_for_longer_than_one_without() -> None:
    crowd = Crowd(Limits(streams=2))
    first, second = (crowd.open(peer, data=b"GET") for peer in strangers(2))
    first.write(b"answer")
    crowd.take()
    crowd.give(to(first, 0, 1))
    crowd.give(to(second, 1, data=b"more"))
    crowd.play.now_s += 10
    crowd.open(PEER)
    assert ended(crowd) == [second]


def test_acknowledged_answer_is_activity() -> None:
    crowd = Crowd(Limits(streams=2))
    first, second = (crowd.open(peer, data=b"GET") for peer in strangers(2))
    first.write(b"answer")
    crowd.take()
    crowd.play.now_s += 25
    crowd.give(to(first, 0, 1))
    crowd.open(PEER)
    assert ended(crowd) == [second]


def test_active_streams_of_strangers_give_way_to_a_peer_that_was_served_before() -> None:
    crowd = Crowd(Limits(streams=2))
    served(crowd)
    active = [crowd.open(peer, data=b"GET") for peer in strangers(2)]
    again = crowd.open(PEER, id_=2, data=b"GET")
    assert ended(crowd)[1:] == [active[0]]
    crowd.play.now_s += 30
    crowd.open(strangers(3)[2])
    assert ended(crowd)[2:] == [active[1]]
    assert again.ended is None


def test_streams_of_strangers_give_way_before_those_that_have_carried_as_much() -> None:
    crowd = Crowd(Limits(streams=3))
    served(crowd)
    idlest = crowd.open(PEER, data=b"GET")
    stranger = crowd.open(strangers(1)[0], data=b"GET")
    nothing = crowd.open(PEER, id_=2)
    crowd.play.now_s += 30
    for number, gives_way in enumerate((nothing, stranger, idlest)):
        crowd.open(PEER, id_=10 + number, data=b"GET")
        assert gives_way.ended == "crowded_out"


def test_peer_that_was_not_answered_yet_is_a_stranger() -> None:
    crowd = Crowd(Limits(new_peers_per_s=1))
    crowd.open(PEER, data=b"GET")
    assert not crowd.try_answer(syn(id_=2), PEER)


def test_peers_served_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("garlicfarm_plugin_i2cp.streaming.streams.MAX_SERVED", 2)
    crowd = Crowd(Limits(new_peers_per_s=1))
    peers = strangers(3)
    for peer in (*peers[:2], peers[0], peers[2]):
        served(crowd, peer)
        crowd.play.now_s += 200
        crowd.take()
    assert crowd.try_answer(syn(peer=long_term_keys(2000)), long_term_keys(2000))
    known = [crowd.try_answer(syn(peer=peer), peer) is not None for peer in peers]
    assert known == [True, False, True]


def test_strangers_turned_away_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("garlicfarm_plugin_i2cp.streaming.streams.MAX_TURNED_AWAY", 2)
    crowd = Crowd(Limits(new_peers_per_s=2))
    fresh = [long_term_keys(number) for number in range(2000, 2006)]
    asking = strangers(3)
    for peer in (*fresh[:2], *asking):
        crowd.try_answer(syn(peer=peer, id_=7), peer)
    crowd.play.now_s += 5
    answered = []
    for again in ((*fresh[2:4], *asking[1:]), (*fresh[4:], asking[0])):
        answered += [crowd.try_answer(syn(peer=peer, id_=7), peer) is not None for peer in again]
        crowd.play.now_s += 1
    assert answered == [True, True, True, True, True, True, False]


def test_syns_of_half_open_strangers_that_come_again_are_answered_within_the_limit() -> None:
    crowd = Crowd(Limits(new_peers_per_s=1))
    peers = strangers(2)
    for peer in peers:
        assert crowd.try_answer(syn(peer=peer, id_=7), peer)
        crowd.play.now_s += 1
    crowd.play.now_s += 1
    answered = [crowd.try_answer(syn(peer=peer, id_=7), peer) is not None for peer in peers]
    assert answered == [True, False]
    assert crowd.play.streams.refused == {"too many new peers": 1}


def test_peer_with_as_many_streams_as_it_may_have_replaces_its_least_active_one() -> None:
    crowd = Crowd(Limits(streams_per_peer=2))
    first, second = crowd.open(PEER, id_=1), crowd.open(PEER, id_=2)
    other = crowd.open(strangers(1)[0])
    crowd.give(to(first, 1, data=b"GET"))
    third = crowd.open(PEER, id_=3, data=b"GET")
    assert ended(crowd) == [second]
    assert crowd.try_open(PEER, id_=4) is None
    assert crowd.play.streams.refused == {"crowded out": 1, "too many streams of a peer": 1}
    assert first.ended is third.ended is other.ended is None


def test_peer_opens_no_more_streams_in_a_minute_than_it_may() -> None:
    crowd = Crowd(Limits(connections_per_minute=2))
    for id_ in (1, 2):
        crowd.open(PEER, id_=id_, data=b"GET")
    assert crowd.try_open(PEER, id_=3) is None
    assert crowd.play.streams.refused == {"too many streams of a peer in a minute": 1}
    crowd.open(strangers(1)[0])
    crowd.play.now_s += 60
    crowd.open(PEER, id_=3)


def test_half_open_streams_take_no_place_and_the_oldest_is_forgotten_without_a_word() -> None:
    crowd = Crowd(Limits(streams=1, half_open=2))
    served = crowd.open(PEER)
    first, *others = (crowd.answer(syn(peer=peer, id_=7), peer) for peer in strangers(3))
    assert served.ended is None
    assert [packet for packet in crowd.sent if packet.flags & RESET] == []
    assert crowd.play.streams.refused == {"crowded out": 1}
    crowd.give(Packet(first.from_stream, 7, 0, 0))
    assert crowd.play.streams.refused["no such stream"] == 1
    again = crowd.answer(syn(peer=strangers(1)[0], id_=7), strangers(1)[0])
    assert again.from_stream != first.from_stream
    crowd.give(Packet(others[1].from_stream, 7, 0, 0))
    assert served.ended == "crowded_out"


def test_half_open_streams_of_strangers_leave_those_of_peers_served_before_alone() -> None:
    crowd = Crowd(Limits(half_open=1))
    served(crowd)
    answer = crowd.answer(syn(id_=9), PEER)
    for peer in strangers(3):
        crowd.answer(syn(peer=peer, id_=7), peer)
    crowd.give(Packet(answer.from_stream, 9, 0, 0))
    assert opened(crowd) == 2


def test_answer_to_syn_that_is_never_acknowledged_is_sent_twice_and_then_forgotten(play: Play) -> None:
    play.give(syn(), signed_by=PEER)
    sent = [play.after(seconds) for seconds in (8.9, 0.2, 18.0, 100.0)]
    assert [[packet.flags & SYNCHRONIZE for packet in packets] for packets in sent] == [[], [1], [], []]
    assert play.events == []
    assert len(play.streams) == 0


def test_few_strangers_are_served_at_once_and_all_peers_that_were_served_before() -> None:
    crowd = Crowd(Limits(streams=16))
    served(crowd)
    answers = [crowd.answer(syn(peer=peer, data=b"GET"), peer) for peer in strangers(4)]
    assert opened(crowd) == 1 + 2
    crowd.answer(syn(id_=9, data=b"GET"), PEER)
    assert opened(crowd) == 1 + 3
    crowd.give(Packet(answers[3].from_stream, answers[3].to_stream, 0, 0))
    assert crowd.events[-1].stream.read(10) == b"GET"


def test_stream_that_is_not_served_yet_takes_only_little_data() -> None:
    crowd = Crowd(Limits(streams=1))
    crowd.open(PEER, data=b"GET")  # has the only place
    peer = strangers(1)[0]
    answer = crowd.answer(syn(peer=peer, id_=7), peer)
    for sequence in range(1, 100):
        crowd.give(Packet(0, 7, sequence, 0, flags=NO_ACK, data=bytes(1000)))
    assert crowd.play.streams.refused == {"too early": 90}
    assert crowd.play.streams.buffered < 10_000
    crowd.play.now_s += 30
    crowd.give(Packet(answer.from_stream, 7, 0, 0))
    assert crowd.play.streams.refused == {"too early": 90, "crowded out": 1}


def test_strangers_beyond_the_limit_are_answered_once_they_ask_again() -> None:
    crowd = Crowd(Limits(new_peers_per_s=1))
    served(crowd)
    crowd.play.now_s += 1
    asking = strangers(4)
    syns = [syn(peer=peer, id_=7) for peer in asking]
    answered = [crowd.try_answer(*each) is not None for each in zip(syns, asking, strict=True)]
    assert answered == [True, False, False, False]
    assert crowd.try_answer(syn(id_=9), PEER)  # was served before
    crowd.play.now_s += 2
    assert crowd.try_answer(syns[1], asking[1])  # another second
    assert not crowd.try_answer(syns[2], asking[2])
    crowd.play.now_s += 7
    fresh = long_term_keys(2000)
    answered = [
        crowd.try_answer(*each) is not None
        for each in [(syn(peer=fresh), fresh), (syns[2], asking[2]), (syns[3], asking[3])]
    ]
    assert answered == [True, True, False]
    assert crowd.play.streams.refused == {"too many new peers": 5}


def test_forged_signatures_spend_nothing_of_those_who_sign() -> None:
    crowd = Crowd(Limits(new_peers_per_s=1, signatures_per_s=3))
    honest, *forging = strangers(4)
    for peer in forging[:2]:
        assert not crowd.try_answer(syn(peer=peer), honest)
    assert crowd.try_answer(syn(peer=honest), honest)
    assert crowd.play.streams.refused == {"bad signature": 2}


def test_signatures_that_cost_more_spend_more_of_the_limit() -> None:
    """Those of P-521 five times as much; what is left is enough for others."""
    crowd = Crowd(Limits(signatures_per_s=12))
    _, encoded = signed_syn(3)
    for _ in range(3):
        crowd.play.give_bytes(encode_payload(encoded[:-1] + b"?", 5, 80))
    assert crowd.play.streams.refused == {"bad signature": 2, "too many signatures": 1}
    for peer in strangers(3):
        crowd.try_answer(syn(peer=peer), PEER)
    assert crowd.play.streams.refused == {"bad signature": 4, "too many signatures": 2}


def test_signatures_of_strangers_beyond_the_limit_are_not_verified_and_those_of_others_are() -> None:
    crowd = Crowd(Limits(signatures_per_s=2))
    served(crowd)
    crowd.play.now_s += 1
    stream = crowd.open(PEER, data=b"GET")
    crowd.play.now_s += 1
    for peer in strangers(3):
        crowd.try_answer(syn(peer=peer), PEER)
    assert crowd.play.streams.refused == {"bad signature": 2, "too many signatures": 1}
    assert crowd.try_answer(syn(id_=2), PEER)
    crowd.give(to(stream, 1, flags=CLOSE), PEER)
    assert stream.is_at_eof is False
    assert stream.read(10) == b"GET"
    assert stream.is_at_eof


def test_stream_whose_peer_signs_falsely_again_and_again_is_not_verified_any_more(play: Play) -> None:
    stream = play.open()
    for _ in range(20):
        play.give(to(stream, 1, flags=CLOSE), signed_by=long_term_keys(9))
    assert play.streams.refused == {"bad signature": 16, "too many signatures": 4}
    assert not stream.is_at_eof


def test_close_that_comes_again_is_not_verified_again(play: Play) -> None:
    stream = play.open()
    close = to(stream, 1, flags=CLOSE)
    for _ in range(20):
        (ack,) = play.give(close, signed_by=PEER)
        assert ack.ack_through == 1
    assert play.streams.refused == {}


@pytest.mark.parametrize("flags", [0, CLOSE])
def test_stream_that_has_ended_answers_once_a_second_and_one_answer_waits_at_most(flags: int) -> None:
    crowd = Crowd()
    stream = crowd.open(PEER)
    stream.reset()
    crowd.take()
    for _ in range(5):
        crowd.play.now_s += 1
        for _ in range(100):
            crowd.receive(to(stream, 1, flags=flags, data=b"storm"))
    assert len(crowd.play.streams.take_payloads(crowd.play.now_s)) == 1


def test_answers_of_streams_that_have_ended_leave_room_for_others() -> None:
    crowd = Crowd()
    ended_ = [crowd.open(PEER, id_=id_) for id_ in range(1, 40)]
    stream = crowd.open(long_term_keys(5))
    for each in ended_:
        each.reset()
    stream.write(b"answer")
    taken = [packet.flags & RESET for packet in crowd.take(8)]
    assert taken.count(0) >= 1


def test_answers_that_wait_are_bounded() -> None:
    crowd = Crowd(Limits(streams=3000, streams_per_peer=3000, signatures_per_s=3000, new_peers_per_s=3000))
    served(crowd)
    for id_ in range(1, 2100):
        crowd.receive(syn(id_=id_, data=b"GET"), PEER)
    crowd.play.streams.reset_all()
    assert len(crowd.take(10_000)) == 2048
