"""Raft for the Garlic Farm protocol, as a state machine without I/O.

How to drive it::

    node = RawNode(RaftConfig(id=1), storage, randint)
    loop:
        node.step(request, token)            # a peer's or client's request
        node.answered(seq, response)         # the answer to Ready.requests' (peer, seq, request)
        node.report_unreachable(peer, seq)   # … or none came
        node.propose([b"entry"], token)      # our own
        node.persisted(token)                # what Ready.persist asked for is durable
        node.tick(now_ms)                    # after those; again at node.deadline_ms at the latest
        ready = node.ready()                 # write, send, answer, apply; then
        node.applied(index)

The wire's own `Request` and `Response` go in and out; answers come in order per connection, so a local
``seq`` (outgoing) or ``token`` (incoming) pairs them, and no message needs a number.

Where it differs from the paper (Raft, extended version): a Configuration takes force when it is
committed, as JRaft's do; a new leader's first entry repeats the newest Configuration (D7), since JRaft's
log knows no other harmless kind. Where it differs from JRaft: a client is answered after the commit (D8);
entries of earlier terms are never committed by counting; a follower commits only what it verified; term,
vote and entries are durable before anything is said that rests on them.
"""

from garlicfarm.raft.core import RawNode
from garlicfarm.raft.types import (
    Change,
    ConfChange,
    Entry,
    HardState,
    PeerStatus,
    Persist,
    RaftConfig,
    Ready,
    Refusal,
    Role,
    SnapshotMeta,
    Status,
    Storage,
)

__all__ = [
    "Change",
    "ConfChange",
    "Entry",
    "HardState",
    "PeerStatus",
    "Persist",
    "RaftConfig",
    "RawNode",
    "Ready",
    "Refusal",
    "Role",
    "SnapshotMeta",
    "Status",
    "Storage",
]
