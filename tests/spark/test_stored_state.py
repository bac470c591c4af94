"""What a checkpoint keeps, read back through Spark; files of a URI, through Hadoop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from garlicfarm.errors import ConfigError, UnreachableError
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm_plugin_spark.directory import HadoopDirectory
from garlicfarm_plugin_spark.ranking import rankings
from garlicfarm_plugin_spark.session import Session
from garlicfarm_plugin_spark.stored_state import StoredFold, check_state, stored_folds
from tests.spark.feed_server import FARM_ID, FeedServer, feed_server
from tests.spark.script import Node, scripted_log

if TYPE_CHECKING:
    import pandas

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

LOG = scripted_log()[:20]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeedServer]:
    with feed_server(tmp_path_factory.mktemp("node"), LOG) as running:
        yield running


def finish(ranked: Any, checkpoint: str) -> None:
    writer = ranked.writeStream.outputMode("append").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).format("noop").start().awaitTermination()


def entries(spark: Session, server: FeedServer) -> Any:
    options = server.options(startingIndex="state")
    return spark.spark.readStream.format("garlicfarm").options(**options).load()


def test_checkpoint_has_the_state_of_the_nodes(spark: Session, server: FeedServer, tmp_path: Path) -> None:
    checkpoint = f"file:{tmp_path / 'a b'}"
    finish(rankings(entries(spark, server)), checkpoint)
    node = Node()
    for entry in LOG:
        node.apply(entry)
    assert stored_folds(spark.spark, checkpoint) == [StoredFold(FARM_ID, len(LOG), node.farm.snapshot())]
    check_state(spark.spark, checkpoint)


@pytest.mark.parametrize(
    ("key", "state", "sentence"),
    [
        (
            "farm_id",
            {"algorithm": 9},
            "another version of the rules .*algorithm 9.*: rank with .* and a new directory for --sink",
        ),
        ("farm_id", {"members": "all"}, "is damaged .*: name a new checkpoint"),
        ("farm", {}, "keeps its state by farm, as another version of garlicfarm did"),
    ],
)
def test_checkpoint_of_other_rules_or_shape_is_refused(
    spark: Session, server: FeedServer, tmp_path: Path, key: str, state: dict[str, Any], sentence: str
) -> None:
    snapshot = msgspec.json.decode(PublisherFold("farm").snapshot()) | state
    stored = msgspec.json.encode(snapshot)

    def fold(group: tuple[str], frames: Iterator[pandas.DataFrame], kept: Any) -> Iterator[pandas.DataFrame]:
        kept.update((20, stored))
        yield from ()

    made = entries(spark, server).groupBy(key)
    made = made.applyInPandasWithState(
        fold, "farm string", "log_index bigint, snapshot binary", "append", "NoTimeout"
    )
    checkpoint = f"file:{tmp_path / 'checkpoint'}"
    finish(made, checkpoint)
    with pytest.raises(ConfigError, match=sentence):
        check_state(spark.spark, checkpoint)


def test_files_of_a_uri_are_read_and_written_through_hadoop(spark: Session, tmp_path: Path) -> None:
    directory = HadoopDirectory(f"file:{tmp_path / 'new'}", spark.spark)
    assert directory.names("offsets") == []
    directory.check_writable("--checkpoint")
    assert [path.name for path in (tmp_path / "new").iterdir() if path.suffix != ".crc"] == []
    (tmp_path / "new" / "offsets").mkdir()
    (tmp_path / "new" / "offsets" / "0").write_bytes(b"v1\n\xff")
    assert directory.names("offsets") == ["0"]
    assert directory.read("offsets/0") == b"v1\n\xff"
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--sink: file:\S+/file/in cannot be written to \(.+\): name "):
        HadoopDirectory(f"file:{tmp_path / 'file' / 'in'}", spark.spark).check_writable("--sink")
    with pytest.raises(ConfigError, match=r"foo://bar cannot be read \(.*foo.*\)"):
        HadoopDirectory("foo://bar", spark.spark).names("offsets")
    with pytest.raises(UnreachableError, match=r"of hdfs:\S+ does not answer \(ConnectException: "):
        HadoopDirectory("hdfs://127.0.0.1:1/rank", spark.spark).names("offsets")
