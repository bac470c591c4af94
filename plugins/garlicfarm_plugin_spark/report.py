"""A page about a farm's history, in one file: charts as SVG, no script, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from garlicfarm.errors import ConfigError
from garlicfarm.publishing.ranking import BECAUSE
from garlicfarm_plugin_spark.charts import WIDTH, Axis, bars, lanes, lines, score_ticks, states
from garlicfarm_plugin_spark.history import INPUT, WHOLE_MS, By, figures
from garlicfarm_plugin_spark.parquet import read_rankings
from garlicfarm_plugin_spark.period import PERIODS_MS
from garlicfarm_plugin_spark.whatif_file import read_outcomes

__all__ = ["report"]

MOST_MEMBERS = 16
MOST_CHANGES = 100
MOST_SETTINGS = 30
COLOURS = 8
LANE_HEIGHT, SCORES_HEIGHT, BARS_HEIGHT = 22, 200, 36
_COLUMNS = [*INPUT[3:], "changed"]

_PAGES = Environment(
    loader=PackageLoader("garlicfarm_plugin_spark"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_PAGES.filters["when"] = lambda time_ms: f"{datetime.fromtimestamp(time_ms // 1000, UTC):%Y-%m-%d %H:%M:%S}"
_PAGES.filters["percent"] = lambda share: "–" if share is None else f"{int(share * 10_000) / 100:.2f} %"
_PAGES.filters["seconds"] = lambda ms: "–" if ms is None else f"{ms / 1000:,.1f} s"
_PAGES.filters["points"] = lambda score: "–" if score is None else f"{score:,.0f}"


class _Order(msgspec.Struct):
    by: str
    index: int


class _Ranking(msgspec.Struct):
    """What the columns of a row do not say."""

    because: str = ""
    orders: dict[str, _Order] = {}


def report(
    directory: Path,
    farm: str | None = None,
    by: By = "hour",
    days: float | None = None,
    whatif: Path | None = None,
) -> str:
    """The page, HTML, about the rankings that ``directory`` holds.

    :param farm: its name; None: the only one there.
    :param by: what the bars are of.
    :param days: only so much of the newest farm time; None: all.
    :param whatif: a file of `rank whatif --parquet`, to show what other parameters would have led to.
    :raises ConfigError: there are no rankings of this farm, or of several farms and none is named.
    """
    farm, farm_id, rows = _rows(directory, farm, days)
    spans = list(states(rows))
    if not spans:
        raise ConfigError([f"{directory} has no two rankings of the farm {farm} at different times yet"])
    axis = Axis(spans[0].begin_ms, max(spans[-1].end_ms, spans[0].begin_ms + 60_000))
    scores = score_ticks(spans)
    scale = scores[0], scores[-1]
    whole = figures(rows, WHOLE_MS)
    periods = figures(rows, PERIODS_MS[by])
    told = [number for number, row in enumerate(rows) if {*row["changed"]} - {"order"}][-MOST_CHANGES:]
    texts = _texts(directory, farm, farm_id, [rows[number]["log_index"] for number in told])
    return _PAGES.get_template("report.html").render(
        farm=farm,
        farm_id=farm_id,
        by=by,
        width=WIDTH,
        axis=axis,
        scores=[((scale[1] - each) / (scale[1] - scale[0]) * SCORES_HEIGHT, each) for each in scores],
        first=rows[0]["log_index"],
        last=rows[-1]["log_index"],
        changes_of_publisher=sum("publisher" in row["changed"] for row in rows[1:]),
        whole=whole,
        left_out=max(0, len(whole) - MOST_MEMBERS),
        members=[
            {
                "id": each["member"],
                "colour": number % COLOURS,
                "lane": lanes(axis, spans, partial(_word, each["member"])),
                "scores": lines(axis, spans, each["member"], scale, SCORES_HEIGHT),
                "bars": bars(
                    axis,
                    [one for one in periods if one["member"] == each["member"]],
                    PERIODS_MS[by],
                    BARS_HEIGHT,
                ),
            }
            for number, each in enumerate(whole[:MOST_MEMBERS])
        ],
        changes=[
            _change(rows[number - 1] if number else None, rows[number], texts) for number in reversed(told)
        ],
        whatif=None if whatif is None else _whatif(whatif, farm_id),
        heights={"lane": LANE_HEIGHT, "scores": SCORES_HEIGHT, "bars": BARS_HEIGHT},
    )


def _whatif(path: Path, farm_id: str) -> dict[str, Any]:
    """The settings that lost least, and the farm as it was."""
    rows = read_outcomes(path, farm_id)
    shown = [row for place, row in enumerate(rows) if place < MOST_SETTINGS or row["current"]]
    parts = [part for part in rows[0]["weights"] if len({row["weights"][part] for row in rows}) > 1]
    return {
        "rows": shown,
        "parts": parts,
        "left_out": len(rows) - len(shown),
        "first": rows[0]["first_index"],
        "last": rows[0]["last_index"],
        "most_lost": max(1, *(row["score_lost"] for row in shown)),
    }


def _rows(directory: Path, farm: str | None, days: float | None) -> tuple[str, str, list[dict[str, Any]]]:
    """Name, id and rows of the farm."""
    table = read_rankings(directory, _COLUMNS, farm=farm)
    names = sorted(set(table["farm"].to_pylist()))
    if len(names) > 1:
        raise ConfigError([f"{directory} has the farms {', '.join(names)}: name one with --farm"])
    rows = [{**row, "scores": dict(row["scores"])} for row in table.to_pylist()]
    newest = max(rows, key=lambda row: row["farm_time_ms"])
    begin_ms = 0 if days is None else newest["farm_time_ms"] - round(days * PERIODS_MS["day"])
    # A farm that was made anew under its old name has another id: the newest one counts.
    farm_id = newest["farm_id"]
    rows = [row for row in rows if row["farm_id"] == farm_id and row["farm_time_ms"] >= begin_ms]
    return names[0], farm_id, rows


def _texts(directory: Path, farm: str, farm_id: str, indexes: list[int]) -> dict[int, _Ranking]:
    """What the rankings at ``indexes`` say besides."""
    if not indexes:
        return {}
    table = read_rankings(directory, ["ranking"], farm=farm, indexes=indexes)
    return {
        row["log_index"]: msgspec.json.decode(row["ranking"], type=_Ranking)
        for row in table.to_pylist()
        if row["farm_id"] == farm_id
    }


def _word(member: int, row: Mapping[str, Any]) -> str:
    """What the lane of ``member`` shows for a row."""
    if member == row["publisher"]:
        return "publisher"
    if member in row["holders"]:
        return "holder"
    return "recent" if member in row["recent"] else ""


def _change(
    before: Mapping[str, Any] | None, row: Mapping[str, Any], texts: Mapping[int, _Ranking]
) -> dict[str, Any]:
    """A line of the table: what differs from the row before."""
    text = texts[row["log_index"]]
    told = [_told(name, before, row, text) for name in row["changed"] if name != "order"]
    return {
        "index": row["log_index"],
        "time_ms": row["farm_time_ms"],
        "told": [each for each in told if each],
    }


def _told(name: str, before: Mapping[str, Any] | None, row: Mapping[str, Any], text: _Ranking) -> str:
    match name:
        case "publisher":
            if row["publisher"] is None:
                return "no publisher: no member is eligible"
            took = "" if before is None or before["publisher"] is None else f", after {before['publisher']}"
            return f"member {row['publisher']} publishes{took}: {BECAUSE[text.because]}"
        case "holders":
            return f"holders: {_ids(row['holders'])}"
        case "recency":
            was = set() if before is None else {*before["recent"]}
            now = {*row["recent"]}
            told = [f"recent now: {_ids(now - was)}"] if now - was else []
            return "; ".join([*told, *([f"no longer recent: {_ids(was - now)}"] if was - now else [])])
        case _:
            orders = [
                f"{what} by {order.by}"
                for what, order in text.orders.items()
                if order.index == row["log_index"]
            ]
            return f"policy: {', '.join(orders) or 'an order was taken back'}"


def _ids(members: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(members))) or "none"
