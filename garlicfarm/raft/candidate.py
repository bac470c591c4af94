"""Standing for election (Raft §5.2): first a poll that changes nothing, then the vote."""

from __future__ import annotations

from garlicfarm.raft.state import RaftState
from garlicfarm.wire.messages import MessageType, Response

__all__ = ["ORDERED", "PRE_VOTE", "TIMEOUT_NOW", "Candidate"]

PRE_VOTE, TIMEOUT_NOW = "pre-vote", "timeout-now"
"""Names of the extensions that the core speaks (D5)."""

ORDERED = 2**64 - 1
"""The commit index of a RequestVoteRequest in an election that the leader ordered: it is judged by term
and log alone, though the leader is heard."""


class Candidate:
    """One attempt to become leader, over when a majority is out of reach or the next timeout begins another.

    A poll asks whether a vote would be granted, so that a member which cannot win does not raise its
    term, which would depose a leader that the others hear (pre-vote, thesis 9.6). Of a peer without the
    extension it only learns whether it can be reached: it is sent a RequestVoteRequest of a term that
    is over, which changes nothing there.
    """

    def __init__(self, state: RaftState, ordered: bool = False) -> None:
        self._state = state
        self.polling = not ordered
        self._granted: set[int] = set()
        self._denied: set[int] = set()
        self._asked: dict[int, int] = {}  # seq -> peer
        if ordered:
            self._stand(ordered)
        else:
            self._poll()

    @property
    def won(self) -> bool:
        """Whether a majority of the Configuration in force grants it."""
        return self._state.membership.is_quorum(self._granted)

    @property
    def lost(self) -> bool:
        """Whether so many deny it that the others are no majority."""
        membership = self._state.membership
        return not membership.is_quorum({s.id for s in membership.in_force.servers} - self._denied)

    def answered(self, seq: int, response: Response) -> None:
        """Take an answer that names no later term."""
        peer, state = self._asked.pop(seq, None), self._state
        if peer is None:
            return
        if self.polling:
            # Of a plain peer any answer will do: it can be reached, and its term is no later one.
            granted = response.accepted or response.type is MessageType.REQUEST_VOTE_RESPONSE
        else:
            granted = response.accepted and response.term == state.term
        if granted:
            self._granted.add(peer)
        elif not response.accepted:
            self._denied.add(peer)

    def forget(self, seq: int) -> None:
        """There is no answer."""
        self._asked.pop(seq, None)

    def persisted(self) -> None:
        """Our own vote counts once it is durable."""
        if not self.polling and self._state.durable_vote == self._state.term:
            self._granted.add(self._state.id)

    def stand(self) -> None:
        """The poll is won: now the vote."""
        self.polling = False
        self._granted.clear()
        self._denied.clear()
        self._asked.clear()
        self._stand(ordered=False)

    def _poll(self) -> None:
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
            self._asked[state.request(peer, kind, term, last)] = peer

    def _stand(self, ordered: bool) -> None:
        state = self._state
        state.vote_for_self()
        for peer in state.membership.others(state.id):
            marked = ordered and TIMEOUT_NOW in state.extensions.get(peer, ())
            self._asked[state.ask_for_vote(peer, ORDERED if marked else 0)] = peer
