"""Which format a segment has, and what is said of one that this program does not know."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garlicfarm import __version__
from garlicfarm.errors import StorageDamaged, StorageVersion
from garlicfarm.levels import HIGHEST
from garlicfarm.raft.types import HardState, Persist, SnapshotMeta
from garlicfarm.storage import LogStore, create_store, read_committed, read_genesis
from garlicfarm.storage.appender import Appender, make_log
from garlicfarm.storage.damage import Corrupt
from garlicfarm.storage.formats import format_of
from garlicfarm.storage.migration import migrated
from garlicfarm.storage.segments import read_log, segment_name
from garlicfarm.wire import Configuration, ValueType, decode_configuration, encode_configuration
from tests.storage import test_segments
from tests.storage.conftest import GENESIS, entry
from tests.storage.segment_headers import levels, read_header, replace_header

assert GENESIS.configuration is not None
SERVERS = GENESIS.configuration.servers


def configuration(index: int, level: int) -> Configuration:
    return Configuration(index, 0, SERVERS, level)


def raised(index: int, level: int) -> Persist:
    """A step with a Configuration of this level."""
    value = encode_configuration(configuration(index, level))
    return Persist(0, None, None, (entry(index, value=value, kind=ValueType.CONFIGURATION),))


def write(directory: Path, steps: list[Persist], boundary: SnapshotMeta | None = None) -> None:
    log = read_log(directory / "log")
    with closing(Appender(directory / "log", log)) as appender:
        appender.write(steps, boundary)
        appender.sync_all()


@pytest.fixture
def at_level_1(tmp_path: Path) -> Path:
    """The directory of a store whose first segment is of level 1."""
    genesis = msgspec.structs.replace(GENESIS, configuration=configuration(0, 1))
    create_store(tmp_path / "raised", genesis)
    return tmp_path / "raised"


def test_segment_of_level_0_is_of_format_4_and_names_no_level(directory: Path) -> None:
    write(directory, [Persist(0, HardState(1, 0, 0), None, (entry(1),)), raised(2, 0)])
    assert levels(directory / "log") == [(4, 0)]
    assert not {"level", "program"} & {*read_header(directory / "log", 1)[1]}


def test_store_of_a_genesis_of_level_1_begins_in_format_5(at_level_1: Path) -> None:
    version, header = read_header(at_level_1 / "log", 1)
    assert (version, header["level"], header["program"]) == (5, 1, __version__)
    write(at_level_1, [raised(1, 1)])
    with closing(LogStore.open(at_level_1, farm="farm")) as store:
        assert store.initial_state()[1].level == 1
    assert levels(at_level_1 / "log") == [(5, 1)]


RAISES: dict[str, tuple[list[Persist], SnapshotMeta | None]] = {
    "an entry": ([Persist(0, None, None, (entry(2),)), raised(3, 1)], None),
    "a boundary": ([], SnapshotMeta(1, 1, configuration(1, 1))),
    "a snapshot": (
        [Persist(0, HardState(1, 0, 5), None, (), SnapshotMeta(5, 1, configuration(5, 1)))],
        None,
    ),
}


@pytest.mark.parametrize("batch", RAISES.values(), ids=RAISES)
def test_configuration_of_a_higher_level_begins_a_segment_of_that_level(
    directory: Path, batch: tuple[list[Persist], SnapshotMeta | None]
) -> None:
    write(directory, [Persist(0, HardState(1, 0, 1), None, (entry(1),))])
    write(directory, *batch)
    log = directory / "log"
    assert levels(log) == [(4, 0), (5, 1)]
    assert read_log(log).level == 1


def test_level_outlasts_the_truncation_of_its_configuration(directory: Path) -> None:
    write(directory, [raised(1, 1)])
    write(directory, [Persist(0, None, 1)])
    assert levels(directory / "log") == [(4, 0), (5, 1)]
    assert read_log(directory / "log").level == 1


def test_segments_of_other_programs_follow_each_other(
    directory: Path, monkeypatch: pytest.MonkeyPatch, small_segments: None
) -> None:
    write(directory, [raised(1, 1)])
    for index in range(2, 6):
        with monkeypatch.context() as patch:
            patch.setattr("garlicfarm.storage.segments.encode_header.__defaults__", (f"0.3.{index}",))
            write(directory, [Persist(0, None, None, (entry(index, value=bytes(2000)),))])
    programs = [read_header(directory / "log", number)[1].get("program", "") for number in range(1, 6)]
    assert programs == ["", __version__, "0.3.3", "0.3.4", "0.3.5"]
    assert read_log(directory / "log").index.last == 5


# What is refused

NOTHING_WAS_CHANGED = r"Nothing was changed; use"


def refused(directory: Path, said: str, error: type[Exception] = StorageVersion) -> None:
    """Opening and reading the store fail, say why, and change nothing."""
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    for attempt in (
        lambda: LogStore.open(directory, farm="farm"),
        lambda: read_committed(directory),
        lambda: read_genesis(directory),
    ):
        with pytest.raises(error, match=said):
            attempt()
    assert before == {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_newer_format_is_refused_with_the_program_that_wrote_it(at_level_1: Path) -> None:
    replace_header(at_level_1 / "log", 1, 6, level=3, program="0.5.1", more={"of": "this"})
    said = rf"000\.seg has format version 6, this program, garlicfarm {__version__}, knows 4 and 5\. "
    refused(at_level_1, said.replace("000", "001") + NOTHING_WAS_CHANGED + r" garlicfarm 0\.5\.1 or newer$")


@pytest.mark.parametrize("program", [..., 7, "two words", "x" * 65])
def test_newer_format_that_names_no_program_is_refused_all_the_same(directory: Path, program: object) -> None:
    replace_header(directory / "log", 1, 6, program=program)
    refused(directory, f"format version 6, .*{NOTHING_WAS_CHANGED} the newer garlicfarm that wrote it$")


def test_older_format_is_refused_as_older(directory: Path) -> None:
    replace_header(directory / "log", 1, 3)
    refused(directory, f"format version 3, .*{NOTHING_WAS_CHANGED} the older garlicfarm that wrote it$")


def test_level_beyond_those_of_this_program_is_refused(at_level_1: Path) -> None:
    replace_header(at_level_1 / "log", 1, 5, level=HIGHEST + 1, program="0.4.0")
    said = (
        rf"is at level {HIGHEST + 1}, written by garlicfarm 0\.4\.0; this program, garlicfarm {__version__}, "
        rf"can levels 0 to {HIGHEST}\. {NOTHING_WAS_CHANGED} garlicfarm 0\.4\.0 or newer$"
    )
    refused(at_level_1, said)


def test_later_segment_of_a_level_beyond_is_refused(directory: Path) -> None:
    write(directory, [raised(1, 1)])
    replace_header(directory / "log", 2, 5, level=HIGHEST + 1, program="0.4.0")
    refused(directory, rf"0000000002\.seg is at level {HIGHEST + 1}, written by garlicfarm 0\.4\.0")


LIES: dict[str, tuple[int, dict[str, object]]] = {
    "format 4 with the header of 5": (4, {"level": 1, "program": "0.3.0"}),
    "format 4 with a program": (4, {"program": "0.3.0"}),
    "format 4 with another key": (4, {"more": 1}),
    "format 5 with the header of 4": (5, {}),
    "format 5 of level 0": (5, {"level": 0, "program": "0.3.0"}),
    "format 5 without a program": (5, {"level": 1}),
    "format 5 beyond, without a program": (5, {"level": HIGHEST + 1}),
    "format 5 of a negative level": (5, {"level": -1, "program": "0.3.0"}),
    "format 5 of a program with a line break": (5, {"level": 1, "program": "0.3.0\n"}),
}


@pytest.mark.parametrize(("version", "keys"), LIES.values(), ids=LIES)
def test_format_that_does_not_fit_its_header_is_damage(
    directory: Path, version: int, keys: dict[str, object]
) -> None:
    replace_header(directory / "log", 1, version, **keys)
    refused(directory, "is damaged: ", StorageDamaged)


def test_header_of_format_5_with_any_byte_changed_is_damage(at_level_1: Path) -> None:
    path = at_level_1 / "log" / segment_name(1)
    sound = path.read_bytes()
    for place in range(len(sound)):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1 << place % 8]) + sound[place + 1 :])
        with pytest.raises(Corrupt):
            read_log(at_level_1 / "log")


def test_level_that_falls_is_damage(directory: Path) -> None:
    write(directory, [raised(1, 1)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("garlicfarm.storage.appender.SEGMENT_BYTES", 0)
        write(directory, [Persist(0, None, None, (entry(2),))])
    replace_header(directory / "log", 3, 4, level=..., program=...)
    with pytest.raises(StorageDamaged, match="segment 3 does not continue the one before"):
        LogStore.open(directory, farm="farm")


def test_configuration_of_a_higher_level_than_its_segment_is_damage(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an entry, in a boundary, and in the header."""
    monkeypatch.setattr("garlicfarm.storage.appender._levels", lambda *_: [0])
    said = "a Configuration of level 1 stands in a segment of 0"
    log = directory / "log"
    sound = (log / segment_name(1)).read_bytes()
    boundary = SnapshotMeta(1, 1, configuration(1, 1))
    for steps, begins in (([raised(1, 1)], None), ([Persist(0, None, None, (entry(1),))], boundary)):
        write(directory, steps, begins)
        with pytest.raises(StorageDamaged, match=said):
            LogStore.open(directory, farm="farm")
        (log / segment_name(1)).write_bytes(sound)
        (log / "synced").unlink()
    replace_header(log, 1, 4, boundary_configuration=encode_configuration(configuration(0, 1)))
    with pytest.raises(StorageDamaged, match=said):
        LogStore.open(directory, farm="farm")


