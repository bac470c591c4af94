"""Options, columns, settings and messages of Spark's reference are those of the code. Needs no Spark."""

from __future__ import annotations

import re

import pytest

from garlicfarm_plugin_spark.history import OUTPUT
from garlicfarm_plugin_spark.java import LEAST
from garlicfarm_plugin_spark.options import DEFAULTS as DEFAULT_OPTIONS
from garlicfarm_plugin_spark.options import OPTIONS
from garlicfarm_plugin_spark.ranking import COLUMNS
from garlicfarm_plugin_spark.session import DEFAULTS, LOOPBACK
from garlicfarm_plugin_spark.status_columns import COLUMNS as COLUMNS_OF_STATUSES
from tests.project.pages import ROOT, page, table

PAGE = page("docs/reference/spark.md")
PLUGIN = ROOT / "plugins" / "garlicfarm_plugin_spark"
SOURCE = (PLUGIN / "source.py").read_text(encoding="utf-8")  # importing it takes pyspark


def rows(title: str) -> list[list[str]]:
    """The rows of the first table whose header is ``title``, without their backticks."""
    return [[cell.strip("`") for cell in row] for row in table(PAGE, rf"{title} \|")]


def tables(title: str) -> list[dict[str, str]]:
    """All tables with this header: first column → second one."""
    found = re.findall(rf"^\| {title} \|.*\n\|[-|]*\n((?:^\|.*\n)+)", PAGE, re.MULTILINE)
    return [dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \|", table, re.MULTILINE)) for table in found]


def test_source_page_has_every_option_with_its_default() -> None:
    required = dict.fromkeys(("url", "farm", "user", "passwordFile"), "required")
    found = {row[0]: row[1] for row in rows("option")}
    assert found.pop("url.NAME") == "none"
    assert found == {**dict.fromkeys(OPTIONS, "none"), **DEFAULT_OPTIONS, **required}


def test_sink_page_has_every_option() -> None:
    sink = (PLUGIN / "sink.py").read_text(encoding="utf-8")
    (line,) = re.findall(r"^OPTIONS = (.*)$", sink, re.MULTILINE)
    assert {row[0] for row in rows("option of the sink")} == {*re.findall(r'"(\w+)"', line), "url.NAME"}


def test_source_page_has_the_columns_of_source_rankings_and_history() -> None:
    schema = re.search(r'^SCHEMA = "(.*)"$', SOURCE, re.MULTILINE)
    assert schema is not None
    schemas = (schema[1], COLUMNS, OUTPUT)
    expected = [dict(re.findall(r"`?(\w+)`? (\w+(?:<.*?>)?)(?:, |$)", text)) for text in schemas]
    assert tables("column") == expected


def test_statuses_page_has_every_column() -> None:
    assert [row[0] for row in rows("status column")] == list(COLUMNS_OF_STATUSES)


def test_settings_are_those_of_the_session() -> None:
    shown = {row[0]: row[1].partition("`")[0] for row in rows("setting")}
    assert "only this user can read" in shown.pop("spark.local.dir")
    assert shown == {**DEFAULTS, **LOOPBACK}


@pytest.mark.parametrize("message", [row[0] for row in rows("message")])
def test_message_on_the_page_is_one_of_the_code(message: str) -> None:
    dafka = PLUGIN.with_name("garlicfarm_plugin_dafka")
    rooms = (ROOT / "garlicfarm" / room for room in ("admin", "client", "credentials", "storage"))
    folders = (PLUGIN, dafka, *rooms)
    said = "\n".join(path.read_text(encoding="utf-8") for each in folders for path in each.glob("*.py"))
    said = re.sub(r'"\s*\n\s*f?"', "", said).replace("{LEAST}", str(LEAST))
    assert message.strip(" …") in re.sub(r"\{[^{}\n]*\}", "…", said)


@pytest.mark.parametrize(
    "option", re.findall(r'\.option\("(\w+)"', (ROOT / "docs/howto/rank-with-spark.md").read_text())
)
def test_guide_uses_options_that_exist(option: str) -> None:
    assert option in {row[0] for row in rows("option")}
