"""Against a model: whatever dies, fails or is lost, the log is as it was after the last batch that was
durable, or after the one that was being written; and no bit changes unnoticed."""

from __future__ import annotations

import errno
import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garlicfarm.raft.types import Entry, HardState, Persist, SnapshotMeta
from garlicfarm.storage import Genesis, appender
from garlicfarm.storage.appender import Appender, make_log
from garlicfarm.storage.damage import Corrupt
from garlicfarm.storage.log_index import LogIndex
from garlicfarm.storage.segments import list_segments, read_entries, read_log, segment_name
from garlicfarm.wire import ClusterServer, Configuration, ValueType, encode_configuration
from tests.storage.crashing_disk import CrashingDisk

FIRST = Configuration(0, 0, (ClusterServer(1, "ssl://a:27150"),))
GENESIS = Genesis("farm", b"farm-id-16-bytes", "log", 2, FIRST)
NOTHING = SnapshotMeta(0, 0, FIRST)
SEGMENT_BYTES = 600

Batch = tuple[list[Persist], SnapshotMeta | None]
"""Steps, and where the log is to begin after them."""


class State(NamedTuple):
    """What a log holds; ``entries`` are those after the boundary."""

    hard_state: HardState
    boundary: SnapshotMeta
    entries: tuple[Entry, ...]

    @property
    def last(self) -> int:
        return self.boundary.index + len(self.entries)

    def after(self, steps: Sequence[Persist], boundary: SnapshotMeta | None) -> State:
        hard_state, begins, entries = self
        for step in steps:
            if step.snapshot is not None:
                begins = step.snapshot
                entries = tuple(entry for entry in entries if entry.index > begins.index)
            if step.truncate_from is not None:
                entries = tuple(entry for entry in entries if entry.index < step.truncate_from)
            entries += step.entries
            hard_state = step.hard_state or hard_state
        if boundary is not None and boundary.index > begins.index:
            begins = boundary
            entries = tuple(entry for entry in entries if entry.index > begins.index)
        return State(hard_state, begins, entries)


EMPTY = State(HardState(), NOTHING, ())


def found(directory: Path) -> State:
    log = read_log(directory)
    places = log.index.find(log.index.first, log.index.last + 1, 1 << 40)
    entries = read_entries(directory, log.index.first, places)
    for entry in entries:
        if entry.value_type is ValueType.CONFIGURATION:
            assert log.index.configuration(entry.index) == entry.index
    return State(log.hard_state, log.boundary, tuple(entries))


def drawn(rnd: Random, state: State, level: int = 0) -> Batch:
    """A batch that a core could write, with Configurations of ``level``, and where the log is to begin
    then."""
    steps: list[Persist] = []
    boundary = None
    for _ in range(rnd.choice((0, 1, 1, 1, 2))):
        first = snapshot = None
        last, commit = state.last, state.hard_state.commit
        if rnd.random() < 0.1:
            index = rnd.randint(commit + 1, last + 5)
            snapshot = SnapshotMeta(index, rnd.randint(1, 9), Configuration(index, 0, (), level))
            commit, last = index, max(last, index)
        if rnd.random() < 0.3:
            first = rnd.randint(commit + 1, last + 1)
            last = first - 1
        entries = tuple(drawn_entry(rnd, last + 1 + at, level) for at in range(rnd.choice((0, 1, 1, 3))))
        hard_state = None
        if snapshot is not None or rnd.random() < 0.6:
            hard_state = HardState(
                rnd.randint(1, 9), rnd.randint(0, 3), rnd.randint(commit, last + len(entries))
            )
        steps.append(Persist(0, hard_state, first, entries, snapshot))
        state = state.after(steps[-1:], None)
    if not steps or rnd.random() < 0.2:
        index = rnd.randint(0, min(state.hard_state.commit, state.last))
        boundary = SnapshotMeta(index, 1, Configuration(index, 0, (), level))
    return steps, boundary


