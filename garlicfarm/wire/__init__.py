"""The Raft stream of the Garlic Farm protocol: bytes in, messages out, and back. Sans-I/O.

Theory of operation
===================

After the handshake a connection carries requests one way and responses the other, one after another,
with nothing between them. A `Request` is a header of 45 bytes and its log entries, a `Response` is
26 bytes; where the extension leader-hint is in force, a refused ClientRequest's is followed by one
log entry (`ResponseDecoder.next_message` is told when to expect it). No message has an id: responses
come in the order of the requests, and pairing them is the business of whoever owns the connection.

*Writing* has no state: `encode_request` and `encode_response` give the bytes of one message. A value
inside a log entry was encoded once, by its author, and is copied from there on: leader, disk and
followers handle the same bytes. Nothing on the replication path looks into a value.

*Reading* has state: one `RequestDecoder` or `ResponseDecoder` per direction of a connection. Feed it
whatever arrives, then take messages until there are none::

    decoder = RequestDecoder(Limits())
    while data := await stream.receive_some():
        decoder.receive_data(data)
        while (request := decoder.next_message()) is not None:
            ...
    decoder.receive_eof()       # RemoteProtocolError if the stream ended inside a message

A decoder believes nothing that it can check. The header says which type this is, and so which kinds
of entries it carries and whether exactly one; an entry's header says its kind and size. Each is judged
the moment it is complete, not when the bytes that it promises are there, so a bad message costs at
most its header, and a promise allocates nothing: memory grows with the bytes that really came, up to
`Limits`. The first `RemoteProtocolError` is the last word. Where a message ends is not known after a
lie about sizes, so the decoder raises the same error again for ever, and the connection is to be
closed. Messages complete before the error have been handed out already.

*Values* other than Application entries have their own pairs: `decode_configuration`,
`decode_cluster_server`, `decode_log_pack`, `decode_snapshot_sync_request`, each with its ``encode_``.
The same rule holds: bytes that are wrong are the peer's fault, `RemoteProtocolError`, with what and
where; values that do not fit the wire are our caller's, `LocalProtocolError`.

What each request carries:

=========================  =======================================================================
RequestVote, LeaveCluster  no entries
AppendEntries              Application and Configuration, any number; none is a heartbeat. The other
                           kinds are never in a log, so they are refused here
Client                     Application, any number; none asks who leads
AddServer                  exactly one ClusterServer
RemoveServer               exactly one ClusterServer in its short form, the id alone
SyncLog                    exactly one LogPack
JoinCluster                exactly one Configuration
InstallSnapshot            exactly one SnapshotSyncRequest
=========================  =======================================================================

Ids are u32 and terms and indexes u64. JRaft's are signed: its −1 is `NO_LEADER` here.

Modules: `messages` (plain values, no bytes), `codec` (messages), `values` (what entries hold).
"""

from __future__ import annotations

from garlicfarm.wire.codec import (
    Limits,
    RequestDecoder,
    ResponseDecoder,
    encode_request,
    encode_response,
)
from garlicfarm.wire.messages import (
    NO_LEADER,
    ClusterServer,
    Configuration,
    LogEntry,
    LogPack,
    MessageType,
    Request,
    Response,
    SnapshotSyncRequest,
    ValueType,
)
from garlicfarm.wire.values import (
    decode_cluster_server,
    decode_configuration,
    decode_log_pack,
    decode_snapshot_sync_request,
    encode_cluster_server,
    encode_configuration,
    encode_log_pack,
    encode_snapshot_sync_request,
)

__all__ = [
    "NO_LEADER",
    "ClusterServer",
    "Configuration",
    "Limits",
    "LogEntry",
    "LogPack",
    "MessageType",
    "Request",
    "RequestDecoder",
    "Response",
    "ResponseDecoder",
    "SnapshotSyncRequest",
    "ValueType",
    "decode_cluster_server",
    "decode_configuration",
    "decode_log_pack",
    "decode_snapshot_sync_request",
    "encode_cluster_server",
    "encode_configuration",
    "encode_log_pack",
    "encode_request",
    "encode_response",
    "encode_snapshot_sync_request",
]
