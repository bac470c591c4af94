"""What members of a Dafka ring and watchers of events receive."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from garlicfarm.errors import RemoteProtocolError
from garlicfarm.feed.binary_format import encode_records
from garlicfarm.feed.events import (
    HealthEvent,
    LeaderEvent,
    MemberAddress,
    MembersEvent,
    PositionEvent,
    PublisherEvent,
    decode_entries,
    decode_events,
    encode_event,
)
from garlicfarm.raft.types import Entry
from garlicfarm.wire import ValueType
from garlicfarm_plugin_dafka import codec as codec_of_dafka
from garlicfarm_plugin_dafka.zap import zap_answer
from tests.fuzz.targets.base import DATA, Target

_DAFKA: Sequence[tuple[Callable[[list[bytes]], Any], Callable[[Any], list[bytes]]]] = (
    (codec_of_dafka.decode, codec_of_dafka.encode),
    (codec_of_dafka.decode_node_beacon, codec_of_dafka.encode_node_beacon),
    (codec_of_dafka.decode_tower_beacon, codec_of_dafka.encode_tower_beacon),
)


def dafka(data: bytes) -> None:
    """Commands, both beacons, subscriptions, and what ZeroMQ asks of its ZAP handler, each of some frames."""
    kind, frames, rest = data[0] if data else 0, [], data[1:]
    while rest:
        size, rest = int.from_bytes(rest[:2], "big"), rest[2:]
        frames.append(rest[:size])
        rest = rest[size:]
    if kind < len(_DAFKA):
        decode_frames, encode_frames = _DAFKA[kind]
        with suppress(RemoteProtocolError):
            decoded = decode_frames(frames)
            assert encode_frames(decoded) == frames
            if kind == 0:
                command, routing = codec_of_dafka.split_prefix(frames[0][: frames[0].index(0)])
                assert command is type(decoded)
                assert frames[0].startswith(codec_of_dafka.subscription_prefix(command, routing))
    elif kind == len(_DAFKA):
        for prefix in frames:
            command, routing = codec_of_dafka.split_prefix(prefix)
            assert command is None or codec_of_dafka.subscription_prefix(command, routing) == prefix
    else:
        refused: list[tuple[str, str]] = []
        answer = zap_answer(frames, {}, lambda *each: True, lambda *each: refused.append(each))
        assert (answer[2], len(refused)) == (b"400", 1)


def _dafka_seeds() -> list[bytes]:
    kinds = {"NODE-BEACON": 1, "TOWER-BEACON": 2, "SUBSCRIBE": 3, "UNSUBSCRIBE": 3}
    seeds = [_dafka_input(4, [b"1.0", b"1", b"dafka/1", b"127.0.0.1", b"", b"CURVE", bytes(32)])]
    for path in sorted((DATA / "dafka").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            vector = json.loads(line)
            frames = [bytes.fromhex(frame) for frame in vector["frames"]]
            name = vector["name"]
            kind = kinds.get(name, kinds.get(name.partition("-")[0], 0))
            seeds.append(_dafka_input(kind, [frames[0][1:]] if kind == 3 else frames))
            if kind in (1, 2):
                key = b"curve=Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
                seeds.append(_dafka_input(kind, [*frames, key]))
    return seeds


def _dafka_input(kind: int, frames: Sequence[bytes]) -> bytes:
    return bytes([kind]) + b"".join(len(frame).to_bytes(2, "big") + frame for frame in frames)


def events(data: bytes) -> None:
    """A message of live events, as a client takes it: of text, or of records of entries."""
    kind, content = data[:1], data[1:]
    with suppress(RemoteProtocolError):
        if kind == b"\0":
            decoded = decode_events(content.decode(errors="replace"))
            assert decode_events("\n".join(encode_event(event).decode() for event in decoded)) == decoded
        else:
            entries = [event.entry for event in decode_entries(content, 3)]
            assert encode_records(entries) == content


def _events_seeds() -> list[bytes]:
    told = [
        LeaderEvent(4, 1, 2),
        PublisherEvent(4, 2, 1, "margin", 4),
        MembersEvent(5, (MemberAddress(1, "ssl://a.example:1"),)),
        HealthEvent(5, "degraded", 0, (3,), False),
        PositionEvent(6),
    ]
    entries = [Entry(4, 1, ValueType.APPLICATION, b"x"), Entry(6, 2, ValueType.CONFIGURATION, b"\xff")]
    lines = [b"\0" + encode_event(event) for event in told]
    return [*lines, b"\0" + b"\n".join(line[1:] for line in lines), b"\1" + encode_records(entries)]


TARGETS = {"dafka": Target(dafka, _dafka_seeds), "events": Target(events, _events_seeds)}
