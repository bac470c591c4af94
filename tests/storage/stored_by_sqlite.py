"""Stores as version 0.1 made them: an SQLite file in WAL mode."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from garlicfarm.raft.types import Persist
from garlicfarm.storage import Genesis
from garlicfarm.storage.sqlite_log import APPLICATION_ID, SCHEMA
from garlicfarm.wire import encode_configuration


def create(directory: Path, genesis: Genesis) -> None:
    """A store without entries."""
    assert genesis.configuration is not None
    first = encode_configuration(genesis.configuration)
    directory.mkdir(exist_ok=True)
    with closing(_connect(directory)) as db:
        for pragma in (
            "page_size = 4096",
            "auto_vacuum = INCREMENTAL",
            f"application_id = {APPLICATION_ID}",
            "user_version = 2",
            "journal_mode = WAL",
        ):
            db.execute(f"PRAGMA {pragma}").fetchall()
        for statement in SCHEMA.values():
            db.execute(statement)
        born = 2, genesis.farm, genesis.farm_id, genesis.application, genesis.algorithm, first
        db.execute("INSERT INTO meta VALUES (?, ?, ?, ?, ?, ?, ?)", _summed(born))
        db.execute("INSERT INTO boundary VALUES (?, ?, ?, ?)", _summed((0, 0, first)))
        db.execute("INSERT INTO hard_state VALUES (?, ?, ?, ?)", _summed((0, 0, 0)))


def opened(directory: Path, steps: Sequence[Persist]) -> sqlite3.Connection:
    """Write each step as a transaction; all of them are in the WAL until the connection is closed."""
    db = _connect(directory)
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA wal_autocheckpoint = 0")
    for step in steps:
        db.execute("BEGIN IMMEDIATE")
        if step.truncate_from is not None:
            db.execute("DELETE FROM entries WHERE idx >= ?", (step.truncate_from,))
        for entry in step.entries:
            head = entry.index, entry.term, int(entry.value_type)
            checksum = crc32(entry.value, crc32(struct.pack(">QQB", *head)))
            db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", (*head, entry.value, checksum))
        if step.hard_state is not None:
            row = _summed((step.hard_state.term, step.hard_state.vote, step.hard_state.commit))
            db.execute("UPDATE hard_state SET term = ?, vote = ?, commit_index = ?, crc32 = ?", row)
        db.execute("COMMIT")
    return db


def compact(directory: Path, index: int, term: int, configuration: bytes, deleted: int) -> None:
    """Let the log begin after ``index``; of the rows before it, those up to ``deleted`` are gone."""
    with closing(_connect(directory)) as db:
        row = _summed((index, term, configuration))
        db.execute("UPDATE boundary SET idx = ?, term = ?, configuration = ?, crc32 = ?", row)
        db.execute("DELETE FROM entries WHERE idx <= ?", (deleted,))


def _connect(directory: Path) -> sqlite3.Connection:
    return sqlite3.connect(directory / "log.db", isolation_level=None)


def _summed(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*row, crc32(msgspec.msgpack.encode(row)))
