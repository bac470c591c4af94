"""The ranking by Spark Connect: the program of the guide, in a process without a JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from garlicfarm_plugin_spark.ranking import Fold
from tests.spark.feed_server import USER, feed_server
from tests.spark.script import scripted_log
from tests.spark.services import connect_server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
LOG = scripted_log()


def run_program(*words: str, token: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "examples/connect_rankings.py", *words],
        env={**os.environ, "SPARK_CONNECT_AUTHENTICATE_TOKEN": token},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_program_of_the_guide_ranks_by_connect_as_the_nodes_do(tmp_path: Path) -> None:
    """Once with the first entries, once with all: the second time goes on from the checkpoint."""
    lines: list[str] = []
    connect = connect_server(tmp_path / "connect", token="one-of-the-tests")
    with connect as server, feed_server(tmp_path / "node", LOG[:50]) as node:
        words = [server.url, node.url, "farm", USER, str(node.password_file), str(tmp_path)]
        refused = run_program(*words, token="another")
        assert refused.returncode != 0
        assert "Invalid authentication token" in refused.stderr
        for upto in (50, len(LOG)):
            node.append(LOG[node.farm.commit_index : upto])
            done = run_program(*words, token="one-of-the-tests")
            assert done.returncode == 0, f"{done.stderr}\n{server.last_lines()}"
            lines = done.stdout.splitlines()
    rows = [(each.index, each.term, int(each.value_type), each.value) for each in LOG]
    expected = list(Fold("farm").rankings(rows, "changes"))
    assert 10 < len(expected) < len(LOG)
    assert lines == [f"{row['log_index']} {row['publisher']} {row['ranking']}" for row in expected]
