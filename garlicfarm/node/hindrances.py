"""Members that cannot keep up whatever is sent to them, as this node sees it, and the remedy."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import trio

from garlicfarm.logs import EventLogger
from garlicfarm.metrics import FarmMetrics
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.wire.messages import Response

LOG_EVERY_S = 60.0
REFUSALS = 2
"""So many refused snapshots in a row are no accident of the transmission."""


class Hindrance(NamedTuple):
    """Why a member cannot keep up, and what to do; ``since_ms``: since when that is known here, wall clock,
    None: not known."""

    text: str
    since_ms: int | None


class Hindrances:
    """The leader sees those of all members, each other node its own."""

    def __init__(self, core: CoreInbox, metrics: FarmMetrics, log: EventLogger) -> None:
        self._core = core
        self._metrics = metrics
        self._log = log
        # By member: the term in its last answer, if that is not accepted, and since when.
        self._terms: dict[int, tuple[int, int]] = {}
        self._log_term_at = -math.inf
        self._refusing: dict[int, int] = {}  # members that refuse snapshots, and since when
        self._refused_after: tuple[int, int] | None = None  # applied here, and when one was refused
        self._programs: dict[int, Hindrance] = {}  # of members whose programs cannot follow

    def on_response(self, response: Response) -> None:
        """A member answered a Raft request."""
        member, raw = response.source, self._core.raw
        if not raw.accepts_term(response.term):
            self._metrics.count_refused("term")
            _, since_ms = self._terms.get(member, (0, _now_ms()))
            self._terms[member] = response.term, since_ms
            self._warn_of_term(member, response.term)
        elif self._terms:
            self._terms.pop(member, None)

    def on_request_refused(self, member: int, term: int) -> None:
        """A request named a term that is not accepted."""
        self._metrics.count_refused("term")
        self._warn_of_term(member, term)

    def _warn_of_term(self, member: int, term: int) -> None:
        now = trio.current_time()
        if now >= self._log_term_at:
            self._log_term_at = now + LOG_EVERY_S
            self._log.warning("term-refused", peer=member, term=term)

    def on_snapshot_answered(self, member: int) -> None:
        """A member answered a piece of a snapshot."""
        if not self._is_refusing(member):
            self._refusing.pop(member, None)
        elif member not in self._refusing:
            self._refusing[member] = _now_ms()
            self._log.warning("member-refuses-snapshot", peer=member)

    def on_snapshot_refused(self) -> None:
        """This member refused the leader's snapshot."""
        applied = self._core.applied_index
        if self._refused_after is None or self._refused_after[0] != applied:
            self._refused_after = applied, _now_ms()

    def on_program(self, member: int, problem: str) -> None:
        """A member connected, and its program cannot follow the farm because of ``problem``; "": it can."""
        before = self._programs.pop(member, None)
        if problem:
            self._programs[member] = Hindrance(problem, before.since_ms if before else _now_ms())
            if before is None or before.text != problem:
                self._log.error("cannot-follow", peer=member, cause=problem)

    def of(self, member: int) -> Hindrance | None:
        """Why a member cannot keep up; None: nothing is known that keeps it from it."""
        core = self._core
        if member in self._programs:
            return self._programs[member]
        if member == core.node_id:
            if core.raw.is_term_too_high:
                again = "; if no member leads, recover the farm with `garlicfarm recover`"
                return Hindrance(_of_term(member, core.raw.term) + again, None)
            if self._refused_after is not None and self._refused_after[0] == core.applied_index:
                refused = "it refuses the leader's snapshot; its log says why (snapshot-refused)"
                return Hindrance(refused, self._refused_after[1])
        elif core.is_leader and member in self._terms:
            term, since_ms = self._terms[member]
            return Hindrance(_of_term(member, term), since_ms)
        elif self._is_refusing(member):
            return Hindrance(
                "it refuses the snapshot that it needs; its log says why (snapshot-refused): "
                "does it run the farm's application?",
                self._refusing.get(member),
            )
        return None

    def _is_refusing(self, member: int) -> bool:
        progress = self._core.raw.status().peers.get(member)
        return progress is not None and progress.refused_snapshots >= REFUSALS


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _of_term(member: int, term: int) -> str:
    return (
        f"it holds term {term}, which no election made: remove it with `garlicfarm member remove {member}`, "
        "and let a new node join under another id"
    )
