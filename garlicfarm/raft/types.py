"""The values that cross the door of the consensus core, and the read side of its storage."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import msgspec

from garlicfarm.refusals import Refusal
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import (
    ClusterServer,
    Configuration,
    Request,
    Response,
    SnapshotSyncRequest,
    ValueType,
)


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A log entry with its index ≥ 1. The core never decodes the value of an application entry."""

    index: int
    term: int
    value_type: ValueType
    value: bytes


class HardState(msgspec.Struct, frozen=True, gc=False):
    """What must be durable before it is acted on: the current term, the id voted for in it (0 = none), and a
    commit index (a lower bound)."""

    term: int = 0
    vote: int = 0
    commit: int = 0


class SnapshotMeta(msgspec.Struct, frozen=True):
    """The last entry that a snapshot replaces, the Configuration in force there, and how many Application
    entries the log has had up to it; None: that is not known. Index 0 and term 0: there is no snapshot."""

    index: int
    term: int
    configuration: Configuration
    application_entries: int | None = None

    def after(self, entries: Sequence[Entry]) -> SnapshotMeta:
        """The meta of a snapshot that also covers ``entries``, which follow this one in the log."""
        if not entries:
            return self
        configuration, count = self.configuration, self.application_entries
        for entry in entries:
            if entry.value_type is ValueType.CONFIGURATION:
                configuration = decode_configuration(entry.value)
            elif count is not None:
                count += 1
        return SnapshotMeta(entries[-1].index, entries[-1].term, configuration, count)


class Persist(msgspec.Struct, frozen=True):
    """One durable step. Write it as a whole, in order of ``token``, then call
    ``RawNode.report_persisted(token)``. In this order: let ``snapshot``, which was received whole, replace
    all entries up to its index (if not None); delete all entries with index ≥ ``truncate_from`` (if not
    None); append ``entries`` (contiguous); set ``hard_state`` (if not None)."""

    token: int
    hard_state: HardState | None = None
    truncate_from: int | None = None
    entries: tuple[Entry, ...] = ()
    snapshot: SnapshotMeta | None = None


class LogPosition(msgspec.Struct, frozen=True, gc=False):
    """An entry of a log by its index and term; (0, 0) is the place before the first one."""

    index: int
    term: int


class OutgoingRequest(msgspec.Struct, frozen=True, gc=False):
    """A request for ``peer``. Report its answer with ``step_response(seq, response)``, or that there is none
    with ``report_unreachable(peer, seq)``."""

    peer: int
    seq: int
    request: Request


class OutgoingResponse(msgspec.Struct, frozen=True, gc=False):
    """The answer to the request that ``step`` took with ``token``. None: close the connection unanswered,
    since the outcome is unknown (D8)."""

    token: int
    response: Response | None


class ReceivedChunk(msgspec.Struct, frozen=True, gc=False):
    """A piece of a snapshot, from the request of the leader ``source`` that ``step`` took with ``token``."""

    token: int
    chunk: SnapshotSyncRequest
    source: int


class ProposalOutcome(msgspec.Struct, frozen=True, gc=False):
    """What became of ``propose`` or ``propose_conf_change``. ``result``: the position of its last entry, once
    that is committed; the reason why it is certainly not in the log; None if the outcome is unknown, since
    this member lost its leadership meanwhile."""

    token: int
    result: LogPosition | Refusal | None


class ReadOutcome(msgspec.Struct, frozen=True, gc=False):
    """The answer to ``read_index``. What is read once ``index`` is applied is linearizable. None: this member
    lost its leadership, or the leader that it asked gave no index; ask the new leader."""

    token: int
    index: int | None


class Ready(msgspec.Struct, frozen=True):
    """What the core wants done. The driver may act on all of it at once: what depends on durability is held
    back until `RawNode.report_persisted`.

    * ``persist``: one durable step.
    * ``requests`` and ``responses``: send them.
    * ``chunks``: store them in this order; report each with ``report_chunk_stored``.
    * ``restore``: a snapshot that is durable now. The application starts anew from it, before it takes
      ``committed``.
    * ``committed``: entries in index order, durable here, each handed out once.
    * ``outcomes`` and ``reads``: answers to the driver's own proposals and reads.
    """

    persist: Persist | None = None
    requests: tuple[OutgoingRequest, ...] = ()
    responses: tuple[OutgoingResponse, ...] = ()
    chunks: tuple[ReceivedChunk, ...] = ()
    restore: SnapshotMeta | None = None
    committed: tuple[Entry, ...] = ()
    outcomes: tuple[ProposalOutcome, ...] = ()
    reads: tuple[ReadOutcome, ...] = ()


