"""A store with all kinds of records, of one seed: the same bytes from every program that writes format 4.

``python tests/storage/format_4.py DIRECTORY`` writes it with the garlicfarm in ``PYTHONPATH``, which may be
0.2.0: so `tests/data/store-0.2.0` was made, and so other programs' stores are."""

from __future__ import annotations

import random
import secrets
import sys
from contextlib import closing
from pathlib import Path

from garlicfarm.raft.types import Entry, HardState, Persist, SnapshotMeta
from garlicfarm.storage import SNAPSHOTS, Genesis, Snapshot, appender, create_store, write_snapshot
from garlicfarm.storage.appender import Appender
from garlicfarm.storage.segments import read_log
from garlicfarm.wire import ClusterServer, Configuration, ValueType, encode_configuration

SERVERS = tuple(ClusterServer(number, f"ssl://{name}.example:27150") for number, name in enumerate("abc", 1))
FIRST = Configuration(0, 0, SERVERS[:2])
SECOND = Configuration(4, 0, SERVERS)
GENESIS = Genesis("farm", bytes(range(16)), "log", 2, FIRST)


def entries(term: int, first: int, *sizes: int) -> tuple[Entry, ...]:
    return tuple(
        Entry(index, term, ValueType.APPLICATION, bytes([index]) * size)
        for index, size in enumerate(sizes, first)
    )


def write_store(directory: Path) -> None:
    """Into ``directory``, which is made. Segments of 700 bytes."""
    rnd, kept = random.Random(4), (secrets.token_bytes, appender.SEGMENT_BYTES)
    secrets.token_bytes, appender.SEGMENT_BYTES = lambda nbytes=None: rnd.randbytes(nbytes or 32), 700
    try:
        create_store(directory, GENESIS, [b"first", b"second"])
        log = read_log(directory / "log")
        configuration = Entry(4, 2, ValueType.CONFIGURATION, encode_configuration(SECOND))
        with closing(Appender(directory / "log", log)) as writer:
            writer.write([Persist(0, HardState(2, 1, 2), None, (*entries(2, 3, 30), configuration))])
            writer.write([Persist(1, None, None, entries(2, 5, 0, 300))])
            writer.write([Persist(2, HardState(3, 0, 4), 5, entries(3, 5, 200))])
            writer.write([Persist(3, None, None, entries(3, 6, 40)), Persist(4, HardState(3, 2, 6))])
            state = Snapshot(GENESIS.farm_id, "log", 2, 5, 3, SECOND, SERVERS, 4, bytes(50))
            write_snapshot(directory / SNAPSHOTS, state)
            writer.write([], SnapshotMeta(3, 2, FIRST, 3))
            writer.write([Persist(5, HardState(4, 0, 7), None, entries(4, 7, 400))])
            writer.write([Persist(6, HardState(4, 0, 8), None, entries(4, 8, 10))])
            writer.sync_all()
    finally:
        secrets.token_bytes, appender.SEGMENT_BYTES = kept


if __name__ == "__main__":
    write_store(Path(sys.argv[1]))
