"""How a leader brings every follower's log up to date (Raft §5.3, §7): what to send next, and what answers
mean.

A follower gets AppendEntries in a window (`progress`), or one piece of a snapshot at a time where it needs
entries that are compacted. A joiner gets an invitation and packs first (`joiner`)."""

from __future__ import annotations

from collections.abc import Callable

from garlicfarm.errors import Compacted
from garlicfarm.levels import COMPARING
from garlicfarm.raft.follower import SNAPSHOT_WANTED
from garlicfarm.raft.joiner import Joiner
from garlicfarm.raft.progress import Progress, ProgressState, SentAppend, SnapshotSend
from garlicfarm.raft.read_index import ReadIndexQueue
from garlicfarm.raft.state import RaftState
from garlicfarm.raft.types import LogPosition, PeerStatus
from garlicfarm.wire import encode_snapshot_sync_request
from garlicfarm.wire.messages import (
    ClusterServer,
    Configuration,
    LogEntry,
    MessageType,
    Response,
    SnapshotSyncRequest,
    ValueType,
)

LAGGING_ENTRIES = 1000
"""A follower that lacks more entries than these, or needs a snapshot, is lagging. Reading and encoding what
it lacks takes time in which entries for the others wait, so it is sent that in catch-up turns only."""

CATCH_UP_TURN_BYTES = 64 * 1024
"""About how much a lagging follower gets in one turn; also the most in one AppendEntries."""


