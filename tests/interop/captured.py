"""The conversations of tests/data/jraft: what live JRaft nodes said to each other, message by message."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

from garlicfarm.raft import Entry
from garlicfarm.wire import Limits, RequestDecoder, ResponseDecoder, decode_log_pack
from garlicfarm.wire.messages import LogEntry, MessageType, Request, Response, ValueType

DATA = Path(__file__).parent.parent / "data" / "jraft"
MIB = 1 << 20

NODES = {"client": 0, **{f"node{member}": member for member in range(1, 6)}}


class Message(NamedTuple):
    """One captured message: number, seconds, connection, from, to, and what it was."""

    seq: int
    t: float
    conn: int
    source: int
    target: int
    data: bytes
    content: Request | Response


@cache
def conversation(number: int) -> tuple[Message, ...]:
    """All messages of ``conversation-<number>-*.jsonl``."""
    (path,) = DATA.glob(f"conversation-{number}-*.jsonl")
    found = []
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        if "event" in fields:
            continue
        data = bytes.fromhex(fields["hex"])
        decoder = RequestDecoder(Limits()) if fields["kind"] == "request" else ResponseDecoder()
        decoder.receive_data(data)
        content = decoder.next_message()
        assert content is not None
        ends = NODES[fields["from"]], NODES[fields["to"]]
        found.append(Message(fields["seq"], fields["t"], fields["conn"], *ends, data, content))
    return tuple(found)


class Exchange(NamedTuple):
    """A request and the answer that came for it; None: none did."""

    asked: Message
    request: Request
    answered: Message | None
    response: Response | None


def exchanges(number: int, target: int) -> list[Exchange]:
    """What the node ``target`` was asked in a conversation, in that order. A response whose request came
    before the capture has none, and is left out."""
    messages = conversation(number)
    answers: dict[int, list[Message]] = {}
    for message in messages:
        if isinstance(message.content, Response) and message.source == target:
            answers.setdefault(message.conn, []).append(message)
    found = []
    for message in messages:
        if isinstance(message.content, Request) and message.target == target:
            waiting = answers.get(message.conn, [])
            while waiting and waiting[0].seq < message.seq:
                waiting.pop(0)
            answered = waiting.pop(0) if waiting else None
            response = answered.content if answered is not None else None
            assert response is None or isinstance(response, Response)
            found.append(Exchange(message, message.content, answered, response))
    return found


@cache
def known_entries() -> dict[int, LogEntry]:
    """Every log entry that is in a capture, by index."""
    found: dict[int, LogEntry] = {}
    for number in range(1, 8):
        for message in conversation(number):
            request = message.content
            if not isinstance(request, Request):
                continue
            entries = request.entries
            if request.type is MessageType.SYNC_LOG_REQUEST:
                entries = decode_log_pack(entries[0].value, MIB, MIB).entries
            elif request.type is not MessageType.APPEND_ENTRIES_REQUEST:
                continue
            for index, entry in enumerate(entries, request.last_log_index + 1):
                assert found.setdefault(index, entry) == entry
    return found


def log_up_to(last: int) -> tuple[Entry, ...]:
    """The cluster's log; what no capture shows is an application entry of the term that it had."""
    known = known_entries()
    found = []
    for index in range(1, last + 1):
        entry = known.get(index) or LogEntry(1 if index <= 30 else 2, ValueType.APPLICATION, b"not captured")
        found.append(Entry(index, entry.term, entry.value_type, entry.value))
    return tuple(found)
