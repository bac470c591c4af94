"""The messages (17, and 8 of extensions) and 6 log values of the Garlic Farm protocol, as plain values.

Nothing here touches bytes: `garlicfarm.wire.codec` does. Names are the proposal's (proposal 150,
"Messages"); ids are u32, terms and indexes u64, all non-negative. JRaft prints ids as signed, so its
−1 is `NO_LEADER` here.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from garlicfarm.extensions import LEASE, PRE_VOTE, READ_INDEX, TIMEOUT_NOW

NO_LEADER = 0xFFFF_FFFF
"""The destination of a response that knows no leader (JRaft's −1)."""


class MessageType(IntEnum):
    """Message numbers. 18 and above need an extension that both sides named in the handshake (D5)."""

    REQUEST_VOTE_REQUEST = 1
    REQUEST_VOTE_RESPONSE = 2
    APPEND_ENTRIES_REQUEST = 3
    APPEND_ENTRIES_RESPONSE = 4
    CLIENT_REQUEST = 5
    ADD_SERVER_REQUEST = 6
    ADD_SERVER_RESPONSE = 7
    REMOVE_SERVER_REQUEST = 8
    REMOVE_SERVER_RESPONSE = 9
    SYNC_LOG_REQUEST = 10
    SYNC_LOG_RESPONSE = 11
    JOIN_CLUSTER_REQUEST = 12
    JOIN_CLUSTER_RESPONSE = 13
    LEAVE_CLUSTER_REQUEST = 14
    LEAVE_CLUSTER_RESPONSE = 15
    INSTALL_SNAPSHOT_REQUEST = 16
    INSTALL_SNAPSHOT_RESPONSE = 17
    PRE_VOTE_REQUEST = 20
    PRE_VOTE_RESPONSE = 21
    TIMEOUT_NOW_REQUEST = 28
    TIMEOUT_NOW_RESPONSE = 29
    READ_INDEX_REQUEST = 30
    READ_INDEX_RESPONSE = 31
    LEASE_REQUEST = 32
    LEASE_RESPONSE = 33


EXTENSION_OF = {
    MessageType.PRE_VOTE_REQUEST: PRE_VOTE,
    MessageType.TIMEOUT_NOW_REQUEST: TIMEOUT_NOW,
    MessageType.READ_INDEX_REQUEST: READ_INDEX,
    MessageType.LEASE_REQUEST: LEASE,
}
"""Each request that is part of an extension, and the extension."""


class ValueType(IntEnum):
    """Kinds of log values."""

    APPLICATION = 1
    CONFIGURATION = 2
    CLUSTER_SERVER = 3
    LOG_PACK = 4
    SNAPSHOT_SYNC_REQUEST = 5
    GRANT = 6


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """A log entry as it travels: ``term | value_type | size | value``. The value stays bytes."""

    term: int
    value_type: ValueType
    value: bytes


class Request(msgspec.Struct, frozen=True):
    """A request: a 45-byte header and the log entries. Source: proposal 150, "Request header"."""

    type: MessageType
    source: int
    destination: int
    term: int = 0
    last_log_term: int = 0
    last_log_index: int = 0
    commit_index: int = 0
    entries: tuple[LogEntry, ...] = ()


class ClusterServer(msgspec.Struct, frozen=True, gc=False):
    """One server of a Configuration. The endpoint is UTF-8; it is "" in a RemoveServerRequest."""

    id: int
    endpoint: str = ""


class Configuration(msgspec.Struct, frozen=True):
    """The members of a farm. ``log_index`` is its own index in the log (0 for a genesis, which is not a
    log entry), ``last_log_index`` that of the previous Configuration. ``level``: the farm's (D26), 0 with
    JRaft."""

    log_index: int
    last_log_index: int
    servers: tuple[ClusterServer, ...] = ()
    level: int = 0


class Response(msgspec.Struct, frozen=True, gc=False):
    """A response, 26 bytes. ``hint``, with the extension leader-hint (D5): the members of the farm, in a
    log entry after these bytes, if another member leads. Source: proposal 150, "Responses"."""

    type: MessageType
    source: int
    destination: int
    term: int
    next_index: int
    accepted: bool
    hint: Configuration | None = None


class LogPack(msgspec.Struct, frozen=True):
    """Entries for a joining server. ``offsets`` are cumulative byte offsets of the entries, counted
    from the receiver's first stored index; a receiver uses only their differences."""

    offsets: tuple[int, ...]
    entries: tuple[LogEntry, ...]


class SnapshotSyncRequest(msgspec.Struct, frozen=True):
    """One chunk of a snapshot: ``data`` at byte ``offset``; ``done`` on the last one."""

    last_log_index: int
    last_log_term: int
    configuration: Configuration
    offset: int
    data: bytes
    done: bool


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What a leader sends the named member in a LeaseRequest (D24). ``term``: of the request. ``number``: 1
    for the first one of the term. ``answered``: the number of the newest one whose answer it has read, 0:
    none. ``age_ms``: since it reached a majority, at least. ``lasts_ms``: a lease, on the member's clock.
    ``index``: since which the member is named."""

    term: int
    number: int
    answered: int
    age_ms: int
    lasts_ms: int
    index: int
