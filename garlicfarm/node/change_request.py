"""Ask the leader, over the wire, for a change of the members.

Source: docs/reference/protocol.md, "What JRaft's bytes settle".
"""

from __future__ import annotations

from garlicfarm.errors import ProposalDropped
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.node.peers import Peers
from garlicfarm.raft import Change, ConfChange
from garlicfarm.refusals import Refusal
from garlicfarm.wire import encode_cluster_server
from garlicfarm.wire.messages import LogEntry, MessageType, Request, ValueType

__all__ = ["request_change"]


async def request_change(core: CoreInbox, peers: Peers, leader: int, change: ConfChange) -> int | None:
    """Ask ``leader`` to add or remove a server; the term in which it began the change, None if another
    member may lead.

    Raises `ProposalDropped`: the leader refuses. Other errors as `garlicfarm.net.link.RpcClient.call`.
    """
    is_removal = change.change is Change.REMOVE
    kind = MessageType.REMOVE_SERVER_REQUEST if is_removal else MessageType.ADD_SERVER_REQUEST
    value = encode_cluster_server(change.server, id_only=is_removal)
    entry = LogEntry(0, ValueType.CLUSTER_SERVER, value)
    response = await peers.call(leader, Request(kind, core.node_id, leader, entries=(entry,)))
    if response is None or (not response.accepted and response.destination != leader):
        return None
    if response.accepted:
        return response.term
    # A JRaft server gives its next index instead of a reason.
    if not peers.extensions(leader):
        raise ProposalDropped(Refusal.REFUSED)
    raise ProposalDropped(Refusal.of_change(response.next_index))