def drawn_entry(rnd: Random, index: int, level: int) -> Entry:
    if rnd.random() < 0.2:
        value = encode_configuration(Configuration(index, 0, (), level))
        return Entry(index, rnd.randint(1, 9), ValueType.CONFIGURATION, value)
    value = rnd.randbytes(rnd.choice((0, 1, 30, 200)))
    return Entry(index, rnd.randint(1, 9), ValueType.APPLICATION, value)


def write(log: Appender, index: LogIndex, steps: list[Persist], boundary: SnapshotMeta | None) -> None:
    """As `garlicfarm.storage.Writer` and `LogStore` do together."""
    if boundary is not None:
        index.drop(boundary.index)
    written = log.write(steps, boundary)
    for step, places in zip(steps, written, strict=True):
        if step.snapshot is not None:
            index.drop(step.snapshot.index)
        if step.truncate_from is not None:
            index.truncate(step.truncate_from)
        index.append(places)
    log.delete_segments(index.oldest_segment() or log.segment)


def seen(directory: Path) -> State:
    """What is found; a failed test where that is damage."""
    try:
        return found(directory)
    except Corrupt as error:
        raise AssertionError(str(error)) from error


def live(
    directory: Path,
    disk: CrashingDisk,
    states: set[State],
    batches: Iterable[Callable[[State], Batch]],
    dies_at: int = 0,
    error: int = 0,
) -> set[State]:
    """Open the log, which is in one of the ``states``; then write until the process dies or a call fails, or
    all ``batches`` are written. Returns the states that the log may be in after that."""
    with disk.process(dies_at, error):
        last, log = seen(directory), read_log(directory)
        assert last in states
        with closing(Appender(directory, log)) as writer:
            states = {last}  # from now on it is durable
            for batch in batches:
                steps, boundary = batch(last)
                then = last.after(steps, boundary)
                states = {last, then}
                write(writer, log.index, steps, boundary)
                states, last = {then}, then
            writer.sync_all()
    return states


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    lives=st.lists(
        st.tuples(st.integers(1, 40), st.sampled_from([0, 0, errno.EIO, errno.ENOSPC])),
        min_size=1,
        max_size=6,
    ),
)
def test_log_is_what_was_durable_or_being_written_whatever_dies(
    seed: int, lives: list[tuple[int, int]]
) -> None:
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(appender, "SEGMENT_BYTES", SEGMENT_BYTES)
        make_log(Path(name), GENESIS, HardState(), NOTHING, ())
        rnd, states, directory = Random(seed), {EMPTY}, Path(name) / "log"
        with closing(CrashingDisk(directory, rnd)) as disk:
            for dies_at, error in lives:
                states = live(directory, disk, states, [partial(drawn, rnd)] * 8, dies_at, error)
                if rnd.random() < 0.5:
                    disk.cut_power()
                assert seen(directory) in states


def entry(index: int, term: int, size: int = 10) -> Entry:
    return Entry(index, term, ValueType.APPLICATION, bytes([index]) * size)


FAR = SnapshotMeta(12, 3, Configuration(12, 0))
SCRIPT: Sequence[Batch] = (
    ([Persist(0, HardState(1, 1, 0), None, (entry(1, 1), entry(2, 1)))], None),
    ([Persist(0, HardState(1, 1, 2), None, (entry(3, 1, 200),))], None),
    ([Persist(0, HardState(2, 0, 2), 3, (entry(3, 2), entry(4, 2, 0)))], None),
    ([Persist(0, HardState(2, 2, 2))], None),
    ([Persist(0, None, None, (entry(5, 2),)), Persist(0, HardState(2, 2, 5), None, (entry(6, 2),))], None),
    ([], SnapshotMeta(4, 2, Configuration(4, 0))),
    ([Persist(0, None, None, (entry(7, 2, 300),))], None),
    ([Persist(0, HardState(3, 0, 6), 7)], None),
    ([Persist(0, None, None, (entry(7, 3), entry(8, 3)))], None),
    ([Persist(0, HardState(3, 0, 12), None, (entry(13, 3),), FAR)], None),
    ([Persist(0, HardState(3, 0, 13), None, (entry(14, 3, 150),))], SnapshotMeta(13, 3, FAR.configuration)),
    ([Persist(0, HardState(4, 1, 14))], None),
)


