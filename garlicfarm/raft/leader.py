"""What a leader does, from the first entry of its term to the end of its leadership (Raft §5.3, §5.4.2, §8).

Its parts: `replication` sends the log to the others, `proposals` remembers what clients wait for,
`read_index` confirms reads, `conf_change` changes the members, `transfer` hands leadership over."""

from __future__ import annotations

from collections.abc import Sequence

from garlicfarm.errors import DiskHangs, ProposalDropped
from garlicfarm.raft.conf_change import PendingConfChange
from garlicfarm.raft.read_index import ReadIndexQueue
from garlicfarm.raft.replication import Replication
from garlicfarm.raft.state import RaftState
from garlicfarm.raft.transfer import LeadershipTransfer
from garlicfarm.raft.types import (
    ConfChange,
    Entry,
    LogPosition,
    OutgoingResponse,
    PeerStatus,
    ProposalOutcome,
)
from garlicfarm.raft.uncommitted import UncommittedProposals
from garlicfarm.refusals import Refusal
from garlicfarm.wire import encode_configuration
from garlicfarm.wire.messages import (
    ClusterServer,
    Configuration,
    MessageType,
    Request,
    Response,
    ValueType,
)

_APPEND_RESPONSE = MessageType.APPEND_ENTRIES_RESPONSE


