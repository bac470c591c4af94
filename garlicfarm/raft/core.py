"""The door of the core: every input and every output of one member. See the package's page.

Every input (`step`, `step_response`, `tick`, `propose`, …) changes the state at once and collects what
follows from it; `ready` hands the collection out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from garlicfarm.digests import Contradicted
from garlicfarm.errors import LocalProtocolError, ProposalDropped
from garlicfarm.raft.follower import Follower
from garlicfarm.raft.leader import Leader
from garlicfarm.raft.read_index import ReadIndexForwarder
from garlicfarm.raft.requests import RequestHandler
from garlicfarm.raft.roles import Roles
from garlicfarm.raft.state import MAX_TERM, TERM_CEILING, TERMS_PER_MS, RaftState
from garlicfarm.raft.types import (
    ConfChange,
    RaftConfig,
    Ready,
    Role,
    SnapshotMeta,
    Status,
    Storage,
)
from garlicfarm.refusals import Refusal
from garlicfarm.wire.messages import ClusterServer, Configuration, Request, Response


class RawNode:
    """One member of one cluster, driven from outside. It does no I/O and has no clock.

    ``storage`` is only read; it holds what the last run wrote, or a genesis. ``randint(lo, hi)`` returns a
    random integer, both ends included. After any call, call `ready` and do what it says; call `tick` at
    `deadline_ms` at the latest. Not to be shared between tasks. Source: Raft §5 to §8."""

    def __init__(self, config: RaftConfig, storage: Storage, randint: Callable[[int, int], int]) -> None:
        self.id = config.id
        self._state = RaftState(config, storage, randint)
        self._roles = Roles(self._state)
        self._follower = Follower(self._state)
        self._requests = RequestHandler(self._state, self._roles, self._follower)
        self._forwarder = ReadIndexForwarder(self._state)

    # ------------------------------------------------------------------ time

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` has to be called at the latest; None: the core waits for no time."""
        return self._roles.deadline_ms

    def tick(self, now_ms: int) -> None:
        """Tell the time: ``now_ms`` of a monotonic clock, never less than before. Call it after the inputs
        that arrived by then, so that a process that was paused hears its leader first."""
        self._state.now_ms = now_ms
        self._roles.tick()

    def limit_terms(self, unix_ms: int) -> None:
        """Tell the wall clock's time, which limits the terms of messages (`accepts_term`). It may be wrong: a
        slow clock delays a member only where another one holds a term that no election made."""
        self._state.term_ceiling = min(TERM_CEILING + TERMS_PER_MS * max(unix_ms, 0), MAX_TERM // 2)

    def set_election_timeout(self, min_ms: int, max_ms: int) -> None:
        """From the next one on, election timeouts are drawn from this range, and a leader counts as alive for
        its lower end; but the ones configured are in force again once two have passed without a leader. Safe
        with any values, on any members."""
        self._state.election_timeout_ms = min_ms, max_ms

    # ------------------------------------------------------------------ messages

    def step(self, request: Request, token: int) -> None:
        """Take a request of a peer or a client. `Ready.responses` has its answer with ``token``, any number
        of the caller's.

        Raises `RemoteProtocolError`: the sender broke the protocol; close its connection.
        """
        self._requests.step(request, token)

    def step_posts(self, posts: Sequence[tuple[Request, int]]) -> None:
        """Take ClientRequests that came together, each with its token: as `step` of one after another, only
        faster. Each names term 0, and has entries."""
        self._requests.step_posts(posts)

    def step_response(self, seq: int, response: Response) -> None:
        """Take the answer to the request ``seq`` of `Ready.requests`. One whose term is not accepted counts
        as none."""
        roles = self._roles
        # A server that is no member yet cannot depose the leader that brings it in.
        is_of_joiner = roles.leader is not None and roles.leader.is_joiner_request(seq)
        if not self._state.accepts_term(response.term) and not is_of_joiner:
            self.report_unreachable(response.source, seq)
        elif response.term > self._state.term and not is_of_joiner:
            roles.become_follower(response.term, 0)
        elif self._forwarder.step_response(seq, response):
            pass
        elif roles.candidate is not None:
            roles.candidate.step_response(seq, response)
        elif roles.leader is not None:
            roles.leader.step_response(seq, response)
        roles.update()

    def report_unreachable(self, peer: int, seq: int | None) -> None:
        """The request ``seq`` got no answer (None: ``peer`` cannot be reached at all). A leader repeats it
        with the next heartbeat at the earliest, a candidate once the peer is connected."""
        self._forwarder.report_unreachable(peer, seq)
        if self._roles.candidate is not None and seq is not None:
            self._roles.candidate.report_unreachable(seq)
        if self._roles.leader is not None:
            self._roles.leader.report_unreachable(peer, seq)

    def set_extensions(self, peer: int, names: frozenset[str]) -> None:
        """A connection to ``peer`` is open, with these extensions in force (D5). The core uses "pre-vote",
        "timeout-now" and "read-index". A peer never named here has none."""
        self._state.extensions[peer] = names
        if self._roles.candidate is not None:
            self._roles.candidate.on_connected(peer)
            self._roles.update()
        if self._roles.leader is not None:
            self._roles.leader.on_connected(peer)

    # ------------------------------------------------------------------ orders of the driver

    def propose(self, entries: Sequence[bytes], token: int) -> None:
        """Append application entries, all or none. `Ready.outcomes` has the outcome with ``token``.

        Raises `ProposalDropped`: certainly not appended, since this member does not lead, hands over, or
        has too much uncommitted; `LocalProtocolError`: no entries."""
        if not entries:
            raise LocalProtocolError("a proposal has at least one entry")
        self._require_leader().propose(entries, token)

    def propose_conf_change(self, change: ConfChange, token: int) -> None:
        """Change the Configuration by one server. A server that is added catches up first. `Ready.outcomes`
        has the outcome with ``token``. The caller must know whether an id was ever used: each is used once
        (D12).

        Raises `ProposalDropped`: certainly not done, since this member does not lead or hands over, another
        change is in flight, nothing of this term is committed yet, the server is a member (or is none), its
        endpoint is another member's, or fewer than a majority of the remaining members were heard recently.
        Source: thesis 4.1 to 4.3, D7 (in force when committed)."""
        self._require_leader().propose_conf_change(change, token)

    def check_conf_change(self, change: ConfChange) -> None:
        """Raises `ProposalDropped` where `propose_conf_change` would, unless the reason soon passes by
        itself. Changes nothing."""
        self._require_leader().check_conf_change(change)

    def transfer_leadership(self, to: int) -> None:
        """Hand over to the member ``to``, 0: to the one best placed. This member appends nothing until that
        is done, or the upper election timeout has passed. If the target lacks the extension TimeoutNow
        (D5), this member steps down once the target holds all entries, and does not campaign for a while.

        Raises `ProposalDropped`: this member does not lead, a transfer is in progress, or there is no such
        other member. Source: thesis 3.10."""
        self._require_leader().transfer(to)

    def read_index(self, token: int) -> None:
        """Ask for an index: what is read once that is applied is linearizable. `Ready.reads` has it with
        ``token`` when a majority has confirmed that this member led; a follower asks its leader.

        Raises `ProposalDropped`: this member does not lead, and knows no leader that has this extension
        (D5). Source: Raft §8, thesis 6.4."""
        if self._roles.leader is not None:
            self._roles.leader.read_index(token)
        else:
            self._forwarder.add(token)

    def request_snapshot(self, until_ms: int) -> None:
        """Until ``until_ms`` of `tick`'s clock take no entries, but ask the leader for a snapshot of more
        than this member holds; it replaces log and state as any snapshot does (`Ready.restore`). Each piece
        grants as much time again. Meanwhile this member counts for no further commit. A leader takes no
        notice."""
        self._state.snapshot_until_ms = until_ms
        self._state.snapshot_wait_ms = max(until_ms - self._state.now_ms, 0)

    @property
    def wants_snapshot(self) -> bool:
        """Whether `request_snapshot` still holds."""
        return self._state.wants_snapshot

    @property
    def snapshot_wanted(self) -> int:
        """On a leader: a follower waits for a snapshot of more than this index, and there is none; 0: no
        follower does."""
        return 0 if self._roles.leader is None else self._roles.leader.snapshot_wanted

    def _require_leader(self) -> Leader:
        if self._roles.leader is None:
            raise ProposalDropped(Refusal.NOT_LEADER)
        return self._roles.leader

    # ------------------------------------------------------------------ reports of the driver

    def report_persisted(self, token: int) -> None:
        """All writes up to ``token`` of `Ready.persist` are durable."""
        roles = self._roles
        self._state.on_persisted(token)
        if roles.leader is not None:
            roles.leader.maybe_commit()
        elif roles.candidate is not None:
            roles.candidate.on_persisted()
        roles.update()

    def report_chunk_stored(self, token: int, held: int, snapshot: SnapshotMeta | None) -> None:
        """A piece of `Ready.chunks` is stored, or could not be. ``held``: how many bytes of its snapshot
        are stored now, 0 if it was damaged. ``snapshot``: it is whole, checked and durable."""
        self._follower.on_chunk_stored(token, held, None if self._roles.leader is not None else snapshot)

    def report_disk_hang(self, is_hanging: bool) -> None:
        """Whether a write has taken too long and is not durable yet. Meanwhile this member does not
        campaign, promises no vote and appends nothing of its own. A leader hands over, and leads for
        another upper election timeout at most."""
        self._state.is_disk_hanging = is_hanging
        if is_hanging and self._roles.candidate is not None:
            self._roles.become_follower(self._state.term, 0)

    def report_contradicted(self, contradicted: Contradicted) -> None:
        """What most others hold otherwise than this member (D26). With anything it does not campaign, and a
        leader hands over, and leads for another upper election timeout at most. With the chain it does not
        vote either. It goes on taking the leader's entries, and counts for their commit."""
        self._state.contradicted = contradicted
        if contradicted and self._roles.candidate is not None:
            self._roles.become_follower(self._state.term, 0)

    def report_leader_gone(self, leader: int, term: int) -> None:
        """There is evidence that the process which led ``term`` as ``leader`` is gone. Nothing happens unless
        both are what this member holds. Else that leader no longer counts as alive here: this member
        campaigns soon, beginning with a pre-vote, and grants what the leader's lease would have withheld.
        Terms, votes and the checks of logs stay as they are, so wrong evidence costs an election at most, and
        none while a majority hears the leader and pre-votes are in force."""
        self._roles.on_leader_gone(leader, term)

    def report_applied(self, index: int) -> None:
        """The application has taken all committed entries up to ``index``."""
        self._state.applied_index = index

    # ------------------------------------------------------------------ what to do

    def ready(self, *, catch_up: bool = True, committed: bool = True) -> Ready:
        """What to do now; each thing is handed out once. ``catch_up``: send to lagging followers too, which
        takes longer; without it, `has_more_catch_up` says what is left. ``committed``: hand out committed
        entries too; without it, `has_more_committed` stays true."""
        if self._roles.leader is not None:
            self._roles.leader.send_pending(catch_up)
            self._roles.update()
        self._forwarder.expire()
        return self._state.take_ready(committed=committed)

    @property
    def has_more_committed(self) -> bool:
        """Whether the next `ready` has committed entries even without more input."""
        return self._state.has_more_committed

    @property
    def has_more_catch_up(self) -> bool:
        """Whether the next `ready` with ``catch_up`` has entries or a snapshot for lagging followers
        without more input."""
        return self._roles.leader is not None and self._roles.leader.has_more_catch_up

    # ------------------------------------------------------------------ what it is

    @property
    def configuration(self) -> Configuration:
        """The Configuration in force."""
        return self._state.membership.in_force

    @property
    def servers(self) -> tuple[ClusterServer, ...]:
        """The servers that requests may go to: the members, and on a leader those about to become members."""
        return self._roles.leader.servers if self._roles.leader is not None else self.configuration.servers

    @property
    def leader(self) -> int:
        """The leader of the current term, 0 if it is not known."""
        return self._state.leader_id

    @property
    def role(self) -> Role:
        """The role of this member. One that asks for pre-votes is a candidate too."""
        return self._roles.role

    @property
    def is_leaving(self) -> bool:
        """Whether its leader has told it to leave (LeaveCluster) since the start, and no leader of a later
        term has sent it an append. Meanwhile it does not campaign."""
        return self._roles.is_leaving

    def accepts_term(self, term: int) -> bool:
        """Whether a message may name this term: it is not so high that no election can have made it."""
        return self._state.accepts_term(term)

    @property
    def is_term_too_high(self) -> bool:
        """Whether this member is in a term that others do not accept."""
        return self._state.term > self._state.term_ceiling

    @property
    def term(self) -> int:
        """The current term."""
        return self._state.term

    def status(self) -> Status:
        """A picture of the state, for people and metrics."""
        state, log, leader = self._state, self._state.log, self._roles.leader
        return Status(
            id=self.id,
            role=self.role,
            term=state.term,
            vote=state.vote,
            leader=state.leader_id,
            commit=state.commit_index,
            applied=state.applied_index,
            stable=log.stable,
            first_index=log.first_index,
            last_index=log.last_index,
            configuration=self.configuration,
            peers=leader.peer_statuses() if leader is not None else {},
        )
