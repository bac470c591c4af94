"""Stores of 0.2.0 and of this program at level 0 are the same; at level 1 they are none for 0.2.0."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from garlicfarm.raft.types import HardState, Persist
from garlicfarm.storage import LogStore
from garlicfarm.storage.migration import KEPT, NEW
from tests.storage import format_4
from tests.storage.conftest import entry
from tests.storage.mixed_store import contents, contents_of, make_mixed_store, process, small_pieces
from tests.storage.mixed_store import write as write_steps
from tests.upgrade.programs import ROOT, Program

DATA = ROOT / "tests" / "data" / "store-0.2.0" / "store"

TRY = """
import json, sys
from contextlib import closing
from pathlib import Path
import garlicfarm
from garlicfarm.errors import StorageError
from garlicfarm.storage import Genesis, LogStore, create_store, read_committed, read_genesis
from garlicfarm.wire import Configuration

def opened(at):
    with closing(LogStore.open(at, farm="farm")) as store:
        last = store.last_index()
        entries = store.entries(store.first_index(), last + 1, 1 << 40)
        return [[entry.index, entry.term, entry.value.hex()] for entry in entries]

assert garlicfarm.__version__ == "0.2.0"
genesis = Genesis("farm", bytes(16), "log", 2, Configuration(0, 0))
for at in map(Path, sys.argv[1:]):
    for attempt in (opened, read_genesis, read_committed, lambda at: create_store(at, genesis)):
        try:
            print(json.dumps(attempt(at) if attempt is opened else str(attempt(at))))
        except StorageError as error:
            print(json.dumps({type(error).__name__: str(error)}))
"""


def files(directory: Path) -> dict[Path, bytes]:
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def tried(baseline: Program, *directories: Path) -> list[list[Any]]:
    """What 0.2.0 makes of each store: opened, its genesis, its committed entries, and a new one made."""
    done = subprocess.run(
        [*baseline.python, "-c", TRY, *map(str, directories)],
        stdout=subprocess.PIPE,
        check=True,
        timeout=240,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [found[at : at + 4] for at in range(0, len(found), 4)]


def test_store_written_at_level_0_has_the_bytes_of_0_2_0(tmp_path: Path) -> None:
    format_4.write_store(tmp_path / "store")
    assert files(tmp_path / "store") == files(DATA)


def test_store_that_0_2_0_wrote_is_opened_and_not_rewritten(tmp_path: Path) -> None:
    shutil.copytree(DATA, tmp_path / "store")
    with closing(LogStore.open(tmp_path / "store", farm="farm")) as store:
        assert (store.genesis, store.problems) == (format_4.GENESIS, [])
        assert store.restored is not None
        assert (store.restored.index, store.restored.state) == (5, bytes(50))
        state, configuration, entries = contents_of(store)
    assert (state, configuration) == (HardState(4, 0, 8), format_4.SECOND)
    assert [(each.index, each.term, len(each.value)) for each in entries if each.index != 4] == [
        *((5, 3, 200), (6, 3, 40), (7, 4, 400), (8, 4, 10))
    ]
    assert files(tmp_path / "store") == files(DATA)


@pytest.mark.slow
@pytest.mark.history
def test_0_2_0_goes_on_with_a_store_of_level_0(tmp_path: Path, baseline: Program) -> None:
    shutil.copytree(DATA, tmp_path / "farm")
    write_steps(tmp_path / "farm", [Persist(0, HardState(5, 1, 8), None, (entry(9, 5),))])
    expected = [[each.index, each.term, each.value.hex()] for each in contents(tmp_path / "farm")[2]]
    assert len(expected) == 6
    [[opened, *_]] = tried(baseline, tmp_path / "farm")
    assert opened == expected


@pytest.mark.history
def test_0_2_0_refuses_a_store_of_level_1_wherever_its_migration_was_interrupted(
    tmp_path: Path, baseline: Program
) -> None:
    """It makes none in its place either, and changes nothing."""
    make_mixed_store(tmp_path / "0")
    for dies_at in itertools.count(1):
        directory = shutil.copytree(tmp_path / "0", tmp_path / str(dies_at))
        with small_pieces(), process(dies_at) as has_come:
            LogStore.open(directory, farm="farm").close()
        if not has_come():
            break
    stores = [tmp_path / str(number) for number in range(dies_at + 1)]
    before = [files(store) for store in stores]
    found = tried(baseline, *stores)
    assert [files(store) for store in stores] == before
    without_log = [number for number, store in enumerate(stores) if not (store / "log").exists()]
    assert len(without_log) >= 2
    for number, (opened, genesis, committed, made) in enumerate(found):
        for refusal in (opened, genesis, committed):
            assert [*refusal] == ["StorageVersion"], (number, refusal)
            told = f"holds {KEPT}, {NEW}, which" if number in without_log else "has format version 5"
            assert told in refusal["StorageVersion"]
            assert "Nothing was changed; use the" in refusal["StorageVersion"]
        assert [*made] == ["StorageVersion" if number in without_log else "StorageError"]
