"""Runs a node that acknowledges before it has synced: ``python -m tests.crash.mutant NAME node start …``.

The crash test on storage that loses unsynced writes has to find every one of them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from garlicfarm.cli import main
from garlicfarm.raft.types import Persist
from garlicfarm.storage import LogStore, writer

BEHIND = 20


def sync_only_at_checkpoints() -> None:
    """SQLite's ``synchronous = NORMAL``: a commit in WAL mode is written, and not synced."""
    open_ = LogStore.open

    def opened(directory: Path, **how: Any) -> LogStore:
        store = open_(directory, **how)
        store.writes.execute("PRAGMA synchronous = NORMAL")
        return store

    setattr(LogStore, "open", staticmethod(opened))  # noqa: B010


def report_before_the_transaction() -> None:
    """Batches are reported at once, and written and synced twenty at a time."""
    write = writer._write
    waiting: list[Persist] = []

    def write_later(db: Connection, batch: Sequence[Persist]) -> None:
        waiting.extend(batch)
        if len(waiting) >= BEHIND:
            write(db, waiting)
            waiting.clear()

    writer._write = write_later


MUTANTS = {"normal": sync_only_at_checkpoints, "early": report_before_the_transaction}

if __name__ == "__main__":
    MUTANTS[sys.argv.pop(1)]()
    main()
