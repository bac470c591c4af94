"""A received snapshot stands for the log: all of it or nothing, whenever the process dies."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from garlicfarm.errors import Compacted, LocalProtocolError, StorageError
from garlicfarm.raft.types import Entry, HardState, Persist, SnapshotMeta
from garlicfarm.storage import (
    SNAPSHOTS,
    Genesis,
    LogReader,
    LogStore,
    Snapshot,
    Writer,
    appender,
    create_store,
    write_snapshot,
)
from garlicfarm.storage import writer as writer_module
from garlicfarm.storage.appender import Appender
from garlicfarm.storage.segments import list_segments, segment_name
from garlicfarm.wire import ClusterServer, Configuration, ValueType, encode_configuration
from garlicfarm.wire.messages import SnapshotSyncRequest

MEMBERS = Configuration(7, 0, (ClusterServer(1, "ssl://a:1"), ClusterServer(4, "ssl://d:1")))
EVER = (*MEMBERS.servers, ClusterServer(2, "ssl://b:1"))
SENT = Snapshot(b"farm-id-16-bytes", "log", 2, 30, 2, MEMBERS, EVER, 21, b"the state" * 100)
GENESIS = Genesis("farm", SENT.farm_id, "log", 2, None)
OLD = HardState(1, 1, 8)
NEW = HardState(2, 0, 30)


def log(first: int, last: int, term: int = 1) -> tuple[Entry, ...]:
    """A Configuration at each tenth."""
    return tuple(
        Entry(i, term, ValueType.CONFIGURATION, encode_configuration(Configuration(i, 0)))
        if i % 10 == 0
        else Entry(i, term, ValueType.APPLICATION, b"%d of %d" % (i, term))
        for i in range(first, last + 1)
    )


def step(token: int = 1, truncate_from: int | None = 31, entries: tuple[Entry, ...] = ()) -> Persist:
    return Persist(token, NEW, truncate_from, entries, SENT.meta)


@pytest.fixture
def pieces(tmp_path: Path) -> list[SnapshotSyncRequest]:
    with closing(opened_source(tmp_path)) as store:
        found: list[SnapshotSyncRequest] = []
        offset, last = 0, False
        while not last:
            data, last = store.snapshot_chunk(30, offset, 200)
            found.append(SnapshotSyncRequest(30, 2, MEMBERS, offset, data, last))
            offset += len(data)
    return found


def opened_source(tmp_path: Path) -> LogStore:
    create_store(tmp_path / "source", GENESIS)
    store = LogStore.open(tmp_path / "source", farm="farm")
    write_snapshot(tmp_path / "source" / SNAPSHOTS, SENT)
    store.on_snapshot_written(SENT.meta)
    return store


class Running:
    """A writer that runs, and what it reported."""

    def __init__(self, store: LogStore) -> None:
        self.store = store
        self.durable = -1
        self.chunks: list[tuple[int, int, SnapshotMeta | None]] = []
        self.problems: list[str] = []
        self._moved = trio.Event()
        self.writer = Writer(store, self._on_durable, None, self._on_chunk, self.problems.append)

    def _on_durable(self, token: int) -> None:
        self.durable = token
        self._move()

    def _on_chunk(self, *chunk: Any) -> None:
        self.chunks.append(chunk)
        self._move()

    def _move(self) -> None:
        moved, self._moved = self._moved, trio.Event()
        moved.set()

    async def write(self, persist: Persist) -> None:
        self.writer.submit(persist)
        await self.until(lambda: self.durable == persist.token)

    async def receive(self, requests: list[SnapshotSyncRequest]) -> None:
        for token, request in enumerate(requests):
            self.writer.submit_chunk(token, request)
        await self.until(lambda: len(self.chunks) == len(requests))

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(240):
            while not condition():
                await self._moved.wait()


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Running]:
    with closing(LogStore.open(directory, farm="farm")) as store:
        run = Running(store)
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: run.writer.run(task_status=task_status))
            yield run
            nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch gets a segment of its own."""
    monkeypatch.setattr(appender, "SEGMENT_BYTES", 0)


