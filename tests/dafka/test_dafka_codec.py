"""The codec of Dafka: the captured bytes, round trips, and everything that is not exactly a message."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.errors import LocalProtocolError, RemoteProtocolError
from garlicfarm_plugin_dafka.codec import (
    MAX_COUNT,
    MAX_SEQUENCE,
    Ack,
    Beacon,
    Command,
    ConsumerHello,
    DirectHead,
    DirectRecord,
    DirectTail,
    Fetch,
    GetHeads,
    Head,
    Record,
    StoreHello,
    decode,
    decode_node_beacon,
    decode_tower_beacon,
    encode,
    encode_node_beacon,
    encode_tower_beacon,
    split_prefix,
    subscription_prefix,
)

DATA = Path(__file__).parents[1] / "data" / "dafka"
COMMANDS = {
    "RECORD": Record,
    "DIRECT_RECORD": DirectRecord,
    "HEAD": Head,
    "DIRECT_HEAD": DirectHead,
    "ACK": Ack,
    "FETCH": Fetch,
    "GET_HEADS": GetHeads,
    "CONSUMER_HELLO": ConsumerHello,
    "STORE_HELLO": StoreHello,
}
KEY = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"  # of ZeroMQ RFC 26

names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=60)
sequences = st.integers(0, MAX_SEQUENCE)
commands = st.one_of(
    st.builds(Record, names, names, sequences, st.binary()),
    st.builds(DirectRecord, names, names, names, sequences, st.binary()),
    st.builds(Head, names, names, sequences),
    st.builds(DirectHead, names, names, names, sequences),
    st.builds(Ack, names, names, sequences),
    st.builds(Fetch, names, names, names, sequences, st.integers(1, MAX_COUNT)),
    st.builds(GetHeads, names, names),
    st.builds(ConsumerHello, names | st.just(""), names, st.lists(names, max_size=4).map(tuple)),
    st.builds(StoreHello, names | st.just(""), names),
    st.builds(DirectTail, names, names, names, sequences),
)


@cache
def vectors(file: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / file).read_text(encoding="utf-8").splitlines()]


def frames_of(vector: dict) -> list[bytes]:
    return [bytes.fromhex(frame) for frame in vector["frames"]]


def of_commands() -> list[dict]:
    return vectors("commands.jsonl") + vectors("commands-2-no-store-then-store.jsonl")


def what_is_wrong(frames: Sequence[bytes]) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(frames)
    return caught.value.what


def test_every_captured_command_decodes_and_encodes_to_the_same_bytes():
    assert {vector["meaning"]["command"] for vector in of_commands()} == set(COMMANDS)
    for vector in of_commands():
        frames, meaning = frames_of(vector), vector["meaning"]
        command = decode(frames)
        assert type(command) is COMMANDS[meaning["command"]]
        assert encode(command) == frames
        said = msgspec.structs.asdict(command)
        subject = meaning.get("subject", meaning["topic"])
        by_sender = isinstance(command, Fetch | GetHeads | ConsumerHello | StoreHello)
        expected = {
            "recipient": meaning["topic"],
            "topic": subject,
            "topics": tuple(meaning.get("subjects", ())),
            "partition": meaning["topic"] if isinstance(command, Ack | Fetch) else meaning.get("address"),
            "sender": meaning.get("address") if by_sender else None,
            "sequence": meaning.get("sequence"),
            "count": meaning.get("count"),
            "content": frames[-1],
        }
        assert said == {field: expected[field] for field in said}


def test_direct_tail_has_the_form_of_a_direct_head():
    (head,), (tail,) = encode(DirectHead("c", "t", "p", 5)), encode(DirectTail("c", "t", "p", 5))
    assert (head[:1], tail[:1], head[1:]) == (b"E", b"T", tail[1:])


def test_every_captured_beacon_decodes_and_encodes_to_the_same_bytes():
    kinds = set()
    for vector in vectors("beacons.jsonl"):
        frames, kind = frames_of(vector), vector["name"]
        if kind == "NODE-BEACON":
            of_node = decode_node_beacon(frames)
            assert (of_node.address, of_node.host) == (vector["meaning"]["uuid"], vector["meaning"]["ip"])
            assert of_node.port == vector["meaning"]["port"]
            assert encode_node_beacon(of_node) == frames
        elif kind == "TOWER-BEACON":
            of_tower = decode_tower_beacon(frames)
            assert (of_tower.address, of_tower.endpoint) == (
                vector["meaning"]["uuid"],
                vector["meaning"]["endpoint"],
            )
            assert encode_tower_beacon(of_tower) == frames
        kinds.add(kind)
    assert {"NODE-BEACON", "TOWER-BEACON"} <= kinds


def test_every_captured_subscription_is_that_of_a_command():
    for vector in vectors("subscriptions.jsonl"):
        (frame,), meaning = frames_of(vector), vector["meaning"]
        command, routing = split_prefix(frame[1:])
        assert (command, routing) == (COMMANDS[meaning["command"]], meaning["topic_part"])
        assert subscription_prefix(command, routing) == frame[1:]


@pytest.mark.parametrize("prefix", [b"", b"X", b"\0", b"B", b"M\xff", b"Mhello\0", b"W" + b"w" * 256])
def test_a_subscription_for_no_command_is_told_as_none(prefix):
    assert split_prefix(prefix) == (None, "")


@given(commands)
def test_a_command_survives_the_wire(command: Command):
    frames = encode(command)
    assert decode(frames) == command
    assert frames[0].startswith(subscription_prefix(type(command)))


@given(commands)
def test_a_command_cut_short_anywhere_or_longer_is_refused(command: Command):
    first, *content = encode(command)
    for size in range(len(first)):
        what_is_wrong([first[:size], *content])
    assert what_is_wrong([first + b"\0", *content]) == "bytes after the end"
    assert what_is_wrong([first, *content, b""]) == "wrong number of frames"
    if content:
        assert what_is_wrong([first]) == "wrong number of frames"


@given(st.lists(st.binary(), max_size=4))
def test_any_bytes_decode_to_what_encodes_to_them_or_raise_one_error(frames: list[bytes]):
    codecs: list[tuple[Callable[[list[bytes]], Any], Callable[[Any], list[bytes]]]] = [
        (decode, encode),
        (decode_node_beacon, encode_node_beacon),
        (decode_tower_beacon, encode_tower_beacon),
    ]
    for decoder, encoder in codecs:
        try:
            decoded = decoder(frames)
        except RemoteProtocolError:
            continue
        assert encoder(decoded) == frames


RECORD = b"Mhello\0\x01\x01p\x05hello" + bytes(8)


@pytest.mark.parametrize(
    ("frames", "what"),
    [
        ([], "unknown command"),
        ([b""], "unknown command"),
        ([b"m" + RECORD[1:], b""], "unknown command"),
        ([RECORD], "wrong number of frames"),
        ([RECORD, b"", b""], "wrong number of frames"),
        ([b"Hhello\0\x01\x01p\x05hello" + bytes(8), b""], "wrong number of frames"),
        ([b"Mhello", b""], "routing without an end"),
        ([b"M" + b"t" * 256 + b"\0\x01", b""], "routing without an end"),
        ([RECORD.replace(b"\0\x01\x01p", b"\0\x02\x01p"), b""], "unknown version"),
        ([RECORD.replace(b"\0\x01\x01p", b"\0\x30\x01p"), b""], "unknown version"),
        ([b"Mhello\0\x05hello\x01p" + bytes(8), b""], "unknown version"),  # jdafka
        ([b"hello", b"\xaa\xa0M\x01" + RECORD[8:], b""], "unknown command"),  # RFC 46 to the letter
        ([b"\xaa\xa0M\x01" + RECORD[8:], b""], "unknown command"),
        ([RECORD.replace(b"Mhello", b"Mhello2"), b""], "two topics"),
        ([RECORD.replace(b"\x01p", b"\x00"), b""], "invalid name"),
        ([RECORD.replace(b"\x01p", b"\x01\xff"), b""], "invalid name"),
        ([RECORD.replace(b"\x01p", b"\x01\0"), b""], "invalid name"),
        ([RECORD.replace(b"\x01p", b"\xffp"), b""], "truncated"),
        ([RECORD[:-1], b""], "truncated"),
        ([b"M\0\x01\x01p\x00" + bytes(8), b""], "invalid name"),
        ([b"K\0\x01\x01t" + bytes(8)], "invalid name"),
        ([b"Fp\0\x01\x01s\x01t" + bytes(12)], "a count of zero"),
        ([b"W\0\x01\x01s\xff\xff\xff\xff"], "truncated"),
        ([b"W\0\x01\x01s\0\0\0\x01\xff\xff\xff\xfft"], "truncated"),
        ([b"W\0\x01\x01s\0\0\0\x01\0\0\0\0"], "invalid name"),
    ],
)
def test_what_is_no_command_is_refused_with_a_fixed_phrase(frames, what):
    assert what_is_wrong(frames) == what


@pytest.mark.parametrize(
    "command",
    [
        Record("", "p", 0, b""),
        Record("t" * 256, "p", 0, b""),
        Record("t\0", "p", 0, b""),
        Record("\ud800", "p", 0, b""),
        Record("t", "", 0, b""),
        Record("t", "p", -1, b""),
        Record("t", "p", 2**64, b""),
        DirectRecord("", "t", "p", 0, b""),
        Fetch("p", "t", "s", 0, 0),
        Fetch("p", "t", "s", 0, 2**32),
        ConsumerHello("", "s", ("",)),
        StoreHello("", ""),
    ],
)
def test_a_command_that_the_wire_cannot_carry_is_refused(command):
    with pytest.raises(LocalProtocolError):
        encode(command)


def test_a_key_is_one_more_frame_of_a_beacon():
    frames = encode_node_beacon(Beacon("a", "host.example", 5000, KEY))
    assert frames == [b"B", b"a", b"host.example", b"5000", b"curve=" + KEY.encode()]
    assert decode_node_beacon(frames).key == KEY
    frames = encode_tower_beacon(Beacon("a", "::1", 5000, KEY))
    assert frames == [b"B", b"a", b"tcp://[::1]:5000", b"curve=" + KEY.encode()]
    assert decode_tower_beacon(frames) == Beacon("a", "::1", 5000, KEY)


@pytest.mark.parametrize(
    ("frames", "what"),
    [
        ([], "invalid beacon"),
        ([b"B"], "invalid beacon"),
        ([b"W", b"a", b"", b"1"], "invalid beacon"),
        ([b"B", b"a", b""], "invalid beacon"),
        ([b"B", b"a", b"", b"1", b"curve=" + KEY.encode(), b""], "invalid beacon"),
        ([b"B", b"", b"", b"1"], "invalid name"),
        ([b"B", b"a\0", b"", b"1"], "invalid name"),
        ([b"B", b"a", b"", b"70000"], "invalid port"),
        ([b"B", b"a", b"", b"0"], "invalid port"),
        ([b"B", b"a", b"", b"080"], "invalid port"),
        ([b"B", b"a", b"", b"+80"], "invalid port"),
        ([b"B", b"a", b"", b"notaport"], "invalid port"),
        ([b"B", b"a", b"", "٣".encode()], "invalid port"),
        ([b"B", b"a", b"*", b"1"], "invalid host"),
        ([b"B", b"a", b"0.0.0.0", b"1"], "invalid host"),
        ([b"B", b"a", b"::", b"1"], "invalid host"),
        ([b"B", b"a", b"fe80::1%eth0", b"1"], "invalid host"),
        ([b"B", b"a", b"10.0.0.256", b"1"], "invalid host"),
        ([b"B", b"a", b"a;b", b"1"], "invalid host"),
        ([b"B", b"a", b"-a", b"1"], "invalid host"),
        ([b"B", b"a", b"a..b", b"1"], "invalid host"),
        ([b"B", b"a", b"a" * 64, b"1"], "invalid host"),
        ([b"B", b"a", b".".join([b"a" * 60] * 5), b"1"], "invalid host"),
        ([b"B", b"a", "é".encode(), b"1"], "invalid host"),
        ([b"B", b"a", b"", b"1", b"key"], "invalid key"),
        ([b"B", b"a", b"", b"1", b"curve=" + KEY.encode()[1:]], "invalid key"),
    ],
)
def test_what_is_no_beacon_of_a_node_is_refused(frames, what):
    with pytest.raises(RemoteProtocolError) as caught:
        decode_node_beacon(frames)
    assert caught.value.what == what


@pytest.mark.parametrize(
    ("endpoint", "what"),
    [
        (b"", "invalid endpoint"),
        (b"tcp://", "invalid host"),
        (b"tcp://1.2.3.4", "invalid host"),
        (b"tcp://1.2.3.4:70000", "invalid port"),
        (b"tcp://1.2.3.4:*", "invalid port"),
        (b"tcp://*:1", "invalid host"),
        (b"ipc://1.2.3.4:1", "invalid endpoint"),
        (b"inproc://a:1", "invalid endpoint"),
        (b"tcp://eth0;1.2.3.4:1", "invalid host"),
        (b"tcp://::1:1", "invalid endpoint"),
        (b"tcp://[::1:1", "invalid endpoint"),
        (b"tcp://[1.2.3.4]:1", "invalid endpoint"),
        (b"tcp://::1]:1", "invalid endpoint"),
        (b"tcp://FFFF" + b"F" * 400 + b":127", "invalid host"),
    ],
)
def test_what_is_no_endpoint_is_refused_in_a_towers_beacon(endpoint, what):
    with pytest.raises(RemoteProtocolError) as caught:
        decode_tower_beacon([b"B", b"a", endpoint])
    assert caught.value.what == what


@pytest.mark.parametrize(
    "beacon",
    [
        Beacon("", "", 1),
        Beacon("a", "*", 1),
        Beacon("a", "", 0),
        Beacon("a", "", 65_536),
        Beacon("a", "", 1, "key"),
    ],
)
def test_a_beacon_that_cannot_be_told_is_refused(beacon):
    with pytest.raises(LocalProtocolError):
        encode_node_beacon(beacon)


def test_a_towers_beacon_names_a_host():
    with pytest.raises(LocalProtocolError):
        encode_tower_beacon(Beacon("a", "", 1))
