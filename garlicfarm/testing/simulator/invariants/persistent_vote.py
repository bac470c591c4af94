"""Votes and terms survive crashes: a member votes once per term, and never returns to a term before one in
which it sent a message (Raft §5.1, §5.2)."""

from __future__ import annotations

from garlicfarm.raft import Ready
from garlicfarm.testing.simulator.invariants.history import History, ObservedMember, Violation
from garlicfarm.wire.messages import MessageType

__all__ = ["PersistentVote"]


class PersistentVote:
    def __init__(self) -> None:
        self._latest_term: dict[int, int] = {}
        self._votes: dict[tuple[int, int], int] = {}

    def on_ready(self, member: ObservedMember, ready: Ready, history: History) -> None:
        status = member.status
        if status is None:
            return
        latest_term = self._latest_term.get(member.id, 0)
        if status.term < latest_term:
            raise Violation(
                "a member keeps its vote and its term",
                f"member {member.id} is back at term {status.term}; it sent messages in term {latest_term}",
            )
        for answer in ready.responses:
            response = answer.response
            if response is None:
                continue
            latest_term = max(latest_term, response.term)
            if response.type is MessageType.REQUEST_VOTE_RESPONSE and response.accepted:
                self._vote(member.id, response.term, response.destination)
        for request in [sent.request for sent in ready.requests]:
            # A pre-vote asks about a term that had not begun, or (a RequestVote) names one that is over.
            is_pre_vote = request.type is MessageType.PRE_VOTE_REQUEST
            if request.term == status.term and not is_pre_vote:
                latest_term = max(latest_term, request.term)
                if request.type is MessageType.REQUEST_VOTE_REQUEST:
                    self._vote(member.id, request.term, member.id)
        self._latest_term[member.id] = latest_term

    def _vote(self, voter: int, term: int, candidate: int) -> None:
        first = self._votes.setdefault((voter, term), candidate)
        if first != candidate:
            raise Violation(
                "a member keeps its vote and its term",
                f"member {voter} votes for {first} and {candidate} in term {term}",
            )