def view(store: LogStore) -> tuple[Any, ...]:
    """All that the core sees."""
    first, last = store.first_index(), store.last_index()
    entries = tuple(store.entries(first, last + 1, 1 << 20)) if last >= first else ()
    return store.initial_state(), store.snapshot(), store.term(first - 1), first, last, entries


INSTALLED = ((NEW, MEMBERS), SENT.meta, 2, 31, 30, ())


async def check_installed(directory: Path, *after: Entry) -> None:
    """As it is seen after the next start; what it replaced is deleted."""
    with closing(LogStore.open(directory, farm="farm")) as store:
        state, snapshot, term, first, last, entries = view(store)
        assert (snapshot, term, first, last) == (SENT.meta, 2, 31, 30 + len(after))
        assert (state[0].commit, entries) == (max(30, state[0].commit), after)
        assert store.restored == SENT
        assert store.problems == []
        assert list_segments(store.path)[0] == (store.index.oldest_segment() or store.appender.segment)


def unexpected(token: int) -> None:
    pytest.fail(f"{token} was reported")


async def test_log_that_ends_before_the_snapshot_begins_after_it(
    directory: Path, pieces: list[SnapshotSyncRequest]
) -> None:
    async with running(directory) as run:
        await run.write(Persist(0, OLD, None, log(1, 12)))
        before = view(run.store)
        await run.receive(pieces)
        assert [held for _, held, _ in run.chunks] == [
            *range(200, sum(len(piece.data) for piece in pieces), 200),
            sum(len(piece.data) for piece in pieces),
        ]
        assert [meta for _, _, meta in run.chunks] == [None] * (len(pieces) - 1) + [SENT.meta]
        assert view(run.store) == before, "nothing counts before the step"
        await run.write(step())
        assert view(run.store) == INSTALLED
        assert run.store.read_state(SENT.meta) == SENT
        for ask in (lambda: run.store.term(29), lambda: run.store.entries(12, 13, 1)):
            with pytest.raises(Compacted) as gone:
                ask()
            assert gone.value.first_index == 31
        await run.write(Persist(2, None, None, log(31, 34, 2)))
        assert run.store.entries(31, 35, 1 << 20) == list(log(31, 34, 2))
        assert run.problems == []
    await check_installed(directory, *log(31, 34, 2))


async def test_snapshot_within_the_log_keeps_what_follows_or_truncates_it(
    directory: Path, pieces: list[SnapshotSyncRequest], tmp_path: Path
) -> None:
    create_store(tmp_path / "other", GENESIS)
    for where, install, after in (
        (directory, step(1, None), log(31, 34, 2)),
        (tmp_path / "other", step(1, 31, log(31, 32, 3)), log(31, 32, 3)),
    ):
        async with running(where) as run:
            await run.write(Persist(0, HardState(2, 0, 8), None, log(1, 34, 2)))
            await run.receive(pieces)
            await run.write(install)
            assert view(run.store)[2:] == (2, 31, after[-1].index, after)
        await check_installed(where, *after)


async def test_step_hides_what_it_truncates_when_it_is_submitted_and_shows_itself_when_durable(
    directory: Path, pieces: list[SnapshotSyncRequest]
) -> None:
    async with running(directory) as run:
        await run.receive(pieces)
        run.writer.submit(Persist(0, OLD, None, log(1, 33)))
        run.writer.submit(step(1, 31, log(31, 31, 2)))
        run.writer.submit(Persist(2, HardState(2, 0, 31), None, log(32, 33, 2)))
        assert run.store.last_index() == 0
        await run.until(lambda: run.durable == 2)
        assert view(run.store)[2:] == (2, 31, 33, log(31, 33, 2))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (
            Persist(1, HardState(2, 0, 8), 9, (), msgspec.structs.replace(SENT.meta, index=8)),
            "8 are committed",
        ),
        (step(1, 30), "30 are committed"),
        (step(1, 32), "30 are committed"),
        (Persist(1, None, 31, (), SENT.meta), "commit index 8"),
        (Persist(1, HardState(2, 0, 29), 31, (), SENT.meta), "commit index 29"),
        (Persist(1, HardState(2, 0, 31), 31, (), SENT.meta), "commit index 31"),
        (step(1, 31, log(13, 13)), "31 is next"),
    ],
)
async def test_step_that_does_not_follow_from_a_snapshot_is_refused_and_changes_nothing(
    directory: Path, wrong: Persist, reason: str
) -> None:
    with closing(LogStore.open(directory, farm="farm")) as store:
        writing = Writer(store, unexpected)
        writing.submit(Persist(0, OLD, None, log(1, 12)))
        with pytest.raises(LocalProtocolError, match=reason):
            writing.submit(wrong)
        writing.submit(step(1, None, log(31, 32)))


