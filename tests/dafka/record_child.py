"""A process that saves records and can be killed: ``record_child.py DIRECTORY SEED BATCHES [MUTANT]``.

Prints ``saved PARTITION NEXT`` for all that the files hold at the start and for each of that many batches
once it is saved, then waits; ``StorageError`` if the disk fails. What a record holds follows from its place
(`content`).
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from garlicfarm.errors import StorageError
from garlicfarm_plugin_dafka import record_files, sqlite_files
from garlicfarm_plugin_dafka.record_files import RecordFiles, RecordReader
from garlicfarm_plugin_dafka.store_core import Unsaved

MAX_BYTES = 400_000
TOPIC = "t"


def content(partition: str, sequence: int) -> bytes:
    text = b"%s %d " % (partition.encode(), sequence)
    return text * Random(f"{partition} {sequence}").choice((0, 1, 1, 10, 500))


def check(directory: Path, reported: Mapping[str, int]) -> int:
    """The files hold all that was reported saved, but for what retention deleted. Returns how many
    records."""
    with closing(RecordFiles(directory)) as files, closing(RecordReader(files)) as reader:
        found = {each.partition: each for each in files.partitions()}
        total = 0
        for partition, upto in reported.items():
            assert partition in found, f"partition {partition} is missing"
            place = found[partition]
            assert place.next >= upto, f"record {upto - 1} of {partition} is missing"
            contents: list[bytes] = []
            while place.tail + len(contents) < place.next:
                first = place.tail + len(contents)
                page = reader.read(TOPIC, partition, first, place.next, max_bytes=50_000)
                assert page, f"record {first} of {partition} cannot be read"
                contents += page
            assert contents == [content(partition, n) for n in range(place.tail, place.next)]
            total += len(contents)
        return total


def _replace_sql(old: str, new: str) -> None:
    class Replacing(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            return super().execute(sql.replace(old, new), *values)

    def connect(path: Path) -> sqlite3.Connection:
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Replacing)

    sqlite_files.connect = connect


def never_sync() -> None:
    """Commits are written, and not synced."""
    _replace_sql("synchronous = FULL", "synchronous = OFF")


def sync_at_checkpoints_only() -> None:
    """What is written ahead is synced now and then."""
    _replace_sql("synchronous = FULL", "synchronous = NORMAL")


def trust_what_a_failed_sync_left() -> None:
    """What was written ahead is not copied into the database at the start."""
    _replace_sql("PRAGMA wal_checkpoint(TRUNCATE)", "SELECT 1")


def let_come_back_what_was_ahead() -> None:
    """What was written ahead is copied at the start, and not removed for good."""
    setattr(record_files, "fsync_path", lambda path: None)  # noqa: B010


def report_before_the_commit() -> None:
    """A batch is reported, and committed with the next one."""
    save = RecordFiles.save
    waiting: list[tuple[Any, int]] = []

    def save_later(self: RecordFiles, batch: Any, now_ms: int) -> None:
        waiting.append((batch, now_ms))
        if len(waiting) > 1:
            save(self, *waiting.pop(0))

    RecordFiles.save = save_later


MUTANTS = {
    "unsynced": never_sync,
    "synced-at-checkpoints": sync_at_checkpoints_only,
    "no-checkpoint": trust_what_a_failed_sync_left,
    "comes-back": let_come_back_what_was_ahead,
    "early": report_before_the_commit,
}


def main(directory: Path, seed: int, batches: int) -> None:
    rnd = Random(seed)
    now_ms = 0
    with closing(RecordFiles(directory)) as files:
        places = dict.fromkeys("ab", 0) | {each.partition: each.next for each in files.partitions()}
        for name, upto in places.items():
            os.write(1, b"saved %s %d\n" % (name.encode(), upto))
        for _ in range(batches):
            now_ms += 1
            batch = []
            for name, first in places.items():
                if number := rnd.choice((0, 1, 1, 30)):
                    places[name] += number
                    contents = [content(name, n) for n in range(first, first + number)]
                    batch.append(Unsaved(TOPIC, name, first, contents))
            files.save(batch, now_ms)
            for unsaved in batch:
                upto = unsaved.first + len(unsaved.contents)
                os.write(1, b"saved %s %d\n" % (unsaved.partition.encode(), upto))
            if rnd.random() < 0.1:
                files.expire(0, MAX_BYTES, lambda topic, partition: True)
        signal.pause()


if __name__ == "__main__":
    if len(sys.argv) > 4:
        MUTANTS[sys.argv[4]]()
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    except StorageError as error:
        print("StorageError", error, flush=True)