class Leader:
    """One term of leading. ``is_stepping_down`` is set when it has to end: no majority answers
    (check-quorum), the Configuration in force does not name this member any more, the target of a transfer
    lacks TimeoutNow, or the disk hangs and no member took over. ``is_yielding``: let another member
    campaign first after that."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self.is_stepping_down = False
        self.is_yielding = False
        self._unfit_deadline_ms: int | None = None  # until when it may lead while it is unfit to
        self._quorum_end_ms = 0  # it may lead until then at least, even if no member answers any more
        self._proposals = UncommittedProposals(
            state.config.max_uncommitted_bytes, state.config.max_commit_wait_ms
        )
        self._reads = ReadIndexQueue(state)
        self._conf_change = PendingConfChange(state)
        self._transfer = LeadershipTransfer(state)
        self._replication = Replication(state, self._reads, self._conf_change.joiner_of)
        state.leader_id = state.id
        self._update_servers()
        # Entries of earlier terms are committed together with one of this term only: a Configuration, at
        # once (D7).
        self._term_start_index = self._append_configuration(state.membership.newest)

    @property
    def servers(self) -> tuple[ClusterServer, ...]:
        """The servers that it replicates to, itself among them."""
        return self._replication.servers

    @property
    def has_more_catch_up(self) -> bool:
        """Whether a lagging follower can be sent more without more input."""
        return self._replication.has_more_catch_up

    @property
    def snapshot_wanted(self) -> int:
        """See `RawNode.snapshot_wanted`."""
        return self._replication.snapshot_wanted

    @property
    def joining(self) -> int:
        """The server that catches up to become a member, 0: none."""
        return self._conf_change.joiner.server.id if self._conf_change.joiner is not None else 0

    def peer_statuses(self) -> dict[int, PeerStatus]:
        """A picture of every follower."""
        return self._replication.peer_statuses()

    # ------------------------------------------------------------------ time

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        state, times = self._state, []
        notice_ms = self._replication.next_commit_notice_ms()
        if notice_ms is not None:
            times.append(notice_ms)
        heartbeat_ms = self._replication.next_heartbeat_ms()
        if heartbeat_ms is not None:
            times += [heartbeat_ms, self._quorum_end_ms + 1]
        if self._transfer.deadline_ms is not None:
            times.append(self._transfer.deadline_ms)
        if state.is_unfit_to_lead:
            times.append(state.now_ms if self._unfit_deadline_ms is None else self._unfit_deadline_ms)
        return min(times, default=None)

    def tick(self) -> None:
        """Send heartbeats, and end what has lasted too long."""
        state, config = self._state, self._state.config
        if state.now_ms > self._quorum_end_ms:
            self._set_quorum_end()
        if state.now_ms > self._quorum_end_ms:
            self.is_stepping_down = True
            return
        self._transfer.tick()
        if self._is_unfit_too_long():
            self.is_stepping_down = True
            return
        for peer in self._replication.send_heartbeats():
            self._transfer.on_heartbeat(peer)
        joining = self._replication.progress.get(self.joining)
        if joining is not None and state.now_ms - joining.last_heard_ms > 10 * config.election_timeout_max_ms:
            self._conf_change.give_up(Refusal.JOINER_DOES_NOT_ANSWER)
            self._update_servers()

    def _is_unfit_too_long(self) -> bool:
        """Whether it has been unfit to lead for the upper election timeout; first it tries to hand over. With
        a disk that hangs, the followers could go on committing what it sends, but its own application and
        readers would get nothing."""
        state = self._state
        if not state.is_unfit_to_lead:
            self._unfit_deadline_ms = None
        elif self._unfit_deadline_ms is None:
            self._unfit_deadline_ms = state.now_ms + state.config.election_timeout_max_ms
            if not self._transfer.is_active and state.membership.others(state.id):
                self.transfer(0)
        return self._unfit_deadline_ms is not None and state.now_ms >= self._unfit_deadline_ms

    # ------------------------------------------------------------------ proposals and reads

    def answer_that_it_leads(self, token: int) -> None:
        """Answer a ClientRequest without entries."""
        state = self._state
        state.respond(token, _APPEND_RESPONSE, state.id, state.log.last_index + 1, True)

    def step_posts(self, posts: Sequence[tuple[Request, int]]) -> None:
        """Append the entries of ClientRequests, each with its token; each is answered after the commit (D8).
        All or none of one request are appended."""
        state, log = self._state, self._state.log
        is_refusing = self._is_refusing_entries or state.is_disk_hanging
        term, now_ms, index = state.term, state.now_ms, log.last_index + 1
        appended: list[Entry] = []
        for request, token in posts:
            entries = request.entries
            last = index + len(entries) - 1
            if is_refusing:
                refusal = Refusal.LEADERSHIP_IN_TRANSFER
            elif self._proposals.admit(
                [entry.value for entry in entries],
                last,
                token,
                now_ms,
                from_client=True,
                source=request.source,
            ):
                for entry in entries:
                    appended.append(Entry(index, term, ValueType.APPLICATION, entry.value))
                    index += 1
                continue
            else:
                refusal = Refusal.TOO_MUCH_UNCOMMITTED
            if appended:
                log.append(appended)  # a refusal waits for the writes before it
                appended = []
            state.refuse(token, refusal)
        if appended:
            log.append(appended)

    def propose(self, values: Sequence[bytes], token: int) -> None:
        """Append entries of our own. Raises `ProposalDropped`."""
        if self._state.is_disk_hanging:
            raise DiskHangs
        if self._is_refusing_entries:
            raise ProposalDropped(Refusal.LEADERSHIP_IN_TRANSFER)
        if not self._append(values, token):
            raise ProposalDropped(Refusal.TOO_MUCH_UNCOMMITTED)

    @property
    def _has_begun(self) -> bool:
        """The Configuration that begins the term is applied: until then it is a change in flight."""
        return self._state.applied_index >= self._term_start_index

    def check_conf_change(self, change: ConfChange) -> None:
        """See `RawNode.check_conf_change`."""
        if self._has_begun:  # else it was only just elected
            self._conf_change.check(change, self._replication.active_members())

    def propose_conf_change(self, change: ConfChange, token: int) -> None:
        """Begin to change the Configuration. Raises `ProposalDropped`."""
        if self._state.is_disk_hanging:
            raise DiskHangs
        if self._transfer.is_active:
            raise ProposalDropped(Refusal.LEADERSHIP_IN_TRANSFER)
        if not self._has_begun:
            raise ProposalDropped(Refusal.NOTHING_COMMITTED_YET)
        self._conf_change.begin(change, token, self._replication.active_members())
        if self._conf_change.joiner is None:
            self._append_conf_change()
        self._update_servers()

    def transfer(self, to: int) -> None:
        """Hand over to a member, 0: to the one best placed. Raises `ProposalDropped`."""
        self._transfer.begin(to)

    def read_index(self, token: int, follower: int | None = None) -> None:
        """See `RawNode.read_index`. ``follower``: the one that asks, and ``token`` is of its request."""
        # What earlier leaders committed is committed here with the first entry of this term at the latest.
        index = max(self._state.commit_index, self._term_start_index)
        self._reads.add(token, index, follower)

    @property
    def _is_refusing_entries(self) -> bool:
        """Whether nothing is appended any more: it hands over, or it is to be removed. With entries behind
        that Configuration its log would be more up to date than those of members that may need its vote
        later."""
        state = self._state
        is_removed = state.id not in [s.id for s in state.membership.newest.servers]
        return self._transfer.is_active or is_removed

    def _append(self, values: Sequence[bytes], token: int) -> bool:
        log, state = self._state.log, self._state
        index = log.last_index + 1
        last = index + len(values) - 1
        if not self._proposals.admit(values, last, token, state.now_ms, from_client=False):
            return False
        log.append(
            [Entry(i, state.term, ValueType.APPLICATION, value) for i, value in enumerate(values, index)]
        )
        return True

    def _append_configuration(self, like: Configuration) -> int:
        """Append servers and level of ``like`` as the newest Configuration. Returns its index."""
        log, membership = self._state.log, self._state.membership
        index = log.last_index + 1
        configuration = Configuration(index, membership.newest.log_index, like.servers, like.level)
        value = encode_configuration(configuration)
        log.append((Entry(index, self._state.term, ValueType.CONFIGURATION, value),))
        membership.append(index, configuration)
        return index

    def _append_conf_change(self) -> None:
        index = self._append_configuration(self._conf_change.new_configuration())
        self._conf_change.on_appended(index)

    def _update_servers(self) -> None:
        self._replication.set_servers(self._conf_change.replication_targets())
        self._set_quorum_end()

    def _set_quorum_end(self) -> None:
        """Answers only move the end on. So it is looked up again where it has come, and where the servers
        change."""
        timeout_ms = self._state.config.election_timeout_max_ms
        self._quorum_end_ms = self._replication.quorum_heard_ms() + timeout_ms

    # ------------------------------------------------------------------ messages

    def send_pending(self, catch_up: bool) -> None:
        """Send what there is to send, to lagging followers with ``catch_up`` only."""
        self._replication.send_pending(catch_up)
        if self._transfer.advance(self._replication.progress, self._replication.active_members):
            self.is_stepping_down = self.is_yielding = True

    def is_joiner_request(self, seq: int) -> bool:
        """Whether ``seq`` is a request that brings in a server which is no member yet."""
        joiner = self._conf_change.joiner
        return joiner is not None and 0 != joiner.seq == seq

    def step_response(self, seq: int, response: Response) -> None:
        """Take an answer that names no later term, unless its sender is no member yet."""
        if self.is_joiner_request(seq):
            self._step_joiner_response(response)
        elif not self._transfer.step_response(seq, response):
            advanced = self._replication.step_response(seq, response)
            if advanced:
                self._on_advanced(advanced)

    def report_unreachable(self, peer: int, seq: int | None) -> None:
        """The request ``seq`` got no answer (None: ``peer`` cannot be reached)."""
        if peer in self._replication.progress:
            self._transfer.report_unreachable(seq)
            self._replication.report_unreachable(peer, seq)

    def on_connected(self, peer: int) -> None:
        """``peer`` can be reached again."""
        self._replication.on_connected(peer)

    def _step_joiner_response(self, response: Response) -> None:
        joiner = self._conf_change.joiner
        assert joiner is not None
        progress = self._replication.progress[joiner.server.id]
        progress.record_answer(self._state.now_ms)
        joiner.step_response(response, progress)
        if joiner.has_refused:
            self._conf_change.give_up(Refusal.JOINER_REFUSES)
            self._update_servers()
        else:
            self._on_advanced(joiner.server.id)

    def _on_advanced(self, peer: int) -> None:
        """The match_index of ``peer`` may have advanced."""
        if peer == self.joining:
            if self._conf_change.is_ready_to_append(self._replication.progress[peer].match_index):
                self._append_conf_change()
            self._update_servers()
        self.maybe_commit()

    # ------------------------------------------------------------------ committing

    def maybe_commit(self) -> None:
        """Commit what a majority holds durably, if it is of the current term (Raft §5.4.2)."""
        state = self._state
        index = self._replication.quorum_match_index()
        if index <= state.commit_index or state.log.term(index) != state.term:
            return
        is_configuration_changed = state.commit_to(index)
        for proposal in self._proposals.take_committed(index, state.now_ms):
            last = proposal.last_index
            if proposal.from_client:  # durable at a majority: this waits for no write of our own
                response = Response(_APPEND_RESPONSE, state.id, state.id, state.term, last + 1, True)
                state.responses.append(OutgoingResponse(proposal.token, response))
                if proposal.source:
                    self._replication.hurry_commit_index(proposal.source)
            else:
                state.outcomes.append(ProposalOutcome(proposal.token, LogPosition(last, state.term)))
        self._conf_change.on_committed(index)
        if is_configuration_changed:
            self._update_servers()
            self._replication.hurry_commit_index(*self._replication.progress)
            if state.id in state.membership:
                self._reads.release()
                self.maybe_commit()  # the majority may be another one now
            else:
                self.send_pending(catch_up=True)
                self._replication.send_commit_index()  # the others hear of the removal
                self.is_stepping_down = True

    def step_down(self, successor: int) -> None:
        """Leadership is lost, to ``successor`` (0: not known yet). What is not committed may yet be, or
        not."""
        state = self._state
        for proposal in self._proposals.take_all():
            if proposal.from_client:
                state.responses.append(OutgoingResponse(proposal.token, None))
            else:
                state.outcomes.append(ProposalOutcome(proposal.token, None))
        self._conf_change.on_step_down()
        self._reads.fail_all(successor)
