"""Raft for the Garlic Farm protocol, as a state machine without I/O.

How to drive it::

    node = RawNode(RaftConfig(id=1), storage, randint)
    loop:
        node.step(request, token)                    # a peer's or client's request
        node.step_response(seq, response)            # the answer to one of Ready.requests
        node.report_unreachable(peer, seq)           # … or it got none
        node.set_extensions(peer, names)             # in force on a new connection to a peer (D5)
        node.propose([b"entry"], token)              # our own; likewise propose_conf_change, read_index
        node.report_persisted(token)                 # what Ready.persist asked for is durable
        node.report_chunk_stored(token, held, meta)  # a piece of Ready.chunks is stored
        node.report_disk_hang(True)                  # a write takes too long; False: it is durable after all
        node.tick(now_ms)                            # after those; by node.deadline_ms at the latest
        ready = node.ready()                         # write, send, answer, restore and apply; then
        node.report_applied(index)

Everything that `Ready` hands out may be acted on at once: what may be said only after a write is kept
back until that write is reported. The wire's own `Request` and `Response` go in and out; answers come in
order per connection, so a local ``seq`` (outgoing) or ``token`` (incoming) pairs them, and no message
needs a number. Time goes in as ``now_ms``, randomness as ``randint``: the same inputs give the same
outputs.

The messages, by number
-----------------------
* RequestVote (1): a candidate asks for the vote of its term; also of a term that is over, to see whether a
  peer without pre-vote can be reached; with `commit_index` 2^64 - 1, in an election that a leader ordered.
* AppendEntries (3): entries of the leader from behind `last_log_index` on, and how far they are committed;
  none: a heartbeat, which also finds out where the logs meet, and confirms that the leader leads.
* ClientRequest (5): entries to be appended; none: a question who leads.
* InstallSnapshot (16): one piece of a snapshot for a follower that needs entries which are gone; the answer
  says how many bytes are held, which is where the next piece begins.
* PreVote (20, extension): whether a vote would be granted in the next term; changes nothing.
* TimeoutNow (28, extension): the leader asks a member that holds all entries to stand at once.
* ReadIndex (30, extension): a follower asks its leader for the index of a linearizable read; the leader
  treats it as a read of its own, and refuses it when it ceases to lead. An empty ClientRequest would not
  do: a leader that is cut off answers it too.

* JoinCluster (12): the leader invites a server that it was told to add; who is a member refuses.
* SyncLog (10): committed entries in a pack, for a server that was invited and lacks many.
* LeaveCluster (14): the leader says that the server is removed, or is about to be (JRaft). The server stands
  for no election any more, until a leader of a later term sends it an append or it restarts.

AddServer (6) and RemoveServer (8) are not the core's: who takes them calls `propose_conf_change`.

Where it differs from the paper (Raft, extended version, and the thesis)
------------------------------------------------------------------------
* A Configuration takes force when it is committed, as JRaft's do, not when it is appended (D7). What makes
  that safe: one change in flight, none before an entry of the term is committed and all earlier
  Configurations are applied, no candidacy over a committed one that is not applied.
* A new leader's first entry repeats the newest Configuration (D7): JRaft's log knows no other harmless kind.
* A server that is added catches up before its Configuration is appended (thesis 4.2.1), in at most 10 rounds.
* A follower refuses votes while it hears a leader (thesis 4.2.3), also of members that it does not know.
* Check-quorum: a leader that no majority answers for the upper election timeout steps down.
* A member that was told to leave votes and acknowledges, but does not stand: it may have been removed without
  hearing of the commit, and a later term would depose that leader. The price: if the leader dies before the
  commit, and the only members with every committed entry were told to leave, no member can be elected until
  the leader is back or one of them restarts. A leader of this implementation tells it after the commit.
* A leader whose own disk hangs hands over, or steps down after the upper election timeout: its followers
  would commit on, while it applied nothing. A member does not stand while its disk hangs.

Where it differs from JRaft, on the same bytes
----------------------------------------------
* A client is answered after the commit (D8), not before.
* Entries of earlier terms are never committed by counting (Raft §5.4.2).
* A follower commits only what it verified; its vote compares logs also where a snapshot has replaced them.
* Term, vote and entries are durable before anything is said that rests on them.
* No message ends the process, and none lowers a term.
* Several requests are on their way to a follower at once; entries are batched by bytes, not by number.
* A snapshot goes on where the receiver's answer says, after a lost connection or a restart too.
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
