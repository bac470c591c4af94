"""Whose log `rank whatif` replays: a stopped node's, or that of running ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio

from garlicfarm.errors import ConfigError, StorageInUse
from garlicfarm.raft.types import Entry, HardState, Persist
from garlicfarm.storage import (
    SNAPSHOTS,
    DataDirectory,
    Genesis,
    LogStore,
    Snapshot,
    Writer,
    create_store,
    write_snapshot,
)
from garlicfarm.wire.messages import Configuration, ValueType
from garlicfarm_plugin_spark.node_reader import NodeReader
from garlicfarm_plugin_spark.ranking import STATE, Fold, Row
from garlicfarm_plugin_spark.recorded_log import read_directory, read_nodes
from garlicfarm_plugin_spark.whatif import Recording
from tests.publishing.scripted_log import configuration
from tests.spark.feed_server import PASSWORD, FeedServer, feed_server
from tests.spark.script import fold_rows, hours_log

ROWS = fold_rows(hours_log(0.5))
GENESIS = Genesis("farm", bytes(range(16)), "publisher", 2, configuration(1, 2, 3))


def entries(rows: list[Row]) -> list[Entry]:
    return [Entry(index, term, ValueType(kind), value) for index, term, kind, value in rows]


def state(upto: int) -> bytes:
    fold = Fold("farm")
    fold.apply(ROWS[:upto])
    return fold.snapshot()


def write(directory: Path, what: Callable[[Writer], None]) -> None:
    """Into the store of a farm that no node has open."""

    async def run() -> None:
        with closing(LogStore.open(directory, farm=directory.name)) as opened:
            writer = Writer(opened, lambda token: None)
            what(writer)
            with trio.CancelScope() as scope:
                scope.cancel()
                await writer.run()

    trio.run(run)


def store(data: Path, genesis: Genesis, rows: list[Row]) -> None:
    """A stopped node's store of a farm."""
    if not data.exists():
        DataDirectory.create(data, 1)
    directory = data / "farms" / genesis.farm
    create_store(directory, genesis)

    if rows:
        written = Persist(0, HardState(1, 1, len(rows)), None, tuple(entries(rows)))
        write(directory, lambda writer: writer.submit(written))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    store(tmp_path / "data", GENESIS, ROWS)
    return tmp_path / "data"


def test_log_of_a_directory_is_that_of_its_node(data: Path) -> None:
    with read_directory(data, None) as log:
        assert (log.farm, log.farm_id) == ("farm", GENESIS.farm_id.hex())
        assert list(log.rows) == ROWS


def test_compacted_log_of_a_directory_begins_with_a_state(data: Path) -> None:
    directory, cut = data / "farms" / "farm", 50
    members = Configuration(1, 0, configuration(1, 2, 3).servers)
    made = Snapshot(GENESIS.farm_id, "publisher", 2, cut, 1, members, (), None, state(cut))
    write_snapshot(directory / SNAPSHOTS, made)

    write(directory, lambda writer: writer.compact(cut - 5))
    with read_directory(data, "farm") as log:
        rows = list(log.rows)
    assert rows == [(cut, 0, STATE, state(cut)), *ROWS[cut:]]
    recording = Recording("farm", rows)
    assert (recording.first_index, recording.last_index) == (cut + 1, len(ROWS))


def test_directory_of_a_node_that_runs_is_refused(data: Path) -> None:
    running = DataDirectory.open(data)
    with running, pytest.raises(StorageInUse, match="another process uses"), read_directory(data, None):
        pass


def test_directory_of_no_node_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="is not a node's data directory: name `data`"),
        read_directory(tmp_path, None),
    ):
        pass


def test_directory_of_several_farms_needs_a_name_of_one(data: Path) -> None:
    store(data, Genesis("other", bytes(16), "log", 2, configuration(1)), [])
    for farm, told in (
        (None, r"--farm is needed: .* has farm, other"),
        ("third", "has no farm 'third', only: farm, other"),
        ("other", "other runs the application log, not publisher"),
    ):
        with pytest.raises(ConfigError, match=told), read_directory(data, farm):
            pass
    with read_directory(data, "farm") as log:
        assert list(log.rows) == ROWS


def test_log_without_entries_is_refused(tmp_path: Path) -> None:
    store(tmp_path / "data", GENESIS, [])
    with (
        pytest.raises(ConfigError, match="the log of farm has no committed entries yet"),
        read_directory(tmp_path / "data", None) as log,
    ):
        Recording(log.farm, log.rows)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FeedServer]:
    with feed_server(tmp_path / "node", entries(ROWS[:40])) as running:
        yield running


def test_log_of_running_nodes_is_all_that_is_committed(server: FeedServer) -> None:
    with read_nodes(server.access, "farm") as log:
        assert (log.farm, log.farm_id) == ("farm", server.farm_id)
        assert list(log.rows) == ROWS[:40]


def test_compacted_log_of_running_nodes_begins_with_a_state(server: FeedServer) -> None:
    server.compact(11)
    with read_nodes(server.access, "farm") as log:
        rows = list(log.rows)
    assert rows == [(10, 0, STATE, state(10)), *ROWS[10:40]]
    assert Recording("farm", rows).history.farm.snapshot() == state(40)


def test_log_that_loses_entries_while_it_is_read_can_be_tried_again(
    server: FeedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = NodeReader.oldest_state

    def oldest_state(feed: NodeReader, farm: str, farm_id: str) -> tuple[int, bytes]:
        found = answered(feed, farm, farm_id)
        server.compact(20)
        return found

    monkeypatch.setattr(NodeReader, "oldest_state", oldest_state)
    with (
        pytest.raises(ConfigError, match="entries of farm up to index 19 just now: try again") as refused,
        read_nodes(server.access, "farm") as log,
    ):
        list(log.rows)
    assert PASSWORD not in str(refused.value)
