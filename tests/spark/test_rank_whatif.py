"""`garlicfarm rank whatif`, as its users run it. Most tests replay in their own process."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import trio

from garlicfarm.cli import run
from garlicfarm.errors import ConfigError, GarlicFarmError
from garlicfarm.publishing.scoring import WEIGHTS
from garlicfarm_plugin_spark import replays
from garlicfarm_plugin_spark.grid import Setting, settings_of
from garlicfarm_plugin_spark.replays import Answer
from garlicfarm_plugin_spark.whatif import Outcome, Recording
from tests.spark.feed_server import FeedServer, feed_server
from tests.spark.test_recorded_log import GENESIS, ROWS, entries, store

GRID = ("--grid", "margin=0,100000", "--grid", "R=3,8")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    store(tmp_path / "data", GENESIS, ROWS)
    return tmp_path / "data"


@dataclass(frozen=True)
class Question:
    recording: Recording
    settings: Sequence[Setting]
    workers: int


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    """The questions that were asked."""
    asked: list[Question] = []

    async def compare(
        recording: Recording, settings: Sequence[Setting], workers: int, tell: Callable[[Answer], None]
    ) -> None:
        asked.append(Question(recording, settings, workers))
        for setting in (Setting(), *settings):
            await trio.lowlevel.checkpoint()
            tell(Answer(setting, recording.outcome(setting)))

    monkeypatch.setattr(replays, "compare", compare)
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
    assert [row.split()[1:3] for row in rows if row.startswith("*")] == [["50000", "3"]]


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
        (50_000, 3, True),
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
        (["--grid", "margin=x"], "values are numbers such as 3,6,10"),
        (["--grid", "R=3", "--grid", "R=4"], "--grid R=… is given twice"),
        (
            ["--grid", "R=3", "--log", "/nowhere"],
            "/nowhere is not a node's data directory: name",
        ),
        (["--grid", "R=3", "--parquet", "/proc/x"], "--parquet: /proc cannot be written to"),
        (["--grid", "R=3", "--parquet", "/nowhere/x"], "its directory does not exist"),
        (["--grid", "R=3", "--workers", "0"], "0 is not in the range 1<=x<=1024"),
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
@pytest.mark.parametrize(
    ("is_killed", "status", "told"),
    [(True, 130, "interrupted after 2 of 5 settings"), (False, 1, "error: a process ended")],
)
def test_whatif_that_ends_early_shows_what_is_known_and_why(
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_killed: bool,
    status: int,
    told: str,
) -> None:
    async def compare(
        recording: Recording, settings: Sequence[Setting], workers: int, tell: Callable[[Answer], None]
    ) -> None:
        for setting in (Setting(), settings[0]):
            tell(Answer(setting, recording.outcome(setting)))
        if not is_killed:
            raise GarlicFarmError("a process ended")
        os.kill(os.getpid(), signal.SIGINT)
        await trio.sleep_forever()

    monkeypatch.setattr(replays, "compare", compare)
    assert run(["rank", "whatif", "--log", str(data), *GRID]) == status
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 4
    assert shown.err == f"{told}\n"


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
    assert live.recording.history.farm.snapshot() == stored.recording.history.farm.snapshot()
    assert live.recording.last_index == len(ROWS)
    assert run(["rank", "whatif", *login, "--farm", "other", *GRID]) == 2
    assert "has no farm 'other'" in capsys.readouterr().err


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


SETTINGS = settings_of([("margin", (0, 100_000)), ("R", (3, 8)), ("weight.job_lag", (15, 40))])


def told_by_processes(recording: Recording, workers: int) -> dict[Setting, Outcome]:
    told: list[Answer] = []
    trio.run(replays.compare, recording, SETTINGS, workers, told.append)
    assert len(told) == len(SETTINGS) + 1
    return {answer.setting: answer.outcome for answer in told}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3, 100])
def test_processes_say_of_each_setting_what_this_one_says(workers: int) -> None:
    recording = Recording("farm", ROWS)
    for setting, outcome in told_by_processes(recording, workers).items():
        expected = recording.outcome(setting)
        assert msgspec.structs.replace(outcome, cpu_us=0) == msgspec.structs.replace(expected, cpu_us=0)


def test_weights_that_do_not_add_up_are_refused_before_anything_is_replayed() -> None:
    recording = Recording("farm", ROWS)
    wrong, told = Setting(weights=tuple((part, 0) for part in WEIGHTS)), list[Answer]()
    with pytest.raises(ConfigError, match="and 100 are missing"):
        trio.run(replays.compare, recording, [*SETTINGS, wrong], 1, told.append)
    assert told == []


def children() -> set[int]:
    """The processes that this one has started."""
    tasks = Path("/proc/self/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}


@pytest.mark.slow
def test_comparison_that_is_cancelled_keeps_what_was_told_and_leaves_no_process() -> None:
    recording, told, before, during = Recording("farm", ROWS), list[Answer](), children(), set[int]()
    settings = settings_of([("margin", tuple(range(1000)))])

    async def main() -> None:
        with trio.CancelScope() as scope:

            def tell(answer: Answer) -> None:
                told.append(answer)
                during.update(children() - before)
                if len(told) == 3:
                    scope.cancel()

            await replays.compare(recording, settings, 2, tell)

    trio.run(main)
    assert 3 <= len(told) < 10
    assert during
    assert children() == before
    for answer in told:
        assert answer.outcome.score_lost == recording.outcome(answer.setting).score_lost


@pytest.mark.slow
def test_process_that_is_killed_is_told_with_the_way_out() -> None:
    before = children()

    def tell(answer: Answer) -> None:
        for pid in children() - before:
            os.kill(pid, signal.SIGKILL)

    with pytest.RaisesGroup(
        pytest.RaisesExc(GarlicFarmError, match="ended with the status -9: --workers 1 needs"),
        flatten_subgroups=True,
        allow_unwrapped=True,
    ):
        trio.run(replays.compare, Recording("farm", ROWS), SETTINGS, 1, tell)
    assert children() == before
