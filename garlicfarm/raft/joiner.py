"""How a leader brings a new server in: invited, then sent what is committed (protocol page §5, "Join")."""

from __future__ import annotations

from collections.abc import Sequence

from garlicfarm.raft.progress import Progress
from garlicfarm.raft.state import RaftState
from garlicfarm.raft.types import Entry
from garlicfarm.wire import encode_configuration, encode_log_pack
from garlicfarm.wire.messages import LogEntry, MessageType, Response, ValueType

__all__ = ["Joiner"]

PACKED_HEADER_BYTES = 9
SYNC_GAP = 100
"""A server that lacks no more committed entries than these is replicated to like a member at once."""


class Joiner:
    """One request at a time: JoinCluster, then LogPacks. What a pack does not carry, a snapshot or
    ordinary AppendEntries do."""

    def __init__(self, state: RaftState, peer: int) -> None:
        self._state = state
        self._peer = peer
        self.invited = False
        self.offset = 0  # where the next entry lies in the receiver's log, as JRaft counts
        self._packed: Sequence[Entry] = ()
        self.seq = 0  # of the request that is not answered yet
        self.refused = False

    def holds(self, next_index: int) -> bool:
        """Whether a server that needs ``next_index`` next is sent no AppendEntries yet."""
        return not self.invited or self._state.commit_index - next_index >= SYNC_GAP

    def send(self, progress: Progress) -> bool:
        """Send what comes next, if the last answer is there; whether anything was sent."""
        if self.seq or progress.is_backing_off:
            return False
        state, log = self._state, self._state.log
        if not self.invited:
            value = encode_configuration(state.membership.in_force)
            entry = LogEntry(state.term, ValueType.CONFIGURATION, value)
            kind, last = MessageType.JOIN_CLUSTER_REQUEST, log.last_index
        else:
            start = progress.next_index
            self._packed = log.entries(start, state.commit_index + 1, state.config.batch_bytes)
            entries = [LogEntry(e.term, e.value_type, e.value) for e in self._packed]
            entry = LogEntry(state.term, ValueType.LOG_PACK, encode_log_pack(self.offset, entries))
            kind, last = MessageType.SYNC_LOG_REQUEST, start - 1
        self.seq = state.send(self._peer, kind, state.term, (0, last), state.commit_index, (entry,))
        return True

    def answered(self, response: Response, progress: Progress) -> None:
        """Take the answer to the last request."""
        self.seq = 0
        if not self.invited:
            self.invited, self.refused = response.accepted, not response.accepted
            # A plain server begins with an entry of its own, which is not ours; one like this holds what it
            # was sent when it was invited before.
            resumes = self._state.extensions.get(self._peer)
            progress.become_probe(min(response.next_index, self._state.commit_index + 1) if resumes else 1)
        elif response.accepted and response.next_index > progress.next_index:
            progress.match_up_to(min(response.next_index - 1, self._packed[-1].index))
            taken = [entry for entry in self._packed if entry.index <= progress.match_index]
            self.offset += sum(PACKED_HEADER_BYTES + len(entry.value) for entry in taken)
        else:
            # It may hold more than there is here: of a later leader, whose answer names a later term.
            progress.become_probe(min(max(response.next_index, 1), self._state.commit_index + 1))
            progress.is_backing_off = True  # until the next heartbeat
