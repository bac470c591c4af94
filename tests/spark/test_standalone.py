"""`garlicfarm rank` on a standalone cluster: two workers, in processes of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from tests.spark.feed_server import feed_server
from tests.spark.script import expectations, scripted_log
from tests.spark.services import LOOPBACK, Standalone, standalone
from tests.spark.test_rank_command import assert_all_end, descendants, running

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

LOG = scripted_log()
EXPECTED = expectations(LOG)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("cluster"), workers=2) as started:
        yield started
        processes = {pid for each in started.processes for pid in (each.pid, *descendants(each.pid))}
    assert_all_end(processes)


def assert_no_executors_are_left(cluster: Standalone) -> None:
    for worker in cluster.workers:
        worker.wait_for("Asked to launch executor")
        assert_all_end(descendants(worker.pid))


def test_rank_on_two_workers_ranks_as_the_nodes_do_and_leaves_no_executors(
    cluster: Standalone, tmp_path: Path
) -> None:
    with feed_server(tmp_path / "node", LOG) as node:
        options = ("--master", cluster.url, *LOOPBACK, "--checkpoint", str(tmp_path / "checkpoint"))
        with running(node, *options, "--once", "--max-entries", "40") as rank:
            assert rank.wait() == 0, f"{rank.errors()}\n{cluster.told()}"
    assert_no_executors_are_left(cluster)
    assert [json.loads(line)["index"] for line in rank.lines] == [40, 80, 120, len(LOG)]
    assert rank.lines == [EXPECTED[json.loads(line)["index"]].ranking for line in rank.lines]
