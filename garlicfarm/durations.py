"""Dates and durations on the command line. A duration is a number and a unit, as ``90s`` or ``1.5h``; a bare
number is seconds."""

from __future__ import annotations

import re

DURATION_RULE = "seconds, or a number and one of ms, s, m, h, d, such as 90s"

_LAST_DATE_MS = 253_402_300_799_999
_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|[smhd])?")


def parse_ms(text: str) -> int | None:
    """A duration in ms; None if ``text`` is not one."""
    found = _DURATION.fullmatch(text)
    return None if found is None else round(float(found[1]) * _UNITS_MS[found[2] or "s"])


def format_ms(ms: int) -> str:
    """A duration in the largest unit that makes it a whole number."""
    unit = next(unit for unit, length in _UNITS_MS.items() if ms % length == 0)
    return f"{ms // _UNITS_MS[unit]}{unit}"


def date_text(date_ms: int) -> str:
    """A date in UTC, from ms since the epoch; the number itself, beyond the year 9999."""
    from datetime import UTC, datetime

    if date_ms > _LAST_DATE_MS:
        return f"{date_ms} ms"
    return f"{datetime.fromtimestamp(date_ms // 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
