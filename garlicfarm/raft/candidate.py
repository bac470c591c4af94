"""Standing for election (Raft §5.2): first a poll that changes nothing, then the vote."""

from __future__ import annotations

from garlicfarm.extensions import PRE_VOTE, TIMEOUT_NOW
from garlicfarm.raft.state import RaftState
from garlicfarm.wire.messages import MessageType, Response

__all__ = ["PRE_VOTE", "TIMEOUT_NOW", "TRANSFER_CAMPAIGN", "Candidate"]

TRANSFER_CAMPAIGN = 2**64 - 1
"""The commit index of a RequestVoteRequest in an election that the leader ordered: it is judged by term
and log alone, though the leader is heard."""


class Candidate:
    """One attempt to become leader, over when a majority is out of reach or the next timeout begins another.

    A poll asks whether a vote would be granted, so that a member which cannot win does not raise its
    term, which would depose a leader that the others hear (pre-vote, thesis 9.6). Of a peer without the
    extension it only learns whether it can be reached: it is sent a RequestVoteRequest of a term that
    is over, which changes nothing there.
    """

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
        """Whether a majority of the Configuration in force grants it."""
        return self._state.membership.is_quorum(self._granted)

    @property
    def has_lost(self) -> bool:
        """Whether so many deny it that the others are no majority."""
        membership = self._state.membership
        return not membership.is_quorum({s.id for s in membership.in_force.servers} - self._denied)

    def step_response(self, seq: int, response: Response) -> None:
        """Take an answer that names no later term."""
        peer, state = self._asked.pop(seq, None), self._state
        if peer is None:
            return
        if self.is_pre_vote:
            # Of a plain peer any answer will do: it can be reached, and its term is no later one.
            granted = response.accepted or response.type is MessageType.REQUEST_VOTE_RESPONSE
        else:
            granted = response.accepted and response.term == state.term
        if granted:
            self._granted.add(peer)
        elif not response.accepted:
            self._denied.add(peer)

    def report_unreachable(self, seq: int) -> None:
        """There is no answer."""
        self._asked.pop(seq, None)

    def on_persisted(self) -> None:
        """Our own vote counts once it is durable."""
        if not self.is_pre_vote and self._state.durable_vote_term == self._state.term:
            self._granted.add(self._state.id)

    def campaign(self) -> None:
        """The poll is won: now the vote."""
        self.is_pre_vote = False
        self._granted.clear()
        self._denied.clear()
        self._asked.clear()
        self._request_votes(is_transfer=False)

    def _request_pre_votes(self) -> None:
        state = self._state
        self._granted.add(state.id)
        last = (state.log.last_term, state.log.last_index)
        for peer in state.membership.others(state.id):
            if PRE_VOTE in state.extensions.get(peer, ()):
                kind, term = MessageType.PRE_VOTE_REQUEST, state.term + 1
            elif state.term:
                kind, term = MessageType.REQUEST_VOTE_REQUEST, state.term - 1
            else:
                self._granted.add(peer)  # there is no term that is over
                continue
            self._asked[state.send(peer, kind, term, last)] = peer

    def _request_votes(self, is_transfer: bool) -> None:
        state = self._state
        state.begin_candidate_term()
        for peer in state.membership.others(state.id):
            marked = is_transfer and TIMEOUT_NOW in state.extensions.get(peer, ())
            self._asked[state.request_vote(peer, TRANSFER_CAMPAIGN if marked else 0)] = peer
