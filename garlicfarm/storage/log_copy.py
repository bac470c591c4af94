"""A copy of a log under another farm's id, for `garlicfarm.setup.recovery`."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import msgspec

from garlicfarm.durable_files import fsync_path
from garlicfarm.raft.types import Entry, HardState
from garlicfarm.storage import tables
from garlicfarm.storage.log_store import FILE_NAME
from garlicfarm.storage.tables import Genesis

__all__ = ["rewrite_log"]


def rewrite_log(source: Path, target: Path, farm_id: bytes, hard_state: HardState, last: Entry) -> Genesis:
    """Copy the log of the store in ``source`` into ``target``, with ``farm_id``, ``hard_state`` and ``last``
    as one more entry. ``source`` must have been opened and closed, so that its WAL is empty. The file is
    synced on return, its directory is not. Returns the genesis of the copy.

    Raises `OSError`, `sqlite3.Error`: discard ``target``.
    """
    path = target / FILE_NAME
    path.touch(0o600)
    shutil.copyfile(source / FILE_NAME, path)
    with closing(tables.connect(path, "rw")) as db:
        db.execute("BEGIN IMMEDIATE")
        genesis = msgspec.structs.replace(tables.read_genesis(db), farm_id=farm_id)
        db.execute("DELETE FROM meta")
        db.execute("INSERT INTO meta VALUES (?, ?, ?, ?, ?, ?, ?)", tables.encode_meta(genesis))
        row = tables.encode_hard_state(hard_state)
        db.execute("UPDATE hard_state SET term = ?, vote = ?, commit_index = ?, crc32 = ?", row)
        db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", tables.encode_entry(last))
        db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    fsync_path(path)
    return genesis
