"""Durations on the command line: one grammar for all options."""

from __future__ import annotations

import click
import pytest

from garlicfarm.cli.options import Seconds
from garlicfarm.durations import DURATION_RULE, date_text, format_ms, parse_ms
from tests.cli.served import Cli


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500),
        ("1s", 1_000),
        ("1", 1_000),
        ("0.5", 500),
        ("1.5s", 1_500),
        ("90m", 5_400_000),
        ("1h", 3_600_000),
        ("2d", 172_800_000),
    ],
)
def test_number_is_a_duration_with_a_unit_or_in_seconds(text: str, ms: int) -> None:
    assert parse_ms(text) == ms


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 s", "1w", "1e3s", "0x1s", "1s\n", "1" * 10 + "s", "١s"])
def test_anything_else_is_none(text: str) -> None:
    assert parse_ms(text) is None


def test_timeout_is_a_duration_like_any_other(cli: Cli) -> None:
    assert (
        f"'0s' must be {DURATION_RULE}, and at least 1ms"
        in cli("wait", "--for", "leader", "--timeout", "0s", exits=2).err
    )
    context = click.Context(click.Command("wait"))
    assert [Seconds().convert(text, None, context) for text in ("5s", "5", "1.5m", "0.5")] == [5, 5, 90, 0.5]


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
