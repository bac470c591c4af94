"""The file of `rank whatif`, and its place on the page of `rank report`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from garlicfarm.errors import ConfigError
from garlicfarm_plugin_spark.grid import Setting, settings_of
from garlicfarm_plugin_spark.report import MOST_SETTINGS, report
from garlicfarm_plugin_spark.whatif import Outcome, Recording
from garlicfarm_plugin_spark.whatif_file import read_outcomes, write_outcomes
from tests.spark.script import fold_rows, many_entries
from tests.spark.stored import ranked, write
from tests.spark.test_stored_report import Page

pytestmark = pytest.mark.spark

ENTRIES = many_entries(300)
FARM_ID = ranked(ENTRIES[:20])[0]["farm_id"]
RECORDING = Recording("farm", fold_rows(ENTRIES))
GRIDS = [("margin", tuple(range(0, 400_000, 10_000))), ("weight.job_lag", (20,))]


def outcomes() -> list[tuple[bool, Outcome]]:
    settings = [*settings_of(GRIDS), Setting()]
    return [(setting == Setting(), RECORDING.outcome(setting)) for setting in settings]


def test_file_has_what_was_written_and_replaces_an_older_one(tmp_path: Path) -> None:
    made = outcomes()
    write_outcomes(RECORDING, FARM_ID, made[:1], tmp_path / "whatif.parquet")
    write_outcomes(RECORDING, FARM_ID, made, tmp_path / "whatif.parquet")
    rows = read_outcomes(tmp_path / "whatif.parquet", FARM_ID)
    assert [(row["current"], row["margin"], row["score_lost"], row["weights"]) for row in rows] == [
        (current, one.margin, one.score_lost, one.weights) for current, one in made
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["whatif.parquet"]


def test_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "whatif.parquet"
    with pytest.raises(ConfigError, match="cannot be written"):
        write_outcomes(RECORDING, FARM_ID, outcomes()[:1], tmp_path / "missing" / "x")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_outcomes(path, FARM_ID)
    path.write_bytes(b"none")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_outcomes(path, FARM_ID)
    write_outcomes(RECORDING, "ff" * 16, outcomes()[:1], path)
    with pytest.raises(ConfigError, match=f"of another farm, with the id {'ff' * 16}"):
        read_outcomes(path, FARM_ID)


def test_report_shows_the_settings_that_lost_least_and_the_farm_as_it_was(tmp_path: Path) -> None:
    write(tmp_path / "history", ranked(ENTRIES))
    assert "With other parameters" not in report(tmp_path / "history")
    made = outcomes()
    write_outcomes(RECORDING, FARM_ID, made, tmp_path / "whatif.parquet")
    page = Page(report(tmp_path / "history", whatif=tmp_path / "whatif.parquet"))
    assert "With other parameters" in page.text
    assert page.text.count("as it was") == 1
    assert f"{len(made) - MOST_SETTINGS - 1} more settings lost more" in page.text
    assert "job_lag" in page.text
