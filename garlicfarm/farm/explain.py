"""The fold's state in words and figures: the ``ranking`` of the admin API, of Spark and of tests.

::

    {"schema": "garlicfarm.ranking/1", "farm", "algorithm", "interval_ms", "R", "farm_time_ms",
     "publisher": id | null, "since": index, "because": word, "due_since": index | null,
     "holders": [id …],
     "members": [{"id", "score": int | null, "parts": {name: {"value", "weight", "reported"}},
                  "mode", "recent", "eligible", "publisher", "index", "date": ms | null,
                  "lead", "sanction", "why": [sentence …]} …]}

Members that are eligible come first, best first (group, score, id), then the others by id. ``because``
says what made ``since`` happen: vacant (nobody was named), ineligible (the one before stopped being
eligible), group (a better group: mode ``on``, or the one before was sanctioned), margin (it led three
times in a row).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from garlicfarm.farm.ranking import MIDDLE, WEIGHTS
from garlicfarm.farm.records import FarmState, View

if TYPE_CHECKING:
    from garlicfarm.farm.state import FarmApplication

__all__ = ["ranking"]


def ranking(farm: FarmApplication, state: FarmState, views: Mapping[int, View]) -> dict[str, object]:
    """The object shown above, of integers, strings, booleans and null."""
    eligible = farm.eligible()
    best_first = sorted(eligible, key=lambda member: (farm.group(member), -views[member].score, member))
    others = [member for member in farm.members if member not in eligible]
    return {
        "schema": "garlicfarm.ranking/1",
        "farm": state.farm,
        "algorithm": state.algorithm,
        "interval_ms": state.interval_ms,
        "R": state.R,
        "farm_time_ms": state.farm_time_ms,
        "publisher": state.publisher,
        "since": state.since,
        "because": state.because,
        "due_since": state.due_since,
        "holders": list(farm.holders),
        "members": [
            _member(farm, state, views.get(member), member, member in eligible)
            for member in (*best_first, *others)
        ],
    }


def _member(
    farm: FarmApplication, state: FarmState, view: View | None, member: int, eligible: bool
) -> dict[str, object]:
    record = state.records[member]
    return {
        "id": member,
        "score": None if view is None else view.score,
        "parts": {} if view is None else {name: _part(name, value) for name, value in view.parts.items()},
        "mode": farm.mode(member),
        "recent": farm.recent(member),
        "eligible": eligible,
        "publisher": member == state.publisher,
        "index": record.index,
        "date": None if view is None else view.document.date,
        "lead": record.lead,
        "sanction": record.sanction,
        "why": _why(farm, state, view, member, eligible),
    }


def _part(name: str, value: int | None) -> dict[str, object]:
    return {
        "value": MIDDLE if value is None else value,
        "weight": WEIGHTS[name],
        "reported": value is not None,
    }


def _why(
    farm: FarmApplication, state: FarmState, view: View | None, member: int, eligible: bool
) -> list[str]:
    if view is None:
        return ["no status yet"]
    record = state.records[member]
    why = [f"{name}: not reported" for name, value in view.parts.items() if value is None]
    if not farm.recent(member):
        why.append(
            f"not recent: {record.against} of {len(farm.members) - 1} other members have posted"
            f" {record.R} times since index {record.index}"
        )
    elif farm.mode(member) == "off":
        why.append("not eligible: its mode is off" + (" by override" if member in state.overrides else ""))
    elif not eligible and farm.eligible():
        why.append("not eligible: it reports no meta.publishing, and others do")
    elif not eligible:
        why.append("not eligible: no recent member reports a usable leaf")
    if record.sanction:
        why.append(
            f"ranks behind the others for {record.sanction} more statuses: it was due and did not publish"
        )
    if member == state.publisher:
        why.append(f"publisher since index {state.since}: {state.because}")
        if state.due_since is None:
            others = ", ".join(str(holder) for holder in farm.holders if holder != member)
            why.append(f"not due to start yet: member {others} has not let go")
    elif member in state.holders:
        why.append(f"has not let go of the role that index {state.holders[member]} took from it")
    return why
