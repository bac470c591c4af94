"""The Raft stream of the Garlic Farm protocol: bytes in, messages out, and back. Sans-I/O.

Theory of operation
===================

After the handshake a connection carries requests one way and responses the other, one after another, with
nothing between them. A `Request` is a header of 45 bytes and its log entries, a `Response` is 26 bytes; where
the extension leader-hint is in force, a refused ClientRequest's is followed by one log entry (the caller of
`ResponseDecoder.next_message` says when to expect it). No message has an id: responses come in the order of
the requests, and the owner of the connection pairs them.

*Writing* has no state: `encode_request` and `encode_response` return the bytes of one message. A value
inside a log entry is encoded once, by its author, and then only copied: leader, disk and followers
handle the same bytes. The replication path never decodes a value.

*Reading* has state: one `RequestDecoder` or `ResponseDecoder` per direction of a connection. Feed it
received bytes, then take messages until there are none::

    decoder = RequestDecoder(Limits())
    while data := await stream.receive_some():
        decoder.receive_data(data)
        while (request := decoder.next_message()) is not None:
            ...
    decoder.receive_eof()       # RemoteProtocolError if the stream ended inside a message

A decoder checks everything that it can. The header contains the type, which determines which kinds of
entries the request carries and whether exactly one; an entry's header contains its kind and size. Each
header is checked as soon as it is complete, before the bytes that it announces arrive. So a bad message
costs at most its header, and an announced size allocates nothing: memory grows with the bytes received,
up to `Limits`. The first `RemoteProtocolError` is final. After a wrong size the end of the message is
unknown, so the decoder raises the same error from then on, and the caller closes the connection.
Messages that were complete before the error have already been returned.

*Values* other than Application entries have their own pairs: `decode_configuration`,
`decode_cluster_server`, `decode_log_pack`, `decode_snapshot_sync_request`, `decode_grant`, each with its
``encode_``.
The same rule applies: invalid bytes are the peer's fault (`RemoteProtocolError`, with ``what`` and
``where``); values that do not fit the wire are our caller's (`LocalProtocolError`).

The entries of each request:

=========================  =======================================================================
RequestVote, LeaveCluster  no entries
AppendEntries              Application and Configuration, any number; none is a heartbeat. The other
                           kinds are never in a log, so they are refused here
Client                     Application, any number; none asks for the leader
AddServer                  exactly one ClusterServer
RemoveServer               exactly one ClusterServer in its short form, the id alone
SyncLog                    exactly one LogPack
JoinCluster                exactly one Configuration
InstallSnapshot            exactly one SnapshotSyncRequest
Lease                      exactly one Grant
=========================  =======================================================================

Ids are u32 and terms and indexes u64. JRaft's are signed: its −1 is `NO_LEADER` here.

Modules: `messages` (plain values, no bytes), `codec` (messages), `values` (log values).
"""

from __future__ import annotations

from garlicfarm.wire.codec import (
    LARGE_RECEIVE_BYTES,
    RECEIVE_BYTES,
    Limits,
    RequestDecoder,
    RequestEncoder,
    ResponseDecoder,
    encode_request,
    encode_response,
    encoded_size,
)
from garlicfarm.wire.messages import (
    NO_LEADER,
    ClusterServer,
    Configuration,
    Grant,
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
    decode_grant,
    decode_log_pack,
    decode_snapshot_sync_request,
    encode_cluster_server,
    encode_configuration,
    encode_grant,
    encode_log_pack,
    encode_snapshot_sync_request,
)

__all__ = [
    "LARGE_RECEIVE_BYTES",
    "NO_LEADER",
    "RECEIVE_BYTES",
    "ClusterServer",
    "Configuration",
    "Grant",
    "Limits",
    "LogEntry",
    "LogPack",
    "MessageType",
    "Request",
    "RequestDecoder",
    "RequestEncoder",
    "Response",
    "ResponseDecoder",
    "SnapshotSyncRequest",
    "ValueType",
    "decode_cluster_server",
    "decode_configuration",
    "decode_grant",
    "decode_log_pack",
    "decode_snapshot_sync_request",
    "encode_cluster_server",
    "encode_configuration",
    "encode_grant",
    "encode_log_pack",
    "encode_request",
    "encode_response",
    "encode_snapshot_sync_request",
    "encoded_size",
]
