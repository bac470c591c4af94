"""The README's picture shows the tables as the commands draw them today, and fetches nothing."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

from garlicfarm.cli.ranking_table import Trends, ranking_view
from garlicfarm.cli.status_table import status_view
from garlicfarm.publishing.fold import PublisherFold
from tests.cli.test_cli_tables import drawn

COLUMNS = 150
"""The picture's, see tools/picture.py."""
PICTURE = Path(__file__).parents[2] / "docs" / "images" / "lab.svg"
SVG = PICTURE.read_text(encoding="utf-8")
LINES = [
    # Spaces between columns are no text of their own: each text stands at its x.
    re.sub(r"\s+", " ", " ".join(html.unescape(text) for text in texts)).strip()
    for texts in (
        re.findall(rf'<text class="lab-r\d+" [^>]*clip-path="url\(#lab-line-{number}\)">(.*?)</text>', SVG)
        for number in range(12)
    )
]


def test_picture_is_small_and_fetches_nothing() -> None:
    assert len(SVG) < 60_000
    assert not re.search(r"href|@import|@font-face|url\((?!#)", SVG)
    assert "/tmp/" not in SVG


@pytest.mark.parametrize("which", ["members", "ranking"])
def test_picture_has_the_columns_of_the_tables(which: str) -> None:
    body: dict[str, Any] = {"farm": "farm", "leader": 1, "publisher": 1, "fault_tolerance": 1, "quorum": True}
    body |= {"term": 1, "commit": 1, "members": []}
    made = (
        status_view(body, COLUMNS)
        if which == "members"
        else ranking_view(PublisherFold("farm").ranking(), "", COLUMNS, trends=Trends())
    )
    (header,) = [line for line in drawn(made, COLUMNS) if " ID " in f" {line} "]
    assert " ".join(header.split()) in LINES
