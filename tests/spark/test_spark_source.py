"""The data source's own classes against the real admin listener; no Java runs."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from garlicfarm.errors import Compacted, ConfigError, FarmReplaced, FellBehind, UnreachableError
from garlicfarm.raft.types import Entry
from garlicfarm_plugin_spark.node_reader import NodeReader
from garlicfarm_plugin_spark.options import read_options
from garlicfarm_plugin_spark.source import STATE, BatchReader, LogReader, PushdownReader
from tests.spark.feed_server import FARM_ID, FeedServer, feed_server
from tests.spark.script import scripted_log

pytestmark = pytest.mark.spark

LOG = scripted_log()
END = len(LOG)
NEWS = Entry(END + 1, 4, LOG[5].value_type, b"news")


def at(server: FeedServer, index: int, begin: int | None = None, farm: str = "farm") -> dict[str, Any]:
    """An offset of one farm."""
    farm_id = server.node.farms[farm].farm_id.hex()
    return {
        "farms": {farm: {"index": index, "farm_id": farm_id} | ({} if begin is None else {"from": begin})}
    }


def reader(server: FeedServer, **options: str) -> Any:
    return LogReader(server.options(**options))


def first_batch(found: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Where it begins and ends."""
    start = dict(found.initialOffset())
    return start, found.latestOffset(start, found.getDefaultReadLimit())


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


def test_reader_starting_at_the_latest_reads_what_comes_after_its_first_batch(server: FeedServer) -> None:
    """The first batch is empty, and its offset says where it was, however often it is planned."""
    found = reader(server, startingIndex="latest")
    start, end = first_batch(found)
    assert end == at(server, END, END)
    server.append([NEWS])
    assert rows(found, start, end) == []
    after = found.latestOffset(end, found.getDefaultReadLimit())
    assert [row["value"] for row in rows(found, end, after)] == [b"news"]


def test_reader_available_now_stops_at_what_was_there(server: FeedServer) -> None:
    found = reader(server)
    found.prepareForTriggerAvailableNow()
    server.append([NEWS])
    assert found.latestOffset(found.initialOffset(), ReadAllAvailable()) == at(server, END, 0)


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


def test_reader_starting_at_the_state_of_a_compacted_log_reads_the_state_once(server: FeedServer) -> None:
    server.compact(50)
    found = reader(server, startingIndex="state", maxEntriesPerTrigger="10")
    start, end = first_batch(found)
    assert end["farms"]["farm"]["index"] == END
    (row,) = rows(found, start, end)
    index, snapshot = server.farm.state()
    assert (row["value_type"], row["log_index"], row["value"]) == (STATE, index, snapshot)
    with pytest.raises(FellBehind):  # later on, that would be a loss
        found.latestOffset(at(server, 20), found.getDefaultReadLimit())
    server.append([NEWS])
    assert server.farm.state()[0] == END + 1
    assert rows(found, start, end) == [row]  # a repeated batch
    after = found.latestOffset(end, found.getDefaultReadLimit())
    assert after == at(server, END + 1)
    assert [each["value"] for each in rows(found, end, after)] == [b"news"]


def test_reader_of_nodes_of_which_one_has_compacted_reads_what_was_planned_from_either(
    server: FeedServer, tmp_path: Path
) -> None:
    """Batches have their bounds and rows whichever node plans and whichever one is read."""
    with feed_server(tmp_path / "other", LOG) as short:
        short.compact(100)
        bounds = {"startingIndex": "state", "maxEntriesPerTrigger": "10"}
        by_short = reader(server, url=f"{short.url} {server.url}", **bounds)
        start = dict(by_short.initialOffset())
        end = by_short.latestOffset(start, by_short.getDefaultReadLimit())
        by_long = reader(server, url=f"{server.url} {short.url}", **bounds)
        for found in (by_short, by_long):
            (row,) = rows(found, start, end)
            assert (row["value_type"], row["log_index"], row["value"]) == (STATE, *short.farm.state())
        end = by_long.latestOffset(start, by_long.getDefaultReadLimit())
        assert end == at(server, 10, 0)
        for found in (by_short, by_long):
            assert rows(found, start, end) == stored(10)
        # What this node has deleted, the other one still has: nothing is lost.
        after = by_short.latestOffset(end, by_short.getDefaultReadLimit())
        assert after == at(server, 20)
        assert rows(by_short, end, after) == stored(20, 10)
        alone = {"url": f"{short.url} https://127.0.0.1:1"}  # the other one is away, for now
        waits = reader(server, **alone, **bounds)
        with pytest.raises(UnreachableError, match="deleted the entries of farm after index 20, and others"):
            waits.latestOffset(after, waits.getDefaultReadLimit())
        with pytest.raises(UnreachableError):
            rows(waits, end, after)
        lenient = reader(server, **alone, failOnDataLoss="false")
        assert lenient.latestOffset(after, lenient.getDefaultReadLimit()) == at(server, END, 99)


