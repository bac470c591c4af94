"""A farm's ranking as a table: the body of ``GET …/ranking``, from a node or from Spark."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Group

TREND_POINTS = 8
LEAST_SPAN = 20_000
"""Scores closer to each other than this look alike in a trend."""
FULL_SCORE = 1_000_000
NARROW_WIDTH, MIDDLE_WIDTH, FULL_WIDTH = 60, 80, 100
PARTS = {
    "router_uptime": "uptime",
    "job_lag": "job lag",
    "tunnel_health": "tunnels",
    "bandwidth_headroom": "bandwidth",
    "destination_health": "leaves",
    "remote_sensing": "sensing",
}


class Trends:
    """The newest scores of each member, ranking by ranking."""

    def __init__(self) -> None:
        self._scores: dict[int, deque[int | None]] = {}
        self._index = -1

    def add(self, body: dict[str, Any]) -> None:
        """Take up a ranking that is newer than the ones before."""
        if body["index"] <= self._index:
            return
        self._index = body["index"]
        for row in body["members"]:
            scores = self._scores.setdefault(row["id"], deque(maxlen=TREND_POINTS))
            scores.append(row["score"])

    def text(self, member: int) -> str | None:
        """A bar per score, on a scale that all members share."""
        from garlicfarm.cli.tables import sparkline

        known = [score for scores in self._scores.values() for score in scores if score is not None]
        if not known or member not in self._scores:
            return None
        low = min(min(known), max(known) - LEAST_SPAN)
        return sparkline(self._scores[member], low, max(known))


def ranking_view(
    body: dict[str, Any],
    title: str,
    width: int,
    *,
    status: dict[str, Any] | None = None,
    trends: Trends | None = None,
) -> Group:
    """A table with a row per member, best first, for a terminal of ``width`` columns, and below it what its
    column of parts shows.

    ``status``: the body of ``GET …/status``, with the members that cannot be reached and the events.
    """
    from rich.console import Group
    from rich.text import Text

    from garlicfarm.admin.health import publishing
    from garlicfarm.cli.status_table import publisher_text
    from garlicfarm.cli.tables import Column, make_table, sparkline
    from garlicfarm.publishing.ranking import reason

    members = [] if status is None else status["members"]
    dead = {member["id"] for member in members if member["role"] == "unreachable"}
    events = [] if status is None else status["events"]
    named = acting = body["publisher"]
    text = str(named)
    if status is not None:
        seen = {**status, "publisher": named}
        text, acting = publisher_text(seen), publishing(seen)
    if named is not None:
        title += f", publisher {text}" + (f" since index {body['since']}" if acting == named else "")
    columns = [
        Column("rank", MIDDLE_WIDTH),
        Column("id"),
        Column("score"),
        *([Column("trend", NARROW_WIDTH)] if trends else []),
        Column("parts", NARROW_WIDTH),
        Column("publisher", MIDDLE_WIDTH),
        Column("mode", FULL_WIDTH),
        Column("recent", FULL_WIDTH),
        Column("eligible", FULL_WIDTH),
        Column("status at", FULL_WIDTH),
        Column("why", wraps=True),
    ]
    rows = [
        (
            "dim"
            if member["id"] in dead or not member["eligible"]
            else "bold green"
            if member["publisher"]
            else "",
            {
                "rank": place if member["eligible"] else None,
                "id": member["id"],
                "score": member["score"],
                "trend": trends and trends.text(member["id"]),
                "parts": sparkline(
                    [part["value"] if part["reported"] else None for part in member["parts"].values()],
                    0,
                    FULL_SCORE,
                )
                or None,
                "publisher": "*" if member["id"] == acting else None,
                "mode": member["mode"],
                "recent": "yes" if member["recent"] and member["id"] not in dead else "no",
                "eligible": "yes" if member["eligible"] else "no",
                "status at": member["index"] or None,
                "why": reason(member, body["since"], events),
            },
        )
        for place, member in enumerate(body["members"], 1)
    ]
    names = dict.fromkeys(name for row in body["members"] for name in row["parts"])
    legend = f"PARTS of the score: {', '.join(PARTS.get(name, name) for name in names)} (·: not reported)"
    return Group(
        make_table(title, columns, rows, width, yielding=("why",)),
        *([Text(legend, style="dim")] if names and width >= NARROW_WIDTH else []),
    )
