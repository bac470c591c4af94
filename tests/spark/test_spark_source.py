"""The data source's own classes against the real admin listener; no Java runs."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from garlicfarm.errors import AuthError, ConfigError, FellBehind, UnreachableError
from garlicfarm_plugin_spark.feed import close_feeds
from garlicfarm_plugin_spark.source import STATE, LogReader
from tests.spark.feed_server import FARM_ID, FeedServer, feed_server
from tests.spark.script import scripted_log

pytestmark = pytest.mark.spark

LOG = scripted_log()
END = len(LOG)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FeedServer]:
    with feed_server(tmp_path / "node", LOG) as running:
        yield running


@pytest.fixture(autouse=True)
def feeds_are_closed() -> Iterator[None]:
    yield
    close_feeds()


def at(server: FeedServer, index: int, begin: int | None = None, farm: str = "farm") -> dict[str, Any]:
    """An offset of one farm."""
    farm_id = server.node.farms[farm].farm_id.hex()
    return {
        "farms": {farm: {"index": index, "farm_id": farm_id} | ({} if begin is None else {"from": begin})}
    }


def reader(server: FeedServer, **options: str) -> Any:
    return LogReader(server.options(**options))


def rows(found: Any, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a batch, by way of pickles as in Spark."""
    found, partitions = pickle.loads(pickle.dumps((found, found.partitions(start, end))))
    return [row for each in partitions for batch in found.read(each) for row in batch.to_pylist()]


def stored(upto: int, after: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "farm": "farm",
            "farm_id": FARM_ID,
            "log_index": each.index,
            "term": each.term,
            "value_type": int(each.value_type),
            "value": each.value,
        }
        for each in LOG[after:upto]
    ]


def test_reader_batches_hold_every_entry_once(server: FeedServer) -> None:
    found = reader(server, maxEntriesPerTrigger="40")
    limit = found.getDefaultReadLimit()
    assert limit == ReadMaxRows(40)
    offset: dict[str, Any] = dict(found.initialOffset())
    read = []
    while (end := found.latestOffset(offset, limit)) != offset:
        batch = rows(found, offset, end)
        assert len(batch) <= 40
        read += batch
        offset = end
    assert offset == at(server, END)
    assert read == stored(END)


def test_reader_all_available_ignores_the_limit(server: FeedServer) -> None:
    found = reader(server, maxEntriesPerTrigger="3")
    end = found.latestOffset(found.initialOffset(), ReadAllAvailable())
    assert end == at(server, END, 0)


def test_reader_starting_at_an_index_begins_with_it(server: FeedServer) -> None:
    found = reader(server, startingIndex="100", maxEntriesPerTrigger="2")
    start = dict(found.initialOffset())
    end = found.latestOffset(start, found.getDefaultReadLimit())
    assert end == at(server, 101, 99)
    assert rows(found, start, end) == stored(101, 99)


def test_reader_starting_at_the_latest_reads_what_comes_after_its_first_batch(server: FeedServer) -> None:
    """The first batch is empty, and its offset says where it was, however often it is planned."""
    found = reader(server, startingIndex="latest")
    start = dict(found.initialOffset())
    end = found.latestOffset(start, found.getDefaultReadLimit())
    assert end == at(server, END, END)
    more = [type(LOG[0])(END + 1, 4, LOG[5].value_type, b"news")]
    server.append(more)
    assert rows(found, start, end) == []
    after = found.latestOffset(end, found.getDefaultReadLimit())
    assert [row["value"] for row in rows(found, end, after)] == [b"news"]


def test_reader_available_now_stops_at_what_was_there(server: FeedServer) -> None:
    found = reader(server)
    found.prepareForTriggerAvailableNow()
    server.append([type(LOG[0])(END + 1, 4, LOG[5].value_type, b"news")])
    assert found.latestOffset(found.initialOffset(), ReadAllAvailable()) == at(server, END, 0)


def test_reader_earliest_of_a_compacted_log_begins_at_its_first_index(server: FeedServer) -> None:
    server.compact(50)
    found = reader(server)
    start = dict(found.initialOffset())
    end = found.latestOffset(start, found.getDefaultReadLimit())
    assert rows(found, start, end) == stored(END, 49)


def test_reader_whose_entries_are_gone_names_the_first_that_is_left(server: FeedServer) -> None:
    server.compact(50)
    found = reader(server)
    offset = at(server, 20)
    sentence = (
        "the entries after index 20 are gone, the log of farm now starts at 50: begin with a new"
        " checkpoint; a query of your own may set failOnDataLoss to false"
    )
    with pytest.raises(FellBehind) as planned:
        found.latestOffset(offset, found.getDefaultReadLimit())
    assert str(planned.value) == sentence
    with pytest.raises(FellBehind) as read:  # they went after the batch was planned
        rows(found, offset, at(server, 60))
    assert str(read.value) == sentence


