"""Rules broken on purpose, by changing the text of one function: what random seeds must find soon.
A text that is no longer there fails the test that uses it."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.raft import SnapshotMeta, state, votes
from garlicfarm.raft.conf_change import PendingConfChange
from garlicfarm.raft.core import RawNode
from garlicfarm.raft.leader import Leader
from garlicfarm.raft.replication import Replication
from garlicfarm.raft.state import RaftState
from garlicfarm.testing.simulator.cluster import SimulatedCluster

BrokenRule = Callable[[pytest.MonkeyPatch], None]


def change(patch: pytest.MonkeyPatch, method: Callable[..., Any], *changes: tuple[str, str]) -> None:
    """Replace texts, each of which occurs once in the source of ``method``, in its class."""
    source = textwrap.dedent(inspect.getsource(method))
    for old, new in changes:
        assert source.count(old) == 1, f"{old!r} is not once in {method.__qualname__}"
        source = source.replace(old, new)
    module = sys.modules[method.__module__]
    names: dict[str, Any] = {}
    exec("from __future__ import annotations\n" + source, module.__dict__, names)
    owner = getattr(module, method.__qualname__.partition(".")[0])
    patch.setattr(owner, method.__name__, names[method.__name__])


def acknowledges_before_fsync(patch: pytest.MonkeyPatch) -> None:
    change(patch, RaftState.respond, ("if self.durability.is_clear", "if True"))


def asks_for_votes_before_fsync(patch: pytest.MonkeyPatch) -> None:
    change(patch, RaftState.request_vote, ("self.durability.hold(", "self.requests.append("))


def counts_its_own_unsynced_log(patch: pytest.MonkeyPatch) -> None:
    change(patch, Replication._majority_match_index, ("state.log.stable if", "state.log.last_index if"))


def votes_for_a_log_behind_its_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(votes, "is_up_to_date", lambda log, request: True)


def reads_without_asking_the_others(patch: pytest.MonkeyPatch) -> None:
    change(
        patch,
        Leader.read_index,
        (
            "self._reads.add(",
            "from garlicfarm.raft.types import ReadOutcome\n"
            "    follower is None and self._state.reads.append(ReadOutcome(token, index))\n"
            "    follower is None or self._reads.add(",
        ),
    )


def answers_followers_without_asking_the_others(patch: pytest.MonkeyPatch) -> None:
    change(
        patch,
        Leader.read_index,
        (
            "self._reads.add(",
            "kind, state = MessageType.READ_INDEX_RESPONSE, self._state\n"
            "    follower is None or state.respond(token, kind, state.id, state.commit_index + 1, True)\n"
            "    follower is not None or self._reads.add(",
        ),
    )


def followers_read_what_they_have_committed(patch: pytest.MonkeyPatch) -> None:
    change(
        patch,
        RawNode.read_index,
        (
            "self._forwarder.add(token)",
            "from garlicfarm.raft.types import ReadOutcome\n"
            "        self._state.reads.append(ReadOutcome(token, self._state.commit_index))",
        ),
    )


def changes_members_twice_at_once(patch: pytest.MonkeyPatch) -> None:
    change(
        patch,
        PendingConfChange.check,
        ("or membership.has_pending", ""),
        ("self._change is not None", "False"),
    )


def leads_on_though_removed(patch: pytest.MonkeyPatch) -> None:
    change(patch, Leader.maybe_commit, ("self.is_stepping_down = True", "pass"))


def counts_the_members_of_a_configuration_to_come(patch: pytest.MonkeyPatch) -> None:
    change(patch, Replication.quorum_match_index, ("membership.in_force", "membership.newest"))


def counts_configurations_as_well(patch: pytest.MonkeyPatch) -> None:
    change(patch, SnapshotMeta.after, ("elif count is not None:", "if count is not None:"))


def forgets_the_count_of_a_snapshot_that_it_receives(patch: pytest.MonkeyPatch) -> None:
    change(
        patch,
        RaftState.install,
        (
            "self.durability.install(snapshot)",
            "self.durability.install(type(snapshot)(*astuple(snapshot)[:3]))",
        ),
    )
    patch.setattr(state, "astuple", msgspec.structs.astuple, raising=False)


def counts_what_a_snapshot_replaces_from_its_own_log(patch: pytest.MonkeyPatch) -> None:
    """As a member would that added what it applies after the snapshot to what it had applied before it."""

    def restore(cluster: Any, member: Any, snapshot: SnapshotMeta) -> None:
        count = member.position.application_entries
        restored(cluster, member, msgspec.structs.replace(snapshot, application_entries=count))

    restored = SimulatedCluster._restore
    patch.setattr(SimulatedCluster, "_restore", restore)


EXPECTED: dict[BrokenRule, set[str]] = {
    acknowledges_before_fsync: {"committed is durable", "match indexes are durable"},
    asks_for_votes_before_fsync: {"a member keeps its vote and its term"},
    counts_its_own_unsynced_log: {"committed is durable"},
    counts_the_members_of_a_configuration_to_come: {"committed is durable"},
    votes_for_a_log_behind_its_own: {"leader completeness", "committed entries never change"},
    reads_without_asking_the_others: {"reads are linearizable"},
    answers_followers_without_asking_the_others: {"reads are linearizable"},
    followers_read_what_they_have_committed: {"reads are linearizable"},
    changes_members_twice_at_once: {"configurations"},
    leads_on_though_removed: {"only members lead"},
    counts_configurations_as_well: {"members count the same Application entries"},
    forgets_the_count_of_a_snapshot_that_it_receives: {"members count the same Application entries"},
    counts_what_a_snapshot_replaces_from_its_own_log: {"members count the same Application entries"},
}
"""Broken rules of the core, and the invariants that may be the first to notice. What random seeds find rarely
or never is found by directed scripts in tests/raft."""


_STALE_LEADERS = {
    "kinds": ("isolate_leader", "heal"),
    "every_ms": 250,
    "read_ms": 5,
    "rates": (600, 1700),
    "entries_every_ms": 5,
}
FOCUS: dict[BrokenRule, dict[str, Any]] = {
    asks_for_votes_before_fsync: {"kinds": ("crash", "crash_leader"), "every_ms": 100, "disk_ms": 40},
    reads_without_asking_the_others: _STALE_LEADERS,
    answers_followers_without_asking_the_others: {**_STALE_LEADERS, "no_extensions": 0},
}
"""Faults that these need to be found soon; any mix finds them in a few of a hundred seeds."""


NODES: dict[BrokenRule, int] = {answers_followers_without_asking_the_others: 5}
"""Of how many members these need a cluster: of three, a leader with a follower is a majority. Else three."""


def publishes_beyond_its_lease(patch: pytest.MonkeyPatch) -> None:
    change(patch, PublisherFold.may_publish, (" and now_ms < expires_ms", ""))


def publishes_beside_another_holder(patch: pytest.MonkeyPatch) -> None:
    change(patch, PublisherFold.may_publish, (" and self.due_since is not None", ""))


FARM: list[BrokenRule] = [publishes_beyond_its_lease, publishes_beside_another_holder]
