"""Durations on the command line: one grammar for all options."""

from __future__ import annotations

import pytest

from garlicfarm.cli.dates import date_text
from garlicfarm.cli.durations import format_ms, parse_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500),
        ("1s", 1_000),
        ("1.5s", 1_500),
        ("90m", 5_400_000),
        ("1h", 3_600_000),
        ("2d", 172_800_000),
    ],
)
def test_number_with_a_unit_is_a_duration(text: str, ms: int) -> None:
    assert parse_ms(text) == ms


@pytest.mark.parametrize(
    "text", ["", "1", "s", "-1s", "1 s", "1w", "1e3s", "0x1s", "1s\n", "1" * 10 + "s", "١s"]
)
def test_anything_else_is_none(text: str) -> None:
    assert parse_ms(text) is None


@pytest.mark.parametrize("text", ["500ms", "1s", "90s", "1h", "18h", "2d"])
def test_formatted_duration_is_read_back(text: str) -> None:
    ms = parse_ms(text)
    assert ms is not None
    assert format_ms(ms) == text


@pytest.mark.parametrize(
    ("date_ms", "text"),
    [
        (0, "1970-01-01 00:00:00Z"),
        (253_402_300_799_999, "9999-12-31 23:59:59Z"),
        (253_402_300_800_000, "253402300800000 ms"),
    ],
)
def test_date_is_text_whatever_it_is(date_ms: int, text: str) -> None:
    assert date_text(date_ms) == text
