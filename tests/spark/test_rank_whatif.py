"""`garlicfarm rank whatif`, as its users run it. Spark's part is done in this process, but for one test."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from garlicfarm.cli import run
from garlicfarm.errors import GarlicFarmError
from garlicfarm_plugin_spark import session, whatif_job
from garlicfarm_plugin_spark.grid import Setting, settings_of
from garlicfarm_plugin_spark.recorded_log import read_directory
from garlicfarm_plugin_spark.session import Session
from garlicfarm_plugin_spark.whatif import Outcome, Recording
from garlicfarm_plugin_spark.whatif_job import Answer, Question, compare
from tests.spark.feed_server import FeedServer, feed_server
from tests.spark.test_recorded_log import GENESIS, ROWS, entries, store

GRID = ("--grid", "margin=0,100000", "--grid", "R=3,8")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    store(tmp_path / "data", GENESIS, ROWS)
    return tmp_path / "data"


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    """The questions that were asked."""
    asked: list[Question] = []

    async def compare(question: Question, tell: Callable[[Answer], None]) -> None:
        asked.append(question)
        recording = Recording(question.log.farm, question.log.rows())
        for setting in (Setting(), *question.settings):
            await trio.lowlevel.checkpoint()
            tell(Answer(setting, recording.outcome(setting)))

    monkeypatch.setattr(whatif_job, "compare", compare)
    monkeypatch.setattr(session, "check_installed", lambda: None)
    return asked


def test_whatif_prints_a_row_for_each_setting_with_the_least_lost_first(
    data: Path, in_process: list[Question], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["rank", "whatif", "--log", str(data), *GRID, "--grid", "weight.job_lag=15,40"]) == 0
    title, header, *rows = capsys.readouterr().out.splitlines()
    assert title.startswith(f"farm farm: entries 1 to {len(ROWS)}, ")
    assert header.split("  ")[0] == ""
    assert [column for column in header.split("  ") if column][:3] == [" MARGIN", "R", "ROUTER UPTIME"]
    assert len(rows) == 9
    lost = [int(row.split()[-1]) for row in rows]
    assert lost == sorted(lost)
    assert [row.split()[1:3] for row in rows if row.startswith("*")] == [["20000", "3"]]


def test_whatif_as_json_has_all_figures(
    data: Path, in_process: list[Question], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["rank", "whatif", "--log", str(data), *GRID, "-o", "json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["schema"], body["farm"], body["farm_id"]) == (
        "garlicfarm.whatif/1",
        "farm",
        GENESIS.farm_id.hex(),
    )
    assert (body["first_index"], body["last_index"]) == (1, len(ROWS))
    assert sorted((row["margin"], row["R"], row["current"]) for row in body["settings"]) == [
        (0, 3, False),
        (0, 8, False),
        (20_000, 3, True),
        (100_000, 3, False),
        (100_000, 8, False),
    ]
    assert all(row["span_ms"] > 0 and sum(row["weights"].values()) == 100 for row in body["settings"])
    assert run(["rank", "whatif", "--log", str(data), *GRID, "-o", "jsonl"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for line in [*lines, *body["settings"]]:
        del line["cpu_us"]
    assert lines == body["settings"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--grid", "margin=x"], "values are numbers as 3,6,10"),
        (["--grid", "R=3", "--grid", "R=4"], "--grid R=… is given twice"),
        (
            ["--grid", "R=3", "--log", "/nowhere"],
            "/nowhere is not a node's data directory: name",
        ),
        (["--grid", "R=3", "--parquet", "/proc/x"], "--parquet: /proc cannot be written to"),
        (["--grid", "R=3", "--parquet", "/nowhere/x"], "its directory does not exist"),
        (["--grid", "R=3", "--conf", "x=y"], "must be a setting of Spark"),
        (["--grid", "R=3", "--node", "https://127.0.0.1:1"], "--node needs --user and --password-file"),
        ([], "Missing option '--grid'"),
    ],
)
def test_whatif_used_wrongly_says_so_in_a_sentence(
    options: list[str], told: str, in_process: list[Question], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["rank", "whatif", *options]) in (2, 7)
    shown = capsys.readouterr()
    assert told in shown.err
    assert shown.out == ""
    assert in_process == []


@pytest.mark.usefixtures("signals_restored")
def test_whatif_interrupted_shows_what_is_known(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def compare(question: Question, tell: Callable[[Answer], None]) -> None:
        recording = Recording(question.log.farm, question.log.rows())
        for setting in (Setting(), question.settings[0]):
            tell(Answer(setting, recording.outcome(setting)))
        os.kill(os.getpid(), signal.SIGINT)
        await trio.sleep_forever()

    monkeypatch.setattr(whatif_job, "compare", compare)
    monkeypatch.setattr(session, "check_installed", lambda: None)
    assert run(["rank", "whatif", "--log", str(data), *GRID]) == 130
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 4
    assert shown.err == "interrupted after 2 of 5 settings\n"


def test_whatif_that_fails_shows_what_is_known_and_why(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def compare(question: Question, tell: Callable[[Answer], None]) -> None:
        tell(Answer(Setting(), Recording(question.log.farm, question.log.rows()).outcome(Setting())))
        raise GarlicFarmError("Spark's Java process ended")

    monkeypatch.setattr(whatif_job, "compare", compare)
    monkeypatch.setattr(session, "check_installed", lambda: None)
    assert run(["rank", "whatif", "--log", str(data), *GRID]) == 1
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 3
    assert shown.err == "error: Spark's Java process ended\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FeedServer]:
    with feed_server(tmp_path / "node", entries(ROWS)) as running:
        yield running


def test_whatif_of_running_nodes_is_that_of_their_log(
    server: FeedServer, data: Path, in_process: list[Question], capsys: pytest.CaptureFixture[str]
) -> None:
    login = ["--node", server.url, "--user", "local", "--password-file", str(server.password_file)]
    for source in (login, ["--log", str(data)]):
        assert run(["rank", "whatif", *source, *GRID]) == 0
    live, stored = in_process
    assert list(live.log.rows()) == list(stored.log.rows())
    assert run(["rank", "whatif", *login, "--farm", "other", *GRID]) == 2
    assert "has no farm 'other'" in capsys.readouterr().err


class LateCores:
    """A cluster of whose four cores one is there at first. Stands in for session, context, frame and log."""

    def __init__(self) -> None:
        self.spark = self.sparkContext = self
        self.defaultParallelism = 1
        self.all_busy = threading.Barrier(4)

    def broadcast(self, log: Any) -> Any:
        return SimpleNamespace(value=log)

    def parallelize(self, settings: list[Setting], slices: int) -> Any:
        def collect(task: Callable[[Setting], Outcome]) -> list[Outcome]:
            if self.defaultParallelism == 4:
                self.all_busy.wait(240)  # broken if fewer run at a time
            self.defaultParallelism = 4
            return [task(setting) for setting in settings]

        return SimpleNamespace(map=lambda task: SimpleNamespace(collect=partial(collect, task)))

    def close(self) -> None:
        pass


def test_comparison_uses_the_cores_that_come_after_it_began(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")
    monkeypatch.setattr(whatif_job, "Session", lambda *_, **__: LateCores())
    settings = settings_of([("margin", tuple(range(8)))])
    told: list[Answer] = []
    trio.run(compare, Question(read_directory(data, None), settings, tmp_path), told.append)
    assert told[0].is_current
    assert len(told) == 9


@pytest.mark.spark
def test_whatif_whose_reader_leaves_has_its_file(
    data: Path, in_process: list[Question], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(*what: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("garlicfarm.cli.rank_whatif._show", show)
    with pytest.raises(SystemExit):
        run(["rank", "whatif", "--log", str(data), *GRID, "--parquet", str(tmp_path / "file")])
    assert (tmp_path / "file").stat().st_size


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_says_of_all_settings_what_this_process_says(
    spark: Session, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet

    monkeypatch.setattr(whatif_job, "Session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "close", lambda: None)  # other tests need it
    file = tmp_path / "whatif.parquet"
    assert run(["rank", "whatif", "--log", str(data), *GRID, "--parquet", str(file)]) == 0
    rows = pyarrow.parquet.read_table(file).to_pylist(maps_as_pydicts="strict")
    recording = Recording("farm", ROWS)
    assert len(rows) == 5
    for row in rows:
        setting = Setting() if row["current"] else Setting(margin=row["margin"], R=row["R"])
        expected = recording.outcome(setting)
        assert {name: row[name] for name in expected.__struct_fields__ if name != "cpu_us"} == {
            name: getattr(expected, name) for name in expected.__struct_fields__ if name != "cpu_us"
        }
        assert (row["farm"], row["farm_id"]) == ("farm", GENESIS.farm_id.hex())
        assert (row["first_index"], row["last_index"]) == (1, len(ROWS))
    assert [row["score_lost"] for row in rows] == sorted(row["score_lost"] for row in rows)
    assert [path.name for path in tmp_path.iterdir()].count(".whatif.parquet.part") == 0


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_comparison_that_is_cancelled_keeps_what_was_told(
    spark: Session, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whatif_job, "Session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "close", lambda: None)
    settings = settings_of([("margin", tuple(range(1000)))])
    question = Question(log=read_directory(data, None), settings=settings, scratch=tmp_path)
    told: list[Answer] = []

    async def main() -> None:
        with trio.CancelScope() as scope:

            def tell(answer: Answer) -> None:
                told.append(answer)
                if len(told) == 3:
                    scope.cancel()

            await compare(question, tell)

    trio.run(main)
    assert 3 <= len(told) < 10
    recording = Recording("farm", ROWS)
    for answer in told:
        assert answer.outcome.score_lost == recording.outcome(answer.setting).score_lost
