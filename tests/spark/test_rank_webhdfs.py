"""A file system in a network, which may be away: Hadoop's own client reaches it by WebHDFS."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException

from garlicfarm.errors import ConfigError, UnreachableError
from garlicfarm_plugin_spark.directory import HadoopDirectory, check_directory, claim_directory
from garlicfarm_plugin_spark.runner import query_error
from garlicfarm_plugin_spark.session import Session
from tests.spark.feed_server import feed_server
from tests.spark.script import scripted_log
from tests.spark.stored import ranked, read_rankings
from tests.spark.test_rank_command import START_S, Rank, inspected, running
from tests.spark.webhdfs_server import WebHdfs, web_hdfs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

LOG = scripted_log()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[WebHdfs]:
    with web_hdfs(tmp_path / "served") as running:
        yield running


def wait_for_rows(rank: Rank, served: WebHdfs, log_index: int) -> None:
    """Until those up to this index are stored."""
    deadline = time.monotonic() + START_S
    while not list(served.root.glob(f"rows/farm=*/date=*/*-{log_index:020d}-*.parquet")):
        assert rank.process.poll() is None, rank.errors()
        assert time.monotonic() < deadline, sorted(served.root.rglob("*"))
        time.sleep(0.05)


def test_rank_outlasts_the_absence_of_its_file_system(
    tmp_path: Path, served: WebHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoint and rankings are there, continued and inspected there. No row is lost, none comes twice,
    nothing is a local path."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    places = ("--checkpoint", f"{served.uri}/rank", "--sink", f"parquet:{served.uri}/rows")
    with feed_server(tmp_path / "node", LOG[:30]) as server, running(server, *places) as rank:
        last = [row["log_index"] for row in ranked(LOG[:30])][-1]
        wait_for_rows(rank, served, last)
        served.stop()
        server.append(LOG[30:])
        assert rank.process.stderr is not None
        said = ""
        while "the query failed and starts again" not in said:
            said += rank.process.stderr.readline()
        served.start()
        wait_for_rows(rank, served, [row["log_index"] for row in ranked(LOG)][-1])
        rank.process.terminate()
        said += rank.errors()
        with running(server, "--once", *places) as again:
            assert again.wait() == 0, again.errors()
        # By another name: where Hadoop's `viewfs` mounts it.
        mount = ("--conf", f"spark.hadoop.fs.viewfs.mounttable.barn.link./farms=file:{served.root}")
        done = inspected(server, *mount, "--checkpoint", "viewfs://barn/farms/rank", "-o", "json")
        assert done.returncode == 0, done.stderr
        assert [row["index"] for row in json.loads(done.stdout)["rows"]] == [len(LOG)]
    assert "Traceback" not in said
    assert list(here.iterdir()) == []
    assert list(served.root.rglob("*.part")) == []
    stored = read_rankings(served.root / "rows", ["state_sha256"]).to_pylist()
    assert [(row["log_index"], row["state_sha256"]) for row in stored] == [
        (row["log_index"], row["state_sha256"]) for row in ranked(LOG)
    ]


def test_file_system_that_is_away_or_not_ready_is_no_wrong_directory(served: WebHdfs, spark: Session) -> None:
    there = HadoopDirectory(f"{served.uri}/rows", spark.spark)
    there.check_writable("--sink")
    claim_directory(there, "changes")
    with pytest.raises(ConfigError, match="has the rankings of --rows changes, not batches"):
        check_directory(there, "batches")
    for name in ("hdfs.server.namenode.SafeModeException", "ipc.StandbyException"):
        served.refusal = f"org.apache.hadoop.{name}"
        with pytest.raises(UnreachableError, match=rf"/rows is not ready \({name.split('.')[-1]}: "):
            there.check_writable("--sink")
    served.refusal = "org.apache.hadoop.security.AccessControlException"
    with pytest.raises(ConfigError, match=r"--sink: .*/rows cannot be written to \(AccessControlE"):
        there.check_writable("--sink")
    served.stop()
    away = rf"the file system of {served.uri}/rows does not answer \(ConnectException: "
    for asked in (partial(there.names, "."), partial(there.read, "x"), partial(there.add, "x", b"")):
        with pytest.raises(UnreachableError, match=away):
            asked()


def test_query_whose_checkpoint_is_away_is_not_given_up(
    served: WebHdfs, spark: Session, tmp_path: Path
) -> None:
    """Its error is one that `rank` outlasts, however often it comes."""
    spark.spark.range(3).write.parquet(str(tmp_path / "in"))
    stream = spark.spark.readStream.schema("id long").parquet(str(tmp_path / "in"))
    writer = stream.writeStream.format("noop").option("checkpointLocation", f"{served.uri}/rank")
    query = writer.start()
    query.processAllAvailable()
    served.stop()
    spark.spark.range(3).write.mode("append").parquet(str(tmp_path / "in"))
    with pytest.raises(StreamingQueryException) as caught:
        query.processAllAvailable()
    assert isinstance(query_error(caught.value), UnreachableError)
    with pytest.raises(Py4JJavaError) as refused:
        writer.start()
    assert isinstance(query_error(refused.value), UnreachableError)
