"""Members that cannot keep up whatever is sent to them, as this node sees it, and the remedy."""

from __future__ import annotations

import math

import trio

from garlicfarm.logs import EventLogger
from garlicfarm.metrics import FarmMetrics
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.wire.messages import Response

LOG_EVERY_S = 60.0
REFUSALS = 2
"""So many refused snapshots in a row are no accident of the transmission."""


class Hindrances:
    """The leader sees those of all members, each other node its own."""

    def __init__(self, core: CoreInbox, metrics: FarmMetrics, log: EventLogger) -> None:
        self._core = core
        self._metrics = metrics
        self._log = log
        self._terms: dict[int, int] = {}  # by member: the term in its last answer, if that is not accepted
        self._log_term_at = -math.inf
        self._refusing: set[int] = set()  # members whose refusals were logged
        self._refused_after: int | None = None  # applied here when a snapshot was refused here

    def on_response(self, response: Response) -> None:
        """A member answered a Raft request."""
        member, raw = response.source, self._core.raw
        if not raw.accepts_term(response.term):
            self._metrics.count_refused("term")
            self._terms[member] = response.term
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
            self._refusing.discard(member)
        elif member not in self._refusing:
            self._refusing.add(member)
            self._log.warning("member-refuses-snapshot", peer=member)

    def on_snapshot_refused(self) -> None:
        """This member refused the leader's snapshot."""
        self._refused_after = self._core.applied_index

    def of(self, member: int) -> str | None:
        """Why a member cannot keep up, and what to do; None: nothing is known that keeps it from it."""
        core = self._core
        if member == core.node_id:
            if core.raw.is_term_too_high:
                again = "; if no member leads, recover the farm with `garlicfarm recover`"
                return _of_term(member, core.raw.term) + again
            if self._refused_after is not None and self._refused_after == core.applied_index:
                return "it refuses the leader's snapshot; its log says why (snapshot-refused)"
        elif core.is_leader and member in self._terms:
            return _of_term(member, self._terms[member])
        elif self._is_refusing(member):
            return (
                "it refuses the snapshot that it needs; its log says why (snapshot-refused): "
                "does it run the farm's application?"
            )
        return None

    def _is_refusing(self, member: int) -> bool:
        progress = self._core.raw.status().peers.get(member)
        return progress is not None and progress.refused_snapshots >= REFUSALS


def _of_term(member: int, term: int) -> str:
    return (
        f"it holds term {term}, which no election made: remove it with `garlicfarm member remove {member}`, "
        "and let a new node join under another id"
    )
