"""The page about stored rankings, and the commands that read them, without a Java process."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from garlicfarm.cli import cli
from garlicfarm.errors import ConfigError
from garlicfarm_plugin_spark.report import MOST_CHANGES, report
from tests.spark.script import many_entries
from tests.spark.stored import ranked, write, write_in_batches

pytestmark = pytest.mark.spark

ROWS = ranked(many_entries(600))
VOID = {"meta", "link", "br", "line", "rect", "polyline"}


class Page(HTMLParser):
    """Checks that tags are closed, and keeps texts and attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.tags: list[str] = []
        self.values: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += [value or "" for _, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += [value or "" for _, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_report_shows_members_changes_and_why(tmp_path: Path) -> None:
    write_in_batches(tmp_path, ROWS, seed=1)
    page = Page(report(tmp_path))
    last = [row for row in ROWS if "publisher" in row["changed"]][-1]
    because = "it is in a better group than the one before"
    assert f"member {last['publisher']} publishes, after" in page.text
    assert because in page.text
    assert "policy: override 4 by alice" in page.text
    assert "no longer recent: 4" in page.text
    assert {"member 1", "member 2", "member 3", "member 4"} <= {*re.findall(r"member \d", page.text)}
    assert page.tags.count("polyline") >= 4


def test_report_is_one_file_without_scripts(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    page = Page(report(tmp_path))
    assert not {"script", "img", "iframe", "object", "form", "a"} & {*page.tags}
    assert not [value for value in page.values if "//" in value or value.startswith("javascript")]
    assert any("default-src 'none'" in value for value in page.values)
    assert "url(" not in report(tmp_path)


def test_report_escapes_what_others_named(tmp_path: Path) -> None:
    rows = [{**row} for row in ROWS[:40]]
    changed = next(row for row in rows if "policy" in row["changed"])
    ranking = json.loads(changed["ranking"])
    hostile = "<script>alert(1)</script>"
    ranking["orders"] = {hostile: {"by": "</td><b>", "date": 1, "index": changed["log_index"]}}
    changed["ranking"] = json.dumps(ranking)
    write(tmp_path, rows)
    page = Page(report(tmp_path))
    assert f"policy: {hostile} by </td><b>" in page.text
    assert "script" not in page.tags


def test_report_of_a_long_history_stays_small(tmp_path: Path) -> None:
    """Its charts have so many columns, and its table so many lines, however many rows there are."""
    few, many = tmp_path / "few", tmp_path / "many"
    write(few, ROWS)
    step_ms = 600_000
    later = [
        {**row, "log_index": number + 1, "farm_time_ms": ROWS[-1]["farm_time_ms"] + number * step_ms}
        for number, row in enumerate(ROWS[-40:] * 100)
    ]
    write(many, later)
    page = report(many, by="day")
    assert len(page) < 400_000
    assert page.count("<tr>") <= MOST_CHANGES + 10


def test_report_needs_one_farm_with_two_rankings(tmp_path: Path) -> None:
    write(tmp_path, ROWS[:1])
    with pytest.raises(ConfigError, match="no two rankings of the farm farm at different times yet"):
        report(tmp_path)
    write(tmp_path, ROWS[1:30])
    write(tmp_path, [{**row, "farm": "barn", "farm_id": "08" * 16} for row in ROWS[:30]])
    with pytest.raises(ConfigError, match="has the farms barn, farm: name one with --farm"):
        report(tmp_path)
    assert "barn: history" in report(tmp_path, "barn")


def test_report_of_a_farm_made_anew_is_of_the_newest(tmp_path: Path) -> None:
    write(tmp_path, ROWS[:30])
    newer = [{**row, "farm_id": "08" * 16, "farm_time_ms": row["farm_time_ms"] + 1} for row in ROWS[:30]]
    write(tmp_path, newer)
    assert f"farm id {'08' * 16}" in report(tmp_path)


def test_command_report_replaces_the_page_or_says_why_not(tmp_path: Path) -> None:
    write(tmp_path / "stored", ROWS)
    page = tmp_path / "report.html"
    page.write_text("old")
    command = ["rank", "report", str(tmp_path / "stored"), "--html"]
    result = CliRunner().invoke(cli, [*command, str(page)])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"wrote {page}\n")
    Page(page.read_text())
    assert page.stat().st_mode & 0o777 == 0o644
    result = CliRunner().invoke(cli, [*command, str(page / "below")])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == f"--html: {page / 'below'} cannot be written (Not a directory)"


def test_command_history_prints_a_line_for_each_member_and_period(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    result = CliRunner().invoke(cli, ["rank", "history", str(tmp_path)])
    assert result.exit_code == 0
    header, *lines = result.stdout.splitlines()
    assert header.split()[:6] == ["FARM", "PERIOD", "MEMBER", "KNOWN", "AVAILABILITY", "TENURE"]
    assert [line.split()[3] for line in lines] == ["1", "2", "3", "4"]
    result = CliRunner().invoke(cli, ["rank", "history", str(tmp_path), "--by", "hour", "-o", "json"])
    body = json.loads(result.stdout)
    assert body["schema"] == "garlicfarm.rank-history/1"
    assert {row["member"] for row in body["rows"]} == {1, 2, 3, 4}
    assert abs(sum(row["tenure"] for row in body["rows"]) - 1) < 0.02
    result = CliRunner().invoke(cli, ["rank", "history", str(tmp_path), "--farm", "barn"])
    assert isinstance(result.exception, ConfigError)


@pytest.mark.parametrize("output", ["table", "json", "jsonl"])
def test_command_history_needs_two_rankings_at_different_times(tmp_path: Path, output: str) -> None:
    write(tmp_path, ROWS[:1])
    for farm, of in (([], ""), (["--farm", "farm"], " of the farm farm")):
        result = CliRunner().invoke(cli, ["rank", "history", str(tmp_path), "-o", output, *farm])
        assert isinstance(result.exception, ConfigError)
        assert str(result.exception) == f"{tmp_path} has no two rankings{of} at different times yet"
        assert result.stdout == ""


def test_command_history_of_a_farm_made_anew_shows_which_one_a_line_is_of(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    write(tmp_path, [{**row, "farm_id": "08" * 16} for row in ROWS[:30]])
    write(tmp_path, [{**row, "farm": "barn", "farm_id": "09" * 16} for row in ROWS[:30]])
    header, *lines = CliRunner().invoke(cli, ["rank", "history", str(tmp_path)]).stdout.splitlines()
    assert header.split()[:4] == ["FARM", "FARM", "ID", "PERIOD"]
    ids = list(dict.fromkeys((line.split()[0], line.split()[1]) for line in lines))
    assert ids == [("barn", "09" * 16), ("farm", "07" * 16), ("farm", "08" * 16)]
    result = CliRunner().invoke(cli, ["rank", "history", str(tmp_path), "--farm", "barn"])
    assert result.stdout.split()[:2] == ["FARM", "PERIOD"]


@pytest.mark.parametrize("command", [["compact"], ["history"], ["report", "--html", "page.html"]])
def test_command_names_a_uri_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for uri in ("hdfs://x/y", "file:///etc"):
        result = CliRunner().invoke(cli, ["rank", *command, uri])
        assert isinstance(result.exception, ConfigError)
        assert str(result.exception) == (
            f"{uri} is a URI, and this command needs a path of this machine, such as a mount"
        )
    write(tmp_path / "a:b", ROWS)
    assert CliRunner().invoke(cli, ["rank", *command, "a:b"]).exit_code == 0


def test_command_compact_says_what_it_merged(tmp_path: Path) -> None:
    write_in_batches(tmp_path, ROWS, seed=1)
    result = CliRunner().invoke(cli, ["rank", "compact", str(tmp_path), "-o", "json"])
    assert result.exit_code == 0
    (row,) = json.loads(result.stdout)["rows"]
    assert (row["farm"], row["date"], row["left"]) == ("farm", "2027-01-15", 1)
    assert row["files"] > 3
    result = CliRunner().invoke(cli, ["rank", "compact", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (0, "")
