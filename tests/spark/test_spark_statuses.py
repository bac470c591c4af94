"""Statuses as columns of Spark's own: they hold what the documents hold, of the entries that count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from garlicfarm.levels import HIGHEST

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from garlicfarm.errors import EntryRefused
from garlicfarm.publishing.entries import Status, encode_admin, encode_status, parse_entry
from garlicfarm.raft.types import Entry
from garlicfarm.wire.messages import ValueType
from garlicfarm_plugin_spark import statuses
from garlicfarm_plugin_spark.session import Session
from tests.publishing.scripted_log import T0, status
from tests.spark.feed_server import FeedServer, feed_server
from tests.spark.script import scripted_log

pytestmark = pytest.mark.spark

GOOD = encode_status(status(3, T0 + 5_000_000, headroom=9, applied=1, sequence=99))
INVALID = [
    GOOD.replace(b'"id":3', b'"id":"3"'),
    GOOD.replace(b'"id":3', b'"id":3.0'),
    GOOD.replace(b'"id":3', b'"id":0'),
    GOOD.replace(b'"date":', b'"dates":'),
    GOOD.replace(b'"date":', b'"date":-'),
    GOOD.replace(b'"sequence":99', b'"sequence":9999999999999999999'),
    GOOD.replace(b'"sequence":99', b'"sequence":NaN'),
    GOOD.replace(b'"cluster":"farm"', b'"cluster":"barn"'),
    GOOD.replace(b'"', b"'"),
    GOOD[:-1],
    b"[" + GOOD + b"]",
    encode_admin("farm", T0, 1, None, "override", "alice", {"member": 2, "mode": "on"}),
    b'{"cluster":"farm","date":%d,"id":0,"config":{"by":"alice"}}' % T0,
    b"[" * 60_000,
    GOOD + b" " * 65_536,
]
LOG = scripted_log()
LOG += [
    Entry(len(LOG) + place, 5, ValueType.APPLICATION, value)
    for place, value in enumerate([GOOD, *INVALID], 1)
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FeedServer]:
    with feed_server(tmp_path / "node") as running:
        running.farm.log.extend(LOG)
        yield running


def documents() -> Iterator[tuple[int, dict[str, Any]]]:
    """(index, keys) of what the nodes take for a status, as Spark would write it."""
    for each in LOG:
        if each.value_type is ValueType.APPLICATION:
            try:
                entry = parse_entry(each.value, "farm", HIGHEST)
            except EntryRefused:
                continue
            if isinstance(entry, Status):
                found = msgspec.to_builtins(entry.document)
                del found["cluster"]
                node = (found.pop("config", None) or {}).get("node")
                yield each.index, found | ({} if node is None else {"node": node})


def filled(value: Any) -> Any:
    """Without nulls."""
    if isinstance(value, dict):
        return {key: filled(inside) for key, inside in value.items() if inside is not None}
    return [filled(inside) for inside in value] if isinstance(value, list | tuple) else value


def test_statuses_are_the_documents_that_the_nodes_count(spark: Session, server: FeedServer) -> None:
    rows = statuses(spark.spark.read.format("garlicfarm").options(**server.options()).load())
    found = {row["log_index"]: row.asDict(recursive=True) for row in rows.collect()}
    expected = dict(documents())
    assert found.keys() == expected.keys()
    assert len(expected) > 50
    for index, row in found.items():
        of_entry = {name: row.pop(name) for name in ("farm", "farm_id", "log_index", "term")}
        assert of_entry == {
            "farm": "farm",
            "farm_id": server.farm_id,
            "log_index": index,
            "term": LOG[index - 1].term,
        }
        assert filled(row) == filled(expected[index])


def test_statuses_of_a_stream_need_no_python(spark: Session, server: FeedServer, tmp_path: Path) -> None:
    rows = statuses(spark.spark.readStream.format("garlicfarm").options(**server.options()).load())
    query = (
        rows.selectExpr("log_index", "node.interval_ms", "router.currentBandwidth.out")
        .writeStream.format("memory")
        .queryName("typed")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert spark.spark.sql("select * from typed").count() == len(dict(documents()))
