"""A process that appends, takes snapshots and compacts, also receives some that are ahead of its log, and can
be killed: ``compaction_child.py DIRECTORY``.

Its application is the hash chain of `LogApplication`; entry i has the term 1 and the value ``entry i``.
Prints ``durable INDEX`` when entries up to there are.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing
from itertools import count
from pathlib import Path

import trio

from garlicfarm.log_application import LogApplication
from garlicfarm.raft.types import Entry, HardState, Persist, SnapshotMeta
from garlicfarm.storage import (
    SNAPSHOTS,
    LogStore,
    Snapshot,
    Writer,
    appender,
    remove_snapshots,
    write_snapshot,
)
from garlicfarm.wire import ValueType
from garlicfarm.wire.messages import SnapshotSyncRequest

EVERY = 40
JUMP = 25


def entry(index: int) -> Entry:
    return Entry(index, 1, ValueType.APPLICATION, b"entry %d" % index)


def chain(index: int) -> bytes:
    """The state after ``index`` entries."""
    application = LogApplication()
    for i in range(1, index + 1):
        application.apply(i, 1, entry(i).value)
    return application.snapshot()


def resumed(store: LogStore) -> LogApplication:
    """The application after all that is in the store: its snapshot, and the entries since."""
    application = LogApplication()
    start = 0
    if store.restored is not None:
        application.restore(store.restored.state)
        start = store.restored.index
    if store.last_index() > start:
        for found in store.entries(start + 1, store.last_index() + 1, 1 << 40):
            application.apply(found.index, found.term, found.value)
    return application


def check(directory: Path, reported: int) -> int:
    """The store has all up to ``reported``, and nothing but what this program wrote; its first index."""
    with closing(LogStore.open(directory, farm="farm")) as store:
        first, last = store.first_index(), store.last_index()
        assert last >= reported, f"{reported} were reported durable, {last} are there"
        held = store.entries(first, last + 1, 1 << 40) if last >= first else []
        assert list(held) == [entry(index) for index in range(first, last + 1)]
        assert resumed(store).snapshot() == chain(last)
        for problem in store.problems:  # received, and died before the step that would have named it
            assert "does not meet the log" in problem
        return first


def file_of(snapshot: Snapshot, directory: Path) -> bytes:
    """What a leader that has taken this snapshot sends."""
    write_snapshot(directory, snapshot)
    return (directory / f"{snapshot.index}-{snapshot.term}.snap").read_bytes()


async def main(directory: Path) -> None:
    appender.SEGMENT_BYTES = 2000  # so that a compaction deletes several segments
    durable, stored = trio.Event(), trio.Event()
    received: tuple[int, SnapshotMeta | None] = (0, None)

    def on_durable(token: int) -> None:
        os.write(1, b"durable %d\n" % store.last_index())
        durable.set()

    def on_chunk(token: int, held: int, meta: SnapshotMeta | None) -> None:
        nonlocal received
        received = held, meta
        stored.set()

    with closing(LogStore.open(directory, farm="farm")) as store:
        application = resumed(store)
        configuration = store.initial_state()[1]
        writing = Writer(store, on_durable, None, on_chunk)
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: writing.run(task_status=task_status))
            tokens = count()
            for token in tokens:
                first = store.last_index() + 1
                entries = tuple(entry(i) for i in range(first, first + 5))
                durable = trio.Event()
                writing.submit(Persist(token, HardState(1, 0, first - 1), None, entries))
                await durable.wait()
                for each in entries:
                    application.apply(each.index, each.term, each.value)
                last = entries[-1].index
                if last % EVERY == 0:
                    snapshot = Snapshot(
                        store.genesis.farm_id,
                        "log",
                        2,
                        last,
                        1,
                        configuration,
                        configuration.servers,
                        last,
                        application.snapshot(),
                    )
                    await trio.to_thread.run_sync(write_snapshot, directory / SNAPSHOTS, snapshot)
                    await trio.to_thread.run_sync(remove_snapshots, directory / SNAPSHOTS, last, 2)
                    store.on_snapshot_written(snapshot.meta)
                    if last - 10 >= store.first_index():
                        writing.compact(last - 10)
                elif last % JUMP == 0:
                    ahead = last + 60
                    for i in range(last + 1, ahead + 1):
                        application.apply(i, 1, entry(i).value)
                    sent = Snapshot(
                        store.genesis.farm_id,
                        "log",
                        2,
                        ahead,
                        1,
                        configuration,
                        configuration.servers,
                        ahead,
                        application.snapshot(),
                    )
                    data = file_of(sent, directory.parent / "leader")
                    received = (0, None)
                    while received[1] is None:
                        offset = received[0]
                        piece = data[offset : offset + 150]
                        done = offset + 150 >= len(data)
                        stored = trio.Event()
                        writing.submit_chunk(
                            token, SnapshotSyncRequest(ahead, 1, configuration, offset, piece, done)
                        )
                        await stored.wait()
                    durable = trio.Event()
                    writing.submit(Persist(next(tokens), HardState(1, 0, ahead), ahead + 1, (), received[1]))
                    await durable.wait()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
