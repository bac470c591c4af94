from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from garlicfarm.errors import LocalProtocolError, StorageError
from garlicfarm.raft.types import Entry, HardState, Persist, SnapshotMeta
from garlicfarm.storage import Genesis, LogStore, Writer, appender, create_store, log_store, writer
from garlicfarm.storage.appender import Appender
from garlicfarm.storage.segments import read_log
from garlicfarm.wire import Configuration, ValueType
from tests.storage.conftest import entry


@pytest.fixture
def store(directory: Path) -> Iterator[LogStore]:
    with closing(LogStore.open(directory, farm="farm")) as store:
        yield store


def unexpected(token: int) -> None:
    pytest.fail(f"{token} was reported")


async def test_everything_queued_is_one_batch_reported_once(store: LogStore) -> None:
    tokens: list[int] = []
    batches: list[tuple[int, float]] = []
    durable = trio.Event()

    def on_durable(token: int) -> None:
        tokens.append(token)
        durable.set()

    writing = Writer(store, on_durable, lambda entries, seconds: batches.append((entries, seconds)))
    for index in range(1, 101):
        writing.submit(Persist(index, HardState(1, 1, index), None, (entry(index),)))
    assert (store.last_index(), store.initial_state()[0]) == (0, HardState())
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: writing.run(task_status=task_status))
        with trio.fail_after(240):
            await durable.wait()
        nursery.cancel_scope.cancel()
    assert tokens == [100]
    assert [count for count, _ in batches] == [100]
    assert batches[0][1] > 0
    assert (store.last_index(), store.initial_state()[0]) == (100, HardState(1, 1, 100))


async def test_report_comes_in_the_trio_thread_when_the_store_shows_it(store: LogStore) -> None:
    seen: list[int] = []
    last = trio.Event()

    def on_durable(token: int) -> None:
        trio.lowlevel.current_trio_token()
        seen.append(store.last_index() - token)
        if token == 29:
            last.set()

    writing = Writer(store, on_durable)
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: writing.run(task_status=task_status))
        with trio.fail_after(240):
            for token in range(1, 30):
                writing.submit(Persist(token, None, None, (entry(token),)))
                await trio.sleep(0.002)
            await last.wait()
        nursery.cancel_scope.cancel()
    assert set(seen) == {0}


async def test_cancellation_writes_and_reports_what_is_queued(store: LogStore, directory: Path) -> None:
    tokens: list[int] = []
    writing = Writer(store, tokens.append)
    writing.submit(Persist(0, HardState(4, 2, 0), None, (entry(1), entry(2))))
    with trio.CancelScope() as scope:
        scope.cancel()
        await writing.run()
    assert scope.cancelled_caught
    assert tokens == [0]
    writing.submit(Persist(1, None, None, (entry(3),)))  # too late: neither written nor reported
    store.close()
    with closing(LogStore.open(directory, farm="farm")) as again:
        assert (again.last_index(), again.initial_state()[0]) == (2, HardState(4, 2, 0))


@pytest.mark.parametrize("cancelled", [False, True])
async def test_error_ends_run_with_storage_error_and_reports_nothing(
    store: LogStore, cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    tokens: list[int] = []
    writing = Writer(store, tokens.append)
    monkeypatch.setattr(os, "fdatasync", fails)
    writing.submit(Persist(0, HardState(1, 1, 0)))
    writing.submit(Persist(1, None, None, (entry(1),)))
    with trio.CancelScope() as scope:
        if cancelled:
            scope.cancel()
        with pytest.raises(StorageError, match="Input/output error"):
            await writing.run()
        writing.submit(Persist(2, HardState(2, 1, 0)))
    await trio.testing.wait_all_tasks_blocked()
    assert (tokens, store.last_index(), store.initial_state()[0]) == ([], 0, HardState())


async def test_number_beyond_64_bits_ends_run_with_storage_error(store: LogStore) -> None:
    writing = Writer(store, unexpected)
    writing.submit(Persist(0, HardState(2**64, 0, 0)))
    with pytest.raises(StorageError, match="number"):
        await writing.run()


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (Persist(5), "token 5 after 5"),
        (Persist(6, None, None, (entry(5),)), "4 is next"),
        (Persist(6, None, None, (entry(3),)), "4 is next"),
        (Persist(6, None, None, (entry(4), entry(6))), "4 is next"),
        (Persist(6, None, 3, (entry(4),)), "3 is next"),
        (Persist(6, None, 2), "2 are committed"),
        (Persist(6, None, 5), "2 are committed"),
        (Persist(6, HardState(1, 1, 4)), "commit index 4"),
        (Persist(6, HardState(1, 1, 1)), "commit index 1"),
        (Persist(6, None, None, (entry(4, value=bytes(1001)),)), "are queued"),
    ],
)
def test_submit_of_a_step_that_does_not_follow_is_refused_and_changes_nothing(
    store: LogStore,
    monkeypatch: pytest.MonkeyPatch,
    step: Persist,
    reason: str,
) -> None:
    monkeypatch.setattr(writer, "_MAX_QUEUED_BYTES", 1000)
    writing = Writer(store, unexpected)
    writing.submit(
        Persist(5, HardState(1, 1, 2), None, (entry(1, value=b""), entry(2, value=b""), entry(3, value=b"")))
    )
    with pytest.raises((LocalProtocolError, StorageError), match=reason):
        writing.submit(step)
    writing.submit(Persist(6, HardState(1, 1, 3), 3, (entry(3), entry(4))))


