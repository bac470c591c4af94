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
        node.report_leader_gone(leader, term)        # evidence that the leader's process has ended
        node.tick(now_ms)                            # after those; by node.deadline_ms at the latest
        ready = node.ready()                         # write, send, answer, restore and apply; then
        node.report_applied(index)

The driver may act on everything in `Ready` at once: a message that has to wait for a write is held back
until that write is reported. The wire's own `Request` and `Response` go in and out. Answers come in order
per connection, so a local ``seq`` (outgoing) or ``token`` (incoming) pairs them, and no message needs a
number. Time goes in as ``now_ms``, randomness as ``randint``: the same inputs give the same outputs.

D5, D7, D8 and D12 are rules of the protocol, explained in docs/reference/protocol.md.

The contract of each input
--------------------------
* `RawNode.step`: each token gets exactly one entry in `Ready.responses`, now or later, unless the call
  raised. Tokens are any numbers, never used twice.
* `RawNode.step_response` and `RawNode.report_unreachable`: at most one of them for each seq. A seq that the
  core has forgotten is ignored. Answers of one peer come in the order of their requests.
* `RawNode.set_extensions`: at each new connection, before the answers that come on it.
* `RawNode.propose`, `RawNode.propose_conf_change`, `RawNode.read_index`: each token gets exactly one entry
  in `Ready.outcomes` or `Ready.reads`, unless the call raised.
* `RawNode.report_persisted`: in order of the tokens; one report covers all earlier ones. By then the
  storage shows what was written.
* `RawNode.report_chunk_stored`: once for each piece, in order.
* `RawNode.report_applied`: after `Ready.restore` and `Ready.committed` were applied, never backwards. Until
  then no Configuration among them counts as applied.
* `RawNode.report_disk_hang`: at each change, never twice the same.
* `RawNode.report_leader_gone`: at any time, as often as there is evidence; ``term`` is the one in which the
  process led that is gone, not the current one of a later moment.
* `RawNode.tick`: never backwards.

Which module holds what
-----------------------
* `core`: `RawNode`, the door. `types`: the values that pass it, and `Storage`.
* `state`: term, vote, log and commit index, which all roles share. `durability`: what guarantees that
  nothing is promised before it is on disk.
* `roles`: follower, candidate or leader, and what changes that. `election_timer`: the election timeout and
  the leader's lease. `votes`: which candidate gets a vote or a pre-vote, and when a member may campaign.
* `requests`: what each request does. `append_checks` and `follower`: taking entries and snapshots.
* `candidate`: pre-vote and election. `leader`: one term of leading, with its parts: `replication` and
  `progress` (what each follower gets next), `uncommitted` (what clients wait for), `read_index` (linearizable
  reads), `conf_change` and `joiner` (changes of the members), `transfer` (handing over).
* `log`: durable and pending entries as one log. `configuration_tracker`: the Configuration in force, and
  pending ones.

The messages, by number
-----------------------
* RequestVote (1): a candidate asks for the vote of its term. A candidate also names a past term, to see
  whether a peer without pre-vote can be reached. `commit_index` 2^64 - 1: the leader ordered the campaign.
* AppendEntries (3): the leader's entries behind `last_log_index`, and its commit index. Without entries it
  is a heartbeat, which also finds out where the logs meet, and confirms that the leader leads.
* ClientRequest (5): entries to be appended; without entries, the question which member leads.
* InstallSnapshot (16): one piece of a snapshot for a follower that needs compacted entries. The answer says
  how many bytes are held, which is where the next piece begins.
* PreVote (20, extension): whether a vote would be granted in the next term; changes nothing.
* TimeoutNow (28, extension): the leader has a member that holds all entries campaign at once.
* ReadIndex (30, extension): a follower asks its leader for the index of a linearizable read. The leader
  treats it as a read of its own, and refuses it when it loses its leadership. An empty ClientRequest would
  not do: a leader that is cut off answers it too.
* JoinCluster (12): the leader invites a server that it was told to add. A member refuses.
* SyncLog (10): committed entries in a pack, for an invited server that lacks many.
* LeaveCluster (14): the leader says that the server is removed, or is about to be (JRaft). The server does
  not campaign any more, until a leader of a later term sends it an append or it restarts.

AddServer (6) and RemoveServer (8) do not reach the core: the driver calls `propose_conf_change`.

Differences from the paper (Raft, extended version, and the thesis)
-------------------------------------------------------------------
* A Configuration takes force when it is committed, as in JRaft, not when it is appended (D7). Three rules
  make that safe: one change in flight; no change before an entry of the term is committed and all earlier
  Configurations are applied; no campaign while a committed one is not applied.
* So a removed member may have to vote for one that does not know of the removal yet, and would refuse if
  its log were more up to date. A leader sends a member that is to be removed only what is committed, or
  durable at a majority of those that stay, and tells it of the commit once its own disk knows.
* A new leader's first entry repeats the newest Configuration (D7): JRaft's log has no other harmless kind.
* A server that is added catches up before its Configuration is appended (thesis 4.2.1), in at most 10 rounds.
* A follower refuses votes while it hears a leader (thesis 4.2.3), also to members that it does not know.
* Evidence that the leader's process is gone ends its lease at once, and the election timeout soon. So the
  lease guards availability only: no read may ever rest on it, nor on any other passing of time.
* Check-quorum: a leader that no majority answers for the upper election timeout steps down.
* A member that was told to leave votes and acknowledges, but does not campaign: it may have been removed
  without hearing of the commit, and a later term would depose that leader. The price: if the leader dies
  before the commit, and the only members with every committed entry were told to leave, no member can be
  elected until the leader is back or one of them restarts. A leader of this implementation tells a member
  to leave only after the commit.
* A leader whose own disk hangs hands over, or steps down after the upper election timeout: its followers
  would go on committing while it applied nothing. A member does not campaign while its disk hangs.
* A member whose state most others contradict (D26) does not lead, nor vote if they contradict its log. On
  request it takes the leader's snapshot in place of both, and counts for no commit until it has that.

Differences from JRaft, on the same bytes
-----------------------------------------
* A client is answered after the commit (D8), not before.
* Entries of earlier terms are never committed by counting (Raft §5.4.2).
* A follower commits only what it verified. Its vote also compares logs that a snapshot has replaced.
* Term, vote and entries are durable before any message that rests on them.
* No message ends the process, and none lowers a term.
* Several requests are on their way to a follower at once; entries are batched by bytes, not by number.
* A snapshot resumes where the receiver's answer says, also after a lost connection or a restart.
"""

from garlicfarm.raft.core import RawNode
from garlicfarm.raft.types import (
    Change,
    ConfChange,
    Entry,
    HardState,
    LogPosition,
    OutgoingRequest,
    OutgoingResponse,
    PeerStatus,
    Persist,
    ProposalOutcome,
    RaftConfig,
    ReadOutcome,
    Ready,
    ReceivedChunk,
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
    "LogPosition",
    "OutgoingRequest",
    "OutgoingResponse",
    "PeerStatus",
    "Persist",
    "ProposalOutcome",
    "RaftConfig",
    "RawNode",
    "ReadOutcome",
    "Ready",
    "ReceivedChunk",
    "Role",
    "SnapshotMeta",
    "Status",
    "Storage",
]
