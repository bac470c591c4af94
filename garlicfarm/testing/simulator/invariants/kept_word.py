"""A member keeps its word across crashes: it votes once a term, and no term that it spoke in is
forgotten (Raft §5.1, §5.2)."""

from __future__ import annotations

from garlicfarm.raft import Ready
from garlicfarm.testing.simulator.invariants.history import History, Member, Violation
from garlicfarm.wire.messages import MessageType

__all__ = ["KeptWord"]


class KeptWord:
    def __init__(self) -> None:
        self._spoke_in: dict[int, int] = {}
        self._votes: dict[tuple[int, int], int] = {}

    def turn(self, member: Member, ready: Ready, history: History) -> None:
        status = member.status
        if status is None:
            return
        spoke_in = self._spoke_in.get(member.id, 0)
        if status.term < spoke_in:
            raise Violation(
                "a member keeps its word",
                f"member {member.id} is back at term {status.term}; it spoke in term {spoke_in}",
            )
        for _, response in ready.responses:
            if response is None:
                continue
            spoke_in = max(spoke_in, response.term)
            if response.type is MessageType.REQUEST_VOTE_RESPONSE and response.accepted:
                self._vote(member.id, response.term, response.destination)
        for _, _, request in ready.requests:
            # A poll asks about a term that had not begun, or (a RequestVote) names one that is over.
            polls = request.type is MessageType.PRE_VOTE_REQUEST
            if request.term == status.term and not polls:
                spoke_in = max(spoke_in, request.term)
                if request.type is MessageType.REQUEST_VOTE_REQUEST:
                    self._vote(member.id, request.term, member.id)
        self._spoke_in[member.id] = spoke_in

    def _vote(self, voter: int, term: int, candidate: int) -> None:
        first = self._votes.setdefault((voter, term), candidate)
        if first != candidate:
            raise Violation(
                "a member keeps its word",
                f"member {voter} votes for {first} and {candidate} in term {term}",
            )
