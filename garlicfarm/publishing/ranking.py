"""The fold's state in words and figures: the ``ranking`` of the admin API, of Spark and of tests.

::

    {"schema": "garlicfarm.ranking/1", "farm", "algorithm", "interval_ms", "R", "margin", "lifetime_ms",
     "farm_time_ms", "publisher": id | null, "since": index, "because": word, "due_since": index | null,
     "holders": [id …], "excluded": [hash …], "orders": {what: {"by", "date", "index"}},
     "publication": {"publishing", "last_published_ms", "can_publish", "leaves", "problems"},
     "members": [{"id", "score": int | null, "parts": {name: {"value", "weight", "reported"}},
                  "mode", "recent", "eligible", "publisher", "index", "date": ms | null,
                  "cost": int | null, "lead", "sanction", "reason": phrase, "why": [sentence …]} …]}

Members that are eligible come first, best first (group, score, id), then the others by id. ``because``
says why the publisher changed at ``since``: vacant (there was no publisher), override (one that is still
in force took the role from its predecessor), ineligible (its predecessor stopped being eligible), group (it
is in a better group: mode ``on``, or its predecessor was sanctioned), margin (it led three times in a row).
``orders``: the user, date and index that set each value in force (`policy`).
``publication``: whether the publisher publishes (`publication`).

The ``reason`` of a member explains its place in one phrase.

The ``why`` of a member has, in this order: the parts that its status does not report, whether it is recent,
whether it is eligible, and where they apply its sanction, that it is the publisher or when it would be, and
that it still holds the role.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from garlicfarm.publishing import publication
from garlicfarm.publishing.documents import PublishConfig
from garlicfarm.publishing.events import SHORT_REASONS, reason_of
from garlicfarm.publishing.fold_state import FarmState, MemberRecord, ScoredStatus
from garlicfarm.publishing.policy import CONSECUTIVE_LEADS
from garlicfarm.publishing.scoring import MIDDLE

__all__ = ["BECAUSE", "Fold", "ranking", "reason"]

BECAUSE: Mapping[str, str] = {
    "": "",
    "vacant": "the role was vacant",
    "override": "an override took it from the one before",
    "ineligible": "the one before was no longer eligible",
    "group": "it is in a better group than the one before",
    "margin": f"it was ahead of the one before {CONSECUTIVE_LEADS} times in a row",
}
"""``because`` in words"""


class Fold(publication.Fold, Protocol):
    """The rules of `garlicfarm.publishing.fold` that a ranking explains, applied to one state."""

    def mode(self, member: int) -> PublishConfig: ...
    def eligible(self) -> list[int]: ...
    def order(self) -> list[int]: ...
    def group(self, member: int) -> tuple[bool, bool]: ...


def ranking(fold: Fold, state: FarmState, statuses: Mapping[int, ScoredStatus]) -> dict[str, object]:
    """The object shown above, of integers, strings, booleans and null."""
    eligible = {*fold.eligible()}
    policy = state.policy
    return {
        "schema": "garlicfarm.ranking/1",
        "farm": state.farm,
        "algorithm": state.algorithm,
        "interval_ms": policy.interval_ms,
        "R": policy.R,
        "margin": policy.margin,
        "lifetime_ms": policy.lifetime_ms,
        "farm_time_ms": state.farm_time_ms,
        "publisher": state.publisher,
        "since": state.since,
        "because": reason_of(state),
        "due_since": state.due_since,
        "holders": list(fold.holders),
        "excluded": list(policy.excluded),
        "orders": {what: msgspec.to_builtins(order) for what, order in sorted(policy.orders.items())},
        "publication": publication.publication(fold, state, statuses),
        "members": [
            _member(fold, state, statuses, member, eligible=member in eligible) for member in fold.order()
        ],
    }


def _member(
    fold: Fold, state: FarmState, statuses: Mapping[int, ScoredStatus], member: int, *, eligible: bool
) -> dict[str, object]:
    record, scored = state.records[member], statuses.get(member)
    parts = {} if scored is None else scored.parts
    return {
        "id": member,
        "score": None if scored is None else scored.score,
        "parts": {name: _part(value, state.policy.weights[name]) for name, value in parts.items()},
        "mode": fold.mode(member),
        "recent": fold.is_recent(member),
        "eligible": eligible,
        "publisher": member == state.publisher,
        "index": record.index,
        "date": None if scored is None else scored.document.date,
        "cost": record.cost,
        "lead": record.lead,
        "sanction": record.sanction,
        "reason": _reason(fold, state, statuses, member, eligible=eligible),
        "why": _why(fold, state, statuses, member, eligible=eligible),
    }


def reason(row: Mapping[str, Any], since: int, events: Iterable[Mapping[str, Any]]) -> str:
    """The ``reason`` of a member's ``row``. While the farm's ``events`` still hold the change, the
    publisher's names its predecessor (the state does not).

    :param since: the ranking's ``since``.
    """
    for event in events:
        if row["publisher"] and event["index"] == since and event["previous"] is not None:
            return f"took over from {event['previous']} at index {since} ({SHORT_REASONS[event['because']]})"
    return str(row["reason"])


def _reason(
    fold: Fold, state: FarmState, statuses: Mapping[int, ScoredStatus], member: int, *, eligible: bool
) -> str:
    if member not in statuses:
        return "no status yet"
    if not fold.is_recent(member):
        return f"no status since index {state.records[member].index}"
    if member == state.publisher:
        return _why_publisher(state)
    if not eligible or state.publisher is None:
        if fold.mode(member) == "off":
            return f"its mode is {_mode(fold, state, member)}"
        return "cannot publish, others can" if fold.eligible() else "no usable leaf in the farm"
    group, foremost = fold.group(member), fold.group(state.publisher)
    if group[0] > foremost[0]:
        return f"behind member {state.publisher}: did not publish when due"
    if group != foremost:
        return f"behind member {state.publisher}, whose mode is on"
    ahead, lead = statuses[member].score - statuses[state.publisher].score, state.records[member].lead
    if ahead < 0:
        return f"{-ahead:,} behind member {state.publisher}"
    if lead:
        return f"{ahead:,} ahead of member {state.publisher}, {lead} of {CONSECUTIVE_LEADS} times"
    return f"{ahead:,} ahead of member {state.publisher}, takes over at {state.policy.margin:,}"


def _why_publisher(state: FarmState) -> str:
    return f"publisher since index {state.since}: {BECAUSE[reason_of(state)]}"


def _mode(fold: Fold, state: FarmState, member: int) -> str:
    return fold.mode(member) + (" by override" if member in state.policy.overrides else "")


def _part(value: int | None, weight: int) -> dict[str, object]:
    return {"value": MIDDLE if value is None else value, "weight": weight, "reported": value is not None}


def _why(
    fold: Fold, state: FarmState, statuses: Mapping[int, ScoredStatus], member: int, *, eligible: bool
) -> list[str]:
    scored, record = statuses.get(member), state.records[member]
    if scored is None:
        return ["not recent: no status yet", "not eligible: it is not recent"]
    why = [f"{name}: not reported" for name, value in scored.parts.items() if value is None]
    why.append(_why_recent(fold, record, member))
    why.append(_why_eligible(fold, state, scored, member, eligible=eligible))
    if record.sanction:
        why.append(
            f"ranks behind the others for {record.sanction} more statuses: it was due and did not publish"
        )
    if member == state.publisher:
        why.append(_why_publisher(state))
        if state.due_since is None:
            others = ", ".join(str(holder) for holder in fold.holders if holder != member)
            why.append(f"not due to start yet: member {others} has not let go")
    elif eligible and state.publisher is not None:
        why.append(_why_not_publisher(fold, state, statuses, member, state.publisher))
    if member != state.publisher and member in state.holders:
        why.append(f"has not let go of the role that index {state.holders[member]} took from it")
    return why


def _why_recent(fold: Fold, record: MemberRecord, member: int) -> str:
    others = len(fold.members) - 1
    if not others:
        return "recent: there are no others to judge it"
    silence = (
        f"{record.against} of {others} other members have posted {record.R} times since index {record.index}"
    )
    if fold.is_recent(member):
        return f"recent: {silence}; it would take {others // 2 + 1}"
    return f"not recent: {silence}"


def _why_eligible(fold: Fold, state: FarmState, scored: ScoredStatus, member: int, *, eligible: bool) -> str:
    mode = _mode(fold, state, member)
    if not fold.is_recent(member):
        return "not eligible: it is not recent"
    if eligible and scored.publishing is None:
        return (
            f"eligible: its mode is {mode}; it reports no meta.publishing, but nor does any other candidate"
        )
    if eligible:
        return f"eligible: its mode is {mode}"
    if fold.mode(member) == "off":
        return f"not eligible: its mode is {mode}"
    if fold.eligible():
        return "not eligible: it reports no meta.publishing, and others do"
    return "not eligible: no recent member reports a usable leaf"


def _why_not_publisher(
    fold: Fold, state: FarmState, statuses: Mapping[int, ScoredStatus], member: int, publisher: int
) -> str:
    group, foremost = fold.group(member), fold.group(publisher)
    if group != foremost:
        reason = "it is sanctioned" if group[0] > foremost[0] else "that one's mode is on"
        return f"behind member {publisher} regardless of the scores: {reason}"
    ahead, lead = statuses[member].score - statuses[publisher].score, state.records[member].lead
    return (
        f"takes over from member {publisher} once {state.policy.margin} ahead at {CONSECUTIVE_LEADS} statuses"
        f" in a row: now {abs(ahead)} {'behind' if ahead < 0 else 'ahead'}, at {lead} so far"
    )