def test_reader_of_a_planned_batch_that_is_gone_takes_no_state_beyond_it(server: FeedServer) -> None:
    found = reader(server, startingIndex="state", maxEntriesPerTrigger="10")
    start, end = first_batch(found)
    server.compact(50)
    with pytest.raises(FellBehind, match="after index 0 are gone, the log of farm now starts at 50"):
        rows(found, start, end)
    lenient = reader(server, startingIndex="state", failOnDataLoss="false")
    (row,) = rows(lenient, start, end)
    assert (row["value_type"], row["log_index"]) == (STATE, END)


def test_reader_of_a_state_too_large_for_an_offset_says_so(
    server: FeedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("garlicfarm_plugin_spark.source.MAX_STATE_BYTES", 100)
    server.compact(50)
    found = reader(server, startingIndex="state")
    with pytest.raises(ConfigError, match=r"the state of farm has \d+ bytes, and a query takes at most 100:"):
        found.latestOffset(found.initialOffset(), found.getDefaultReadLimit())


def test_reader_of_another_farms_checkpoint_refuses(server: FeedServer) -> None:
    offset = {"farms": {"farm": {"index": 20, "farm_id": "ab" * 16}}}
    end = {"farms": {"farm": {"index": 30, "farm_id": "ab" * 16}}}
    found = reader(server)
    with pytest.raises(ConfigError, match="the checkpoint belongs to another farm 'farm'"):
        found.latestOffset(offset, found.getDefaultReadLimit())
    with pytest.raises(ConfigError, match="the checkpoint belongs to another farm 'farm'"):
        rows(found, offset, end)


def test_reader_that_fell_behind_by_bytes_ends_its_batches_early(server: FeedServer) -> None:
    size = sum(len(each.value) for each in LOG[:30])
    found = reader(server, maxBytesPerTrigger=str(size))
    end = found.latestOffset(found.initialOffset(), found.getDefaultReadLimit())
    assert end == at(server, 30, 0)


def test_reader_overtaken_by_compaction_while_it_plans_stays_within_the_bytes(
    server: FeedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise Compacted(50)

    monkeypatch.setattr(NodeReader, "extent", gone)
    found = reader(server, maxBytesPerTrigger="3m")
    end = found.latestOffset(found.initialOffset(), found.getDefaultReadLimit())
    assert end == at(server, 3, 0)


def test_reader_splits_a_range_in_as_many_parts_as_asked(server: FeedServer) -> None:
    found = reader(server, minPartitions="4")
    start, end = dict(found.initialOffset()), at(server, END, 0)
    assert len(found.partitions(start, end)) == 4
    assert rows(found, start, end) == stored(END)
    found = reader(server, minPartitions="4", startingIndex="state", failOnDataLoss="false")
    assert len(found.partitions(start, end)) == 1  # a state may have to stand for some of them


# Several farms


def named(read: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(row["farm"], row["log_index"]) for row in read]


def upto(farm: str, last: int, first: int = 1) -> list[tuple[str, int]]:
    return [(farm, index) for index in range(first, last + 1)]


def test_reader_of_all_farms_reads_those_that_come_later_and_waits_for_those_that_go(
    server: FeedServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.add_farm("barn", LOG[:20])
    found = reader(server, farm="*")
    first = found.latestOffset(found.initialOffset(), ReadAllAvailable())
    assert named(rows(found, found.initialOffset(), first)) == upto("barn", 20) + upto("farm", END)
    server.add_farm("late", LOG[:5])
    barn = server.node.farms.pop("barn")
    second = found.latestOffset(first, ReadAllAvailable())
    assert named(rows(found, first, second)) == upto("late", 5)
    assert second["farms"]["barn"] == {"index": 20, "farm_id": barn.farm_id.hex()}
    assert found.latestOffset(second, ReadAllAvailable()) == second
    (warning,) = caplog.messages
    assert warning.startswith("the farm barn waits at index 20: its nodes have it no longer")
    server.node.farms["barn"] = barn
    barn.log.append(LOG[20])
    third = found.latestOffset(second, ReadAllAvailable())
    assert named(rows(found, second, third)) == [("barn", 21)]


def test_reader_of_many_farms_asks_once_for_all_of_them(server: FeedServer) -> None:
    for number in range(16):
        server.add_farm(f"f{number}", LOG[:10])
    found = reader(server, farm="*")
    end = found.latestOffset(found.initialOffset(), ReadAllAvailable())  # and logs in
    before = server.node.requests
    assert found.latestOffset(end, ReadAllAvailable()) == end
    assert server.node.requests == before + 1
    assert len(found.partitions(found.initialOffset(), end)) == 17
    assert found.reportLatestOffset() == {
        "farms": {
            name: {"index": farm.commit_index, "farm_id": farm.farm_id.hex()}
            for name, farm in sorted(server.node.farms.items())
        }
    }


def test_reader_of_all_farms_reads_one_made_anew_as_another_farm_and_the_old_one_never_again(
    server: FeedServer, caplog: pytest.LogCaptureFixture
) -> None:
    old = server.add_farm("barn", LOG[:20])
    found = reader(server, farm="*")
    first = found.latestOffset(found.initialOffset(), ReadAllAvailable())
    new = server.add_farm("barn", LOG[:5])
    new.farm_id = bytes(16)
    second = found.latestOffset(first, ReadAllAvailable())
    assert [(row["farm"], row["farm_id"], row["log_index"]) for row in rows(found, first, second)] == [
        ("barn", "0" * 32, index) for index in range(1, 6)
    ]
    assert second["farms"]["barn"]["past"] == [old.farm_id.hex()]
    (warning,) = caplog.messages
    assert warning.startswith(
        f"the farm barn was made again: the old one (id {old.farm_id.hex()}) is read up to"
    )
    new.log.append(LOG[5])
    third = found.latestOffset(second, ReadAllAvailable())
    assert named(rows(found, second, third)) == [("barn", 6)]
    server.node.farms["barn"] = old  # a node where it was not yet made anew
    assert found.latestOffset(third, ReadAllAvailable()) == third
    assert caplog.messages[-1] == (
        "the farm barn waits at index 6: a node still has the farm that had this name before"
    )


def test_reader_of_all_farms_passes_over_what_was_planned_of_one_made_anew_since(
    server: FeedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = server.add_farm("barn", LOG[:20])
    named_ones, every = reader(server, farm="barn"), reader(server, farm="*")
    start = dict(every.initialOffset())
    end = every.latestOffset(start, ReadAllAvailable())
    server.add_farm("barn", LOG[:5]).farm_id = bytes(16)
    assert named(rows(every, start, end)) == upto("farm", END)
    assert caplog.messages == [
        "the farm barn was made again: the entries after index 0 of the old one (id"
        f" {old.farm_id.hex()}) are lost"
    ]
    with pytest.raises(FarmReplaced, match="the checkpoint belongs to another farm 'barn'"):
        rows(named_ones, start, at_barn := {"farms": {"barn": end["farms"]["barn"]}})
    with feed_server(tmp_path / "other") as other:  # where it was not yet made anew
        other.node.farms["barn"] = old
        both = reader(server, farm="*", url=f"{server.url} {other.url}")
        assert named(rows(both, start, at_barn)) == upto("barn", 20)
    away = reader(server, farm="*", url=f"{server.url} https://127.0.0.1:1")  # it may have the old one
    with pytest.raises(UnreachableError):
        rows(away, start, at_barn)


def test_reader_of_a_planned_batch_passes_over_a_node_without_the_farm(
    server: FeedServer, tmp_path: Path
) -> None:
    server.add_farm("barn", LOG[:20])
    found = reader(server, farm="*")
    start = dict(found.initialOffset())
    end = found.latestOffset(start, ReadAllAvailable())
    with feed_server(tmp_path / "other", LOG) as other:
        both = reader(server, farm="*", url=f"{other.url} {server.url}")
        assert named(rows(both, start, end)) == upto("barn", 20) + upto("farm", END)
    del server.node.farms["barn"]
    away = reader(server, farm="*", url=f"{server.url} https://127.0.0.1:1")  # it may have the farm
    with pytest.raises(UnreachableError):
        rows(away, start, end)
    with pytest.raises(ConfigError, match="this node has no farm of that name"):
        rows(found, start, end)


def test_reader_of_all_farms_of_an_application_leaves_others_out(
    server: FeedServer, caplog: pytest.LogCaptureFixture
) -> None:
    found = reader(server, farm="*", application="publisher")
    server.add_farm("diary", LOG[:20]).application = "log"
    end = found.latestOffset(found.initialOffset(), ReadAllAvailable())
    server.add_farm("late", LOG[:5]).application = "log"
    server.add_farm("barn", LOG[:5])
    end = found.latestOffset(end, ReadAllAvailable())
    assert list(end["farms"]) == ["barn", "farm"]
    assert caplog.messages == []


def test_reader_of_farms_on_several_nodes_goes_on_without_one_but_not_for_what_is_available_now(
    server: FeedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with feed_server(tmp_path / "other") as other:
        other.add_farm("barn", LOG[:20])
        both = {"farm": "farm barn", "url.barn": other.url}
        found = reader(server, **both)
        end = found.latestOffset(found.initialOffset(), ReadAllAvailable())
        assert named(rows(found, found.initialOffset(), end)) == upto("barn", 20) + upto("farm", END)
    server.append([NEWS])
    after = found.latestOffset(end, ReadAllAvailable())
    assert named(rows(found, end, after)) == [("farm", END + 1)]
    assert found.latestOffset(after, ReadAllAvailable()) == after
    (warning,) = caplog.messages
    assert warning.startswith("the farm barn waits at index 20: https://")
    now = reader(server, **both)
    with pytest.raises(UnreachableError):
        now.prepareForTriggerAvailableNow()
    none = reader(server, **both, url="https://127.0.0.1:1")
    with pytest.raises(UnreachableError):
        none.latestOffset(after, ReadAllAvailable())


def test_reader_of_a_farm_on_other_nodes_ignores_one_of_its_name(server: FeedServer, tmp_path: Path) -> None:
    server.add_farm("barn", LOG[:9]).farm_id = bytes(16)
    with feed_server(tmp_path / "other") as other:
        other.add_farm("barn", LOG[:20])
        found = reader(server, **{"farm": "farm barn", "url.barn": other.url})
        end = found.latestOffset(found.initialOffset(), ReadAllAvailable())
        assert end["farms"]["barn"]["index"] == 20
        assert found.latestOffset(end, ReadAllAvailable()) == end


def test_reader_of_a_farm_that_lost_entries_reads_the_other_from_its_state(server: FeedServer) -> None:
    server.add_farm("barn", LOG[:20])
    server.compact(END - 2)
    found = reader(server, farm="*", startingIndex="state")
    end = found.latestOffset(found.initialOffset(), found.getDefaultReadLimit())
    read = rows(found, found.initialOffset(), end)
    assert named(read) == [*upto("barn", 20), ("farm", END)]
    assert [row["value_type"] for row in read if row["farm"] == "farm"] == [STATE]
    server.compact(END)
    with pytest.raises(FellBehind, match="the log of farm now starts at"):
        found.latestOffset(at(server, 20), found.getDefaultReadLimit())


# Batches


def batch(server: FeedServer, **options: str) -> BatchReader:
    return BatchReader(read_options(server.options(**options)))


def read_batch(found: Any) -> list[dict[str, Any]]:
    partitions = pickle.loads(pickle.dumps(found.partitions()))
    return [row for each in partitions for part in found.read(each) for row in part.to_pylist()]


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({}, 1, END),
        ({"startingIndex": "50", "endingIndex": "60"}, 50, 60),
        ({"startingIndex": "-5"}, END - 4, END),
        ({"startingIndex": "-5000", "minPartitions": "7"}, 1, END),
        ({"startingIndex": str(END + 1)}, END + 1, END),
        ({"startingIndex": "state", "endingIndex": "60"}, 1, 60),
    ],
)
def test_batch_query_reads_its_range(
    server: FeedServer, options: dict[str, str], first: int, last: int
) -> None:
    assert read_batch(batch(server, **options)) == stored(last, first - 1)


def test_batch_query_of_a_compacted_log_begins_where_that_is_allowed(server: FeedServer) -> None:
    server.compact(50)
    assert read_batch(batch(server)) == stored(END, 49)
    assert read_batch(batch(server, startingIndex="20", failOnDataLoss="false")) == stored(END, 49)
    (state,) = read_batch(batch(server, startingIndex="state"))
    assert (state["value_type"], state["log_index"]) == (STATE, END)
    with pytest.raises(FellBehind, match="startingIndex is 20, and earliest begins there"):
        batch(server, startingIndex="20").partitions()
    with pytest.raises(FellBehind, match="so leave endingIndex out"):
        batch(server, startingIndex="state", endingIndex="60").partitions()


def test_batch_query_overtaken_by_compaction_asks_to_start_it_again(server: FeedServer) -> None:
    found = batch(server, startingIndex="20")
    (partition,) = found.partitions()
    server.compact(50)
    with pytest.raises(FellBehind, match="they were deleted while this query read, so start it again"):
        next(found.read(partition))


def test_batch_query_beyond_the_log_is_refused(server: FeedServer) -> None:
    with pytest.raises(ConfigError, match=f"endingIndex is {END + 1}, and the log of farm ends at {END}"):
        batch(server, endingIndex=str(END + 1)).partitions()
    with pytest.raises(ConfigError, match=f"startingIndex is {END + 2}, and the log of farm ends at {END}"):
        batch(server, startingIndex=str(END + 2)).partitions()


def test_batch_query_keeps_conditions_on_the_index_and_returns_the_others(server: FeedServer) -> None:
    index = ("log_index",)
    found = PushdownReader(read_options(server.options(pushdown="true", startingIndex="10")))
    others = [EqualTo(("term",), 1), In(index, (1, 2)), Not(EqualTo(index, 30)), EqualTo(index, None)]
    kept = [
        GreaterThan(index, 20),
        GreaterThanOrEqual(index, 21),
        LessThan(index, 40),
        LessThanOrEqual(index, 50),
    ]
    assert found.pushFilters([*others, *kept]) == others
    assert read_batch(found) == stored(39, 20)
    assert found.pushFilters([EqualTo(index, 5)]) == []
    assert read_batch(found) == []


def test_reader_fails_over_to_a_node_that_answers(server: FeedServer, tmp_path: Path) -> None:
    with feed_server(tmp_path / "other", LOG[:70]) as other:
        both = {"url": f"{other.url} {server.url}"}
        found = reader(server, **both)
        offset = at(server, 0)
        # The first node has not come as far as the other one.
        assert rows(found, offset, at(server, END)) == stored(END)
    assert found.latestOffset(offset, ReadAllAvailable()) == at(server, END)
    assert rows(found, offset, at(server, END)) == stored(END)


def test_module_that_spark_looks_for_imports_nothing_heavy() -> None:
    """Spark gives a worker ten seconds to start."""
    import subprocess
    import sys

    code = (
        "import pyspark.sql.datasource, sys; before = set(sys.modules)\n"
        "import pyspark_garlicfarm\n"
        "heavy = {'httpx', 'pyarrow', 'pandas', 'trio', 'msgspec', 'cryptography', 'numpy', 'ssl'}\n"
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
