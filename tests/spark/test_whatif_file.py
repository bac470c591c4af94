"""The file of `rank whatif`, and its place on the page of `rank report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from garlicfarm.errors import ConfigError
from garlicfarm_plugin_spark.grid import Setting, settings_of
from garlicfarm_plugin_spark.replays import Answer
from garlicfarm_plugin_spark.report import MOST_SETTINGS, report
from garlicfarm_plugin_spark.whatif import Recording
from garlicfarm_plugin_spark.whatif_file import read_outcomes, write_outcomes
from tests.spark.script import fold_rows, many_entries
from tests.spark.stored import ranked, write
from tests.spark.test_stored_report import Page

pytestmark = pytest.mark.spark

ENTRIES = many_entries(300)
FARM_ID = ranked(ENTRIES[:20])[0]["farm_id"]
RECORDING = Recording("farm", fold_rows(ENTRIES))
GRIDS = [("margin", tuple(range(0, 400_000, 10_000))), ("weight.job_lag", (20,))]


LOG = {"farm": "farm", "farm_id": FARM_ID, "first_index": 1, "last_index": len(ENTRIES)}


def outcomes() -> list[dict[str, Any]]:
    settings = [*settings_of(GRIDS), Setting()]
    return [Answer(setting, RECORDING.outcome(setting)).row() for setting in settings]


def test_file_has_what_was_written_and_replaces_an_older_one(tmp_path: Path) -> None:
    made = outcomes()
    write_outcomes(LOG, made[:1], tmp_path / "whatif.parquet")
    write_outcomes(LOG, made, tmp_path / "whatif.parquet")
    rows = read_outcomes(tmp_path / "whatif.parquet", FARM_ID)
    assert rows == [LOG | row for row in made]
    assert [path.name for path in tmp_path.iterdir()] == ["whatif.parquet"]


def test_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "whatif.parquet"
    with pytest.raises(ConfigError, match="cannot be written"):
        write_outcomes(LOG, outcomes()[:1], tmp_path / "missing" / "x")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_outcomes(path, FARM_ID)
    path.write_bytes(b"none")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_outcomes(path, FARM_ID)
    write_outcomes({**LOG, "farm_id": "ff" * 16}, outcomes()[:1], path)
    with pytest.raises(ConfigError, match=f"of another farm, with the id {'ff' * 16}"):
        read_outcomes(path, FARM_ID)


def test_report_shows_the_settings_that_lost_least_and_the_farm_as_it_was(tmp_path: Path) -> None:
    write(tmp_path / "history", ranked(ENTRIES))
    assert "With other parameters" not in report(tmp_path / "history")
    made = outcomes()
    write_outcomes(LOG, made, tmp_path / "whatif.parquet")
    page = Page(report(tmp_path / "history", whatif=tmp_path / "whatif.parquet"))
    assert "With other parameters" in page.text
    assert page.text.count("as it was") == 1
    assert f"{len(made) - MOST_SETTINGS - 1} more settings lost more" in page.text
    assert "job_lag" in page.text
