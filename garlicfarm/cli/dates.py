"""Dates on the command line."""

from __future__ import annotations

__all__ = ["date_text"]

_LAST_DATE_MS = 253_402_300_799_999


def date_text(date_ms: int) -> str:
    """A date in UTC, from ms since the epoch; the number itself, beyond the year 9999."""
    from datetime import UTC, datetime

    if date_ms > _LAST_DATE_MS:
        return f"{date_ms} ms"
    return f"{datetime.fromtimestamp(date_ms // 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
