"""A page about a farm's history, in one file: charts as SVG, no script, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from garlicfarm.errors import ConfigError
from garlicfarm.publishing.ranking import BECAUSE
from garlicfarm_plugin_spark.charts import WIDTH, score_ticks
from garlicfarm_plugin_spark.history import INPUT, LONGEST_MS, By
from garlicfarm_plugin_spark.overview import Change, Charts, Outline, Row
from garlicfarm_plugin_spark.period import PERIODS_MS, date_of
from garlicfarm_plugin_spark.replays import varied_parts
from garlicfarm_plugin_spark.stored_rows import StoredFarm, no_time, stored_farms
from garlicfarm_plugin_spark.whatif_file import read_outcomes

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
    stored = _stored(directory, farm)
    farm_id, begin_ms, since = _window(stored, days)
    outline = Outline(begin_ms, MOST_CHANGES)
    for row in stored.rows(farm_id, _COLUMNS, since=since):
        outline.follow(row)
    axis = outline.axis
    if axis is None:
        raise no_time(directory, stored.name)
    charts = Charts(outline, axis, PERIODS_MS[by], outline.members[:MOST_MEMBERS])
    for row in stored.rows(farm_id, _COLUMNS, since=since):
        if row["log_index"] > outline.last_index:  # a writer has added some since
            break
        charts.follow(row)
    scores = score_ticks(*outline.scores or (0, 0))
    scale = scores[0], scores[-1]
    whole = charts.all_time.rest()
    texts = _texts(stored, farm_id, since, [change.row["log_index"] for change in outline.changes])
    return _PAGES.get_template("report.html").render(
        farm=stored.name,
        farm_id=farm_id,
        by=by if charts.periods_a_bar == 1 else f"{charts.periods_a_bar} {by}s",
        width=WIDTH,
        axis=axis,
        scores=[((scale[1] - each) / (scale[1] - scale[0]) * SCORES_HEIGHT, each) for each in scores],
        first=outline.first_index,
        last=outline.last_index,
        changes_of_publisher=outline.changes_of_publisher,
        whole=whole,
        left_out=max(0, len(whole) - MOST_MEMBERS),
        members=[
            {
                "id": member,
                "colour": number % COLOURS,
                "lane": lane.stretches(),
                "scores": charts.curves[member].lines(scale, SCORES_HEIGHT),
                "bars": charts.bars(member, BARS_HEIGHT),
            }
            for number, (member, lane) in enumerate(charts.lanes.items())
        ],
        changes=[_change(each, texts) for each in reversed(outline.changes)],
        whatif=None if whatif is None else _whatif(whatif, farm_id),
        heights={"lane": LANE_HEIGHT, "scores": SCORES_HEIGHT, "bars": BARS_HEIGHT},
    )


def _whatif(path: Path, farm_id: str) -> dict[str, Any]:
    """The settings that lost least, and the farm as it was."""
    rows = read_outcomes(path, farm_id)
    shown = [row for place, row in enumerate(rows) if place < MOST_SETTINGS or row["current"]]
    return {
        "rows": shown,
        "parts": varied_parts(rows),
        "left_out": len(rows) - len(shown),
        "first": rows[0]["first_index"],
        "last": rows[0]["last_index"],
        "most_lost": max(1, *(row["score_lost"] for row in shown)),
    }


def _stored(directory: Path, name: str | None) -> StoredFarm:
    found = stored_farms(directory, name)
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        raise ConfigError([f"{directory} has the farms {names}: name one with --farm"])
    return found[0]


def _window(stored: StoredFarm, days: float | None) -> tuple[str, int, str]:
    """The id of the farm, the farm time at which the page begins, and the first date to read for it."""
    files = stored.files() if days is None else stored.files(stored.newest_date)
    if not files:
        raise ConfigError([f"{stored.directory} has no rankings of the farm {stored.name}"])
    # A farm that was made anew under its old name has another id: the newest one counts.
    newest = max(files, key=lambda each: each.newest_ms)
    if days is None:
        return newest.farm_id, 0, ""
    begin_ms = max(0, newest.newest_ms - round(days * PERIODS_MS["day"]))
    # The first change is one from the row before it.
    return newest.farm_id, begin_ms, date_of(max(0, begin_ms - LONGEST_MS))


def _texts(stored: StoredFarm, farm_id: str, since: str, indexes: list[int]) -> dict[int, Row]:
    """What the rankings at ``indexes`` say besides: the bodies of ``GET …/ranking``."""
    rows = stored.rows(farm_id, ["ranking"], since=since, indexes=indexes)
    return {row["log_index"]: msgspec.json.decode(row["ranking"]) for row in rows}


def _change(change: Change, texts: Mapping[int, Row]) -> dict[str, Any]:
    """A line of the table: what differs from the row before."""
    row = change.row
    text = texts.get(row["log_index"], {"because": "", "orders": {}})  # its date may have been deleted since
    told = [_told(name, change.before, row, text) for name in row["changed"] if name != "order"]
    return {
        "index": row["log_index"],
        "time_ms": row["farm_time_ms"],
        "told": [each for each in told if each],
    }


def _told(name: str, before: Row | None, row: Row, text: Row) -> str:
    # A second query may begin here with a state. As it sees it, all of that is new.
    is_state = (
        before is not None and "publisher" in row["changed"] and before["publisher"] == row["publisher"]
    )
    if name in ("publisher", "holders") and before is not None and before[name] == row[name]:
        return ""
    match name:
        case "publisher":
            if row["publisher"] is None:
                return "no publisher: no member is eligible"
            took = "" if before is None or before["publisher"] is None else f", after {before['publisher']}"
            return f"member {row['publisher']} publishes{took}: {BECAUSE[text['because']]}"
        case "holders":
            return f"holders: {_ids(row['holders'])}"
        case "recency":
            was = set() if before is None else {*before["recent"]}
            now = {*row["recent"]}
            told = [f"recent now: {_ids(now - was)}"] if now - was else []
            return "; ".join([*told, *([f"no longer recent: {_ids(was - now)}"] if was - now else [])])
        case _:
            orders = [
                f"{what} by {order['by']}"
                for what, order in text["orders"].items()
                if order["index"] == row["log_index"]
            ]
            if is_state and not orders:
                return ""
            return f"policy: {', '.join(orders) or 'an order was taken back'}"


def _ids(members: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(members))) or "none"
