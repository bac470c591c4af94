"""A log with all that a fold can meet, and what the plain fold of it says at every index."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from garlicfarm.publishing.entries import encode_admin, encode_status
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.raft.types import Entry
from garlicfarm.wire import decode_configuration, encode_configuration
from garlicfarm.wire.messages import Configuration, ValueType
from garlicfarm_plugin_spark.ranking import Row
from tests.publishing.scripted_log import FILE, T0, configuration, status

GENESIS = configuration(1, 2, 3)
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Expected:
    """The node's answers at one index."""

    publisher: int | None
    holders: list[int]
    recent: list[int]
    order: list[int]
    farm_time_ms: int
    interval_ms: int
    scores: dict[int, int]
    contents: bytes
    skipped: dict[str, int]
    ranking: str
    state_sha256: str


class Node:
    """Folds as a node does: from the first Configuration, which is no entry of the log."""

    def __init__(self, genesis: Configuration | None = GENESIS) -> None:
        self.farm = PublisherFold("farm")
        self.index = 0
        if genesis is not None:
            self.farm.configure(0, genesis)

    def apply(self, entry: Entry) -> None:
        if entry.value_type is ValueType.CONFIGURATION:
            self.farm.configure(entry.index, decode_configuration(entry.value))
        else:
            self.farm.apply(entry.index, entry.term, entry.value)
        self.index = entry.index

    def expected(self) -> Expected:
        ranking: Any = self.farm.ranking()
        return Expected(
            self.farm.publisher,
            ranking["holders"],
            sorted(member["id"] for member in ranking["members"] if member["recent"]),
            [member["id"] for member in ranking["members"]],
            ranking["farm_time_ms"],
            ranking["interval_ms"],
            self.farm.scores(),
            self.farm.contents(),
            dict(self.farm.skipped),
            msgspec.json.encode({"index": self.index, **ranking}).decode(),
            sha256(self.farm.snapshot()).hexdigest(),
        )


def expectations(log: list[Entry]) -> dict[int, Expected]:
    """What a node says at each index of ``log``, which begins at index 1."""
    node = Node()
    answers = {}
    for entry in log:
        node.apply(entry)
        answers[entry.index] = node.expected()
    return answers


def scripted_log() -> list[Entry]:
    """The scripted log of the farm room at its own indexes, then members that come and go, a leader that
    changes, rubbish, repetitions, and notes."""
    log: list[Entry] = []

    def add(value: bytes, kind: ValueType = ValueType.APPLICATION, term: int = 1) -> None:
        log.append(Entry(len(log) + 1, term, kind, value))

    def configure(*members: int, term: int = 1, level: int = 0) -> None:
        made = configuration(*members, index=len(log) + 1)
        raised = msgspec.structs.replace(made, level=level)
        add(encode_configuration(raised), ValueType.CONFIGURATION, term)

    configure(1, 2, 3)
    for line in FILE.read_text().splitlines():
        add(json.loads(line)["entry"].encode())
    date = T0 + 1_000_000
    for value in rubbish():
        add(value)
    add(log[2].value)  # repeated
    configure(1, 2, 3, 4, term=2)
    for turn in range(6):
        for member, headroom in ((4, 90), (2, 60), (3, 55), (1, 50)):
            date += 250
            add(encode_status(status(member, date, headroom=headroom, applied=len(log), sequence=date)))
        if turn == 2:
            args: dict[str, object] = {"member": 4, "mode": "on"}
            add(encode_admin("farm", date, 1, None, "override", "alice", args))
    configure(1, 2, 4, term=3)  # 3 is removed
    configure(1, 2, 4, term=4, level=1)  # a new leader repeats it, and raises the level
    for _ in range(4):
        for member, headroom in ((1, 85), (2, 60), (3, 99)):  # 4 is dead, 3 is none any more
            date += 300
            add(encode_status(status(member, date, headroom=headroom, applied=len(log), sequence=date)))
    add(encode_admin("farm", date, 1, None, "interval", "alice", {"ms": 2000}))
    add(encode_admin("farm", date, 1, None, "override", "alice", {"member": 3, "mode": "off"}))  # no member
    return log


def of_cluster(name: str, log: Iterable[Entry]) -> list[Entry]:
    """What members of the farm ``name`` would have written."""
    own = f'"cluster":"{name}"'.encode()
    return [
        msgspec.structs.replace(entry, value=entry.value.replace(b'"cluster":"farm"', own)) for entry in log
    ]


def rubbish() -> Iterator[bytes]:
    """Entries that a raw client could get committed, and no node counts."""
    yield b""
    yield b"\xff\xfe\x00"
    yield b"not json"
    yield b'{"cluster":"other"}'
    yield b"[]"
    yield random.Random(7).randbytes(3000)


def many_entries(count: int) -> list[Entry]:
    """A long log of three members, most of it statuses: the script, then rounds without an end."""
    log = scripted_log()
    date = T0 + 2_000_000
    while len(log) < count:
        member = (1, 2, 4)[len(log) % 3]
        date += 700
        document = status(member, date, headroom=len(log) * 7 % 100, applied=len(log), sequence=date)
        log.append(Entry(len(log) + 1, 4, ValueType.APPLICATION, encode_status(document)))
    return log[:count]


def hours_log(hours: float) -> list[Entry]:
    """Three members, a status each in 20 s; 3 is silent in the second hour, and who is best changes."""
    log = [Entry(1, 1, ValueType.CONFIGURATION, encode_configuration(configuration(1, 2, 3, index=1)))]
    for date in range(T0, T0 + round(hours * HOUR_MS) + 60_000, 20_000):
        for member in (1, 2, 3):
            if member == 3 and 1.2 < (date - T0) / HOUR_MS < 2.2:
                continue
            free = 50 + 40 * ((date - T0) // (600_000 * member) % 2)
            post = {"applied": len(log), "sequence": date, "interval_ms": 20_000, "publishing": member == 2}
            made = status(member, date + member, headroom=free, **post)
            log.append(Entry(len(log) + 1, 1, ValueType.APPLICATION, encode_status(made)))
    return log


def fold_rows(log: Iterable[Entry]) -> list[Row]:
    """Entries as the fold of the query takes them."""
    return [(each.index, each.term, int(each.value_type), each.value) for each in log]
