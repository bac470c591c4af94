"""A campaign for leadership (Raft §5.2): first a pre-vote, which changes nothing, then the election."""

from __future__ import annotations

from garlicfarm.extensions import PRE_VOTE, TIMEOUT_NOW
from garlicfarm.raft.state import RaftState
from garlicfarm.raft.votes import TRANSFER_CAMPAIGN
from garlicfarm.wire.messages import MessageType, Response


class Candidate:
    """One campaign. It ends with a majority, when a majority is out of reach, or with the next timeout.

    The pre-vote asks whether a vote would be granted. So a member that cannot win does not raise its term,
    which would depose a leader that the others hear (thesis 9.6). A peer without the extension is only
    asked whether it can be reached: it gets a RequestVoteRequest of a past term, which changes nothing
    there."""

    def __init__(self, state: RaftState, is_transfer: bool = False) -> None:
        self._state = state
        self.is_pre_vote = not is_transfer
        self._granted: set[int] = set()
        self._denied: set[int] = set()
        self._asked: dict[int, int] = {}  # seq -> peer
        if is_transfer:
            self._request_votes(is_transfer)
        else:
            self._request_pre_votes()

    @property
    def has_won(self) -> bool:
        """Whether a majority of the Configuration in force granted it."""
        return self._state.membership.is_quorum(self._granted)

    @property
    def has_lost(self) -> bool:
        """Whether so many denied it that the others are no majority."""
        membership = self._state.membership
        return not membership.is_quorum({s.id for s in membership.in_force.servers} - self._denied)

    def step_response(self, seq: int, response: Response) -> None:
        """Take an answer that names no later term."""
        peer, state = self._asked.pop(seq, None), self._state
        if peer is None:
            return
        if self.is_pre_vote:
            # Any answer of a JRaft peer will do: it can be reached, and its term is no later one.
            is_granted = response.accepted or response.type is MessageType.REQUEST_VOTE_RESPONSE
        else:
            is_granted = response.accepted and response.term == state.term
        if is_granted:
            self._granted.add(peer)
        elif not response.accepted:
            self._denied.add(peer)

    def report_unreachable(self, seq: int) -> None:
        """The request ``seq`` got no answer."""
        self._asked.pop(seq, None)

    def on_persisted(self) -> None:
        """Writes became durable: our own vote counts once it is among them."""
        if not self.is_pre_vote and self._state.durable_vote_term == self._state.term:
            self._granted.add(self._state.id)

    def begin_election(self) -> None:
        """The pre-vote is won: ask for the votes."""
        self.is_pre_vote = False
        self._granted.clear()
        self._denied.clear()
        self._asked.clear()
        self._request_votes(is_transfer=False)

    def _request_pre_votes(self) -> None:
        state = self._state
        self._granted.add(state.id)
        for peer in state.membership.others(state.id):
            if PRE_VOTE in state.extensions.get(peer, ()):
                kind, term = MessageType.PRE_VOTE_REQUEST, state.term + 1
            elif state.term:
                kind, term = MessageType.REQUEST_VOTE_REQUEST, state.term - 1
            else:
                self._granted.add(peer)  # there is no past term to ask in
                continue
            self._asked[state.send(peer, kind, term, state.log.last)] = peer

    def _request_votes(self, is_transfer: bool) -> None:
        state = self._state
        state.begin_candidate_term()
        for peer in state.membership.others(state.id):
            is_marked = is_transfer and TIMEOUT_NOW in state.extensions.get(peer, ())
            self._asked[state.request_vote(peer, TRANSFER_CAMPAIGN if is_marked else 0)] = peer
