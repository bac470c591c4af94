"""What a leader does, from its first entry to the end of its term (Raft §5.3, §5.4.2, §7, §8)."""

from __future__ import annotations

from collections.abc import Sequence

from garlicfarm.errors import Compacted, DiskHangs, ProposalDropped
from garlicfarm.raft.candidate import TIMEOUT_NOW
from garlicfarm.raft.conf_change import PendingConfChange
from garlicfarm.raft.progress import Progress, ProgressState, SnapshotSend
from garlicfarm.raft.proposals import Proposals
from garlicfarm.raft.read_index import ReadIndexQueue
from garlicfarm.raft.state import RaftState
from garlicfarm.raft.types import ConfChange, Entry, PeerStatus, Refusal
from garlicfarm.wire import encode_configuration, encode_snapshot_sync_request
from garlicfarm.wire.messages import (
    ClusterServer,
    Configuration,
    LogEntry,
    MessageType,
    Request,
    Response,
    SnapshotSyncRequest,
    ValueType,
)

__all__ = ["Leader"]

AGAIN = -1
"""In the place of a request's number: tell it to stand again with the next heartbeat."""

TURN_BYTES = 64 * 1024
BEHIND = 1000
"""A follower that lacks more entries than these, or a snapshot, is sent them in spare time only, and about
so many bytes a turn. Reading and encoding takes its time, in which nobody else's entries get on: a member
that lacks much is to cost the others little."""


