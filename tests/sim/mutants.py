"""Rules of the core broken on purpose, by changing the text of one method: production code has no
switches for it. A text that is no longer there fails the test that uses it."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from garlicfarm.raft import core
from garlicfarm.raft.core import RawNode
from garlicfarm.raft.log import RaftLog

Mutant = Callable[[pytest.MonkeyPatch], None]


def mutate(patch: pytest.MonkeyPatch, method: Callable[..., Any], *changes: tuple[str, str]) -> None:
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
    mutate(patch, RawNode._respond, ("if barrier <= self._persisted", "if True"))


def asks_for_votes_before_fsync(patch: pytest.MonkeyPatch) -> None:
    mutate(patch, RawNode._campaign, ("barrier = self._barrier()", "barrier = 0"))
    mutate(patch, RawNode.ready, ("ready = Ready(", "self.persisted(self._persisted); ready = Ready("))


def counts_its_own_unsynced_log(patch: pytest.MonkeyPatch) -> None:
    mutate(patch, RawNode._maybe_commit, ("self._log.stable if", "self._log.last_index if"))


def votes_for_a_log_behind_its_own(patch: pytest.MonkeyPatch) -> None:
    mutate(patch, RawNode._step_vote, (" and up_to_date", ""))


def votes_twice_in_a_term(patch: pytest.MonkeyPatch) -> None:
    mutate(patch, RawNode._step_vote, ("self._vote in (0, request.source) and ", ""))


def commits_what_it_has_not_verified(patch: pytest.MonkeyPatch) -> None:
    """JRaft's S1."""
    mutate(
        patch,
        RawNode._step_append,
        ("last) > self._commit", "self._log.last_index) > self._commit"),
        (
            "commit_to(min(request.commit_index, last))",
            "commit_to(min(request.commit_index, self._log.last_index))",
        ),
    )


def commits_earlier_terms_by_counting(patch: pytest.MonkeyPatch) -> None:
    """JRaft's S2, figure 8 of the paper."""
    mutate(patch, RawNode._maybe_commit, (" and self._log.term(index) == self._term", ""))


def keeps_match_indexes_of_an_earlier_leadership(patch: pytest.MonkeyPatch) -> None:
    """JRaft's C1."""
    mutate(patch, RawNode._become_follower, ("self._progress.clear()", "pass"))


def truncates_what_matches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(core, "new_entries", lambda log, commit, entries: [e for e in entries if e.index > commit])


def takes_a_pending_write_for_what_replaced_it(patch: pytest.MonkeyPatch) -> None:
    """etcd's A-B-A race."""
    mutate(patch, RaftLog.truncate, ("write[1] = min(write[1], index - 1)", "pass"))


def accepts_without_looking_at_the_log_before(patch: pytest.MonkeyPatch) -> None:
    mutate(
        patch,
        RawNode._step_append,
        ("previous > self._commit and self._log.term(previous) != request.last_log_term", "False"),
    )


EXPECTED: dict[Mutant, tuple[str, ...]] = {
    acknowledges_before_fsync: ("committed is durable", "a member keeps its word"),
    asks_for_votes_before_fsync: ("a member keeps its word",),
    counts_its_own_unsynced_log: ("committed is durable",),
    votes_for_a_log_behind_its_own: ("leader completeness",),
    votes_twice_in_a_term: ("a member keeps its word", "election safety"),
    commits_what_it_has_not_verified: ("committed entries never change",),
    keeps_match_indexes_of_an_earlier_leadership: ("liveness", "committed is durable"),
    accepts_without_looking_at_the_log_before: ("committed entries never change", "log matching"),
}
"""Mutants that random seeds find, and the invariants that may be the first to notice. The others, which
they find rarely or never, are killed by directed scripts in tests/raft."""
