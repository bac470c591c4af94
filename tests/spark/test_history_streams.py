"""A history made by Spark, as a batch and as a stream, is that of the command, which needs no Spark."""

from __future__ import annotations

import os
import shutil
from datetime import UTC
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from garlicfarm.errors import ConfigError, GarlicFarmError
from garlicfarm_plugin_spark import rankings
from garlicfarm_plugin_spark.history import stored
from garlicfarm_plugin_spark.history_query import history
from garlicfarm_plugin_spark.parquet import ParquetSink
from garlicfarm_plugin_spark.session import Session
from tests.publishing.scripted_log import T0
from tests.spark.feed_server import feed_server
from tests.spark.script import HOUR_MS, hours_log, of_cluster
from tests.spark.stored import ranked, read_rankings, write

pytestmark = pytest.mark.spark

HOURS = 5

LOG = hours_log(HOURS)


def plain(frame: Any) -> list[dict[str, Any]]:
    rows = [row.asDict() for row in frame.collect()]
    for row in rows:
        row["period_ms"] = round(row.pop("period").replace(tzinfo=UTC).timestamp() * 1000)
    return sorted(rows, key=lambda row: (row["farm_id"], row["period_ms"], row["member"]))


@pytest.fixture
def utc(spark: Session) -> Any:
    """Python's own time zone is that of `collect`."""
    before = spark.spark.conf.get("spark.sql.session.timeZone")
    spark.spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield spark.spark
    spark.spark.conf.set("spark.sql.session.timeZone", before)
    spark.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def drained(frame: Any, checkpoint: Path, name: str) -> None:
    query = (
        frame.writeStream.format("memory")
        .queryName(name)
        .outputMode("append")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_history_in_spark_is_that_of_the_command(utc: Any, tmp_path: Path) -> None:
    """Also where a partition has several farms, and what Spark passes on at a time ends within one."""
    write(tmp_path / "stored", ranked(LOG))
    write(tmp_path / "stored", ranked(LOG[: len(LOG) // 2], farm_id="01" * 16))
    utc.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    expected = list(stored(tmp_path / "stored", "day"))
    assert any(line["handovers"] for line in expected)
    assert any(0 < line["availability"] < 1 for line in expected)
    assert plain(history(utc.read.parquet(str(tmp_path / "stored")), "day")) == expected


def test_history_of_a_stream_is_that_of_the_command_once_a_period_is_over(utc: Any, tmp_path: Path) -> None:
    """Straight from the log, in batches that end anywhere, and from the stored files as they come."""
    rows = ranked(LOG)
    write(tmp_path / "stored", rows)
    expected = [
        line for line in stored(tmp_path / "stored", "hour") if line["period_ms"] < T0 + HOURS * HOUR_MS
    ]
    assert {line["period_ms"] for line in expected} == {T0 + hour * HOUR_MS for hour in range(HOURS)}
    with feed_server(tmp_path / "node", LOG) as server:
        options = server.options(startingIndex="state", maxEntriesPerTrigger="700")
        entries = utc.readStream.format("garlicfarm").options(**options).load()
        drained(history(entries), tmp_path / "one", "from_log")
    assert plain(utc.table("from_log")) == [{**line, "farm_id": server.farm_id} for line in expected]

    for number in range(0, len(rows), 60):
        for name in write(tmp_path / "files", rows[number : number + 60]):
            os.utime(tmp_path / "files" / name, (number, number))
    files = str(tmp_path / "files")
    schema = utc.read.parquet(files).schema
    stream = utc.readStream.schema(schema).option("maxFilesPerTrigger", 3).parquet(files)
    drained(history(stream), tmp_path / "two", "from_files")
    assert plain(utc.table("from_files")) == expected


def test_history_of_entries_is_that_of_the_command(utc: Any, tmp_path: Path) -> None:
    """Straight from the log, or from its rankings, where a partition has several farms."""
    half = len(LOG) // 2
    write(tmp_path / "farm", ranked(LOG))
    write(tmp_path / "barn", ranked(LOG[:half]))
    utc.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    with feed_server(tmp_path / "node", LOG) as server:
        barn = server.add_farm("barn", of_cluster("barn", LOG[:half])).farm_id.hex()
        options = server.options(startingIndex="state", farm="*")
        entries = utc.read.format("garlicfarm").options(**options).load()
        found = [plain(history(each)) for each in (entries, rankings(entries))]
    lines = {each: [*stored(tmp_path / each, "hour")] for each in ("farm", "barn")}
    expected = [{**line, "farm_id": server.farm_id} for line in lines["farm"]]
    expected += [{**line, "farm": "barn", "farm_id": barn} for line in lines["barn"]]
    expected.sort(key=itemgetter("farm_id", "period_ms", "member"))
    assert found == [expected] * 2


def test_sink_at_a_uri_adds_the_files_that_a_path_has_once(utc: Any, tmp_path: Path) -> None:
    """As many as there are farms and dates in the batch, whoever repeats it."""
    rows = ranked(LOG)
    write(tmp_path / "from", rows)
    batch = utc.read.parquet(str(tmp_path / "from")).drop("date")
    uri, path = tmp_path / "uri", tmp_path / "path"
    for where in (f"file:{uri}", str(path)):
        ParquetSink(utc, where)(batch, 0)
        ParquetSink(utc, where)(batch.repartition(3), 1)
    files = {str(each.relative_to(path)): each.read_bytes() for each in path.glob("*/*/[!.]*")}
    assert sorted(files) == sorted(str(each.relative_to(uri)) for each in uri.glob("*/*/[!.]*"))
    assert files == {name: (uri / name).read_bytes() for name in files}
    assert [read_rankings(each, ["ranking"]).num_rows for each in (uri, path)] == [len(rows)] * 2
    (uri / "_spark_metadata").mkdir()
    with pytest.raises(ConfigError, match="was written by an earlier version"):
        ParquetSink(utc, f"file:{uri}")
    with pytest.raises(ConfigError, match=r"nothing://x/y cannot be read \(.*nothing.*\)"):
        ParquetSink(utc, "nothing://x/y")
    (uri / "_spark_metadata").rmdir()
    shutil.rmtree(uri)
    uri.write_text("in the way")
    with pytest.raises(GarlicFarmError, match=r"/uri/\.rows cannot be written: "):
        ParquetSink(utc, f"file:{uri}")(batch, 0)
