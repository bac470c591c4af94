"""A file system with an authority of its own: Hadoop's `viewfs`, which mounts a directory of this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from garlicfarm.cli import cli
from garlicfarm.errors import ConfigError
from tests.spark.feed_server import feed_server
from tests.spark.script import scripted_log
from tests.spark.stored import ranked, read_rankings
from tests.spark.test_rank_command import inspected, running

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

LOG = scripted_log()
ROWS = [row["log_index"] for row in ranked(LOG)]


def test_rank_at_a_file_system_with_an_authority_keeps_scheme_and_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Continued from there, inspected there, read from where it is mounted; nothing becomes a local path."""
    mounted, here = tmp_path / "mounted", tmp_path / "here"
    mounted.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    table = "spark.hadoop.fs.viewfs.mounttable.barn.link./farms"
    conf = ("--conf", f"{table}=file:{mounted}")
    checkpoint = ("--checkpoint", "viewfs://barn/farms/rank")
    sink = ("--sink", "parquet:viewfs://barn/farms/rows")
    with feed_server(tmp_path / "node", LOG[:30]) as server:
        with running(server, "--once", *conf, *checkpoint, *sink) as rank:
            assert rank.wait() == 0, rank.errors()
        commits = mounted / "rank" / "commits"
        assert sorted(path.name for path in commits.glob("[0-9]*")) == ["0"]
        server.append(LOG[30:])
        with running(server, "--once", *conf, *checkpoint, *sink) as rank:
            assert rank.wait() == 0, rank.errors()
        assert sorted(path.name for path in (mounted / "rank" / "commits").glob("[0-9]*")) == [
            "0",
            "1",
        ]
        with running(server, "--once", *conf, *checkpoint, *sink, "--rows", "batches") as rank:
            assert rank.wait() == 2
            assert rank.errors().splitlines()[-1] == (
                "error: viewfs://barn/farms/rows has the rankings of --rows changes, not batches: give that,"
                " or name another directory"
            )
        done = inspected(server, *conf, *checkpoint, "-o", "json")
        assert done.returncode == 0, done.stderr
        assert [row["index"] for row in json.loads(done.stdout)["rows"]] == [len(LOG)]
    rows = mounted / "rows"
    assert read_rankings(rows, [])["log_index"].to_pylist() == ROWS
    assert not list(mounted.rglob("*.part"))
    assert list(here.iterdir()) == []

    for command in (["compact"], ["history"], ["report", "--html", str(tmp_path / "page.html")]):
        result = CliRunner().invoke(cli, ["rank", *command, str(rows)])
        assert result.exit_code == 0, result.output
        result = CliRunner().invoke(cli, ["rank", *command, "viewfs://barn/farms/rows"])
        assert isinstance(result.exception, ConfigError)
        assert str(result.exception).startswith(
            "viewfs://barn/farms/rows is a URI, and this command needs a path"
        )
    assert read_rankings(rows, [])["log_index"].to_pylist() == ROWS