class Role(Enum):
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Change(Enum):
    """What a `ConfChange` does: ADD a server under an id never used before, once it has caught up;
    REMOVE a member; SET a member's endpoint; RAISE the farm's level (D26)."""

    ADD = "add"
    REMOVE = "remove"
    SET = "set"
    RAISE = "raise"


class ConfChange(msgspec.Struct, frozen=True):
    """A change of one server, in force when it is committed (D7). ``server``: its id, and except for REMOVE
    its endpoint. ``force``: change even if fewer than a majority of the remaining members were heard
    recently. To RAISE names no server, but the new ``level``."""

    change: Change
    server: ClusterServer = ClusterServer(0)
    force: bool = False
    level: int = 0


class RaftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting of the core. Times in ms of `tick`'s clock, sizes in bytes of entry values; the headers
    of many small entries are bounded too.

    * ``election_timeout_min_ms``, ``election_timeout_max_ms``: a follower that hears nothing for a time
      drawn between them campaigns; one that heard its leader within the lower one refuses its vote; a leader
      that no majority answers for the upper one steps down.
    * ``heartbeat_ms``: the longest time between two requests of a leader to a follower.
    * ``commit_notice_ms``: for how long a leader lets a new commit index wait for entries to carry it to a
      follower, before it sends it alone. A follower that waits for it, and a new Configuration, do not wait.
    * ``priority`` ≥ 1 narrows the range that the first election timeout without a leader is drawn from: a
      member with a higher one tends to campaign first.
    * ``batch_bytes`` bounds one AppendEntries (one entry always fits) and one piece of a snapshot.
    * ``max_inflight_messages``, ``max_inflight_bytes``: how much may be unanswered by one follower.
    * ``max_uncommitted_bytes``: how much a leader appends that is not committed yet.
    * ``max_commit_wait_ms``: it appends less than that once a proposal waited longer for its commit: as much
      as was committed in this time.
    * ``max_message_bytes``, ``max_entry_bytes``: the limits of a LogPack, and of the value of one
      application entry in it.
    """

    id: int
    election_timeout_min_ms: int = 3000
    election_timeout_max_ms: int = 5000
    heartbeat_ms: int = 1500
    commit_notice_ms: int = 0
    priority: int = 1
    batch_bytes: int = 1 << 20
    max_inflight_messages: int = 64
    max_inflight_bytes: int = 8 << 20
    max_uncommitted_bytes: int = 64 << 20
    max_commit_wait_ms: int = 4000
    max_message_bytes: int = 64 << 20
    max_entry_bytes: int = 1 << 20


class PeerStatus(msgspec.Struct, frozen=True):
    """A leader's view of one member, or of a server that catches up to become one. ``state``: probe,
    replicate, or snapshot if it needs compacted entries. ``inflight``: its unanswered AppendEntries.
    ``refused_snapshots``: how often it held nothing of a snapshot after a piece, since it took one whole."""

    match_index: int
    next_index: int
    state: str
    inflight: int
    refused_snapshots: int = 0


class Status(msgspec.Struct, frozen=True):
    """A picture of the core; ``leader`` 0 = none known; ``peers`` is empty unless this is the leader."""

    id: int
    role: Role
    term: int
    vote: int
    leader: int
    commit: int
    applied: int
    stable: int
    first_index: int
    last_index: int
    configuration: Configuration
    peers: dict[int, PeerStatus]


class Storage(Protocol):
    """The read side that the core uses: synchronous, and bounded by ``max_bytes``. It shows what was reported
    durable; the core holds pending entries itself."""

    def initial_state(self) -> tuple[HardState, Configuration]:
        """The hard state, and the Configuration in force at its commit index (the genesis one, with
        ``log_index`` 0, if the log holds none up to there)."""

    def entries(self, lo: int, hi: int, max_bytes: int) -> Sequence[Entry]:
        """Entries lo ≤ index < hi, at least one, then as many as fit into ``max_bytes`` of values.
        `Compacted` if lo < first_index."""

    def term(self, index: int) -> int:
        """The term of an entry, first_index−1 ≤ index ≤ last_index; `Compacted` below."""

    def first_index(self) -> int:
        """Index of the first entry held, last_index + 1 if the log is empty; 1 in a new store."""

    def last_index(self) -> int:
        """Index of the last entry held, 0 in a new store."""

    def snapshot(self) -> SnapshotMeta:
        """The newest snapshot, which the application starts from; ``index`` ≥ first_index − 1."""

    def snapshot_chunk(self, index: int, offset: int, max_bytes: int) -> tuple[bytes, bool]:
        """At most ``max_bytes`` of the snapshot of ``index`` from byte ``offset`` on, and whether they are
        its last. A snapshot that is being sent stays readable when a newer one replaces it, so that a slow
        transmission can end; `Compacted` if it is gone nevertheless."""
