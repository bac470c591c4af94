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
        self._is_transfer = is_transfer
        self.is_pre_vote = not is_transfer
        self._granted: set[int] = set()
        self._denied: set[int] = set()
        self._asked: dict[int, int] = {}  # seq -> peer
        self._unreached: set[int] = set()  # peers whose request got no answer
        if is_transfer:
            self._request_votes()
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
        peer = self._asked.pop(seq, None)
        if peer is not None:
            self._unreached.add(peer)

    def on_connected(self, peer: int) -> None:
        """A connection to the peer is open: if the last one ended without its answer, ask again. Followers
        send each other nothing, so that a broken path shows when they elect a leader."""
        if peer in self._unreached:
            self._unreached.remove(peer)
            self._request(peer)

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
        self._unreached.clear()
        self._request_votes()

    def _request_pre_votes(self) -> None:
        self._granted.add(self._state.id)
        self._request_all()

    def _request_votes(self) -> None:
        self._state.begin_candidate_term()
        self._request_all()

    def _request_all(self) -> None:
        for peer in self._state.membership.others(self._state.id):
            self._request(peer)

    def _request(self, peer: int) -> None:
        state = self._state
        extensions = state.extensions.get(peer, ())
        if not self.is_pre_vote:
            is_marked = self._is_transfer and TIMEOUT_NOW in extensions
            seq = state.request_vote(peer, TRANSFER_CAMPAIGN if is_marked else 0)
        elif PRE_VOTE in extensions:
            seq = state.send(peer, MessageType.PRE_VOTE_REQUEST, state.term + 1, state.log.last)
        elif state.term:
            seq = state.send(peer, MessageType.REQUEST_VOTE_REQUEST, state.term - 1, state.log.last)
        else:
            self._granted.add(peer)  # there is no past term to ask in
            return
        self._asked[seq] = peer
