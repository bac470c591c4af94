"""``rank history``: what stored rankings say of the members, by hour or day."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from garlicfarm.cli.options import Options, print_rows, shared_options
from garlicfarm.cli.rank import plugin

__all__ = ["history"]


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--by", type=click.Choice(["hour", "day"]), default="day", show_default=True, help="In UTC.")
@click.option("--farm", metavar="NAME", help="Only this farm.")
@shared_options("output")
def history(options: Options, directory: Path, by: str, farm: str | None) -> None:
    """Show availability, tenure, flaps, hand-overs and scores of each member, by hour or day.

    DIRECTORY is that of `rank --sink parquet:DIRECTORY`. Needs the extra `spark`, but starts no Spark.
    """
    rows = plugin("history").stored(directory, by, farm)
    print_rows(
        options.output,
        "garlicfarm.rank-history/1",
        map(_line, rows) if options.output == "table" else rows,
    )


def _line(row: Mapping[str, Any]) -> dict[str, object]:
    """As a person reads it."""
    from datetime import UTC, datetime

    period = datetime.fromtimestamp(row["period_ms"] / 1000, UTC)
    return {
        "farm": row["farm"],
        "period": f"{period:%Y-%m-%d %H:%M}Z",
        "member": row["member"],
        "known": _seconds(row["known_ms"]),
        "availability": _percent(row["availability"]),
        "tenure": _percent(row["tenure"]),
        "flaps": row["flaps"],
        "handovers": row["handovers"],
        "handover_p50": _seconds(row["handover_p50_ms"]),
        "longest": _seconds(row["handover_most_ms"]),
        **dict(zip(("score_p5", "p50", "p95"), _scores(row), strict=True)),
    }


def _scores(row: Mapping[str, Any]) -> Iterator[str]:
    for name in ("score_p05", "score_p50", "score_p95"):
        yield "-" if row[name] is None else f"{row[name]:,.0f}"


def _percent(share: float | None) -> str:
    """Rounded down: 100 % is all of it."""
    return "-" if share is None else f"{int(share * 10_000) / 100:.2f}%"


def _seconds(ms: float | None) -> str:
    return "-" if ms is None else f"{ms / 1000:,.1f}s"