# Any history

LEVELS = 3  # of a program to come


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_log_and_its_levels_are_what_a_model_says_whatever_is_written_and_when_it_is_opened(
    seed: int,
) -> None:
    rnd, level, highest, state = Random(seed), 0, 0, test_segments.EMPTY
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr("garlicfarm.storage.appender.SEGMENT_BYTES", 600)
        patch.setattr("garlicfarm.storage.segments.HIGHEST", LEVELS)
        directory = Path(name)
        make_log(directory, GENESIS, HardState(), test_segments.NOTHING, ())
        for _ in range(rnd.randint(1, 6)):
            log, problem = migrated(directory, read_log(directory / "log"))
            assert (problem, log.level) == ("", highest)
            needed = log.index.oldest_segment() or log.end.number
            assert {log.formats[number] for number in log.formats if number >= needed} == {format_of(highest)}
            with closing(Appender(directory / "log", log)) as appender:
                for _ in range(rnd.randint(0, 8)):
                    if rnd.random() < 0.1:
                        level = min(level + 1, LEVELS)
                    steps, boundary = test_segments.drawn(rnd, state, level)
                    test_segments.write(appender, log.index, steps, boundary)
                    state = state.after(steps, boundary)
                    highest = max(highest, *(levels_of(steps, boundary)))
                    assert appender.level == highest
                appender.sync_all()
            assert test_segments.found(directory / "log") == state
            found = levels(directory / "log")
            assert found == sorted(found)
            assert found[-1] == (format_of(highest), highest)
            assert all(version == format_of(int(str(each))) for version, each in found)


def levels_of(steps: list[Persist], boundary: SnapshotMeta | None) -> list[int]:
    entries = [each for step in steps for each in step.entries if each.value_type is ValueType.CONFIGURATION]
    metas = [meta for meta in (boundary, *(step.snapshot for step in steps)) if meta is not None]
    return [
        *(decode_configuration(each.value).level for each in entries),
        *(meta.configuration.level for meta in metas),
        0,
    ]
