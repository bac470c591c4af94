"""Structured Streaming on the real feed: what it ranks is what the nodes rank, at every batch's end."""

from __future__ import annotations

import json
import random
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from pyspark.errors import PySparkException, StreamingQueryException

from garlicfarm.errors import ConfigError
from garlicfarm.raft.types import Entry
from garlicfarm_plugin_spark import rankings
from garlicfarm_plugin_spark.node_reader import NodeReader
from garlicfarm_plugin_spark.ranking import Fold, Rows
from garlicfarm_plugin_spark.session import Session
from tests.spark.feed_server import FARM_ID, FeedServer, feed_server
from tests.spark.script import Expected, expectations, fold_rows, of_cluster, scripted_log

pytestmark = pytest.mark.spark

LOG = scripted_log()
END = len(LOG)
EXPECTED = expectations(LOG)


@dataclass
class Ranked:
    """Runs the ranking query until it has read all, and keeps its rows: (batch, row)."""

    spark: Session
    server: FeedServer
    checkpoint: Path
    kind: Rows = "batches"
    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def run(self, **options: str) -> None:
        given = self.server.options(startingIndex="state", **options)
        entries = self.spark.spark.readStream.format("garlicfarm").options(**given).load()

        def keep(batch: Any, number: int) -> None:
            self.rows += [(number, row.asDict()) for row in batch.collect()]

        query = (
            rankings(entries, self.kind)
            .writeStream.outputMode("append")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .foreachBatch(keep)
            .start()
        )
        query.awaitTermination()

    @property
    def indexes(self) -> list[int]:
        return [row["log_index"] for _, row in self.rows]


def said(row: dict[str, Any]) -> Expected:
    row = dict(row)
    assert (row.pop("farm"), row.pop("farm_id")) == ("farm", FARM_ID)
    assert row.pop("log_index") > 0
    assert {*row.pop("changed")} <= {"publisher", "holders", "recency", "order", "policy"}
    row["contents"] = bytes(row["contents"])
    return Expected(**row)


def test_rankings_in_random_batches_go_on_from_the_checkpoint(spark: Session, tmp_path: Path) -> None:
    """The log grows in random steps; each time another query reads on, in batches of another size."""
    chance = random.Random(20260101)
    cuts = sorted({1, END, *chance.sample(range(2, END), 5)})
    ends: list[int] = []
    with feed_server(tmp_path / "node") as server:
        ranked = Ranked(spark, server, tmp_path / "checkpoint")
        for before, upto in zip([0, *cuts], cuts, strict=False):
            server.append(LOG[before:upto])
            size = chance.randint(7, 40)
            ranked.run(maxEntriesPerTrigger=str(size))
            ends += [*range(before + size, upto, size), upto]
        ranked.run()  # nothing new
        with closing(NodeReader(server.access)) as feed:
            assert ranked.rows[-1][1]["ranking"].encode() == feed.ranking("farm")
    assert ranked.indexes == ends
    for _, row in ranked.rows:
        assert said(row) == EXPECTED[row["log_index"]]


def test_rankings_of_changes_are_the_same_rows_in_batches_of_any_size(
    spark: Session, server: FeedServer, tmp_path: Path
) -> None:
    """A batch without a change gives no row, and keeps the state."""
    fold = Fold("farm")
    expected = [{**row, "farm_id": FARM_ID} for row in fold.rankings(fold_rows(LOG), "changes")]
    assert END // 2 > len(expected) > END // 8
    for size in ("11", "1000"):
        ranked = Ranked(spark, server, tmp_path / size, "changes")
        ranked.run(maxEntriesPerTrigger=size)
        for _, row in ranked.rows:
            row["contents"] = bytes(row["contents"])
        assert [row for _, row in ranked.rows] == expected


@pytest.mark.parametrize("kind", ["changes", "batches", "entries"])
def test_rankings_of_a_batch_query_are_those_of_a_stream(
    spark: Session, server: FeedServer, kind: Rows
) -> None:
    """Of several farms; where the beginning of one is deleted, its rows begin with the node's state."""
    logs = {"farm": LOG, "barn": of_cluster("barn", LOG[:60])}
    barn = server.add_farm("barn", logs["barn"])
    entries = spark.spark.read.format("garlicfarm").options(
        **server.options(farm="*", application="publisher", startingIndex="state")
    )

    def found() -> list[dict[str, Any]]:
        rows = [row.asDict() for row in rankings(entries.load(), kind).collect()]
        return sorted(
            ({**row, "contents": bytes(row["contents"])} for row in rows),
            key=lambda row: (row["farm"], row["log_index"]),
        )

    def expected(farm: str, farm_id: str) -> list[dict[str, Any]]:
        rows = Fold(farm).rankings(fold_rows(logs[farm]), kind)
        return [{**row, "farm_id": farm_id} for row in rows]

    of_barn = expected("barn", barn.farm_id.hex())
    assert found() == of_barn + expected("farm", FARM_ID)
    server.compact(40)
    *others, newest = found()
    assert others == of_barn
    assert said(newest) == EXPECTED[END]


def test_rankings_of_other_rows_are_refused(spark: Session, server: FeedServer) -> None:
    entries = spark.spark.readStream.format("garlicfarm").options(**server.options()).load()
    kind: Any = "all"
    with pytest.raises(ConfigError, match="rows is 'all', not changes, batches, entries"):
        rankings(entries, kind)