class Leader:
    """One term of leading. ``over`` is set when it has to end: no majority answers (check-quorum), the
    Configuration in force names it no longer, it hands over to a peer that cannot be told to stand, or its
    disk hangs and no member took over."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self.servers: tuple[ClusterServer, ...] = ()  # whom it sends requests
        self.over = False
        self.resting = False  # it handed over: let the others stand first
        self.more = False  # who is far behind can be sent more without any further input
        self._proposals = Proposals(state.config.max_uncommitted_bytes)
        self._progress: dict[int, Progress] = {}
        self._reads = ReadIndexQueue(state)
        self._conf_change = PendingConfChange(state)
        self._target: tuple[int, int, int] | None = None  # hand over to: (id, deadline, seq, 0 or AGAIN)
        self._ends_ms: int | None = None  # its disk hangs: until when it may go on
        state.leader_id = state.id
        self.follow()
        # Entries of earlier terms are committed with one of this term only: this one (D7).
        self._start = self._append_configuration(state.membership.newest)

    # ------------------------------------------------------------------ time

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        config = self._state.config
        times = [progress.last_sent_ms + config.heartbeat_ms for progress in self._progress.values()]
        if times:
            times.append(self._heard_ms() + config.election_timeout_max_ms + 1)
        if self._target is not None:
            times.append(self._target[1])
        if self._state.is_disk_hanging:
            times.append(self._state.now_ms if self._ends_ms is None else self._ends_ms)
        return min(times, default=None)

    def tick(self) -> None:
        """Heartbeats, and what had to happen by now."""
        state, config = self._state, self._state.config
        if state.now_ms - self._heard_ms() > config.election_timeout_max_ms:
            self.over = True
            return
        if self._target is not None and state.now_ms >= self._target[1]:
            self._target = None
        if self._must_end():
            self.over = True
            return
        for peer, progress in self._progress.items():
            if state.now_ms - progress.last_sent_ms >= config.heartbeat_ms:
                progress.is_backing_off = False
                if self._target is not None and self._target[::2] == (peer, AGAIN):
                    self._target = (peer, self._target[1], 0)
                gone = progress.next_index < state.log.first_index
                if self._is_held(peer, progress):
                    progress.last_sent_ms = state.now_ms
                elif gone or not self._send_entries(peer, progress):
                    self._send_append(peer, progress, ())
        joining = self._conf_change.joining
        if joining is not None and joining.server.id in self._progress:
            silent_ms = state.now_ms - self._progress[joining.server.id].last_heard_ms
            if silent_ms > 10 * config.election_timeout_max_ms:
                self._conf_change.give_up("the new server does not answer")
                self.follow()

    def _must_end(self) -> bool:
        """Whether its disk has hung for as long as a leader may go on without one. Its followers could commit
        for ever what it sends them, but neither its application nor who reads from it would get on."""
        state = self._state
        if not state.is_disk_hanging:
            self._ends_ms = None
        elif self._ends_ms is None:
            self._ends_ms = state.now_ms + state.config.election_timeout_max_ms
            if self._target is None and state.membership.others(state.id):
                self.transfer(0)
        return self._ends_ms is not None and state.now_ms >= self._ends_ms

    def _heard_ms(self) -> int:
        """Since when a majority has not been silent."""
        state, servers = self._state, self._state.membership.in_force.servers
        heard = [state.now_ms if s.id == state.id else self._progress[s.id].last_heard_ms for s in servers]
        return sorted(heard)[len(heard) - state.membership.quorum]

    # ------------------------------------------------------------------ what is asked of it

    def client_request(self, request: Request, token: int) -> None:
        """Append a client's entries; answered after the commit (D8)."""
        state, kind = self._state, MessageType.APPEND_ENTRIES_RESPONSE
        if not request.entries:
            state.respond(token, kind, state.id, state.log.last_index + 1, True)
        elif self._leaving or state.is_disk_hanging:
            state.refuse(token, state.id, Refusal.TRANSFER)
        elif not self._append([entry.value for entry in request.entries], token, from_client=True):
            state.refuse(token, state.id, Refusal.UNCOMMITTED)

    def propose(self, values: Sequence[bytes], token: int) -> None:
        """Append entries of our own. Raises `ProposalDropped`."""
        if self._state.is_disk_hanging:
            raise DiskHangs
        if self._leaving:
            raise ProposalDropped("leadership-in-transfer")
        if not self._append(values, token, from_client=False):
            raise ProposalDropped("too-much-uncommitted")

    def propose_conf_change(self, change: ConfChange, token: int) -> None:
        """Begin to change the Configuration. Raises `ProposalDropped`."""
        if self._state.is_disk_hanging:
            raise DiskHangs
        if self._target is not None:
            raise ProposalDropped("leadership-in-transfer")
        if self._state.commit_index < self._start:
            raise ProposalDropped("nothing-committed-yet")
        self._conf_change.begin(change, token, self._state.log.last_index, self._heard_of_late())
        if self._conf_change.joining is None:
            self._append_change()
        self.follow()

    def transfer(self, to: int) -> None:
        """Hand over to a member, 0: to the one that is best placed. Raises `ProposalDropped`."""
        if self._target is not None:
            raise ProposalDropped("leadership-in-transfer")
        state = self._state
        candidates = {p: self._progress[p] for p in state.membership.others(state.id) if to in (0, p)}
        if not candidates:
            raise ProposalDropped("no-such-member")
        extensions, heard = state.extensions, self._heard_of_late()
        best = max(
            candidates,
            key=lambda p: (p in heard, TIMEOUT_NOW in extensions.get(p, ()), candidates[p].match_index, -p),
        )
        self._target = (best, state.now_ms + state.config.election_timeout_max_ms, 0)

    def read_index(self, token: int, *, forwarded: bool = False) -> None:
        """See `RawNode.read_index`. ``forwarded``: a follower asks, and ``token`` is its request's."""
        # What was committed before is committed with the first entry of this term at the latest.
        self._reads.add(token, max(self._state.commit_index, self._start), forwarded=forwarded)

    @property
    def _leaving(self) -> bool:
        """Whether nothing is appended any more: it hands over, or it is to be removed. With entries behind
        that Configuration its log would outdo those of members that may need its vote after it."""
        state = self._state
        return self._target is not None or state.id not in [s.id for s in state.membership.newest.servers]

    def _heard_of_late(self) -> set[int]:
        state = self._state
        since = state.now_ms - state.config.election_timeout_max_ms
        heard = {p for p, progress in self._progress.items() if progress.is_active_since(since)}
        return {state.id} | heard

    def _append(self, values: Sequence[bytes], token: int, from_client: bool) -> bool:
        log, term = self._state.log, self._state.term
        index = log.last_index + 1
        if not self._proposals.admit(values, index + len(values) - 1, token, from_client):
            return False
        log.append([Entry(i, term, ValueType.APPLICATION, value) for i, value in enumerate(values, index)])
        return True

    def _append_configuration(self, like: Configuration) -> int:
        """Append the servers of ``like`` as the newest Configuration; its index."""
        log, membership = self._state.log, self._state.membership
        index = log.last_index + 1
        configuration = Configuration(index, membership.newest.log_index, like.servers)
        value = encode_configuration(configuration)
        log.append((Entry(index, self._state.term, ValueType.CONFIGURATION, value),))
        membership.append(index, configuration)
        return index

    def _append_change(self) -> None:
        self._conf_change.appended(self._append_configuration(self._conf_change.target()))

    # ------------------------------------------------------------------ who is followed

    @property
    def joining(self) -> int:
        """The server that catches up to become a member, 0: none does."""
        return self._conf_change.joining.server.id if self._conf_change.joining is not None else 0

    def follow(self) -> None:
        """Replicate to exactly the other servers that are members, or about to be."""
        state = self._state
        self.servers = self._conf_change.addressed()
        wanted = {server.id for server in self.servers} - {state.id}
        for peer in self._progress.keys() - wanted:
            progress = self._progress[peer]
            if progress.sent_commit_index < state.commit_index and not progress.is_backing_off:
                self._send_append(peer, progress, ())  # it hears that it is removed
            del self._progress[peer]
        for peer in sorted(wanted - self._progress.keys()):
            self._progress[peer] = Progress(state.log.last_index + 1, state.now_ms)

    def peers(self) -> dict[int, PeerStatus]:
        """A picture of every follower."""
        return {
            peer: PeerStatus(
                p.match_index,
                p.next_index,
                p.state.value if p.snapshot is None else "snapshot",
                len(p.sent),
            )
            for peer, p in self._progress.items()
        }

    # ------------------------------------------------------------------ sending

    def flush(self, spare: bool) -> None:
        """Send what there is to send, as far as the windows allow, and to who is far behind in ``spare``
        time only."""
        state = self._state
        self.more = False
        for peer, progress in self._progress.items():
            turn = progress.size + TURN_BYTES
            while (spare or not self._is_behind(progress)) and self._send_entries(peer, progress):
                if progress.size >= turn and self._is_behind(progress):
                    break
            if self._is_behind(progress) and not self._waits(peer, progress):
                self.more = True
            probing = progress.state is ProgressState.PROBE
            told = probing or progress.sent_commit_index >= state.commit_index
            told = told and not self._reads.is_waiting_for(progress.last_seq)
            told = told or self._is_held(peer, progress)
            if not told and not progress.sent and not progress.is_backing_off:
                self._send_append(peer, progress, ())
        if self._target is not None:
            self._hand_over(*self._target)

    def _hand_over(self, to: int, deadline: int, seq: int) -> None:
        state, progress = self._state, self._progress.get(to)
        if progress is None:
            self._target = None
        elif not seq and progress.match_index == state.log.last_index:
            if TIMEOUT_NOW in state.extensions.get(to, ()):
                last = (state.log.last_term, state.log.last_index)
                seq = state.send(to, MessageType.TIMEOUT_NOW_REQUEST, state.term, last, state.commit_index)
                self._target = (to, deadline, seq)
            else:
                self.over = self.resting = True

    def _is_behind(self, progress: Progress) -> bool:
        log = self._state.log
        return progress.next_index < max(log.first_index, log.last_index - BEHIND)

    def _waits(self, peer: int, progress: Progress) -> bool:
        """Whether an answer has to come before ``peer``, who is behind, is sent more."""
        config, joiner = self._state.config, self._conf_change.joiner(peer)
        gone = progress.next_index < self._state.log.first_index
        if joiner is not None and (not joiner.invited or (not gone and self._is_held(peer, progress))):
            return progress.is_backing_off or bool(joiner.seq)
        if gone:
            return progress.is_backing_off or (progress.snapshot is not None and bool(progress.snapshot.seq))
        return progress.is_window_full(config.max_inflight_messages, config.max_inflight_bytes)

    def _is_held(self, peer: int, progress: Progress) -> bool:
        """Whether ``peer`` is sent no AppendEntries yet: it is only being brought in."""
        joiner = self._conf_change.joiner(peer)
        return joiner is not None and joiner.holds(progress.next_index)

    def _send_entries(self, peer: int, progress: Progress) -> bool:
        """Send the next entries that the window allows; False if there was nothing to send."""
        log, config = self._state.log, self._state.config
        joiner = self._conf_change.joiner(peer)
        if joiner is not None and not joiner.invited:
            return joiner.send(progress)
        if progress.next_index < log.first_index:
            return self._send_snapshot(peer, progress)
        progress.snapshot = None
        if joiner is not None and joiner.holds(progress.next_index):
            return joiner.send(progress)
        if progress.next_index > log.last_index or progress.is_window_full(
            config.max_inflight_messages, config.max_inflight_bytes
        ):
            return False
        size = min(config.batch_bytes, TURN_BYTES)
        self._send_append(peer, progress, log.entries(progress.next_index, log.last_index + 1, size))
        return True

    def _send_append(self, peer: int, progress: Progress, entries: Sequence[Entry]) -> None:
        state = self._state
        # A peer that needs entries which are gone is asked, at heartbeats, whether it has them after all.
        previous = max(progress.next_index, state.log.first_index) - 1
        seq = state.send(
            peer,
            MessageType.APPEND_ENTRIES_REQUEST,
            state.term,
            (state.log.term(previous), previous),
            state.commit_index,
            [LogEntry(e.term, e.value_type, e.value) for e in entries],
        )
        last = previous + len(entries)
        progress.record_sent(seq, previous, last, sum(len(e.value) for e in entries))
        if progress.state is ProgressState.REPLICATE:
            progress.next_index = last + 1
        progress.sent_commit_index = min(state.commit_index, last)
        progress.last_sent_ms = state.now_ms

    def _send_snapshot(self, peer: int, progress: Progress) -> bool:
        """Send the next piece of a snapshot; one at a time, since its answer says where to go on."""
        state, storage = self._state, self._state.log.storage
        way = progress.snapshot
        if progress.is_backing_off or (way is not None and way.seq):
            return False
        if way is None:
            way = progress.snapshot = SnapshotSend(storage.snapshot())
        size = state.config.batch_bytes
        try:
            data, way.last = storage.snapshot_chunk(way.meta.index, way.offset, size)
        except Compacted:
            way = progress.snapshot = SnapshotSend(storage.snapshot())
            data, way.last = storage.snapshot_chunk(way.meta.index, 0, size)
        meta, way.size = way.meta, len(data)
        piece = SnapshotSyncRequest(meta.index, meta.term, meta.configuration, way.offset, data, way.last)
        value = encode_snapshot_sync_request(piece)
        way.seq = state.send(
            peer,
            MessageType.INSTALL_SNAPSHOT_REQUEST,
            state.term,
            (meta.term, meta.index),
            state.commit_index,
            (LogEntry(state.term, ValueType.SNAPSHOT_SYNC_REQUEST, value),),
        )
        return True

    # ------------------------------------------------------------------ answers

    def enrols(self, seq: int) -> bool:
        """Whether a server that is no member yet answers to the request ``seq``."""
        return self._conf_change.joining is not None and self._conf_change.joining.joiner.seq == seq

    def answered(self, seq: int, response: Response) -> None:
        """Take an answer that names no later term, unless its sender is no member yet."""
        if self.enrols(seq):
            self._enrolled(response)
            return
        if self._target is not None and seq == self._target[2]:
            if not response.accepted:  # it has yet to apply the Configuration that it heard is committed
                self._target = (*self._target[:2], AGAIN)
            return
        for peer, progress in self._progress.items():
            if progress.snapshot is not None and progress.snapshot.seq == seq:
                progress.record_answer(self._state.now_ms)
                self._piece_answered(peer, progress, progress.snapshot, response)
                return
            sent = progress.pop_sent(seq)
            if sent is not None:
                progress.record_answer(self._state.now_ms)
                progress.is_backing_off = False
                if response.term == self._state.term:
                    self._reads.on_response(peer, seq)
                self._append_answered(peer, progress, sent, response)
                return

    def unreachable(self, peer: int, seq: int | None) -> None:
        """The request got no answer; None: ``peer`` cannot be reached."""
        progress = self._progress.get(peer)
        if progress is None:
            return
        if self._target is not None and seq == self._target[2]:
            self._target = (*self._target[:2], AGAIN)
        way, joiner = progress.snapshot, self._conf_change.joiner(peer)
        if joiner is not None and seq in (None, joiner.seq):
            joiner.seq = 0
        elif way is not None and seq in (None, way.seq):
            way.seq = 0
        elif seq is not None and progress.pop_sent(seq) is None:
            return
        progress.back_off()

    def connected(self, peer: int) -> None:
        """``peer`` can be reached again: what it lacks need not wait for the next heartbeat."""
        if peer in self._progress:
            self._progress[peer].is_backing_off = False

    def _enrolled(self, response: Response) -> None:
        joining = self._conf_change.joining
        assert joining is not None
        peer, joiner = joining.server.id, joining.joiner
        progress = self._progress[peer]
        progress.record_answer(self._state.now_ms)
        joiner.answered(response, progress)
        if joiner.refused:
            self._conf_change.give_up("the new server refuses to join")
            self.follow()
        else:
            self._advanced(peer, progress)

    def _append_answered(
        self, peer: int, progress: Progress, sent: tuple[int, int], response: Response
    ) -> None:
        previous, last = sent
        if not response.accepted or response.term != self._state.term:
            # The logs do not meet at `previous`; the hint may jump back any distance.
            progress.become_probe(min(previous, max(response.next_index, 1)))
            progress.is_backing_off = previous <= progress.match_index  # it forgot what it acknowledged
        elif last > progress.match_index or progress.state is ProgressState.PROBE:
            held = min(last, response.next_index - 1)  # it may take fewer than it was sent: JRaft counts so
            if held == last:
                progress.match_up_to(last)
            elif held > progress.match_index:
                progress.match_up_to(held)
                progress.become_probe(held + 1)
            else:
                progress.back_off()
            self._advanced(peer, progress)

    def _piece_answered(self, peer: int, progress: Progress, way: SnapshotSend, response: Response) -> None:
        held, expected = response.next_index, way.offset + way.size
        way.seq = 0
        if not response.accepted:
            # It cannot now, or holds all that is in this one: at the next heartbeat the newest is begun.
            progress.snapshot, progress.is_backing_off = None, True
        elif way.last and held == expected:
            progress.snapshot = None
            progress.match_up_to(way.meta.index)
            if joiner := self._conf_change.joiner(peer):
                joiner.offset = 0
            self._advanced(peer, progress)
        else:
            # Pieces from before may be held; none, where what came was no sound snapshot.
            progress.is_backing_off = held < expected
            way.offset = held

    def _advanced(self, peer: int, progress: Progress) -> None:
        state = self._state
        if peer == self.joining:
            if self._conf_change.caught_up(progress.match_index, state.log.last_index):
                self._append_change()
            self.follow()
        self.maybe_commit()

    # ------------------------------------------------------------------ committing

    def maybe_commit(self) -> None:
        """Commit what a majority holds durably, if it is of the current term (Raft §5.4.2)."""
        state = self._state
        servers = state.membership.in_force.servers
        matches = sorted(
            state.log.stable if s.id == state.id else self._progress[s.id].match_index for s in servers
        )
        index = matches[len(matches) - state.membership.quorum]
        if index <= state.commit_index or state.log.term(index) != state.term:
            return
        changed = state.commit_to(index)
        for proposal in self._proposals.take_committed(index):
            last = proposal.last_index
            if proposal.from_client:  # durable at a majority: this waits for none of our own writes
                kind = MessageType.APPEND_ENTRIES_RESPONSE
                answer = Response(kind, state.id, state.id, state.term, last + 1, True)
                state.responses.append((proposal.token, answer))
            else:
                state.outcomes.append((proposal.token, (last, state.term)))
        self._conf_change.committed(index)
        if changed:
            self.follow()
            if state.id in state.membership:
                self._reads.release()
                self.maybe_commit()  # the majority may be another one now
            else:
                self._farewell()
                self.over = True

    def _farewell(self) -> None:
        """The others hear of the last commit, whatever else is on its way to them."""
        self.flush(spare=True)
        for peer, progress in self._progress.items():
            if progress.sent_commit_index < self._state.commit_index:
                self._send_append(peer, progress, ())

    def end(self, leader: int) -> None:
        """Leadership is lost, to ``leader`` if that is known already: what is not committed may yet be, or
        not."""
        state = self._state
        for proposal in self._proposals.take_all():
            if proposal.from_client:
                state.responses.append((proposal.token, None))
            else:
                state.outcomes.append((proposal.token, None))
        self._conf_change.end()
        self._reads.fail_all(leader)
