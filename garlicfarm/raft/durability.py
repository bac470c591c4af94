"""The guarantee that nothing is promised before it is on disk.

Theory of operation
-------------------
A response or a vote request makes a promise: a vote, a term, entries held. A member that crashes must come
back with every promise that it made, so `DurabilityBarrier` holds each message until the writes that it
rests on are durable. It counts writes by the token of `Persist`:

* `is_clear` compares the newest write that a message of this moment rests on (one not handed out yet, if
  anything has changed since the last) with the newest write that the driver has reported;
* `hold` queues a message behind that write;
* `on_persisted` releases, in order, the messages of all writes that are durable now.

Two kinds of messages pass by the barrier. A leader's AppendEntries go out while its own disk writes the same
entries (thesis 10.2.1): its own log counts for a commit only up to `RaftLog.stable`. An answer that rests on
what is durable at a majority (a commit, a confirmed read) needs no write of this member.

A received snapshot follows the same rule: `take_restore` hands it out only after the write that installed it.
"""

from __future__ import annotations

from collections import deque

import msgspec

from garlicfarm.raft.log import RaftLog
from garlicfarm.raft.types import HardState, OutgoingRequest, OutgoingResponse, Persist, SnapshotMeta


class OwnVote(msgspec.Struct, frozen=True, gc=False):
    """A candidate's vote for itself, which counts from the moment it is durable."""

    term: int


Message = OutgoingRequest | OutgoingResponse | OwnVote


class _HeldMessage(msgspec.Struct, frozen=True, gc=False):
    token: int  # of the write that has to be durable first
    message: Message


class _PendingRestore(msgspec.Struct, frozen=True):
    token: int  # of the write that installs the snapshot
    snapshot: SnapshotMeta


class DurabilityBarrier:
    """Hands out the writes, and holds messages until the writes before them are durable."""

    def __init__(self, log: RaftLog) -> None:
        self._log = log
        self._issued_token = 0  # of the newest Persist handed out
        self._durable_token = 0  # of the newest Persist reported durable
        self._is_hard_state_changed = False  # since the newest Persist
        self._installed: SnapshotMeta | None = None  # goes into the next Persist
        self._restore: _PendingRestore | None = None
        self.is_restoring = False  # a snapshot is being written that the application has to start from
        self._held: deque[_HeldMessage] = deque()

    def mark_hard_state(self) -> None:
        """Write the hard state with the next `Persist`."""
        self._is_hard_state_changed = True

    def install(self, snapshot: SnapshotMeta) -> None:
        """Install a received snapshot with the next `Persist`; restore the application after that."""
        self._installed = snapshot
        self._is_hard_state_changed = True

    # ------------------------------------------------------------------ messages

    @property
    def _has_changes(self) -> bool:
        """Whether something changed that no `Persist` handed out covers."""
        return self._is_hard_state_changed or self._log.has_unwritten

    @property
    def is_clear(self) -> bool:
        """Whether a message of this moment may leave at once: every change was handed out and is durable."""
        return self._issued_token <= self._durable_token and not self._has_changes

    def hold(self, message: Message) -> None:
        """Keep ``message`` until everything done so far is durable."""
        required_token = self._issued_token + 1 if self._has_changes else self._issued_token
        self._held.append(_HeldMessage(required_token, message))

    def on_persisted(self, token: int) -> list[Message]:
        """All writes up to ``token`` are durable. Returns the messages that rest on them, in order."""
        self._durable_token = token
        self._log.on_persisted(token)
        released: list[Message] = []
        while self._held and self._held[0].token <= token:
            released.append(self._held.popleft().message)
        return released

    # ------------------------------------------------------------------ writes

    def take_persist(self, term: int, vote: int, commit_index: int) -> Persist | None:
        """The next write, None if nothing changed."""
        if not self._is_hard_state_changed and not self._log.has_unwritten:
            return None
        self._issued_token = token = self._issued_token + 1
        truncate_from, entries = self._log.take_unwritten(token)
        snapshot, self._installed = self._installed, None
        if snapshot is not None:
            self._restore, self.is_restoring = _PendingRestore(token, snapshot), True
        self._is_hard_state_changed = False
        return Persist(token, HardState(term, vote, commit_index), truncate_from, entries, snapshot)

    def take_restore(self) -> SnapshotMeta | None:
        """The snapshot to restore the application from, once it is durable; None if there is none."""
        restore = self._restore
        if restore is None or restore.token > self._durable_token:
            return None
        self._restore, self.is_restoring = None, False
        return restore.snapshot
