"""Shortening the log: its beginning moves at once, and the rows before it are deleted in small transactions,
so that no other write waits for long. Rows that a crash leaves behind are ignored."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing

from garlicfarm.raft.types import SnapshotMeta
from garlicfarm.storage.tables import Corrupt, decode_entry, encode_boundary
from garlicfarm.wire import encode_configuration

__all__ = ["delete_entries", "install"]

_STEP_ENTRIES = 1000
_STEP_BYTES = 4 << 20
_FREE_PAGES = 1024  # kept for the next entries; others are given back
_STEP_PAGES = 256


def install(db: sqlite3.Connection, snapshot: SnapshotMeta) -> None:
    """Within a transaction: let the log begin after a received snapshot."""
    _move(db, snapshot.index, snapshot.term, encode_configuration(snapshot.configuration))


def delete_entries(db: sqlite3.Connection, upto: int) -> bool:
    """One transaction: let the log begin after ``upto`` (unless it begins later already), delete the oldest
    rows before that, at most 1,000 or 4 MiB of values (at least one row), and give up to a MiB of free pages
    back to the system. Durable on return. Returns whether no such rows are left.

    Raises `sqlite3.Error`, also `Corrupt`: the transaction was not carried out.
    """
    boundary, configuration = db.execute("SELECT idx, configuration FROM boundary").fetchone()
    if upto <= boundary and not _rows(db, boundary):
        return True
    db.execute("BEGIN IMMEDIATE")
    if upto > boundary:
        row = db.execute("SELECT * FROM entries WHERE idx = ?", (upto,)).fetchone()
        if row is None:
            raise Corrupt(f"entry {upto} is missing")
        query = "SELECT * FROM entries WHERE type = 2 AND idx > ? AND idx <= ? ORDER BY idx DESC LIMIT 1"
        newest = db.execute(query, (boundary, upto)).fetchone()
        if newest is not None:
            configuration = decode_entry(newest).value
        boundary = upto
        _move(db, upto, decode_entry(row).term, configuration)
    size = index = 0
    for idx, length in _rows(db, boundary):
        if index and size + length > _STEP_BYTES:
            break
        index, size = idx, size + length
    db.execute("DELETE FROM entries WHERE idx <= ?", (index,))
    surplus = db.execute("PRAGMA freelist_count").fetchone()[0] - _FREE_PAGES
    for _ in range(min(surplus, _STEP_PAGES)):
        db.execute(
            "PRAGMA incremental_vacuum(1)"
        )  # with a larger number, the module sqlite3 frees only one page
    db.execute("COMMIT")
    return not _rows(db, boundary)


def _move(db: sqlite3.Connection, index: int, term: int, configuration: bytes | None) -> None:
    row = encode_boundary(index, term, configuration)
    db.execute("UPDATE boundary SET idx = ?, term = ?, configuration = ?, crc32 = ?", row)


def _rows(db: sqlite3.Connection, boundary: int) -> Sequence[tuple[int, int]]:
    """(index, size) of the oldest rows before the log's beginning."""
    query = "SELECT idx, length(value) FROM entries WHERE idx <= ? ORDER BY idx LIMIT ?"
    with closing(db.execute(query, (boundary, _STEP_ENTRIES))) as rows:
        return rows.fetchall()