def test_rankings_of_a_compacted_log_begin_with_the_nodes_state(
    spark: Session, server: FeedServer, tmp_path: Path
) -> None:
    server.compact(END - 5)
    ranked = Ranked(spark, server, tmp_path / "checkpoint")
    ranked.run(maxEntriesPerTrigger="10")
    assert ranked.indexes == [END]
    assert said(ranked.rows[0][1]) == EXPECTED[END]
    # Killed before it noted that batch as done: the node has a newer state by then.
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    news = [Entry(END + 1, 4, LOG[5].value_type, b"{}"), Entry(END + 2, 4, LOG[5].value_type, b"{}")]
    server.append(news)
    ranked.run(maxEntriesPerTrigger="10")
    assert ranked.rows[1] == ranked.rows[0]
    assert ranked.indexes == [END, END, END + 2]


def test_rankings_of_all_farms_go_on_with_one_made_anew(
    spark: Session, server: FeedServer, tmp_path: Path
) -> None:
    old = server.add_farm("barn", LOG)
    ranked = Ranked(spark, server, tmp_path / "checkpoint")
    ranked.run(farm="*", application="publisher")
    new = server.add_farm("barn", LOG[:40])
    new.farm_id = bytes(16)
    ranked.run(farm="*", application="publisher")
    found = [(row["farm"], row["farm_id"], row["log_index"]) for _, row in ranked.rows]
    assert sorted(found) == sorted(
        [("barn", old.farm_id.hex(), END), ("farm", FARM_ID, END), ("barn", new.farm_id.hex(), 40)]
    )


def test_format_is_known_without_registering_it(spark: Session, server: FeedServer) -> None:
    fresh = spark.spark.newSession()  # the fixture registers it in another one
    rows = fresh.read.format("garlicfarm").options(**server.options(startingIndex="-7")).load()
    assert [row["log_index"] for row in rows.orderBy("log_index").collect()] == [*range(END - 6, END + 1)]


def test_batch_query_reads_what_its_conditions_leave(spark: Session, server: FeedServer) -> None:
    given = server.options(endingIndex="90", minPartitions="3")
    rows = spark.spark.read.format("garlicfarm").options(**given).load()
    assert rows.rdd.getNumPartitions() == 3
    assert rows.where("value_type = 1").count() == sum(each.value_type == 1 for each in LOG[:90])

    def pushed(condition: str) -> list[int]:
        rows = spark.spark.read.format("garlicfarm").options(**given, pushdown="true").load()
        return sorted(row["log_index"] for row in rows.where(condition).collect())

    with pytest.raises(PySparkException, match=r"filterPushdown\.enabled"):
        pushed("log_index > 1")
    spark.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        found = pushed("log_index between 20 and 30 and log_index <> 25")
        assert found == [*range(20, 25), *range(26, 31)]
        assert pushed("log_index > 90") == []  # there is no range to read
    finally:
        spark.spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    with pytest.raises(PySparkException, match=r"the columns of format garlicfarm are fixed"):
        spark.spark.read.format("garlicfarm").schema("value string").options(**given).load().collect()


def test_stream_of_several_farms_goes_on_from_its_checkpoint_and_shows_its_lag(
    spark: Session, server: FeedServer, tmp_path: Path
) -> None:
    barn = server.add_farm("barn", LOG[:50])

    def run() -> Any:
        found: list[tuple[str, str, int]] = []

        def keep(batch: Any, number: int) -> None:
            found.extend(map(tuple, batch.select("farm", "farm_id", "log_index").collect()))

        query = (
            spark.spark.readStream.format("garlicfarm")
            .options(**server.options(farm="*", maxEntriesPerTrigger="60"))
            .load()
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(found), query.recentProgress

    def indexes(farm: str, first: int, last: int) -> list[tuple[str, str, int]]:
        farm_id = server.node.farms[farm].farm_id.hex()
        return [(farm, farm_id, index) for index in range(first, last + 1)]

    rows, progress = run()
    assert rows == indexes("barn", 1, 50) + indexes("farm", 1, END)
    (source,) = progress[0]["sources"]
    assert json.loads(source["endOffset"])["farms"]["farm"]["index"] == 30
    assert json.loads(source["latestOffset"])["farms"]["farm"]["index"] == END
    barn.log.extend(LOG[50:55])
    server.add_farm("late", LOG[:3])
    rows, _ = run()
    assert rows == indexes("barn", 51, 55) + indexes("late", 1, 3)


def test_stream_that_was_overtaken_by_compaction_says_where_the_log_starts(
    spark: Session, tmp_path: Path
) -> None:
    with feed_server(tmp_path / "node", LOG[:20]) as server:
        ranked = Ranked(spark, server, tmp_path / "checkpoint")
        ranked.run()
        server.append(LOG[20:])
        server.compact(60)
        with pytest.raises(StreamingQueryException, match="the log of farm now starts at 60"):
            ranked.run()
        ranked.run(failOnDataLoss="false")  # the node's state stands in
        assert ranked.indexes == [20, END]
        assert said(ranked.rows[-1][1]) == EXPECTED[END]
