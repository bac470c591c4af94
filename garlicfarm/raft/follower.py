"""What a leader's requests do to a follower (Raft §5.3, §7)."""

from __future__ import annotations

from garlicfarm.raft.append_checks import CheckedEntries, conflict_hint, new_entries
from garlicfarm.raft.state import RaftState
from garlicfarm.raft.types import ReceivedChunk, SnapshotMeta
from garlicfarm.wire.messages import MessageType, Request, SnapshotSyncRequest

SNAPSHOT_WANTED = 0
"""The next_index of a rejection that asks for a snapshot of more than this member holds (D26)."""

_APPEND_RESPONSE = MessageType.APPEND_ENTRIES_RESPONSE
_SNAPSHOT_RESPONSE = MessageType.INSTALL_SNAPSHOT_RESPONSE
_SYNC_RESPONSE = MessageType.SYNC_LOG_RESPONSE


class Follower:
    """Takes entries and snapshots of the leader of the current term."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._chunk_sources: dict[int, int] = {}  # of the pieces that are being stored: token -> leader

    def append(self, request: Request, checked: CheckedEntries, token: int) -> None:
        """Take the entries of an AppendEntriesRequest if the logs meet before them; else hint where they
        may."""
        state, log = self._state, self._state.log
        previous, last = request.last_log_index, request.last_log_index + len(checked.entries)
        if state.wants_snapshot:
            state.respond(token, _APPEND_RESPONSE, request.source, SNAPSHOT_WANTED, False)
            return
        if previous > log.last_index:
            state.respond(token, _APPEND_RESPONSE, request.source, log.last_index + 1, False)
            return
        # Entries up to our commit index are the same in every leader's log.
        if previous > state.commit_index and log.term(previous) != request.last_log_term:
            hint = conflict_hint(log, state.commit_index, request)
            state.respond(token, _APPEND_RESPONSE, request.source, hint, False)
            return
        self._append_new(checked, min(request.commit_index, last))
        state.respond(token, _APPEND_RESPONSE, request.source, last + 1, True)

    def sync(self, request: Request, checked: CheckedEntries, token: int) -> None:
        """Take the committed entries of a LogPack, as a server that is being brought in. Entries of the own
        log that are not committed and differ are deleted. The first pack begins behind the commit index
        that this server named when it was invited, each other one where the pack before ended: so the logs
        agree before them."""
        state, last = self._state, request.last_log_index + len(checked.entries)
        is_adjacent = request.last_log_index <= state.log.last_index
        if is_adjacent:
            self._append_new(checked, min(request.commit_index, last))
        held = last if is_adjacent else state.commit_index
        state.respond(token, _SYNC_RESPONSE, request.source, held + 1, is_adjacent)

    def _append_new(self, checked: CheckedEntries, commit_index: int) -> None:
        """Make the log hold the entries, before which it agrees with the leader's, and commit."""
        state, log = self._state, self._state.log
        new = new_entries(log, state.commit_index, checked.entries)
        if new:
            start = new[0].index
            if start <= log.last_index:
                log.truncate(start)
                state.membership.truncate(start)
            log.append(new)
            for index, configuration in checked.configurations:
                if index >= start:
                    state.membership.append(index, configuration)
        if commit_index > state.commit_index:
            state.commit_to(commit_index)

    def install(self, source: int, chunk: SnapshotSyncRequest, token: int) -> None:
        """Take a piece of a snapshot, unless the log has committed all that is in the snapshot."""
        if chunk.last_log_index <= self._state.commit_index:
            self._state.respond(token, _SNAPSHOT_RESPONSE, source, 0, False)
        else:
            if self._state.wants_snapshot:
                self._state.snapshot_until_ms = self._state.now_ms + self._state.snapshot_wait_ms
            self._chunk_sources[token] = source
            self._state.chunks.append(ReceivedChunk(token, chunk, source))

    def on_chunk_stored(self, token: int, held: int, snapshot: SnapshotMeta | None) -> None:
        """The piece is stored. ``snapshot`` is given once the snapshot is whole."""
        state, source = self._state, self._chunk_sources.pop(token)
        if snapshot is not None and snapshot.index > state.commit_index:
            state.install(snapshot)
            state.snapshot_until_ms = 0
        state.respond(token, _SNAPSHOT_RESPONSE, source, held, True)
