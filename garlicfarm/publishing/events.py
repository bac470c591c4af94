"""What happened in a farm: members lost and back, another leader, another publisher.

Events are made while the log is folded and are not part of the fold's state: after a restore from a snapshot
there are only the events since. Same entries, same events, on every server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from garlicfarm.publishing.administration import FORGET_BY
from garlicfarm.publishing.fold_state import Because, FarmState

KEPT = 50

EventKind = Literal["member", "leader", "publisher"]

Reason = Because | Literal["override"]

SHORT_REASONS: Mapping[str, str] = {
    "override": "by an override",
    "ineligible": "no longer eligible",
    "group": "in a better group",
    "margin": "ahead three times in a row",
    "lost": "which the leader has lost",
    "unreached": "which the others do not reach",
    "contradicted": "which most others contradict",
}
"""Why a publisher was named, behind the words "took over from N"."""


def reason_of(state: FarmState) -> Reason:
    """Why the publisher changed at ``state.since``: that of the rules, unless an override that is still in
    force made them say so."""
    orders = state.policy.orders.items()
    is_ordered = any(what.startswith("override ") and order.index == state.since for what, order in orders)
    return "override" if is_ordered and state.because in ("ineligible", "group") else state.because


class FarmEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What one entry changed. ``date_ms``: farm time. ``because`` is empty unless the publisher changed
    from ``previous`` to ``publisher``; None for either means no publisher. ``kinds``: what ``text`` tells
    of."""

    index: int
    date_ms: int
    text: str
    publisher: int | None = None
    previous: int | None = None
    because: Reason = ""
    kinds: tuple[EventKind, ...] = ()


class EventLog:
    """The newest `KEPT` events of one farm."""

    def __init__(self, state: FarmState, recent: Sequence[int]) -> None:
        """Start from ``state``, in which the members ``recent`` are recent."""
        self._events: deque[FarmEvent] = deque(maxlen=KEPT)
        self._members, self._recent, self._publisher = state.members, recent, state.publisher
        self._lost = {one for one in state.members if state.records[one].index and one not in recent}
        self._contradicted = _contradicted(state)
        self._term = 0
        self._leader: int | None = None

    def events(self) -> list[FarmEvent]:
        """Oldest first."""
        return list(self._events)

    def on_leader(self, term: int, leader: int) -> None:
        """A status of ``leader`` says that it leads in ``term``."""
        if term > self._term:
            self._term, self._leader = term, leader

    def on_evaluated(self, index: int, state: FarmState, recent: Sequence[int]) -> None:
        """The entry at ``index`` has been folded in."""
        contradicted = _contradicted(state)
        unchanged = recent == self._recent and state.publisher == self._publisher
        unchanged &= contradicted == self._contradicted
        if unchanged and self._leader is None and state.members == self._members:
            return
        joined = [one for one in state.members if one not in self._members] if self._members else []
        removed = [one for one in self._members if one not in state.members]
        lost = [one for one in self._recent if one in state.members and one not in recent]
        back = [one for one in recent if one in self._lost]
        told = [f"{_members(lost)} lost"] if lost else []
        told += [f"{_members(back)} {'is' if len(back) == 1 else 'are'} back"] if back else []
        told += [f"{_members(joined)} joined"] if joined else []
        forgotten = [one for one in removed if _is_forgotten(state, one)]
        others = [one for one in removed if one not in forgotten]
        told += [f"{_members(others)} removed"] if others else []
        told += [f"{_members(forgotten)} removed after a long silence"] if forgotten else []
        told += [
            f"most others contradict the {what} of member {one}"
            for one, what in contradicted.items()
            if self._contradicted.get(one) != what
        ]
        cleared = [one for one in self._contradicted if one in state.members and one not in contradicted]
        told += [f"{_members(cleared)} no longer contradicted"] if cleared else []
        kinds: list[EventKind] = ["member"] if told else []
        if self._leader is not None:
            told.append(f"member {self._leader} leads in term {self._term}")
            kinds.append("leader")
        previous, changed = self._publisher, state.publisher != self._publisher
        if changed:
            told.append(_takeover(state, previous, missed=previous in lost or previous in removed))
            kinds.append("publisher")
        if told:
            self._events.append(
                FarmEvent(
                    index=index,
                    date_ms=state.farm_time_ms,
                    text=", ".join(told),
                    publisher=state.publisher if changed else None,
                    previous=previous if changed else None,
                    because=reason_of(state) if changed else "",
                    kinds=tuple(kinds),
                )
            )
        self._lost = (self._lost | {*lost}) - {*back, *removed}
        self._members, self._recent, self._publisher = state.members, recent, state.publisher
        self._contradicted = contradicted
        self._leader = None


def _is_forgotten(state: FarmState, removed: int) -> bool:
    order = state.policy.orders.get(f"remove {removed}")
    return order is not None and order.by == FORGET_BY


def _contradicted(state: FarmState) -> dict[int, str]:
    return {one: found.what for one, found in state.compared.contradicted.items()} if state.compared else {}


def _members(ids: Sequence[int]) -> str:
    return f"{'member' if len(ids) == 1 else 'members'} {', '.join(map(str, ids))}"


def _takeover(state: FarmState, previous: int | None, *, missed: bool) -> str:
    """``missed``: the sentence already says that ``previous`` is gone."""
    if state.publisher is None:
        return "no publisher: no member is eligible"
    if previous is None:
        return f"member {state.publisher} publishes"
    if missed:
        return f"{state.publisher} took over"
    return f"member {state.publisher} took over from {previous} ({SHORT_REASONS[reason_of(state)]})"
