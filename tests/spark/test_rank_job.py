"""Which farms a job ranks, and what it tells of them by Spark's progress; no Java runs."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from garlicfarm.client.trust import NodeAccess
from garlicfarm.errors import ConfigError, GarlicFarmError
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm_plugin_spark.job import Job, bounded, ranked_farms, sink_options, source_options
from garlicfarm_plugin_spark.node_reader import FarmHead, NodeReader
from garlicfarm_plugin_spark.offsets import Position, encode_offset
from garlicfarm_plugin_spark.rank_metrics import RankMetrics
from garlicfarm_plugin_spark.runner import QueryRunner, most_members
from tests.publishing.scripted_log import configuration
from tests.spark.feed_server import feed_server

NODES = NodeAccess(("https://a.example:1",), "rita", Path("/p"), pin="sha256-x")
HEADS = {
    "barn": FarmHead("ab" * 16, "publisher", 1, 20),
    "diary": FarmHead("cd" * 16, "log", 1, 5),
    "field": FarmHead("ef" * 16, "publisher", 1, 9),
}


def job(*farms: str, verify: bool = False) -> Job:
    return Job(NODES, farms, "/checkpoint", Path("/scratch"), verify=verify)


def test_job_of_all_farms_ranks_those_of_publishers() -> None:
    assert list(ranked_farms(job(), HEADS)) == ["barn", "field"]
    with pytest.raises(ConfigError, match="no farm of these nodes runs the application publisher"):
        ranked_farms(job(), {"diary": HEADS["diary"]})


def test_job_that_names_a_farm_without_a_ranking_is_refused() -> None:
    assert list(ranked_farms(job("field"), HEADS)) == ["field"]
    with pytest.raises(ConfigError, match="diary runs the application log, not publisher: no ranking"):
        ranked_farms(job("barn", "diary"), HEADS)


@pytest.mark.parametrize(
    ("farms", "option"), [((), "*"), (("barn",), "barn"), (("barn", "field"), "barn field")]
)
def test_source_of_a_job_reads_its_farms_from_their_state(farms: tuple[str, ...], option: str) -> None:
    options = source_options(job(*farms))
    assert (options["farm"], options["startingIndex"]) == (option, "state")
    assert options.get("application") == ("publisher" if option == "*" else None)
    assert "query" not in options


@pytest.mark.parametrize(
    ("rows", "given", "members", "most"),
    [
        ("batches", None, 256, 20_000),
        ("changes", None, 13, 20_000),
        ("changes", None, 256, 1_024),
        ("entries", None, 0, 20_000),
        ("changes", 5_000, 256, 5_000),
    ],
)
def test_batches_of_a_large_farm_are_smaller_where_each_entry_can_have_a_row(
    rows: Any, given: int | None, members: int, most: int
) -> None:
    found = bounded(replace(job("barn"), rows=rows, max_entries=given), members)
    assert source_options(found)["maxEntriesPerTrigger"] == str(most)


def test_largest_farm_is_found_at_the_nodes(tmp_path: Path) -> None:
    with feed_server(tmp_path / "node") as server:
        server.add_farm("barn", []).node.farm.configure(0, configuration(1, 2, 3, 4, 5))
        with closing(NodeReader(server.access)) as reader:
            assert most_members(reader, ["farm"]) == 3
            assert most_members(reader, ["barn", "farm"]) == 5


def test_job_with_a_name_tells_it_to_source_and_sink() -> None:
    named = replace(job("barn"), query="spark")
    assert source_options(named)["query"] == "spark"
    assert sink_options(named) == {
        "url": "https://a.example:1",
        "user": "rita",
        "passwordFile": str(Path("/p").resolve()),
        "pin": "sha256-x",
        "query": "spark",
        "failOnDataLoss": "true",
    }
    assert "failOnDataLoss" not in source_options(named)
    every = replace(named, farms=())
    assert sink_options(every)["failOnDataLoss"] == source_options(every)["failOnDataLoss"] == "false"


class Told:
    """A viewer that keeps what it is told of progress."""

    def __init__(self) -> None:
        self.farms: dict[str, tuple[int | None, int | None]] = {}
        self.counts: list[int] = []
        self.notes: list[str] = []

    async def ranking(self, farm: str, text: str, skipped: object) -> None:
        raise AssertionError

    def progress(self, farm: str, index: int | None, commit_index: int | None) -> None:
        self.farms[farm] = (index, commit_index)

    def verified(self, count: int) -> None:
        self.counts.append(count)

    def note(self, text: str) -> None:
        self.notes.append(text)


def query_runner(given: Job) -> tuple[QueryRunner, Told, RankMetrics]:
    told, metrics = Told(), RankMetrics()
    session: Any = SimpleNamespace(alive=True)
    runner = QueryRunner(given, told, session, lambda: session, metrics)
    runner.committed(HEADS)
    return runner, told, metrics


def progress(batch: int, *rows: tuple[str, int, str], **indexes: int) -> dict[str, Any]:
    farms = {name: {"index": index, "farm_id": HEADS[name].farm_id} for name, index in indexes.items()}
    observed = [
        {"farm": farm, "farm_id": HEADS[farm].farm_id, "log_index": index, "state_sha256": digest}
        for farm, index, digest in rows
    ]
    return {
        "batchId": batch,
        "sources": [{"endOffset": json.dumps({"farms": farms})}],
        "observedMetrics": {"ranked": {"rows": observed}} if rows else {},
    }


async def test_progress_of_each_farm_is_told_and_counted() -> None:
    runner, told, metrics = query_runner(job())
    assert told.farms == {"barn": (None, 20), "field": (None, 9)}
    recent = [progress(0, barn=12), progress(1, barn=15, field=9), progress(2, barn=18, field=9)]
    query = SimpleNamespace(lastProgress=recent[0], recentProgress=recent[:1])
    await runner.report(query)
    query.lastProgress, query.recentProgress = recent[2], recent  # one batch was too short to be seen
    await runner.report(query)
    await runner.report(query)
    assert told.farms == {"barn": (18, 20), "field": (9, 9)}
    assert metrics.registry.get_sample_value("garlicfarm_rank_batches_total") == 3
    assert metrics.registry.get_sample_value("garlicfarm_rank_lag_entries", {"farm": "barn"}) == 2
    runner.committed(None)
    assert told.farms == {"barn": (18, None), "field": (9, None)}


def test_farm_made_anew_is_told_once() -> None:
    runner, told, _ = query_runner(job())
    anew = {**HEADS, "barn": replace(HEADS["barn"], farm_id="01" * 16)}
    anew["diary"] = replace(HEADS["diary"], farm_id="02" * 16)  # is not ranked
    runner.committed(anew)
    runner.committed(anew)
    assert told.notes == ["the farm barn was made again: it is ranked from its beginning"]


def test_farm_that_vanishes_is_told_once_and_one_that_comes_back_anew_too() -> None:
    runner, told, _ = query_runner(job())
    without = {"field": HEADS["field"]}
    runner.committed(without)
    runner.committed(None)
    runner.committed(without)
    runner.committed({**without, "barn": replace(HEADS["barn"], farm_id="01" * 16)})
    assert told.notes == [
        "the nodes have the farm barn no longer: it waits",
        "the farm barn was made again: it is ranked from its beginning",
    ]


async def test_entries_that_a_state_stands_for_are_told() -> None:
    runner, told, _ = query_runner(job())
    first, second = progress(0, barn=12, field=9), progress(1, barn=18, field=9)
    source = {
        "startOffset": first["sources"][0]["endOffset"],
        "endOffset": json.dumps(
            encode_offset(
                {
                    "barn": Position(18, HEADS["barn"].farm_id, 18, b"{}"),
                    "field": Position(9, HEADS["field"].farm_id),
                }
            )
        ),
    }
    await runner.report(SimpleNamespace(lastProgress=first))
    await runner.report(SimpleNamespace(lastProgress={**second, "sources": [source]}))
    assert told.notes == [
        "the entries of the farm barn after index 12 were deleted before they were read: it is ranked on from"
        " a node's state at index 18"
    ]


async def test_digests_that_spark_observes_are_compared_with_the_nodes() -> None:
    runner, told, _ = query_runner(job("barn", verify=True))
    assert runner.verifier is not None
    state = PublisherFold("barn").snapshot()
    barn = ("barn", HEADS["barn"].farm_id)
    runner.verifier.stated(barn, "https://a.example:1", 12, state)
    runner.verifier.stated(barn, "https://a.example:1", 13, state)
    digest = sha256(state).hexdigest()
    one = progress(0, ("barn", 12, digest), barn=12)
    await runner.report(SimpleNamespace(lastProgress=one))
    assert told.counts == [1]
    other = progress(1, ("barn", 13, "00" * 32), barn=13)
    with pytest.raises(GarlicFarmError, match="at index 13 of barn, Spark's state is not that of"):
        await runner.report(SimpleNamespace(lastProgress=other))
