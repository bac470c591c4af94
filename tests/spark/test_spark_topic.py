"""The source on a farm's topic in a Dafka store: rows, offsets and rankings are those of the nodes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from pyspark.errors import StreamingQueryException

from garlicfarm.errors import ConfigError, UnreachableError
from garlicfarm_plugin_spark.feed import close_feeds
from garlicfarm_plugin_spark.session import Session
from garlicfarm_plugin_spark.source import LogReader
from tests.dafka.meshes import KeyRing
from tests.spark.feed_server import feed_server
from tests.spark.script import scripted_log
from tests.spark.test_spark_source import rows, stored
from tests.spark.test_spark_streams import EXPECTED, Ranked, said
from tests.spark.topic_server import TopicServer, topic_server

pytestmark = pytest.mark.spark

LOG = scripted_log()
END = len(LOG)


@pytest.fixture(autouse=True)
def feeds_are_closed() -> Iterator[None]:
    yield
    close_feeds()
    assert not [each for each in threading.enumerate() if each.name.startswith("topic ")]


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[TopicServer]:
    with topic_server(tmp_path / "dafka", LOG) as running:
        yield running


# The source's own classes; no Java runs


def test_topic_batches_hold_every_entry_once(topic: TopicServer) -> None:
    found: Any = LogReader(topic.options(maxEntriesPerTrigger="40"))
    offset: dict[str, Any] = dict(found.initialOffset())
    read = []
    while (end := found.latestOffset(offset, found.getDefaultReadLimit())) != offset:
        read += rows(found, offset, end)
        offset = end
    assert offset == {"farms": {"farm": {"index": END, "farm_id": topic.farm_id}}}
    assert read == stored(END)


def test_topic_starting_at_an_index_begins_with_it(topic: TopicServer) -> None:
    found: Any = LogReader(topic.options(startingIndex="100", maxEntriesPerTrigger="2"))
    start = dict(found.initialOffset())
    end = found.latestOffset(start, found.getDefaultReadLimit())
    assert end == {"farms": {"farm": {"index": 101, "farm_id": topic.farm_id, "from": 99}}}
    assert rows(found, start, end) == stored(101, 99)


def test_topic_batch_ends_where_its_bytes_do(topic: TopicServer) -> None:
    size = sum(len(each.value) for each in LOG[:30])
    found: Any = LogReader(topic.options(maxBytesPerTrigger=str(size)))
    end = found.latestOffset(found.initialOffset(), found.getDefaultReadLimit())
    assert end["farms"]["farm"]["index"] == 30


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"url": "https://a.example:1"}, "url and towers are two places to read from"),
        ({"farmId": "farm"}, "farmId is 'farm', not 32 hex digits"),
        ({"keyFile": "a.key"}, "keyFile and peersFile belong together"),
    ],
)
def test_topic_options_that_are_wrong_are_refused(
    topic: TopicServer, changes: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        LogReader(topic.options(**changes))


def test_topic_of_another_farm_is_not_read(topic: TopicServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("garlicfarm_plugin_dafka.farm_reader.ANSWER_S", 3.0)
    found = LogReader(topic.options(farmId="0" * 32))
    with pytest.raises(UnreachableError, match="no node has records of this farm under the topic log"):
        found.latestOffset(found.initialOffset(), found.getDefaultReadLimit())


# In Spark


def test_rankings_of_a_store_are_those_of_the_nodes_byte_for_byte(
    spark: Session, topic: TopicServer, tmp_path: Path
) -> None:
    with feed_server(tmp_path / "node", LOG) as server:
        of_nodes = Ranked(spark, server, tmp_path / "of-nodes")
        of_nodes.run(maxEntriesPerTrigger="23")
    of_store = Ranked(spark, topic, tmp_path / "of-store")
    of_store.run(maxEntriesPerTrigger="23")
    assert of_store.indexes == [*range(23, END, 23), END]
    assert of_store.rows == of_nodes.rows
    for _, row in of_store.rows:
        assert said(row) == EXPECTED[row["log_index"]]


def test_rankings_of_a_store_go_on_from_the_checkpoint_also_of_the_nodes(
    spark: Session, tmp_path: Path
) -> None:
    """Each part is read by other queries, one from the nodes: offsets are the same."""
    # The last of each part is an Application entry: a topic has no Configurations behind it.
    cuts = [40, 75, 101, END]
    with topic_server(tmp_path / "dafka") as topic, feed_server(tmp_path / "node") as server:
        ranked = Ranked(spark, topic, tmp_path / "checkpoint")
        for turn, (before, upto) in enumerate(zip([0, *cuts], cuts, strict=False)):
            assert LOG[upto - 1].value_type == 1
            topic.append(LOG[before:upto])
            server.append(LOG[before:upto])
            ranked.server = server if turn == 2 else topic
            ranked.run(maxEntriesPerTrigger="19")
            ranked.run()  # nothing new
            assert ranked.indexes[-1] == upto
    assert len(set(ranked.indexes)) == len(ranked.indexes)
    for _, row in ranked.rows:
        assert said(row) == EXPECTED[row["log_index"]]


def test_stream_from_a_store_with_keys(spark: Session, tmp_path: Path) -> None:
    ring = KeyRing(tmp_path, farm="producer", store="store", reader="consumer")
    with topic_server(tmp_path / "dafka", LOG, ring) as topic:
        ranked = Ranked(spark, topic, tmp_path / "checkpoint")
        ranked.run()
    assert ranked.indexes == [END]
    assert said(ranked.rows[0][1]) == EXPECTED[END]


def test_stream_of_a_topic_from_the_checkpoint_of_another_farm_says_so(
    spark: Session, topic: TopicServer, tmp_path: Path
) -> None:
    with feed_server(tmp_path / "node", LOG[:20]) as server:
        server.farm.farm_id = bytes(16)
        ranked = Ranked(spark, server, tmp_path / "checkpoint")
        ranked.run()
    ranked.server = topic
    with pytest.raises(StreamingQueryException, match="the checkpoint belongs to another farm 'farm'"):
        ranked.run()
