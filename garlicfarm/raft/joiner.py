"""How a leader adds a new server: an invitation, then the committed entries.

Source: docs/reference/protocol.md, "What JRaft's bytes settle".
"""

from __future__ import annotations

from collections.abc import Sequence

from garlicfarm.raft.progress import Progress
from garlicfarm.raft.state import RaftState
from garlicfarm.raft.types import Entry, LogPosition
from garlicfarm.wire import encode_configuration, encode_log_pack
from garlicfarm.wire.messages import ClusterServer, LogEntry, MessageType, Response, ValueType

PACKED_HEADER_BYTES = 9
SYNC_GAP = 100
"""A server that lacks at most this many committed entries gets AppendEntries at once, like a member."""

MAX_ROUNDS = 10


class Joiner:
    """A server that catches up to become a member.

    It gets one request at a time: JoinCluster, then LogPacks. A snapshot or ordinary AppendEntries bring
    what no pack carries. It catches up in rounds (thesis 4.2.1): a round ends when the server holds what
    the leader held when the round began."""

    def __init__(self, state: RaftState, server: ClusterServer) -> None:
        self._state = state
        self.server = server
        self.is_invited = False  # it accepted the invitation
        self.has_refused = False  # it refused the invitation
        self.seq = 0  # of the unanswered request
        self.pack_offset = 0  # where the next entry lies in the receiver's log, as JRaft counts
        self._pack: Sequence[Entry] = ()  # the entries of the last LogPack
        self._round = 1
        self._round_end = state.log.last_index
        self._round_start_ms = state.now_ms

    # ------------------------------------------------------------------ invitation and packs

    def is_withheld(self, next_index: int) -> bool:
        """Whether AppendEntries from ``next_index`` on have to wait: it is not invited, or packs come
        first."""
        return not self.is_invited or self._state.commit_index - next_index >= SYNC_GAP

    def send(self, progress: Progress) -> bool:
        """Send the next request, unless one is unanswered. Returns whether anything was sent."""
        if self.seq or progress.is_backing_off:
            return False
        state, log = self._state, self._state.log
        if not self.is_invited:
            value = encode_configuration(state.membership.in_force)
            entry = LogEntry(state.term, ValueType.CONFIGURATION, value)
            kind, last = MessageType.JOIN_CLUSTER_REQUEST, log.last_index
        else:
            start = progress.next_index
            self._pack = log.entries(start, state.commit_index + 1, state.config.batch_bytes)
            entries = [LogEntry(e.term, e.value_type, e.value) for e in self._pack]
            entry = LogEntry(state.term, ValueType.LOG_PACK, encode_log_pack(self.pack_offset, entries))
            kind, last = MessageType.SYNC_LOG_REQUEST, start - 1
        position = LogPosition(last, 0)
        self.seq = state.send(self.server.id, kind, state.term, position, state.commit_index, (entry,))
        return True

    def step_response(self, response: Response, progress: Progress) -> None:
        """Take the answer to the last request."""
        self.seq = 0
        if not self.is_invited:
            self.is_invited, self.has_refused = response.accepted, not response.accepted
            # The first entry of a JRaft server is its own, not ours. One of this implementation holds what
            # it got after an earlier invitation.
            can_resume = self._state.extensions.get(self.server.id)
            next_index = min(response.next_index, self._state.commit_index + 1) if can_resume else 1
            progress.become_probe(next_index)
        elif response.accepted and response.next_index > progress.next_index:
            progress.match_up_to(min(response.next_index - 1, self._pack[-1].index))
            taken = [entry for entry in self._pack if entry.index <= progress.match_index]
            self.pack_offset += sum(PACKED_HEADER_BYTES + len(entry.value) for entry in taken)
        else:
            # It may hold more than this leader: entries of a later one, whose answer names a later term.
            progress.become_probe(min(max(response.next_index, 1), self._state.commit_index + 1))
            progress.is_backing_off = True

    # ------------------------------------------------------------------ rounds

    def is_caught_up(self, match_index: int) -> bool:
        """Whether a server that holds the log up to ``match_index`` is near enough to become a member: it
        holds everything, or its round is over and took less than an election timeout."""
        if match_index < self._round_end:
            return False
        state = self._state
        duration_ms = state.now_ms - self._round_start_ms
        return match_index == state.log.last_index or duration_ms <= state.config.election_timeout_min_ms

    def begin_round(self, match_index: int) -> bool:
        """Begin the next round if this one is over. Returns whether the server had its last round."""
        if match_index < self._round_end:
            return False
        if self._round == MAX_ROUNDS:
            return True
        self._round += 1
        self._round_end, self._round_start_ms = self._state.log.last_index, self._state.now_ms
        return False