def test_submit_of_too_many_steps_is_refused(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_MAX_QUEUED_STEPS", 3)
    writing = Writer(store, unexpected)
    for token in range(3):
        writing.submit(Persist(token))
    with pytest.raises(StorageError, match="the disk hangs; 3 steps"):
        writing.submit(Persist(3))


STEPS = st.lists(
    st.tuples(
        st.integers(0, 6),  # entries
        st.none() | st.integers(0, 9),  # how many of the last entries to replace
        st.integers(0, 3),  # how far the commit index goes
        st.sampled_from(["at once", "yield", "wait"]),  # until the next is submitted
    ),
    max_size=25,
)


@settings(max_examples=25, deadline=None)
@given(
    plan=STEPS,
    tail_bytes=st.sampled_from([200, 2000, 1 << 20]),
    segment_bytes=st.sampled_from([0, 1000, 1 << 20]),
)
async def test_store_shows_what_is_durable_less_what_is_being_replaced(
    plan: list[tuple[int, int | None, int, str]], tail_bytes: int, segment_bytes: int
) -> None:
    """Against a model: lists. Truncations that overtake their report are the point."""
    wrong: list[Any] = []
    states: list[tuple[HardState, list[Entry]]] = []  # after step n, were all before it durable
    truncations: list[tuple[int, int]] = []  # (token, first index replaced)
    reported = -1
    durable = trio.Event()
    store: LogStore

    def check(where: str) -> None:
        state, log = states[reported] if reported >= 0 else (HardState(), [])
        pending = [first for token, first in truncations if token > reported]
        visible = log[: min(pending, default=len(log) + 1) - 1]
        last = store.last_index()
        shown = list(store.entries(1, last + 1, 1 << 30)) if last else []
        if shown != visible or store.initial_state()[0] != state:
            wrong.append((where, reported, shown, visible))
        if any(store.term(entry.index) != entry.term for entry in shown):
            wrong.append((where, "terms"))

    def on_durable(token: int) -> None:
        nonlocal reported
        reported = token
        check("report")
        durable.set()

    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_store, "_TAIL_BYTES", tail_bytes)
        patch.setattr(appender, "SEGMENT_BYTES", segment_bytes)
        create_store(Path(directory), Genesis("farm", bytes(16), "log", 2, None))
        with closing(LogStore.open(Path(directory), farm="farm")) as store:
            writing = Writer(store, on_durable)
            async with trio.open_nursery() as nursery:
                await nursery.start(lambda task_status: writing.run(task_status=task_status))
                state, log = HardState(), list[Entry]()
                for token, (count, replaced, commit, pause) in enumerate(plan):
                    first = None
                    if replaced is not None and len(log) - replaced >= state.commit:
                        first = len(log) - replaced + 1
                        truncations.append((token, first))
                        log = log[: first - 1]
                    new = tuple(
                        Entry(len(log) + 1 + i, token, ValueType.APPLICATION, bytes(50)) for i in range(count)
                    )
                    log = [*log, *new]
                    state = HardState(token, 0, min(len(log), state.commit + commit))
                    states.append((state, log))
                    writing.submit(Persist(token, state, first, new))
                    check("submit")
                    if pause == "wait":
                        while reported < token:
                            durable = trio.Event()
                            await durable.wait()
                    elif pause == "yield":
                        await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            assert reported == len(plan) - 1
            check("end")
        assert wrong == []
        with closing(LogStore.open(Path(directory), farm="farm")) as store:
            check("reopened")
    assert wrong == []


async def test_compaction_that_is_not_written_deletes_nothing(
    directory: Path, small_segments: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    path = directory / "log"
    with closing(Appender(path, read_log(path))) as log:
        for last in range(10, 101, 10):
            entries = tuple(entry(index, value=bytes(100)) for index in range(last - 9, last + 1))
            log.write([Persist(0, HardState(1, 1, last), None, entries)])
    segments = {*path.glob("*.seg")}
    assert len(segments) > 3
    with closing(LogStore.open(directory, farm="farm")) as store:
        store.on_snapshot_written(SnapshotMeta(90, 1, Configuration(0, 0)))
        writing = Writer(store, unexpected)
        writing.compact(90)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", fails)
            with pytest.raises(StorageError, match="Input/output error"):
                await writing.run()
    assert {*path.glob("*.seg")} >= segments
    with closing(LogStore.open(directory, farm="farm")) as store:
        assert (store.first_index(), store.last_index()) == (1, 100)
        assert len(store.entries(1, 101, 1 << 40)) == 100
