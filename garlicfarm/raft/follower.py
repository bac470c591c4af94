"""What a leader's requests do to a follower (Raft §5.3, §7)."""

from __future__ import annotations

from collections.abc import Sequence

from garlicfarm.raft.append_checks import conflict_hint, new_entries
from garlicfarm.raft.state import RaftState
from garlicfarm.raft.types import Entry, SnapshotMeta
from garlicfarm.wire.messages import Configuration, MessageType, Request, SnapshotSyncRequest

__all__ = ["Follower"]

_APPENDED, _INSTALLED = MessageType.APPEND_ENTRIES_RESPONSE, MessageType.INSTALL_SNAPSHOT_RESPONSE
_SYNCED = MessageType.SYNC_LOG_RESPONSE


class Follower:
    """Takes entries and snapshots of the leader of the current term."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._sources: dict[int, int] = {}  # of the pieces that are being stored, by token

    def append(
        self,
        request: Request,
        entries: Sequence[Entry],
        configurations: Sequence[tuple[int, Configuration]],
        token: int,
    ) -> None:
        """Take the entries of a request, and the Configurations among them by index."""
        state, log = self._state, self._state.log
        previous, last = request.last_log_index, request.last_log_index + len(entries)
        if previous > log.last_index:
            state.respond(token, _APPENDED, request.source, log.last_index + 1, False)
            return
        # What lies at or below our commit index is the same on every leader's log.
        if previous > state.commit_index and log.term(previous) != request.last_log_term:
            hint = conflict_hint(log, state.commit_index, request)
            state.respond(token, _APPENDED, request.source, hint, False)
            return
        self._take(entries, configurations, min(request.commit_index, last))
        state.respond(token, _APPENDED, request.source, last + 1, True)

    def sync(
        self,
        request: Request,
        entries: Sequence[Entry],
        configurations: Sequence[tuple[int, Configuration]],
        token: int,
    ) -> None:
        """Take the committed entries of a LogPack, as a server that is being brought in; whatever of the
        own log is not committed and differs gives way. Packs begin behind what was committed at the
        invitation, then where the one before ended: so the logs agree before them."""
        state, last = self._state, request.last_log_index + len(entries)
        fits = request.last_log_index <= state.log.last_index
        if fits:
            self._take(entries, configurations, min(request.commit_index, last))
        state.respond(token, _SYNCED, request.source, (last if fits else state.commit_index) + 1, fits)

    def _take(
        self, entries: Sequence[Entry], configurations: Sequence[tuple[int, Configuration]], commit: int
    ) -> None:
        """Make the log hold ``entries``; it is known to agree with them before the first one."""
        state, log = self._state, self._state.log
        new = new_entries(log, state.commit_index, entries)
        if new:
            start = new[0].index
            if start <= log.last_index:
                log.truncate(start)
                state.membership.truncate(start)
            log.append(new)
            for index, configuration in configurations:
                if index >= start:
                    state.membership.append(index, configuration)
        if commit > state.commit_index:
            state.commit_to(commit)

    def install(self, source: int, piece: SnapshotSyncRequest, token: int) -> None:
        """Take a piece of a snapshot, unless the log holds all that is in it."""
        if piece.last_log_index <= self._state.commit_index:
            self._state.respond(token, _INSTALLED, source, 0, False)
        else:
            self._sources[token] = source
            self._state.chunks.append((token, piece))

    def stored(self, token: int, held: int, snapshot: SnapshotMeta | None) -> None:
        """The piece is stored; the snapshot is given once it is whole."""
        state, source = self._state, self._sources.pop(token)
        if snapshot is not None and snapshot.index > state.commit_index:
            state.install(snapshot)
        state.respond(token, _INSTALLED, source, held, True)