class Replication:
    """Replicates one leader's log to ``servers``. ``joiner_of(peer)`` is the joiner if ``peer`` is it;
    ``reads`` wait for requests that `send_pending` has to send."""

    def __init__(
        self, state: RaftState, reads: ReadIndexQueue, joiner_of: Callable[[int], Joiner | None]
    ) -> None:
        self._state = state
        self._reads = reads
        self._joiner_of = joiner_of
        self.servers: tuple[ClusterServer, ...] = ()
        self.progress: dict[int, Progress] = {}
        self.has_more_catch_up = False  # a lagging follower can be sent more without more input
        # The entries behind an index, up to the last one, and their size: most peers need the same ones.
        self._batches: dict[tuple[int, int], tuple[tuple[LogEntry, ...], int]] = {}

    def set_servers(self, servers: tuple[ClusterServer, ...]) -> None:
        """Replicate to exactly these servers from now on."""
        state = self._state
        self.servers = servers
        peers = {server.id for server in servers} - {state.id}
        for peer in self.progress.keys() - peers:
            self._dismiss(peer, self.progress.pop(peer))
        for peer in sorted(peers - self.progress.keys()):
            self.progress[peer] = Progress(state.log.last_index + 1, state.now_ms)

    def _dismiss(self, peer: int, progress: Progress) -> None:
        """Tell a peer that its removal is committed, once this member's own disk knows: from then on a
        restart of this member does not bring back a Configuration that needs the peer's vote."""
        state, log, limit = self._state, self._state.log, self._state.membership.in_force.log_index
        if progress.sent_commit_index >= state.commit_index or progress.is_backing_off:
            return
        batch: tuple[tuple[LogEntry, ...], int] = (), 0
        if log.first_index <= progress.next_index <= limit:
            batch = self._batch(progress.next_index, limit)
        self._send_append(peer, progress, *batch, is_held=True)

    # ------------------------------------------------------------------ the state of the peers

    def active_members(self) -> set[int]:
        """This member, and the peers that answered within the upper election timeout."""
        since_ms = self._state.now_ms - self._state.config.election_timeout_max_ms
        return {self._state.id} | {p for p, each in self.progress.items() if each.is_active_since(since_ms)}

    def quorum_heard_ms(self) -> int:
        """The last time at which a majority had answered (check-quorum)."""
        state, servers = self._state, self._state.membership.in_force.servers
        heard = [state.now_ms if s.id == state.id else self.progress[s.id].last_heard_ms for s in servers]
        return sorted(heard)[len(heard) - state.membership.quorum]

    def quorum_match_index(self) -> int:
        """The last index that a majority of the members holds durably."""
        return self._majority_match_index(self._state.membership.in_force)

    def _majority_match_index(self, configuration: Configuration) -> int:
        """The last index that a majority of a Configuration's servers holds durably."""
        state = self._state
        matches = sorted(
            state.log.stable if s.id == state.id else self.progress[s.id].match_index
            for s in configuration.servers
        )
        return matches[(len(matches) - 1) // 2]

    def _last_index_for(self, peer: int) -> int:
        """The last entry that ``peer`` may get. A member that the newest Configuration does not name gets
        what is committed, or what a majority of that Configuration holds durably. With more, its log would
        be more up to date than those of members that may need its vote after it has gone silent."""
        state, membership = self._state, self._state.membership
        if not membership.has_pending or any(s.id == peer for s in membership.newest.servers):
            return state.log.last_index
        return max(state.commit_index, self._majority_match_index(membership.newest))

    def next_heartbeat_ms(self) -> int | None:
        """When the next heartbeat is due, None: there is no peer."""
        times = [progress.last_sent_ms for progress in self.progress.values()]
        return min(times) + self._state.config.heartbeat_ms if times else None

    def peer_statuses(self) -> dict[int, PeerStatus]:
        """A picture of every peer."""
        return {
            peer: PeerStatus(
                p.match_index,
                p.next_index,
                p.state.value if p.snapshot is None else "snapshot",
                len(p.inflight),
                p.refused_snapshots,
            )
            for peer, p in self.progress.items()
        }

    # ------------------------------------------------------------------ sending

    def send_heartbeats(self) -> list[int]:
        """Send to every peer that has heard nothing for the heartbeat interval. Returns these peers."""
        state, due = self._state, []
        for peer, progress in self.progress.items():
            if state.now_ms - progress.last_sent_ms >= state.config.heartbeat_ms:
                due.append(peer)
                progress.is_backing_off = False
                if self._is_withheld(peer, progress):
                    progress.last_sent_ms = state.now_ms
                elif self._needs_snapshot(progress) or not self._send_next(peer, progress):
                    self._send_append(peer, progress)
        return due

    def send_pending(self, catch_up: bool) -> None:
        """Send what the windows allow, to lagging followers with ``catch_up`` only. A peer that has to hear
        of a commit, or whose answer a read waits for, gets an empty AppendEntries if nothing else is on its
        way."""
        self.has_more_catch_up = False
        self.hurry_commit_index(*self._reads.answered_followers)
        self._reads.answered_followers.clear()
        last_index = self._state.log.last_index
        for peer, progress in self.progress.items():
            is_up_to_date = progress.next_index > last_index and not self._needs_snapshot(progress)
            if is_up_to_date and self._joiner_of(peer) is None:
                progress.snapshot = None
            else:
                self._send_missing(peer, progress, catch_up)
            if self._is_idle(peer, progress) and self._needs_append(progress):
                self._send_append(peer, progress)
        self._batches.clear()

    def _send_missing(self, peer: int, progress: Progress, catch_up: bool) -> None:
        turn_end = progress.inflight_bytes + CATCH_UP_TURN_BYTES
        while (catch_up or not self._is_lagging(peer, progress)) and self._send_next(peer, progress):
            if progress.inflight_bytes >= turn_end and self._is_lagging(peer, progress):
                break
        if self._is_lagging(peer, progress) and not self._is_waiting(peer, progress):
            self.has_more_catch_up = True

    def next_commit_notice_ms(self) -> int | None:
        """When a peer has to be told the commit index by a message of its own, None: no peer."""
        times = [
            progress.notice_at_ms
            for peer, progress in self.progress.items()
            if progress.notice_at_ms is not None and self._is_idle(peer, progress)
        ]
        return min(times, default=None)

    def hurry_commit_index(self, *peers: int) -> None:
        """Tell these peers the commit index as soon as nothing else is on its way to them. Other ids are
        ignored."""
        for peer in peers:
            if peer in self.progress:
                self.progress[peer].notice_at_ms = self._state.now_ms

    def send_commit_index(self) -> None:
        """Tell every peer the last commit index, even while other requests are pending."""
        for peer, progress in self.progress.items():
            if progress.sent_commit_index < self._state.commit_index:
                self._send_append(peer, progress)

    def _needs_append(self, progress: Progress) -> bool:
        """Whether a peer that has all entries needs an AppendEntries: it has not known the commit index for
        too long, or a read waits for its answer."""
        now_ms = self._state.now_ms
        if progress.sent_commit_index >= self._state.commit_index or progress.state is ProgressState.PROBE:
            progress.notice_at_ms = None
        elif progress.notice_at_ms is None:
            progress.notice_at_ms = now_ms + self._state.config.commit_notice_ms
        is_notice_due = progress.notice_at_ms is not None and progress.notice_at_ms <= now_ms
        return is_notice_due or self._reads.is_waiting_for(progress.last_seq)

    def _is_idle(self, peer: int, progress: Progress) -> bool:
        """Whether nothing is on its way to ``peer``, and something may be sent."""
        return not (progress.inflight or progress.is_backing_off or self._is_withheld(peer, progress))

    def _needs_snapshot(self, progress: Progress) -> bool:
        log = self._state.log
        return progress.next_index < log.first_index or (
            progress.wants_snapshot and log.storage.snapshot().index > progress.match_index
        )

    @property
    def snapshot_wanted(self) -> int:
        """See `RawNode.snapshot_wanted`."""
        waiting = (one for one in self.progress.values() if one.wants_snapshot)
        return max((one.match_index for one in waiting if not self._needs_snapshot(one)), default=0)

    def _is_lagging(self, peer: int, progress: Progress) -> bool:
        log = self._state.log
        if progress.wants_snapshot:
            return self._needs_snapshot(progress)
        if progress.next_index >= max(log.first_index, log.last_index - LAGGING_ENTRIES):
            return False
        return progress.next_index <= self._last_index_for(peer)

    def _is_withheld(self, peer: int, progress: Progress) -> bool:
        """Whether ``peer`` gets no AppendEntries yet, since it is still being brought in."""
        joiner = self._joiner_of(peer)
        return joiner is not None and joiner.is_withheld(progress.next_index)

    def _is_waiting(self, peer: int, progress: Progress) -> bool:
        """Whether a lagging peer has to answer before it is sent more."""
        config, joiner = self._state.config, self._joiner_of(peer)
        needs_snapshot = self._needs_snapshot(progress)
        if joiner is not None and (
            not joiner.is_invited or (not needs_snapshot and self._is_withheld(peer, progress))
        ):
            return progress.is_backing_off or bool(joiner.seq)
        if needs_snapshot:
            return progress.is_backing_off or (progress.snapshot is not None and bool(progress.snapshot.seq))
        return progress.is_window_full(config.max_inflight_messages, config.max_inflight_bytes)

    def _send_next(self, peer: int, progress: Progress) -> bool:
        """Send the next entries, or what has to come before them. Returns whether anything was sent."""
        log, config = self._state.log, self._state.config
        joiner = self._joiner_of(peer)
        if joiner is not None and not joiner.is_invited:
            return joiner.send(progress)
        if self._needs_snapshot(progress) and progress.next_index <= log.last_index + 1:
            return self._send_snapshot(peer, progress)
        progress.snapshot = None
        if progress.next_index > log.last_index or progress.wants_snapshot:
            return False
        if joiner is not None and joiner.is_withheld(progress.next_index):
            return joiner.send(progress)
        if progress.is_window_full(config.max_inflight_messages, config.max_inflight_bytes):
            return False
        last = self._last_index_for(peer)
        if progress.next_index > last:
            return False
        self._send_append(peer, progress, *self._batch(progress.next_index, last))
        return True

    def _batch(self, start: int, last: int) -> tuple[tuple[LogEntry, ...], int]:
        """Entries from ``start`` to at most ``last``, as many as one AppendEntries carries, and the size of
        their values. All peers that lack them are sent the same tuple, so that it has to be encoded only
        once."""
        key = start, last
        batch = self._batches.get(key)
        if batch is None:
            most = min(self._state.config.batch_bytes, CATCH_UP_TURN_BYTES)
            entries = self._state.log.entries(start, last + 1, most)
            size = sum([len(e.value) for e in entries])
            batch = tuple([LogEntry(e.term, e.value_type, e.value) for e in entries]), size
            self._batches[key] = batch
        return batch

    def _send_append(
        self,
        peer: int,
        progress: Progress,
        entries: tuple[LogEntry, ...] = (),
        size: int = 0,
        *,
        is_held: bool = False,
    ) -> None:
        """Send entries of this size, or none; ``is_held``: once everything done so far is durable."""
        state = self._state
        # A peer that needs compacted entries is asked, at heartbeats, whether it holds them after all.
        previous = max(progress.next_index, state.log.first_index) - 1
        seq = state.send(
            peer,
            MessageType.APPEND_ENTRIES_REQUEST,
            state.term,
            LogPosition(previous, state.log.term(previous)),
            state.commit_index,
            entries,
            is_held=is_held,
        )
        last = previous + len(entries)
        progress.record_sent(SentAppend(seq, previous, last, size))
        if progress.state is ProgressState.REPLICATE:
            progress.next_index = last + 1
        progress.sent_commit_index = min(state.commit_index, last)
        progress.notice_at_ms = None
        progress.last_sent_ms = state.now_ms

    def _send_snapshot(self, peer: int, progress: Progress) -> bool:
        """Send the next piece of a snapshot: one at a time, since its answer says where the next one
        begins."""
        state, storage = self._state, self._state.log.storage
        snapshot = progress.snapshot
        if progress.is_backing_off or (snapshot is not None and snapshot.seq):
            return False
        if snapshot is None:
            snapshot = progress.snapshot = SnapshotSend(storage.snapshot())
        size = state.config.batch_bytes
        try:
            data, is_last = storage.snapshot_chunk(snapshot.meta.index, snapshot.offset, size)
        except Compacted:
            snapshot = progress.snapshot = SnapshotSend(storage.snapshot())
            data, is_last = storage.snapshot_chunk(snapshot.meta.index, 0, size)
        meta, snapshot.size, snapshot.is_last_piece = snapshot.meta, len(data), is_last
        piece = SnapshotSyncRequest(meta.index, meta.term, meta.configuration, snapshot.offset, data, is_last)
        value = encode_snapshot_sync_request(piece)
        snapshot.seq = state.send(
            peer,
            MessageType.INSTALL_SNAPSHOT_REQUEST,
            state.term,
            LogPosition(meta.index, meta.term),
            state.commit_index,
            (LogEntry(state.term, ValueType.SNAPSHOT_SYNC_REQUEST, value),),
        )
        return True

    # ------------------------------------------------------------------ answers

    def step_response(self, seq: int, response: Response) -> int:
        """Take the answer to an AppendEntries or a piece of a snapshot. Returns the peer whose match_index
        may have advanced by it, 0 if none has."""
        state = self._state
        for peer, progress in self.progress.items():
            if progress.snapshot is not None and progress.snapshot.seq == seq:
                progress.record_answer(state.now_ms)
                return peer if self._step_snapshot_response(peer, progress, response) else 0
            sent = progress.pop_sent(seq)
            if sent is not None:
                progress.record_answer(state.now_ms)
                progress.is_backing_off = False
                if response.term == state.term:
                    self._reads.on_response(peer, seq)
                return peer if self._step_append_response(progress, sent, response) else 0
        return 0

    def report_unreachable(self, peer: int, seq: int | None) -> None:
        """The request ``seq`` got no answer (None: ``peer`` cannot be reached)."""
        progress = self.progress[peer]
        snapshot, joiner = progress.snapshot, self._joiner_of(peer)
        if joiner is not None and seq in (None, joiner.seq):
            joiner.seq = 0
        elif snapshot is not None and seq in (None, snapshot.seq):
            snapshot.seq = 0
        elif seq is not None and progress.pop_sent(seq) is None:
            return
        progress.back_off()

    def on_connected(self, peer: int) -> None:
        """``peer`` can be reached again: what it lacks need not wait for the next heartbeat."""
        if peer in self.progress:
            self.progress[peer].is_backing_off = False

    def _step_append_response(self, progress: Progress, sent: SentAppend, response: Response) -> bool:
        if not response.accepted or response.term != self._state.term:
            is_level = self._state.membership.in_force.level >= COMPARING
            progress.wants_snapshot = is_level and response.next_index == SNAPSHOT_WANTED
            # The logs do not meet at `previous`; the hint may lead back any distance.
            progress.become_probe(min(sent.previous, max(response.next_index, 1)))
            # It forgot what it acknowledged: ask again with the next heartbeat only.
            progress.is_backing_off = sent.previous <= progress.match_index and not progress.wants_snapshot
            return False
        if sent.last <= progress.match_index and progress.state is not ProgressState.PROBE:
            return False
        held = min(sent.last, response.next_index - 1)  # JRaft may take fewer entries than it was sent
        if held == sent.last:
            progress.match_up_to(held)
        elif held > progress.match_index:
            progress.match_up_to(held)
            progress.become_probe(held + 1)
        else:
            progress.back_off()
        return True

    def _step_snapshot_response(self, peer: int, progress: Progress, response: Response) -> bool:
        snapshot = progress.snapshot
        assert snapshot is not None
        held, expected = response.next_index, snapshot.offset + snapshot.size
        snapshot.seq = 0
        if not response.accepted:
            # It cannot take it now, or holds everything in it: begin with the newest at the next heartbeat.
            progress.snapshot, progress.is_backing_off = None, True
        elif snapshot.is_last_piece and held == expected:
            progress.snapshot = None
            progress.match_up_to(snapshot.meta.index)
            if joiner := self._joiner_of(peer):
                joiner.pack_offset = 0
            return True
        else:
            # It may hold pieces of an earlier attempt, or nothing, if the snapshot was damaged on its way.
            progress.is_backing_off = held < expected
            progress.refused_snapshots += not held
            snapshot.offset = held
        return False
