"""Executors and drivers killed in mid-query on a standalone cluster: every batch is ranked, and equal."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark-cluster")

from tests.spark.feed_server import FeedServer, feed_server
from tests.spark.script import Node, many_entries
from tests.spark.services import LOOPBACK, START_S, Standalone, standalone
from tests.spark.test_rank_command import Rank, assert_all_end, command, descendants, running

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(1200)]

BATCH = 40
BATCHES = 30
KILLS = 3
LOG = many_entries(BATCH * BATCHES)


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """The nodes' ranking at the end of each batch."""
    node, rankings = Node(), []
    for entry in LOG:
        node.apply(entry)
        if entry.index % BATCH == 0:
            rankings.append(node.expected().ranking)
    return rankings


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FeedServer]:
    with feed_server(tmp_path / "node", LOG) as served:
        yield served


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    with standalone(tmp_path / "cluster", workers=2) as started:
        yield started


def options(cluster: Standalone, checkpoint: Path) -> list[str]:
    """Batches end at the same indexes in each run: all entries are there from the start."""
    words = ["--master", cluster.url, *LOOPBACK, "--checkpoint", str(checkpoint)]
    return [*words, "--once", "--max-entries", str(BATCH)]


def executors(cluster: Standalone) -> list[int]:
    below = {pid for worker in cluster.workers for pid in descendants(worker.pid)}
    return sorted(pid for pid in below if "CoarseGrainedExecutorBackend" in " ".join(command(pid)))


def wait_for_lines(rank: Rank, cluster: Standalone, count: int) -> None:
    deadline = time.monotonic() + START_S
    while len(rank.lines) < count:
        assert rank.process.poll() is None, f"{rank.errors()}\n{cluster.told()}"
        assert time.monotonic() < deadline, f"{len(rank.lines)} rankings, not {count}\n{cluster.told()}"
        time.sleep(0.01)


def test_rank_whose_executors_are_killed_ranks_every_batch_as_the_nodes_do(
    server: FeedServer, cluster: Standalone, tmp_path: Path, expected: list[str]
) -> None:
    chance = random.Random(17)
    killed: list[int] = []
    with running(server, *options(cluster, tmp_path / "checkpoint")) as rank:
        for kill in range(1, KILLS + 1):
            wait_for_lines(rank, cluster, kill * BATCHES // (KILLS + 2))
            time.sleep(chance.uniform(0, 0.5))  # somewhere in the next batch
            killed.append(chance.choice(executors(cluster)))
            os.kill(killed[-1], signal.SIGKILL)
        assert rank.wait() == 0, f"{rank.errors()}\n{cluster.told()}"
    assert len(set(killed)) == KILLS
    assert list(dict.fromkeys(rank.lines)) == expected  # a batch may have been repeated


def test_rank_killed_in_mid_query_goes_on_with_every_batch_as_the_nodes_do(
    server: FeedServer, cluster: Standalone, tmp_path: Path, expected: list[str]
) -> None:
    """Its executors end with it, and the next one ranks on from the checkpoint."""
    chance = random.Random(18)
    lines: list[str] = []
    for kill in range(1, KILLS + 1):
        with running(server, *options(cluster, tmp_path / "checkpoint")) as rank:
            wait_for_lines(rank, cluster, chance.randint(2, BATCHES // (KILLS + 2)))
            time.sleep(chance.uniform(0, 0.5))
            below = descendants(rank.process.pid) | set(executors(cluster))
            rank.process.kill()
            rank.wait()
            assert_all_end(below)
        assert rank.lines[0] not in lines[:-1], f"it began anew after kill {kill - 1}"
        lines += rank.lines
    assert json.loads(lines[-1])["index"] < len(LOG)
    with running(server, *options(cluster, tmp_path / "checkpoint")) as rank:
        assert rank.wait() == 0, f"{rank.errors()}\n{cluster.told()}"
        lines += rank.lines
    assert list(dict.fromkeys(lines)) == expected
