"""The directories that `garlicfarm rank` continues from and writes to: paths of this machine, and URIs."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner

from garlicfarm.cli import cli
from garlicfarm.client.trust import NodeAccess
from garlicfarm.errors import ConfigError
from garlicfarm_plugin_spark.checkpoint import check_checkpoint, check_places
from garlicfarm_plugin_spark.directory import LocalDirectory, claim_directory, is_uri, location
from garlicfarm_plugin_spark.job import Job

NODES = NodeAccess((), "u", Path("p"))
SETTINGS = {"spark.sql.shuffle.partitions": "1"}


def write_checkpoint(directory: Path, farm_id: str, partitions: str) -> Path:
    offsets = directory / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    conf = json.dumps({"conf": {"spark.sql.shuffle.partitions": partitions}})
    for batch in ("9", "10"):  # the newest counts, by number
        of = farm_id if batch == "10" else "00"
        offset = {"farms": {"farm": {"index": 5, "farm_id": of}}}
        (offsets / batch).write_text("v1\n" + conf + "\n" + json.dumps(offset))
    return directory


def test_checkpoint_of_another_farm_or_layout_is_refused(tmp_path: Path) -> None:
    settings = {"spark.sql.shuffle.partitions": "1"}
    check_checkpoint(LocalDirectory(tmp_path / "new"), {"farm": "ab"}, settings)
    made = write_checkpoint(tmp_path / "made", "ab", "1")
    check_checkpoint(LocalDirectory(made), {"farm": "ab"}, settings)
    with pytest.raises(ConfigError, match=r"belongs to another farm \(id ab\)"):
        check_checkpoint(LocalDirectory(made), {"farm": "cd"}, settings)
    with pytest.raises(ConfigError, match="has 1 shuffle partitions, not 2"):
        check_checkpoint(LocalDirectory(made), {"farm": "ab"}, {"spark.sql.shuffle.partitions": "2"})
    (made / "offsets" / "11").write_text("rubbish")
    with pytest.raises(ConfigError, match="is not an offset of this query"):
        check_checkpoint(LocalDirectory(made), {"farm": "ab"}, settings)


def test_checkpoint_of_all_farms_takes_one_made_anew_beside_one_that_it_knows(tmp_path: Path) -> None:
    made = write_checkpoint(tmp_path / "made", "ab", "1")
    farms = {name: {"index": 5, "farm_id": farm_id} for name, farm_id in (("barn", "ab"), ("farm", "cd"))}
    conf = json.dumps({"conf": SETTINGS})
    (made / "offsets" / "11").write_text("v1\n" + conf + "\n" + json.dumps({"farms": farms}))
    anew = {"barn": "ef", "farm": "cd"}
    check_checkpoint(LocalDirectory(made), anew, SETTINGS, every=True)
    with pytest.raises(ConfigError, match=r"belongs to another farm \(id ab\) than the barn"):
        check_checkpoint(LocalDirectory(made), anew, SETTINGS)
    with pytest.raises(ConfigError, match=r"belongs to another farm \(id ab, cd\) than the barn"):
        check_checkpoint(LocalDirectory(made), {"barn": "ef", "farm": "01"}, SETTINGS, every=True)


@pytest.mark.parametrize(
    ("where", "passed_on"),
    [
        ("hdfs://name:8020/rank", "hdfs://name:8020/rank"),
        ("s3a://bucket/rank/", "s3a://bucket/rank/"),
        ("file:/srv/a b", "file:/srv/a b"),
        ("/srv/rank", "file:/srv/rank"),
        ("rank", f"file:{Path.cwd()}/rank"),
        ("./hdfs:rank", f"file:{Path.cwd()}/hdfs:rank"),
    ],
)
def test_location_of_a_uri_is_verbatim_and_of_a_path_absolute(where: str, passed_on: str) -> None:
    assert location(where) == passed_on
    assert is_uri(where) == (where == passed_on)


@pytest.mark.spark  # they need pyarrow
@pytest.mark.parametrize("command", [["compact"], ["history"], ["report", "--html", "page.html"]])
def test_commands_that_need_a_path_refuse_a_uri(command: list[str]) -> None:
    done = CliRunner().invoke(cli, ["rank", *command, "viewfs://barn/farms/rows"])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).startswith("viewfs://barn/farms/rows is a URI, and this command needs a path")


def test_places_that_are_uris_are_not_looked_at_as_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They once became local directories named `hdfs:`."""
    monkeypatch.chdir(tmp_path)
    job = Job(NODES, ("farm",), "hdfs://name/rank", tmp_path, sink="parquet:s3a://bucket/rank")
    check_places(job, {"farm": "ab"}, SETTINGS)
    assert list(tmp_path.iterdir()) == []
    check_places(Job(NODES, ("farm",), "rank", tmp_path, sink="parquet:ranked"), {"farm": "ab"}, SETTINGS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank", "ranked"]


def test_checkpoint_with_batches_is_that_of_one_sink(tmp_path: Path) -> None:
    """Before its first batch, a sink may have been mistyped."""

    def check(sink: str) -> None:
        job = Job(NODES, ("farm",), str(tmp_path / "made"), tmp_path, sink=f"parquet:{tmp_path}/{sink}")
        check_places(job, {"farm": "ab"}, SETTINGS)

    check("mistyped")
    check("a")
    write_checkpoint(tmp_path / "made", "ab", "1")
    check("a")
    with pytest.raises(ConfigError, match=rf"is that of --sink parquet:file:{tmp_path}/a, and another sink"):
        check("b")
    with pytest.raises(ConfigError, match=r"or, if that sink was moved, delete \S+/made/\.sink$"):
        check_places(Job(NODES, ("farm",), str(tmp_path / "made"), tmp_path), {"farm": "ab"}, SETTINGS)
    (tmp_path / "made" / ".sink").unlink()
    check("b")


def test_sink_with_other_rows_is_refused_before_spark_starts(tmp_path: Path) -> None:
    claim_directory(LocalDirectory(tmp_path), "changes")
    for rows, is_fit in (("changes", True), ("batches", False)):
        job = Job(NODES, ("farm",), str(tmp_path / "rank"), tmp_path, sink=f"parquet:{tmp_path}", rows=rows)  # type: ignore[arg-type]
        with nullcontext() if is_fit else pytest.raises(ConfigError, match="of --rows changes, not batches"):
            check_places(job, {"farm": "ab"}, SETTINGS)


@pytest.mark.parametrize("where", ["viewfs://barn/a b", "hdfs://name/a%b", "s3a://bucket/a[1]"])
def test_checkpoint_that_spark_could_not_read_back_is_refused(tmp_path: Path, where: str) -> None:
    job = Job(NODES, ("farm",), where, tmp_path)
    with pytest.raises(ConfigError, match="--checkpoint: Spark cannot read back the state at"):
        check_places(job, {"farm": "ab"}, SETTINGS)
