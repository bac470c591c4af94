"""The fold's state in words and figures: the ``ranking`` of the admin API, of Spark and of tests.

::

    {"schema": "garlicfarm.ranking/1", "farm", "algorithm", "interval_ms", "R", "margin", "lifetime_ms",
     "farm_time_ms", "publisher": id | null, "since": index, "because": word, "due_since": index | null,
     "lease_ms", "lease_ordered_ms", "lease_before_ms", "election_timeout_ms", "counted": [figure …],
     "control_ms", "banned": int, "allowed": int, "forget": {"after_ms", "min_members"},
     "holders": [id …], "excluded": [hash …], "orders": {what: {"by", "date", "index"}},
     "publication": {"publishing", "last_published_ms", "can_publish", "leaves", "problems"},
     "members": [{"id", "score": int | null, "measured": percent | null,
                  "parts": {name: {"value", "weight", "reported", "left_out"}},
                  "mode", "recent", "eligible", "publisher", "index", "date": ms | null,
                  "cost": int | null, "lead", "sanction", "reason": phrase, "why": [sentence …]} …]}

Members that are eligible come first, best first (group, score, id), then the others by id. ``because``
says why the publisher changed at ``since``: vacant (there was no publisher), override (one that is still
in force took the role from its predecessor), ineligible (its predecessor stopped being eligible), group (it
is in a better group: mode ``on``, or its predecessor was sanctioned), margin (it led three times in a row),
lost (the leader found its predecessor lost, D24), unreached (most others could not reach what its predecessor
published, D25).
``lease_ms`` and ``lease_ordered_ms``, which bounds it, are there since level 2; ``lease_before_ms`` while a
longer lease may still run; ``election_timeout_ms`` once a leader told it (D27).
``measured``: how much of the score is measured (`scoring.measured`). ``counted``, since level 3: the figures
that count (`scoring`). Beside it ``control_ms``, for how long a control counts that was reached (D25), and
how many clients are banned, or on the access list (`clients`): a ban that is over counts until the next order
for clients. ``forget``, while there is such an order: members that are silent for so long are removed
(`forgetting`). ``left_out`` is true for a part without any, and else absent.
``orders``: the user, date and index that set each value in force (`policy`).
``publication``: whether the publisher publishes (`publication`).

The ``reason`` of a member explains its place in one phrase.

The ``why`` of a member has, in this order: the parts that are left out, or that its status does not report,
whether it is recent, whether it is eligible, and where they apply its sanction, whether it reaches what the
publisher publishes (D25), that it is the publisher or when it would be, that it still holds the role, and
when it will be removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from garlicfarm.levels import OUTSIDE
from garlicfarm.publishing import forgetting, outside, publication, scoring
from garlicfarm.publishing.documents import OutsideReport
from garlicfarm.publishing.events import SHORT_REASONS, reason_of
from garlicfarm.publishing.farm_queries import FarmQueries
from garlicfarm.publishing.fold_state import MemberRecord, ScoredStatus
from garlicfarm.publishing.policy import CONSECUTIVE_LEADS
from garlicfarm.publishing.scoring import MIDDLE, WEIGHTS

BECAUSE: Mapping[str, str] = {
    "": "",
    "vacant": "the role was vacant",
    "override": "an override took it from the one before",
    "ineligible": "the one before was no longer eligible",
    "group": "it is in a better group than the one before",
    "lost": "the leader no longer heard the one before",
    "unreached": "most other members could not reach what the one before published",
    "margin": f"it was ahead of the one before {CONSECUTIVE_LEADS} times in a row",
}
"""``because`` in words"""


def ranking(farm: FarmQueries) -> dict[str, object]:
    """The object shown above, of integers, strings, booleans and null."""
    eligible, measured = {*farm.eligible()}, farm.measured()
    removals = {silence.member: [silence.told] for silence in forgetting.silences(farm)}
    policy = farm.policy
    return {
        "schema": "garlicfarm.ranking/1",
        "farm": farm.state.farm,
        "algorithm": farm.state.algorithm,
        "interval_ms": policy.interval_ms,
        "R": policy.R,
        "margin": policy.margin,
        "lifetime_ms": policy.lifetime_ms,
        "farm_time_ms": farm.farm_time_ms,
        "publisher": farm.publisher,
        "since": farm.state.since,
        "because": reason_of(farm.state),
        "due_since": farm.due_since,
        **farm.lease_figures(),
        **(_since_level_3(farm) if farm.level >= OUTSIDE else {}),
        **({"forget": msgspec.to_builtins(policy.forget)} if policy.forget else {}),
        "holders": list(farm.holders),
        "excluded": list(policy.excluded),
        "orders": {what: msgspec.to_builtins(order) for what, order in sorted(policy.orders.items())},
        "publication": publication.publication(farm),
        "members": [
            _member(farm, member, measured.get(member), removals.get(member, []), eligible=member in eligible)
            for member in farm.order()
        ],
    }


def _since_level_3(farm: FarmQueries) -> dict[str, object]:
    counted = scoring.names(farm.counted_figures)
    return {
        "counted": counted,
        "control_ms": farm.control_ms,
        "banned": len(farm.clients.banned),
        "allowed": len(farm.clients.allowed),
    }


def _member(
    farm: FarmQueries, member: int, measured: int | None, removal: list[str], *, eligible: bool
) -> dict[str, object]:
    record, scored = farm.state.records[member], farm.statuses.get(member)
    return {
        "id": member,
        "score": None if scored is None else scored.score,
        "measured": measured,
        "parts": {} if scored is None else _parts(scored, farm.policy.weights),
        "mode": farm.mode(member),
        "recent": farm.is_recent(member),
        "eligible": eligible,
        "publisher": member == farm.publisher,
        "index": record.index,
        "date": None if scored is None else scored.document.date,
        "cost": record.cost,
        "lead": record.lead,
        "sanction": record.sanction,
        "reason": _reason(farm, member, eligible=eligible),
        "why": [*_why(farm, member, eligible=eligible), *removal],
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


def _reason(farm: FarmQueries, member: int, *, eligible: bool) -> str:
    if member not in farm.statuses:
        return "no status yet"
    if not farm.is_recent(member):
        return f"no status since index {farm.state.records[member].index}"
    if farm.is_lost(member):
        return "the leader has lost it"
    if member == farm.publisher:
        return _why_publisher(farm)
    if not eligible or farm.publisher is None:
        if farm.mode(member) == "off":
            return f"its mode is {_mode(farm, member)}"
        return "cannot publish, others can" if farm.eligible() else "no usable leaf in the farm"
    group, foremost = farm.group(member), farm.group(farm.publisher)
    if group[0] > foremost[0]:
        cause = "most others did not reach it" if farm.was_unreached(member) else "did not publish when due"
        return f"behind member {farm.publisher}: {cause}"
    if group != foremost:
        return f"behind member {farm.publisher}, whose mode is on"
    ahead, lead = _ahead(farm, member, farm.publisher), farm.state.records[member].lead
    if ahead < 0:
        return f"{-ahead:,} behind member {farm.publisher}"
    if lead:
        return f"{ahead:,} ahead of member {farm.publisher}, {lead} of {CONSECUTIVE_LEADS} times"
    return f"{ahead:,} ahead of member {farm.publisher}, takes over at {farm.policy.margin:,}"


def _ahead(farm: FarmQueries, member: int, publisher: int) -> int:
    return farm.statuses[member].score - farm.statuses[publisher].score


def _why_publisher(farm: FarmQueries) -> str:
    return f"publisher since index {farm.state.since}: {BECAUSE[reason_of(farm.state)]}"


def _mode(farm: FarmQueries, member: int) -> str:
    return farm.mode(member) + (" by override" if member in farm.policy.overrides else "")


def _parts(scored: ScoredStatus, weights: Mapping[str, int]) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for name in WEIGHTS:
        value = scored.parts.get(name)
        told = {"value": MIDDLE if value is None else value, "weight": weights[name]}
        left_out = {} if name in scored.parts else {"left_out": True}
        found[name] = {**told, "reported": value is not None, **left_out}
    return found


def _why(farm: FarmQueries, member: int, *, eligible: bool) -> list[str]:
    scored, record = farm.statuses.get(member), farm.state.records[member]
    if scored is None:
        return ["not recent: no status yet", "not eligible: it is not recent"]
    why = [f"{name}: left out, no recent member reports it" for name in WEIGHTS if name not in scored.parts]
    why += [f"{name}: not reported" for name, value in scored.parts.items() if value is None]
    why.append(_why_recent(farm, record, member))
    why.append(_why_eligible(farm, scored, member, eligible=eligible))
    if record.sanction:
        unreached = "most others did not reach what it published"
        cause = unreached if farm.was_unreached(member) else "it was due and did not publish"
        why.append(f"ranks behind the others for {record.sanction} more statuses: {cause}")
    report = outside.reports(farm, [member]).get(member)
    if report is not None:
        why.append(_why_tested(farm, report))
    if member == farm.publisher:
        why.append(_why_publisher(farm))
        if farm.due_since is None:
            others = ", ".join(str(holder) for holder in farm.holders if holder != member)
            why.append(f"not due to start yet: member {others} has not let go")
    elif eligible and farm.publisher is not None:
        why.append(_why_not_publisher(farm, member, farm.publisher))
    if member != farm.publisher and member in farm.state.holders:
        why.append(f"has not let go of the role that index {farm.state.holders[member]} took from it")
    return why


def _why_recent(farm: FarmQueries, record: MemberRecord, member: int) -> str:
    others = len(farm.members) - 1
    if not others:
        return "recent: there are no others to judge it"
    silence = (
        f"{record.against} of {others} other members have posted {record.R} times since index {record.index}"
    )
    if farm.is_recent(member):
        return f"recent: {silence}; it would take {others // 2 + 1}"
    return f"not recent: {silence}"


def _why_eligible(farm: FarmQueries, scored: ScoredStatus, member: int, *, eligible: bool) -> str:
    mode = _mode(farm, member)
    if not farm.is_recent(member):
        return "not eligible: it is not recent"
    if farm.is_lost(member):
        return "not eligible: the leader has lost it, and no status of it since shows that it knows"
    if eligible and scored.publishing is None:
        return (
            f"eligible: its mode is {mode}; it reports no meta.publishing, but nor does any other candidate"
        )
    if eligible:
        return f"eligible: its mode is {mode}"
    if farm.mode(member) == "off":
        return f"not eligible: its mode is {mode}"
    if farm.eligible():
        return "not eligible: it reports no meta.publishing, and others do"
    return "not eligible: no recent member reports a usable leaf"


def _why_tested(farm: FarmQueries, report: OutsideReport) -> str:
    if outside.reaches(report):
        return f"reaches what member {farm.publisher} publishes"
    times = f"{report.failed} test{'s' if report.failed > 1 else ''} in a row failed"
    control = "another destination answered" if report.control else "nothing else answered: it does not count"
    return f"does not reach what member {farm.publisher} publishes: {times}, while {control}"


def _why_not_publisher(farm: FarmQueries, member: int, publisher: int) -> str:
    group, foremost = farm.group(member), farm.group(publisher)
    if group != foremost:
        reason = "it is sanctioned" if group[0] > foremost[0] else "that one's mode is on"
        return f"behind member {publisher} regardless of the scores: {reason}"
    ahead, lead = _ahead(farm, member, publisher), farm.state.records[member].lead
    return (
        f"takes over from member {publisher} once {farm.policy.margin} ahead at {CONSECUTIVE_LEADS} statuses"
        f" in a row: now {abs(ahead)} {'behind' if ahead < 0 else 'ahead'}, at {lead} so far"
    )
