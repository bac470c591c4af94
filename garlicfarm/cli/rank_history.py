"""``rank history``: what stored rankings say of the members, by hour or day."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.options import Options, print_rows, shared_options
from garlicfarm.cli.rank import plugin


@click.command(cls=Command, examples=["garlicfarm rank history rankings --by hour"])
@click.argument("directory", type=click.Path(file_okay=False))
@click.option("--by", type=click.Choice(["hour", "day"]), default="day", show_default=True, help="In UTC.")
@click.option("--farm", metavar="NAME", help="Only this farm.")
@shared_options("output")
def history(options: Options, directory: str, by: str, farm: str | None) -> None:
    """Show availability, tenure, flaps, hand-overs and scores of each member, by hour or day.

    DIRECTORY is that of `rank --sink parquet:DIRECTORY`. Needs the extra `spark`, but starts no Spark.
    """
    from garlicfarm.cli.sign_of_life import run_blocking

    stored, path = plugin("history").stored, plugin("directory").local_path(directory)
    rows = run_blocking("the stored rankings to be read", lambda: list(stored(path, by, farm)))
    print_rows(
        options.output,
        "garlicfarm.rank-history/1",
        _lines(rows) if options.output == "table" else rows,
    )


def _lines(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, object]]:
    """As a person reads them, with the ids where a name has several: a farm was made anew."""
    rows = list(rows)
    ids = {(row["farm"], row["farm_id"]) for row in rows}
    is_anew = len(ids) > len({farm for farm, _ in ids})
    return [_line(row, is_anew=is_anew) for row in rows]


def _line(row: Mapping[str, Any], *, is_anew: bool) -> dict[str, object]:
    from datetime import UTC, datetime

    period = datetime.fromtimestamp(row["period_ms"] / 1000, UTC)
    return {
        "farm": row["farm"],
        **({"farm_id": row["farm_id"]} if is_anew else {}),
        "period": f"{period:%Y-%m-%d %H:%M}Z",
        "member": row["member"],
        "known": _seconds(row["known_ms"]),
        "availability": _percent(row["availability"]),
        "tenure": _percent(row["tenure"]),
        "flaps": row["flaps"],
        "handovers": row["handovers"],
        "handover_p50": _seconds(row["handover_p50_ms"]),
        "longest": _seconds(row["handover_most_ms"]),
        "score_p5": _points(row["score_p05"]),
        "p50": _points(row["score_p50"]),
        "p95": _points(row["score_p95"]),
    }


def _points(score: float | None) -> str:
    return "-" if score is None else f"{score:,.0f}"


def _percent(share: float | None) -> str:
    """Rounded down: 100 % is all of it."""
    return "-" if share is None else f"{int(share * 10_000) / 100:.2f}%"


def _seconds(ms: float | None) -> str:
    return "-" if ms is None else f"{ms / 1000:,.1f}s"
