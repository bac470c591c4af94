"""Dates on the command line."""

from __future__ import annotations

__all__ = ["date_text"]


def date_text(date_ms: int) -> str:
    """A date in UTC, from ms since the epoch."""
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(date_ms // 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
