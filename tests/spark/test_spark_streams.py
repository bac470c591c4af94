"""Structured Streaming on the real feed: what it ranks is what the nodes rank, at every batch's end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from pyspark.errors import StreamingQueryException

from garlicfarm_plugin_spark import rankings
from garlicfarm_plugin_spark.feed import FarmFeed, Nodes
from garlicfarm_plugin_spark.session import Session
from tests.spark.feed_server import FARM_ID, FeedServer, feed_server
from tests.spark.script import Expected, expectations, scripted_log
from tests.spark.topic_server import TopicServer

pytestmark = pytest.mark.spark

LOG = scripted_log()
END = len(LOG)
EXPECTED = expectations(LOG)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FeedServer]:
    with feed_server(tmp_path / "node", LOG) as running:
        yield running


class Ranked:
    """Runs the ranking query until it has read all, and keeps its rows: (batch, row)."""

    def __init__(self, spark: Session, server: FeedServer | TopicServer, checkpoint: Path) -> None:
        self.spark = spark.spark
        self.server: FeedServer | TopicServer = server
        self.checkpoint = checkpoint
        self.rows: list[tuple[int, dict[str, Any]]] = []

    def run(self, **options: str) -> None:
        given = self.server.options(startingIndex="state", **options)
        entries = self.spark.readStream.format("garlicfarm").options(**given).load()

        def keep(batch: Any, number: int) -> None:
            self.rows += [(number, row.asDict()) for row in batch.collect()]

        query = (
            rankings(entries)
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
    row["contents"] = bytes(row["contents"])
    return Expected(**row)


def test_rankings_of_equal_batches_are_the_nodes_at_every_end(
    spark: Session, server: FeedServer, tmp_path: Path
) -> None:
    ranked = Ranked(spark, server, tmp_path / "checkpoint")
    ranked.run(maxEntriesPerTrigger="23")
    assert ranked.indexes == [*range(23, END, 23), END]
    for _, row in ranked.rows:
        assert said(row) == EXPECTED[row["log_index"]]
    feed = FarmFeed(Nodes((server.url,), "farm", "local", server.password_file))
    assert ranked.rows[-1][1]["ranking"].encode() == feed.ranking()
    feed.close()


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
    assert ranked.indexes == ends
    for _, row in ranked.rows:
        assert said(row) == EXPECTED[row["log_index"]]


def test_rankings_of_a_compacted_log_begin_with_the_nodes_state(
    spark: Session, server: FeedServer, tmp_path: Path
) -> None:
    server.compact(END - 5)
    ranked = Ranked(spark, server, tmp_path / "checkpoint")
    ranked.run(maxEntriesPerTrigger="10")
    assert ranked.indexes == [END]
    assert said(ranked.rows[0][1]) == EXPECTED[END]


def test_stream_of_values_is_parsed_by_spark_alone(
    spark: Session, server: FeedServer, tmp_path: Path
) -> None:
    """Where a query needs columns only, no Python sees the entries between the source and the sink."""
    entries = spark.spark.readStream.format("garlicfarm").options(**server.options()).load()
    assert entries.schema.simpleString() == (
        "struct<farm:string,farm_id:string,log_index:bigint,term:bigint,value_type:int,value:binary>"
    )
    query = (
        entries.where("value_type = 1")
        .selectExpr("log_index", "from_json(cast(value as string), 'id int, date long') as status")
        .where("status.id = 4")
        .writeStream.format("memory")
        .queryName("statuses")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = [
        row["log_index"] for row in spark.spark.sql("select * from statuses order by log_index").collect()
    ]
    assert found == [each.index for each in LOG if b'"id":4' in each.value]


def test_stream_from_the_checkpoint_of_another_farm_says_so(
    spark: Session, server: FeedServer, tmp_path: Path
) -> None:
    ranked = Ranked(spark, server, tmp_path / "checkpoint")
    ranked.run()
    server.farm.farm_id = bytes(16)
    with pytest.raises(StreamingQueryException, match="the checkpoint belongs to another farm 'farm'"):
        ranked.run()


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
