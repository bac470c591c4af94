"""Whether the publisher publishes, by the members' newest statuses: ``publication`` in a `ranking`.

::

    {"publishing": bool | null, "last_published_ms": int, "can_publish": [id …],
     "leaves": [{"hash", "seen": [{"by": id, "ok": bool, "ms": int} …] | null} …],
     "problems": [sentence …]}

``publishing``: the publisher's ``meta.publishing``; ``last_published_ms``: its ``meta.lastPublishedTime``, 0
if it never published, or says a date that no LeaseSet can have. ``can_publish``: the recent members that
report ``meta.publishing``. ``leaves``: while it publishes, its usable leaves, and what the other recent
members saw of each in farm.statuses that they began after it was due to start (D20): the connection test of
member ``by``; null if none of them reports measurements. A leaf without a successful one is not confirmed;
what follows for the role is decided by reports (`outside`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from garlicfarm.i2p.encoding import encode
from garlicfarm.publishing import outside
from garlicfarm.publishing.documents import MetaStatus
from garlicfarm.publishing.entries import DATE_END_MS
from garlicfarm.publishing.farm_queries import FarmQueries

_WARN_DAYS = 14
_DAY_MS = 86_400_000


def publication(farm: FarmQueries) -> dict[str, object]:
    """The object shown above."""
    scored = None if farm.publisher is None else farm.statuses[farm.publisher]
    meta = (None if scored is None else scored.document.meta) or MetaStatus()
    able = [
        member
        for member in farm.members
        if farm.is_recent(member) and farm.statuses[member].publishing is not None
    ]
    last_ms = meta.last_published_time or 0
    return {
        "publishing": meta.publishing,
        "last_published_ms": last_ms if last_ms < DATE_END_MS else 0,
        "can_publish": able,
        "leaves": published_leaves(farm),
        "problems": [*_problems(farm, able, meta)],
    }


def published_leaves(farm: FarmQueries) -> list[dict[str, Any]]:
    """The ``leaves`` of the object shown above."""
    publisher, due_since = farm.publisher, farm.due_since
    if publisher is None or due_since is None or not farm.statuses[publisher].publishing:
        return []
    found: dict[str, list[dict[str, object]]]
    found = {encode(leaf.hash): [] for leaf in farm.statuses[publisher].leaves}
    others = [member for member in farm.members if member != publisher and farm.is_recent(member)]
    documents = [farm.statuses[member].document for member in others]
    if not any(document.remote_destinations or document.remote_meta for document in documents):
        return [{"hash": hash_, "seen": None} for hash_ in found]
    for member, document in zip(others, documents, strict=True):
        if (farm.report(member).applied or 0) < due_since:
            continue
        measured = document.remote_destinations or ()
        tests = {one.hash: one.connect_test for one in measured}
        for hash_, seen in found.items():
            test = tests.get(hash_)
            if test is not None:
                seen.append({"by": member, "ok": test.ok, "ms": test.ms})
    return [{"hash": hash_, "seen": seen} for hash_, seen in found.items()]


def sight(seen: Iterable[Mapping[str, Any]] | None) -> str:
    """The ``seen`` of a leaf in words, for operators."""
    if seen is None:
        return "no other member measures destinations"
    seen = list(seen)
    reached = [f"member {test['by']} in {test['ms']} ms" for test in seen if test["ok"]]
    failed = [f"member {test['by']}" for test in seen if not test["ok"]]
    words = f"reachable, by {', '.join(reached)}" if reached else "not confirmed by any other member"
    return words + (f"; not reached by {', '.join(failed)}" if failed else "")


def _problems(
    farm: FarmQueries,
    able: list[int],
    meta: MetaStatus,
) -> Iterator[str]:
    publisher = farm.publisher
    if not able:
        yield "no member can publish: no recent member reports meta.publishing"
    elif publisher is not None and farm.due_since is None:
        others = ", ".join(str(holder) for holder in farm.holders if holder != publisher)
        yield f"member {publisher} waits until member {others} has let go"
    elif meta.publishing is False and (farm.report(publisher or 0).applied or 0) >= (farm.due_since or 0):
        yield f"member {publisher} is to publish and reports that it does not"
    failing = [member for member, one in outside.reports(farm, farm.members).items() if outside.fails(one)]
    if failing:
        who = (
            f"members {', '.join(map(str, failing))} do" if len(failing) > 1 else f"member {failing[0]} does"
        )
        yield f"{who} not reach what member {publisher} publishes, but others' destinations"
    expiries = farm.key_expiries()
    for member in farm.members:
        if farm.has_duplicate_transients(member):
            yield f"member {member} has a transient key of another member, and must not publish with it"
        expires_ms = expiries.get(member)
        if expires_ms is not None and (problem := expiry_problem(expires_ms, farm.farm_time_ms)):
            yield f"keys of member {member} {problem}"
        if farm.is_recent(member) and (problem := farm.clock_problem(farm.statuses[member].document.date)):
            yield f"the clock of member {member} {problem}"


def expiry_problem(expires_ms: int, now_ms: int) -> str:
    """What to do about keys that expire at ``expires_ms``, as the rest of a sentence; "" if that is more than
    14 days from ``now_ms``; both ms since 1970."""
    days = (expires_ms - now_ms) // _DAY_MS
    if days >= _WARN_DAYS:
        return ""
    if expires_ms <= now_ms:
        when = "have expired"
    elif days == 0:
        when = "expire within a day"
    else:
        when = f"expire in {days} day{'s' if days > 1 else ''}"
    return (
        f"{when}: make new bundles with `garlicfarm keys offline`, and replace the file at its node; "
        "no restart is needed"
    )
