"""What to tell of a farm, and by which member: from one body of ``GET …/status`` after another.

*Events* of the log (`garlicfarm.publishing.events`) and a raised level are told once, by the member that
leads when it sees them; the others take note of them. *States* (no quorum, degraded, a trouble) are told when
they have lasted, and again when they are over: those of the farm by the leader, those that only one member
knows of by that member. Every member that sees no quorum tells so: there is no leader.

A follower takes note of what the leader has to tell, at the same age, so that the next leader does not repeat
it. If the leader dies before it has told of a change, that change may be told by nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from garlicfarm.admin.health import quorum_loss

MOST_TEXT = 2000
_FIGURES = re.compile(r"\d+")


class Notice(msgspec.Struct, frozen=True):
    """One notification, as receivers get it. ``id``: for an event of the log, the same from whichever member.
    ``kind``: as `garlicfarm.config.model.NotifyKind`. ``over``: it is the end of a state. ``node``: the
    member that tells it. ``date_ms``: by its wall clock."""

    id: str
    farm: str
    farm_id: str
    node: int
    kind: str
    text: str
    over: bool
    date_ms: int
    schema: str = "garlicfarm.notice/1"


class _State(msgspec.Struct):
    """Of a state: since when it is there, or gone, and whether it has been told of, or taken note of."""

    kind: str
    text: str
    own: bool
    since_ms: int
    is_there: bool = True
    is_told: bool = False


class FarmNotices:
    """The notices of one farm, on one member.

    :param started_ms: when the node started. Events from before are not told again as the log is replayed.
    :param steady_ms: how long a state has to last until it is told of.
    """

    def __init__(self, started_ms: int, steady_ms: int) -> None:
        self._started_ms = started_ms
        self._steady_ms = steady_ms
        self._seen = 0
        self._level: int | None = None
        self._states: dict[str, _State] = {}

    def look(self, status: Mapping[str, Any], now_ms: int) -> list[Notice]:
        """What is to be told now. ``now_ms``: wall clock, ms since 1970."""
        leads = status["leader"] == status["node"]
        told = [*self._events(status), *self._raised(status)] if leads else []
        self._seen = max([self._seen, *(event["index"] for event in status["events"])])
        self._level = (status["level"] or {}).get("in_force", self._level)
        told += self._changes(status, leads, now_ms)
        return [
            Notice(
                f"{status['farm_id']}-{what}",
                status["farm"],
                status["farm_id"],
                status["node"],
                kind,
                text[:MOST_TEXT],
                over,
                now_ms,
            )
            for what, kind, text, over in told
        ]

    def _events(self, status: Mapping[str, Any]) -> Iterator[tuple[str, str, str, bool]]:
        for event in status["events"]:
            kinds = [kind for kind in event.get("kinds", ()) if kind != "leader"]
            if event["index"] > self._seen and event["date_ms"] >= self._started_ms and kinds:
                kind = "publisher" if "publisher" in kinds else "member"
                yield str(event["index"]), kind, event["text"], False

    def _raised(self, status: Mapping[str, Any]) -> Iterator[tuple[str, str, str, bool]]:
        level = (status["level"] or {}).get("in_force")
        if self._level is not None and level is not None and level > self._level:
            yield f"level-{level}", "level", f"the farm is at level {level} now", False

    def _changes(
        self, status: Mapping[str, Any], leads: bool, now_ms: int
    ) -> Iterator[tuple[str, str, str, bool]]:
        there = set()
        for about, kind, text, own in _states(status):
            there.add(about)
            state = self._states.setdefault(about, _State(kind, text, own, now_ms))
            if not state.is_there:
                state.is_there, state.since_ms = True, now_ms
            state.text, state.own = text, own
        for about, state in list(self._states.items()):
            if state.is_there and about not in there:
                state.is_there, state.since_ms = False, now_ms
            if now_ms - state.since_ms < self._steady_ms:
                continue
            if state.is_there is not state.is_told:
                state.is_told = state.is_there
                if state.own or leads:
                    over = "" if state.is_there else "over: "
                    yield f"{about}-{state.since_ms}", state.kind, over + state.text, not state.is_there
            if not state.is_there:
                del self._states[about]


def _states(status: Mapping[str, Any]) -> Iterator[tuple[str, str, str, bool]]:
    """(what it is about, kind, sentence, whether only this member knows) of each state of the farm."""
    node, members = status["node"], status["members"]
    most = (len(members) - 1) // 2
    if not status["quorum"]:
        yield f"no-quorum-{node}", "health", f"no quorum, as node {node} sees it: {_why(status)}", True
    elif status["fault_tolerance"] < most:
        absent = ", ".join(
            str(row["id"]) for row in members if row["role"] == "unreachable" or row["trouble"]
        )
        left = status["fault_tolerance"]
        yield "degraded", "health", f"degraded: can lose {left} more members; absent: {absent}", False
    if status["disk_hangs_s"] is not None:
        yield f"disk-{node}", "disk", f"the disk of node {node} does not answer", True
    named = set()
    for trouble in status.get("troubles", ()):
        named.add(trouble["text"])
        yield trouble["about"], trouble["kind"], trouble["text"], trouble["own"]
    for text in status.get("problems", ()):
        if text not in named:  # of this node
            lasting = sha256(_FIGURES.sub("", text).encode()).hexdigest()
            yield f"problem-{node}-{lasting[:12]}", "health", text, True


def _why(status: Mapping[str, Any]) -> str:
    return quorum_loss(status) or "the leader sees no majority"
