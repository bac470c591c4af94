"""Deleting the log's oldest entries, in transactions that keep nobody waiting for long."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from garlicfarm.storage.schema import Corrupt, decode_entry, encode_boundary
from garlicfarm.wire.messages import ValueType

__all__ = ["delete_entries"]

_STEP_ENTRIES = 1000
_STEP_BYTES = 4 << 20
_FREE_PAGES = 1024  # kept for what is appended next; more than these are given back
_STEP_PAGES = 256


def delete_entries(db: sqlite3.Connection, upto: int) -> bool:
    """One transaction: delete the oldest entries, at most 1,000 or 4 MiB of values (or one), none above
    ``upto``; say in ``boundary`` where the log begins now; and give a MiB of free pages back to the
    system. Durable on return. Returns whether all is done.

    Raises `sqlite3.Error`, `Corrupt` included: the transaction did not take place.
    """
    db.execute("BEGIN IMMEDIATE")
    size = index = term = 0
    configuration = db.execute("SELECT configuration FROM boundary").fetchone()[0]
    query = "SELECT * FROM entries WHERE idx <= ? ORDER BY idx LIMIT ?"
    with closing(db.execute(query, (upto, _STEP_ENTRIES))) as rows:
        for row in rows:
            entry = decode_entry(row)
            if index and size + len(entry.value) > _STEP_BYTES:
                break
            index, term = entry.index, entry.term
            size += len(entry.value)
            if entry.value_type is ValueType.CONFIGURATION:
                configuration = entry.value
    if not index:
        raise Corrupt(f"the entries up to {upto} are missing")
    db.execute("DELETE FROM entries WHERE idx <= ?", (index,))
    boundary = encode_boundary(index, term, configuration)
    db.execute("UPDATE boundary SET idx = ?, term = ?, configuration = ?, crc32 = ?", boundary)
    surplus = db.execute("PRAGMA freelist_count").fetchone()[0] - _FREE_PAGES
    for _ in range(min(surplus, _STEP_PAGES)):
        db.execute("PRAGMA incremental_vacuum(1)")  # of more, the module sqlite3 carries out the first only
    db.execute("COMMIT")
    return index == upto