def scripted(batches: Sequence[Batch]) -> Sequence[Callable[[State], Batch]]:
    return [lambda _, batch=batch: batch for batch in batches]  # type: ignore[misc]


def one_more(last: State) -> Batch:
    """A batch that may follow any state."""
    return [Persist(0, HardState(9, 1, last.last + 1), None, (entry(last.last + 1, 9),))], None


CALLS_OF_AN_OPEN = 6  # at most: say that nothing is synced, cut, write, sync, sync the directory, say so


@pytest.mark.parametrize(
    "keep", [0.0, *(pytest.param(share, marks=pytest.mark.slow) for share in (None, 0.5))]
)
@pytest.mark.parametrize("error", [0, errno.EIO])
def test_each_call_may_be_the_last_one_and_each_of_the_next_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, keep: float | None
) -> None:
    """Of a script with all kinds of records and new segments, where the process dies, or the call fails;
    ``keep``: then the power fails (None: it does not)."""
    monkeypatch.setattr(appender, "SEGMENT_BYTES", SEGMENT_BYTES)
    make_log(tmp_path, GENESIS, HardState(), NOTHING, ())
    directory, rnd = tmp_path / "now", Random(1)
    for dies_at in itertools.count(1):
        for then_at in range(CALLS_OF_AN_OPEN + 1):
            shutil.copytree(tmp_path / "log", directory)
            with closing(CrashingDisk(directory, rnd)) as disk:
                states = live(directory, disk, {EMPTY}, scripted(SCRIPT), dies_at, error)
                has_failed = disk.has_failed
                for batches, fails_at in (((), then_at), ([one_more], 0)):
                    if keep is not None:
                        disk.cut_power(keep)
                    assert seen(directory) in states
                    states = live(directory, disk, states, batches, fails_at, error)
                    if not fails_at:
                        assert len(states) == 1
                disk.cut_power(0)
                assert {seen(directory)} == states
            shutil.rmtree(directory)
        if not has_failed:
            break
    assert dies_at > 3 * len(SCRIPT)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log of two segments, with all kinds of records, in order closed."""
    monkeypatch.setattr(appender, "SEGMENT_BYTES", SEGMENT_BYTES)
    make_log(tmp_path, GENESIS, HardState(), NOTHING, ())
    configuration = Entry(2, 1, ValueType.CONFIGURATION, encode_configuration(Configuration(2, 0)))
    steps = [
        Persist(0, HardState(1, 1, 0), None, (Entry(1, 1, ValueType.APPLICATION, b"one"), configuration)),
        Persist(0, HardState(2, 1, 2), None, (Entry(3, 1, ValueType.APPLICATION, bytes(100)),)),
        Persist(0, None, 3, (Entry(3, 2, ValueType.APPLICATION, b"three"),)),
        Persist(0, HardState(2, 1, 3)),
    ]
    log = read_log(tmp_path / "log")
    with closing(Appender(tmp_path / "log", log)) as writer:
        for step in steps:
            write(writer, log.index, [step], None)
        write(writer, log.index, [], SnapshotMeta(1, 1, Configuration(0, 0)))
    assert list_segments(tmp_path / "log") == [1, 2]
    return tmp_path / "log"


def flips(data: bytes, size: int | None = None) -> Iterator[bytes]:
    """``data`` with each of its bits flipped, of the first ``size`` bytes."""
    for bit in range((len(data) if size is None else size) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


def test_every_flipped_bit_of_the_segments_is_damage(directory: Path) -> None:
    found(directory)
    for number in list_segments(directory):
        path = directory / segment_name(number)
        sound = path.read_bytes()
        for flipped in flips(sound):
            path.write_bytes(flipped)
            with pytest.raises(Corrupt):
                read_log(directory)
        path.write_bytes(sound)


def test_every_flipped_bit_of_synced_is_harmless(directory: Path) -> None:
    before, path = found(directory), directory / "synced"
    sound = path.read_bytes()
    for flipped in flips(sound):
        path.write_bytes(flipped)
        assert found(directory) == before


def test_without_synced_every_flipped_bit_but_in_the_last_frame_is_damage(directory: Path) -> None:
    (directory / "synced").unlink()
    last = len(read_log(directory).unsynced)
    path = directory / segment_name(2)
    sound = path.read_bytes()
    for flipped in flips(sound, len(sound) - last):
        path.write_bytes(flipped)
        with pytest.raises(Corrupt):
            read_log(directory)


def test_damaged_frame_with_a_sound_one_behind_it_is_damage_without_synced(directory: Path) -> None:
    (directory / "synced").unlink()
    path = directory / segment_name(2)
    sound = path.read_bytes()
    path.write_bytes(sound[: -len(read_log(directory).unsynced)])
    start = path.stat().st_size - len(read_log(directory).unsynced)
    for place in range(start, path.stat().st_size):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        with pytest.raises(Corrupt, match="is damaged, and a later one follows"):
            read_log(directory)


def test_log_cut_anywhere_is_damage(directory: Path) -> None:
    for number in list_segments(directory):
        path = directory / segment_name(number)
        sound = path.read_bytes()
        for size in range(len(sound)):
            path.write_bytes(sound[:size])
            with pytest.raises(Corrupt):
                read_log(directory)
        path.write_bytes(sound)


def test_segment_missing_is_damage(directory: Path) -> None:
    for number in list_segments(directory):
        path = directory / segment_name(number)
        sound = path.read_bytes()
        path.unlink()
        with pytest.raises(Corrupt):
            read_log(directory)
        path.write_bytes(sound)
    for number in list_segments(directory):
        (directory / segment_name(number)).unlink()
    with pytest.raises(Corrupt, match="no segment"):
        read_log(directory)


def test_frame_torn_by_a_power_cut_is_cut_off_wherever_it_is_torn(directory: Path) -> None:
    (directory / "synced").unlink()
    path = directory / segment_name(2)
    sound, whole = path.read_bytes(), found(directory)
    start = len(sound) - len(read_log(directory).unsynced)
    path.write_bytes(sound[:start])
    before = found(directory)
    assert before != whole
    for size in range(start, len(sound)):
        zeros = bytes(len(sound) - size)
        for data in (sound[:size], sound[:size] + zeros, sound[:start] + bytes(size - start)):
            if data == sound or data == sound[:start]:
                continue
            (directory / "synced").unlink(missing_ok=True)
            path.write_bytes(data)
            assert seen(directory) == before
            Appender(directory, read_log(directory)).close()
            assert path.read_bytes() == sound[:start]
            assert read_log(directory).unsynced == b""


@pytest.mark.parametrize("fails_at", range(1, CALLS_OF_AN_OPEN + 1))
@pytest.mark.parametrize("is_synced", [True, False])
def test_cut_that_a_failed_sync_lost_is_made_again(
    directory: Path, is_synced: bool, fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is torn lies on the disk, and would end the segment before the next one."""
    if not is_synced:
        (directory / "synced").unlink()
    states = {seen(directory)}
    with (directory / segment_name(2)).open("ab") as file:
        file.write(bytes(1000))
    with closing(CrashingDisk(directory, Random(1))) as disk:
        states = live(directory, disk, states, [], fails_at, errno.EIO)
        monkeypatch.setattr(appender, "SEGMENT_BYTES", 0)
        states = live(directory, disk, states, [one_more])
        disk.cut_power(0)
        assert {seen(directory)} == states
    assert list_segments(directory) == [1, 2, 3]


def test_log_that_ends_before_its_commit_index_is_damage(tmp_path: Path) -> None:
    make_log(tmp_path, GENESIS, HardState(1, 0, 3), NOTHING, (entry(1, 1), entry(2, 1)))
    with pytest.raises(Corrupt, match="ends at 2, but is committed up to 3"):
        read_log(tmp_path / "log")


def test_segments_of_different_logs_do_not_follow_each_other(directory: Path, tmp_path: Path) -> None:
    other = msgspec.structs.replace(GENESIS, farm_id=bytes(16))
    make_log(tmp_path / "other", other, HardState(), NOTHING, ())
    (tmp_path / "other" / "log" / segment_name(1)).rename(directory / segment_name(1))
    with pytest.raises(Corrupt, match="does not continue"):
        read_log(directory)
