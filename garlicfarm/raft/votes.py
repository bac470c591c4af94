"""The rules of elections: which candidate gets a vote, and when to campaign (Raft §5.2, §5.4.1; thesis 4.2.3,
9.6).

Each rule is a question to the state; it changes nothing. `requests` answers the messages by them, and `roles`
begins campaigns by them.
"""

from __future__ import annotations

from garlicfarm.raft.log import RaftLog
from garlicfarm.raft.state import MAX_TERM, RaftState
from garlicfarm.wire.messages import Request

TRANSFER_CAMPAIGN = 2**64 - 1
"""The commit index of a RequestVoteRequest in a campaign that the leader ordered. Term and log alone decide
about it, although the leader is alive."""


def is_refused_by_lease(request: Request, has_live_leader: bool) -> bool:
    """Whether a vote of a later term is refused, and that term ignored, because a leader is alive: one that
    was heard within the lower election timeout, or this member itself, which a majority answers."""
    return has_live_leader and request.commit_index != TRANSFER_CAMPAIGN


def can_grant_vote(state: RaftState, request: Request) -> bool:
    """Whether the candidate gets the vote of this term: the first one gets it, also if it repeats
    its request, provided that its log is up to date and the term has no leader yet. Term 0 has no votes. A
    member whose log most others contradict (D26) gives none, since it cannot judge other logs by it."""
    is_free = not state.vote and not state.leader_id
    return (
        0 < request.term == state.term
        and state.contradicted != "chain"
        and (is_free or state.vote == request.source)
        and is_up_to_date(state.log, request)
    )


def can_grant_pre_vote(state: RaftState, request: Request, has_live_leader: bool) -> bool:
    """Whether the candidate would get our vote in the term that it names. A member whose disk hangs could not
    give it, one whose log most others contradict does not."""
    return (
        request.term > state.term
        and not has_live_leader
        and is_up_to_date(state.log, request)
        and not state.is_disk_hanging
        and state.contradicted != "chain"
    )


def is_up_to_date(log: RaftLog, request: Request) -> bool:
    """Whether the candidate's log is at least as up to date as ours: its last entry has a later term, or the
    same term and at least the same index (Raft §5.4.1)."""
    return (request.last_log_term, request.last_log_index) >= (log.last_term, log.last_index)


def can_campaign(state: RaftState, is_leaving: bool) -> bool:
    """Whether this member may campaign.

    A member that leads by a Configuration which it has not applied could lose another one, since one
    takes force when it is committed (D7). One that is
    leaving would depose the leader that has removed it. One whose disk hangs would keep raising its
    term, and could never ask for a vote. One that most others contradict would hand on what it holds."""
    is_applied = state.membership.in_force.log_index <= state.applied_index
    is_able = is_applied and state.id in state.membership and not is_leaving
    return is_able and state.term < MAX_TERM and not state.is_unfit_to_lead


def can_obey_timeout_now(state: RaftState, request: Request, is_leaving: bool) -> bool:
    """Whether to campaign at once: the leader of this term says so, and this member may campaign."""
    is_of_leader = (request.term, request.source) == (state.term, state.leader_id)
    return is_of_leader and can_campaign(state, is_leaving)