async def test_queue_of_pieces_is_bounded(
    directory: Path, pieces: list[SnapshotSyncRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_MAX_QUEUED_BYTES", 300)
    async with running(directory) as run:
        run.writer.submit_chunk(1, pieces[0])
        with pytest.raises(StorageError, match="the disk hangs"):
            run.writer.submit_chunk(2, pieces[1])
        await run.until(lambda: len(run.chunks) == 1)
        run.writer.submit_chunk(2, pieces[1])
        await run.until(lambda: len(run.chunks) == 2)


async def test_problem_with_a_snapshot_is_told_once_until_one_is_whole(
    directory: Path, pieces: list[SnapshotSyncRequest]
) -> None:
    foreign = msgspec.structs.replace(pieces[0], last_log_index=31, data=b"x" * 60)
    async with running(directory) as run:
        refused = "snapshot 31-2 is refused"
        await run.receive([foreign, foreign, pieces[0], foreign])
        assert [held for _, held, _ in run.chunks] == [0, 0, 200, 0]
        assert [problem.partition(":")[0] for problem in run.problems] == [refused]
        run.chunks.clear()
        await run.receive([*pieces, foreign])
        assert [problem.partition(":")[0] for problem in run.problems] == [refused] * 2


async def test_compaction_and_installation_queued_together_leave_the_later_boundary(
    directory: Path, pieces: list[SnapshotSyncRequest]
) -> None:
    async with running(directory) as run:
        await run.write(Persist(0, OLD, None, log(1, 12)))
        await run.receive(pieces)
        run.store.on_snapshot_written(SnapshotMeta(8, 1, MEMBERS))
        run.writer.compact(5)
        run.writer.submit(step())
        await run.until(lambda: run.durable == 1)
        assert view(run.store) == INSTALLED
    await check_installed(directory)


async def test_reader_sees_no_entry_of_the_log_that_was_replaced(
    directory: Path, pieces: list[SnapshotSyncRequest]
) -> None:
    async with running(directory) as run:
        await run.write(Persist(0, OLD, None, log(1, 12)))
        reader = LogReader(run.store)
        assert reader.entries(0, 8, 1 << 20) == list(log(1, 8))
        await run.receive(pieces)
        await run.write(step())
        for after in (0, 8, 11, 29):
            with pytest.raises(Compacted) as gone:
                reader.entries(after, 30, 1 << 20)
            assert gone.value.first_index == 31
        await run.write(Persist(2, None, None, log(31, 33, 2)))
        assert reader.entries(30, 32, 1 << 20) == list(log(31, 32, 2))


# Deaths between all steps


@pytest.fixture
def before(directory: Path) -> Callable[[], Any]:
    """What gives the store's view when it is opened anew."""

    def reopened() -> Any:
        with closing(LogStore.open(directory, farm="farm")) as store:
            return view(store)

    return reopened


async def test_death_before_the_step_leaves_the_old_state_and_nothing_to_send_again(
    directory: Path, pieces: list[SnapshotSyncRequest], before: Callable[[], Any]
) -> None:
    """With half of it; with all of it but the name; with the name, too."""
    async with running(directory) as run:
        await run.write(Persist(0, OLD, None, log(1, 12)))
    old = before()
    folder = directory / SNAPSHOTS
    async with running(directory) as run:
        await run.receive(pieces[:2])
    assert before() == old
    assert [path.name for path in folder.iterdir()] == ["30-2.part"]
    async with running(directory) as run:
        await run.receive([pieces[0], *pieces[2:]])
        assert run.chunks[0][1] == 400
    assert [path.name for path in folder.iterdir()] == ["30-2.snap"]
    assert before() == old
    (folder / "30-2.snap").rename(folder / "30-2.part")
    assert before() == old
    async with running(directory) as run:
        await run.receive(pieces[:1])
        assert run.chunks[0][2] == SENT.meta
        await run.write(step())
    await check_installed(directory)


async def test_death_before_the_step_is_noticed_where_the_log_goes_on_to_the_snapshot(
    directory: Path, pieces: list[SnapshotSyncRequest], before: Callable[[], Any]
) -> None:
    """The entry at its index is of its term: so all before it is what it says, and committed."""
    async with running(directory) as run:
        await run.write(Persist(0, HardState(2, 1, 8), None, log(1, 34, 2)))
        await run.receive(pieces)
    state, snapshot, _, first, last, _ = before()
    assert (state[0], snapshot, first, last) == (HardState(2, 1, 30), SENT.meta, 1, 34)


@pytest.mark.parametrize("deleted", [0, 1, 2])
async def test_death_amid_the_deletions_leaves_the_new_state(
    directory: Path, pieces: list[SnapshotSyncRequest], monkeypatch: pytest.MonkeyPatch, deleted: int
) -> None:
    def dies(writer: Appender, before: int) -> None:
        for number in list_segments(directory / "log")[:deleted]:
            (directory / "log" / segment_name(number)).unlink()
        raise OSError(errno.EIO, "dead")

    async with running(directory) as run:
        for first in (1, 5, 9):
            await run.write(Persist(first, HardState(1, 1, first), None, log(first, first + 3)))
        await run.receive(pieces)
    with closing(LogStore.open(directory, farm="farm")) as store, monkeypatch.context() as patch:
        patch.setattr(Appender, "delete_segments", dies)
        writing = Writer(store, lambda token: None)
        writing.submit(step())
        with pytest.raises(StorageError, match="dead"):
            await writing.run()
    await check_installed(directory)


async def test_step_that_fails_changes_nothing(
    directory: Path, pieces: list[SnapshotSyncRequest], before: Callable[[], Any]
) -> None:
    async with running(directory) as run:
        await run.write(Persist(0, OLD, None, log(1, 12)))
        await run.receive(pieces)
    old = before()
    store = LogStore.open(directory, farm="farm")
    writing = Writer(store, unexpected)
    writing.submit(Persist(1, HardState(2**64, 0, 30), 31, (), SENT.meta))
    with pytest.raises(StorageError):
        await writing.run()
    store.close()
    assert before() == old


# Own snapshots


async def test_store_serves_the_newest_snapshot_and_one_that_was_begun(directory: Path) -> None:
    async with running(directory) as run:
        await run.write(Persist(0, HardState(2, 0, 40), None, log(1, 40, 2)))
        with pytest.raises(Compacted):
            run.store.snapshot_chunk(30, 0, 100)
        write_snapshot(directory / SNAPSHOTS, SENT)
        with pytest.raises(Compacted):
            run.store.snapshot_chunk(30, 0, 100)
        run.store.on_snapshot_written(SENT.meta)
        assert run.store.snapshot() == SENT.meta
        first, last = run.store.snapshot_chunk(30, 0, 100)
        assert (len(first), last) == (100, False)
        newer = msgspec.structs.replace(SENT, index=40)
        write_snapshot(directory / SNAPSHOTS, newer)
        run.store.on_snapshot_written(newer.meta)
        (directory / SNAPSHOTS / "30-2.snap").unlink()
        assert run.store.snapshot() == newer.meta
        assert run.store.snapshot_chunk(30, 100, 1 << 20)[1]
        with pytest.raises(Compacted):
            run.store.snapshot_chunk(30, 0, 100)
        run.store.on_snapshot_written(SENT.meta)
        assert run.store.snapshot() == newer.meta, "an older one is no news"