def test_reader_starting_at_an_index_that_is_gone_says_where_it_could(server: FeedServer) -> None:
    server.compact(50)
    found = reader(server, startingIndex="21")
    with pytest.raises(FellBehind) as planned:
        found.latestOffset(found.initialOffset(), found.getDefaultReadLimit())
    assert str(planned.value) == (
        "the entries after index 20 are gone, the log of farm now starts at 50: startingIndex is 21, and"
        " earliest begins there"
    )


def test_reader_told_to_go_on_logs_the_loss(server: FeedServer, caplog: pytest.LogCaptureFixture) -> None:
    server.compact(50)
    found = reader(server, failOnDataLoss="false", maxEntriesPerTrigger="10")
    offset = at(server, 20)
    end = found.latestOffset(offset, found.getDefaultReadLimit())
    assert end == at(server, 59, 49)
    assert rows(found, offset, end) == stored(59, 49)
    assert "after index 20 are gone, the log of farm now starts at 50" in caplog.text
    caplog.clear()
    late = at(server, 55)
    assert rows(found, offset, late) == stored(55, 49)
    assert "after index 20 are gone" in caplog.text


def test_reader_starting_at_the_state_of_a_whole_log_reads_the_log(server: FeedServer) -> None:
    found = reader(server, startingIndex="state", maxEntriesPerTrigger="10")
    start = dict(found.initialOffset())
    end = found.latestOffset(start, found.getDefaultReadLimit())
    assert end == at(server, 10, 0)
    assert rows(found, start, end) == stored(10)


def test_reader_starting_at_the_state_of_a_compacted_log_reads_the_state_once(server: FeedServer) -> None:
    server.compact(50)
    found = reader(server, startingIndex="state", maxEntriesPerTrigger="10")
    start = dict(found.initialOffset())
    end = found.latestOffset(start, found.getDefaultReadLimit())
    assert end["farms"]["farm"]["index"] == END
    (row,) = rows(found, start, end)
    index, snapshot = server.farm.state()
    assert (row["value_type"], row["log_index"], row["value"]) == (STATE, index, snapshot)
    with pytest.raises(FellBehind):  # later on, that would be a loss
        found.latestOffset(at(server, 20), found.getDefaultReadLimit())


def test_reader_of_another_farms_checkpoint_refuses(server: FeedServer) -> None:
    offset = {"farms": {"farm": {"index": 20, "farm_id": "ab" * 16}}}
    end = {"farms": {"farm": {"index": 30, "farm_id": "ab" * 16}}}
    found = reader(server)
    with pytest.raises(ConfigError, match="the checkpoint belongs to another farm 'farm'"):
        found.latestOffset(offset, found.getDefaultReadLimit())
    with pytest.raises(ConfigError, match="the checkpoint belongs to another farm 'farm'"):
        rows(found, offset, end)


def test_reader_fails_over_to_a_node_that_answers(server: FeedServer, tmp_path: Path) -> None:
    with feed_server(tmp_path / "other", LOG[:70]) as other:
        both = {"url": f"{other.url} {server.url}"}
        found = reader(server, **both)
        offset = at(server, 0)
        # The first node has not come as far as the other one.
        assert rows(found, offset, at(server, END)) == stored(END)
    assert found.latestOffset(offset, ReadAllAvailable()) == at(server, END)
    assert rows(found, offset, at(server, END)) == stored(END)


@pytest.mark.parametrize(
    ("change", "kind", "match"),
    [
        ({"user": "nobody"}, AuthError, "https://127.0.0.1"),
        ({"farm": "barn"}, ConfigError, "has no farm 'barn', only: farm"),
        ({"url": "https://127.0.0.1:1"}, UnreachableError, "is the node running, and the URL right"),
    ],
)
def test_reader_that_cannot_read_says_why(
    server: FeedServer, change: dict[str, str], kind: type[Exception], match: str
) -> None:
    found = reader(server, **change)
    with pytest.raises(kind, match=match):
        found.latestOffset(found.initialOffset(), found.getDefaultReadLimit())


def test_reader_of_a_node_with_another_certificate_refuses(server: FeedServer) -> None:
    url = f"{server.url.partition('?')[0]}?pin=sha256-{'A' * 43}"
    found = reader(server, url=url)
    with pytest.raises(AuthError, match="shows another certificate than the pinned"):
        found.latestOffset(found.initialOffset(), found.getDefaultReadLimit())


def test_module_of_the_source_imports_nothing_heavy() -> None:
    """Spark gives a worker ten seconds to start."""
    import subprocess
    import sys

    code = (
        "import pyspark.sql.datasource, sys; before = set(sys.modules)\n"
        "import garlicfarm_plugin_spark.source\n"
        "heavy = {'httpx', 'pyarrow', 'pandas', 'trio', 'msgspec', 'cryptography', 'numpy', 'ssl'}\n"
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert time.monotonic() - begun < 10
