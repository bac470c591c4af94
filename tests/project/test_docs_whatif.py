"""The figures, grids and bounds of what-if on its page are those of the code. Needs no Spark."""

from __future__ import annotations

import re

from garlicfarm_plugin_spark.grid import MAX_SETTINGS, parse_grid
from garlicfarm_plugin_spark.period import FLAP_INTERVALS
from garlicfarm_plugin_spark.whatif import AWAY_INTERVALS, Outcome
from tests.project.pages import ROOT

PAGE = (ROOT / "docs/reference/spark.md").read_text(encoding="utf-8")
SECTION = re.search(r"^## What-if\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
GUIDE = (ROOT / "docs/howto/choose-parameters.md").read_text(encoding="utf-8")
FILE = (ROOT / "plugins/garlicfarm_plugin_spark/whatif_file.py").read_text(encoding="utf-8")


def section() -> str:
    assert SECTION is not None
    return SECTION[1]


def flowing(text: str) -> str:
    """Without line breaks."""
    return " ".join(text.split())


def test_figures_on_the_page_are_all_columns_of_the_file() -> None:
    shown = re.findall(r"^\| `(\w+)` \| `[a-z0-9<>, ]+` \|", section(), re.MULTILINE)
    log = re.findall(r'\("(\w+)", pyarrow', FILE)
    assert {*shown} == {*log, *Outcome.__struct_fields__}
    assert len(shown) == len({*shown}) > 15


def test_bounds_on_the_page_are_those_of_the_code() -> None:
    assert f"at most {MAX_SETTINGS:,}" in flowing(section())
    assert f"named for less than {FLAP_INTERVALS} intervals" in flowing(section())
    assert f"more than {AWAY_INTERVALS} intervals later" in flowing(section())
    assert f"within {FLAP_INTERVALS} intervals" in flowing(GUIDE)
    assert parse_grid("margin=0,1000000")
    assert parse_grid("R=3,1000")


def test_grids_of_the_guide_can_be_parsed() -> None:
    grids = re.findall(r"--grid (\S+=[\d:,]+)", GUIDE)
    assert len(grids) > 3
    for grid in grids:
        parse_grid(grid)
