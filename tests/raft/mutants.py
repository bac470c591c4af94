"""Rules of the core broken on purpose, each with the test that notices. A mutant is a change of the text of
one module, loaded in a fresh copy of the core beside the real one; production code has no switch for it.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

__all__ = ["MUTANTS", "Mutant", "run"]

_FRESH = (
    "garlicfarm.raft",
    "garlicfarm.testing.simulator.invariants",
    "garlicfarm.testing.memory_storage",
    "tests.raft",
)
"""What is loaded anew with a mutant: the core, and whatever holds on to its names."""


class Mutant(NamedTuple):
    """``module`` of `garlicfarm.raft` with each text replaced that must occur in it once. ``killed_by``: a
    test that fails with it: the file (without "test_raft_" and ".py") and the test (without "test_")."""

    rule: str
    name: str
    module: str
    changes: Sequence[tuple[str, str]]
    killed_by: str

    @property
    def path(self) -> Path:
        found = importlib.util.find_spec(f"garlicfarm.raft.{self.module}")
        assert found is not None
        assert found.origin is not None
        return Path(found.origin)

    def source(self) -> str:
        """The module's source with the changes; AssertionError where a text is not there once."""
        source = self.path.read_text(encoding="utf-8")
        for old, new in self.changes:
            assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times in {self.path}"
            source = source.replace(old, new)
        return source


class _Patched(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, mutant: Mutant) -> None:
        self._name = f"garlicfarm.raft.{mutant.module}"
        self._code = compile(mutant.source(), f"{mutant.path} ({mutant.name})", "exec")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self._name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


def _is_fresh(name: str) -> bool:
    return any(name == root or name.startswith(root + ".") for root in _FRESH)


@contextmanager
def _loaded(mutant: Mutant | None) -> Iterator[None]:
    """Whatever is imported meanwhile is the mutant's, None: the clean core's."""
    finder = _Patched(mutant) if mutant is not None else None
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_fresh(name)}
    if finder is not None:
        sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder is not None:
            sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _is_fresh(name)]:
            del sys.modules[name]
        sys.modules.update(kept)
        for name, module in kept.items():
            parent, _, child = name.rpartition(".")
            if parent in sys.modules:
                setattr(sys.modules[parent], child, module)


def run(test: str, mutant: Mutant | None) -> BaseException | None:
    """Run a test, with all its parameters, on the core with the mutant (None: as it is); how it failed."""
    module, _, name = test.partition("::")
    with _loaded(mutant):
        try:
            # A broken core may fail as soon as it is loaded by what the test imports.
            function = getattr(importlib.import_module(f"tests.raft.test_raft_{module}"), f"test_{name}")
            for arguments in _arguments(function):
                function(**arguments)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - that it fails is the result
            return error
    return None


def _arguments(function: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """All that its ``parametrize`` marks come to."""
    choices = []
    for mark in getattr(function, "pytestmark", ()):
        names, values = mark.args
        names = names.split(",") if isinstance(names, str) else names
        choices.append(
            [dict(zip(names, value if len(names) > 1 else (value,), strict=True)) for value in values]
        )
    for combination in itertools.product(*choices):
        yield {name: value for chosen in combination for name, value in chosen.items()}


MUTANTS = (
    Mutant(
        "durability",
        "answers before what it rests on is durable",
        "state",
        [("if self.durability.is_clear:", "if True:")],
        "durability::vote_does_not_leave_before_it_is_durable",
    ),
    Mutant(
        "durability",
        "asks for votes before its own is durable",
        "state",
        [
            (
                "self.durability.hold(OutgoingRequest(peer, seq, message))",
                "self.requests.append(OutgoingRequest(peer, seq, message))",
            )
        ],
        "durability::vote_requests_and_the_own_vote_wait_until_they_are_durable",
    ),
    Mutant(
        "durability",
        "counts its own log before it is durable",
        "replication",
        [("state.log.stable if s.id", "state.log.last_index if s.id")],
        "durability::leaders_own_log_counts_only_when_it_is_durable",
    ),
    Mutant(
        "durability",
        "takes a pending write for what replaced it (A-B-A)",
        "log",
        [("write.last_index = min(write.last_index, index - 1)", "pass")],
        "durability::pending_write_does_not_bring_back_what_a_later_one_replaces",
    ),
    Mutant(
        "durability",
        "writes no commit index",
        "durability",
        [("HardState(term, vote, commit_index)", "HardState(term, vote, 0)")],
        "directed_schedules::growth_by_two_servers_leaves_no_two_majorities_that_do_not_meet",
    ),
    Mutant(
        "vote",
        "votes for a log behind its own",
        "votes",
        [
            (
                "        and is_up_to_date(state.log, request)\n    )\n\n\ndef can_grant_pre_vote",
                "    )\n\n\ndef can_grant_pre_vote",
            )
        ],
        "paper_elections::5_4_1_voter_denies_its_vote_if_its_own_log_is_more_up_to_date",
    ),
    Mutant(
        "vote",
        "takes the longer log for the more up-to-date one",
        "votes",
        [
            (
                "(request.last_log_term, request.last_log_index) >= (log.last_term, log.last_index)",
                "(request.last_log_index, request.last_log_term) >= (log.last_index, log.last_term)",
            )
        ],
        "paper_elections::5_4_1_voter_denies_its_vote_if_its_own_log_is_more_up_to_date",
    ),
    Mutant(
        "vote",
        "votes twice in a term",
        "votes",
        [("(is_free or state.vote == request.source)", "True")],
        "paper_elections::5_2_server_votes_for_at_most_one_candidate_in_a_term_first_come_first_served",
    ),
    Mutant(
        "vote",
        "counts votes of an earlier term",
        "candidate",
        [
            (
                "is_granted = response.accepted and response.term == state.term",
                "is_granted = response.accepted",
            )
        ],
        "paper_elections::5_2_vote_that_names_an_earlier_term_is_none",
    ),
    Mutant(
        "vote",
        "leaves a vote behind where a probe was in term 0",
        "votes",
        [("0 < request.term == state.term", "request.term == state.term")],
        "pre_vote::vote_is_never_given_in_term_0_which_nobody_leads",
    ),
    Mutant(
        "vote",
        "stays a candidate though it cannot win any more",
        "roles",
        [("elif candidate.has_lost:", "elif False:")],
        "paper_elections::5_2_candidate_that_cannot_win_any_more_is_a_follower_and_keeps_its_timeout",
    ),
    Mutant(
        "vote",
        "stands again as soon as it is denied",
        "roles",
        [("self.candidate = None  # the next", "self.candidate = self._timer.restart()  # the next")],
        "paper_elections::5_2_candidate_that_cannot_win_any_more_is_a_follower_and_keeps_its_timeout",
    ),
    Mutant(
        "vote",
        "counts a denial of the poll in the election",
        "candidate",
        [("        self._denied.clear()\n", "")],
        "paper_elections::5_2_denials_of_the_poll_do_not_count_in_the_election",
    ),
    Mutant(
        "log match",
        "accepts entries without a look at the one before",
        "follower",
        [("previous > state.commit_index and log.term(previous) != request.last_log_term", "False")],
        "paper_replication::5_3_follower_refuses_entries_whose_predecessor_it_does_not_have",
    ),
    Mutant(
        "log match",
        "deletes what matches",
        "append_checks",
        [
            (
                "if entry.index > commit_index and (\n"
                "            entry.index > log.last_index or log.term(entry.index) != entry.term\n"
                "        ):",
                "if entry.index > commit_index:",
            )
        ],
        "paper_replication::5_3_message_that_repeats_a_part_of_the_log_takes_nothing_away",
    ),
    Mutant(
        "log match",
        "hints at one entry at a time",
        "append_checks",
        [("while index > commit_index and (", "while False and (")],
        "paper_replication::5_3_logs_of_figure_7_meet_within_a_round_per_term_not_per_entry",
    ),
    Mutant(
        "commit",
        "commits entries of earlier terms by counting (JRaft)",
        "leader",
        [(" or state.log.term(index) != state.term", "")],
        "directed_schedules::jrafts_way_through_figure_8_commits_nothing_that_is_overwritten",
    ),
    Mutant(
        "commit",
        "commits what it did not verify (JRaft)",
        "follower",
        [
            (
                "self._append_new(checked, min(request.commit_index, last))\n"
                "        state.respond(token, _APPEND_RESPONSE",
                "self._append_new(checked, min(request.commit_index, log.last_index))\n"
                "        state.respond(token, _APPEND_RESPONSE",
            )
        ],
        "jraft_defects::s1_heartbeat_commits_only_what_it_verified",
    ),
    Mutant(
        "log match",
        "begins at the first entry again where a probe is lost",
        "progress",
        [
            (
                "self.match_index + 1 if self.state is ProgressState.REPLICATE else self.next_index",
                "self.match_index + 1",
            )
        ],
        "flow_control::follower_that_was_down_at_the_election_is_sent_what_it_lacks_and_no_more",
    ),
    Mutant(
        "log match",
        "takes what is lost in the window for sent",
        "progress",
        [
            (
                "self.match_index + 1 if self.state is ProgressState.REPLICATE else self.next_index",
                "self.next_index",
            )
        ],
        "flow_control::lost_request_in_the_window_is_sent_again_from_behind_what_matches",
    ),
    Mutant(
        "log match",
        "takes all that was sent for held where fewer entries were taken",
        "replication",
        [("held = min(sent.last, response.next_index - 1)", "held = sent.last")],
        "flow_control::accepted_append_counts_up_to_the_next_index_of_its_answer_and_the_rest_is_sent_again",
    ),
    Mutant(
        "log match",
        "sends again at once where nothing was taken",
        "replication",
        [
            (
                "        else:\n            progress.back_off()",
                "        else:\n            progress.become_probe(sent.last)",
            )
        ],
        "flow_control::accepted_append_that_counts_for_nothing_is_repeated_with_the_next_heartbeat",
    ),
    Mutant(
        "log match",
        "asks again at once where what was acknowledged is refused",
        "replication",
        [("progress.is_backing_off = sent.previous <= progress.match_index", "pass")],
        "flow_control::refusal_of_what_was_acknowledged_is_asked_again_with_the_next_heartbeat",
    ),
    Mutant(
        "commit",
        "begins a term without an entry (JRaft)",
        "leader",
        [("self._append_configuration(state.membership.newest)", "state.log.last_index")],
        "paper_replication::5_4_2_new_leader_at_once_appends_an_entry_of_its_own_term",
    ),
    Mutant(
        "commit",
        "commits what one member holds",
        "replication",
        [("matches[(len(matches) - 1) // 2]", "matches[-1]")],
        "paper_replication::5_3_entry_is_committed_once_a_majority_has_it",
    ),
    Mutant(
        "commit",
        "takes a commit for told that could not be followed",
        "replication",
        [
            (
                "progress.sent_commit_index = min(state.commit_index, last)",
                "progress.sent_commit_index = state.commit_index",
            )
        ],
        "flow_control::commit_that_a_follower_could_not_follow_yet_is_told_again_when_it_can",
    ),
    Mutant(
        "membership",
        "puts a Configuration in force when it is appended",
        "configuration_tracker",
        [
            (
                "self._pending.append((index, configuration))",
                "self._pending.append((index, configuration)); self.in_force = configuration",
            )
        ],
        "clients::d7_configuration_takes_force_when_it_is_committed",
    ),
    Mutant(
        "membership",
        "begins a term with the Configuration in force, which reverts a pending change",
        "leader",
        [
            (
                "self._append_configuration(state.membership.newest)",
                "self._append_configuration(state.membership.in_force)",
            ),
            ("membership.newest.log_index, like.servers", "membership.in_force.log_index, like.servers"),
        ],
        "membership_changes::new_leader_repeats_the_pending_change_and_completes_it",
    ),
    Mutant(
        "membership",
        "takes a second change while one is in flight",
        "conf_change",
        [("self._change is not None\n            or membership.has_pending", "False")],
        "membership_changes::second_change_while_one_is_in_flight_is_refused",
    ),
    Mutant(
        "membership",
        "takes a change before a commit of its term (the defect of 2015)",
        "leader",
        [("if self._state.commit_index < self._term_start_index:", "if False:")],
        "directed_schedules::growth_in_one_step_by_a_leader_that_had_not_heard_of_the_first_is_refused",
    ),
    Mutant(
        "membership",
        "takes a change before the one before is applied",
        "conf_change",
        [("            or membership.in_force.log_index > self._state.applied_index\n", "")],
        "membership_changes::change_before_the_one_before_is_applied_is_refused",
    ),
    Mutant(
        "membership",
        "stands though it has not applied its Configuration",
        "votes",
        [("is_able = is_applied and state.id", "is_able = state.id")],
        "membership_changes::member_that_has_not_applied_its_configuration_does_not_stand",
    ),
    Mutant(
        "membership",
        "stands outside its committed Configuration",
        "votes",
        [("is_applied and state.id in state.membership and", "is_applied and")],
        "membership_changes::member_outside_its_committed_configuration_never_stands",
    ),
    Mutant(
        "membership",
        "stands though it was told to leave",
        "votes",
        [("in state.membership and not is_leaving", "in state.membership")],
        "leaving::member_that_is_told_to_leave_does_not_stand",
    ),
    Mutant(
        "membership",
        "never stands again though its removal came to nothing",
        "roles",
        [("if term > self._leave_term:", "if False:")],
        "leaving::removal_that_never_was_committed_is_forgotten_with_its_leader",
    ),
    Mutant(
        "membership",
        "takes an append of the leader that told it to leave for leave to stay",
        "roles",
        [("if term > self._leave_term:", "if True:")],
        "leaving::neither_an_append_of_the_same_leader_nor_a_later_term_alone_has_it_stand_again",
    ),
    Mutant(
        "membership",
        "leads on after its removal is committed",
        "leader",
        [
            (
                "# the others hear of the removal\n                self.is_stepping_down = True",
                "# the others hear of the removal",
            )
        ],
        "membership_changes::leader_that_is_removed_leads_until_the_commit_and_steps_down_then",
    ),
    Mutant(
        "membership",
        "goes without a word to those who still owe an answer",
        "replication",
        [
            (
                "in self.progress.items():\n            if progress.sent_commit_index <",
                "in ():\n            if progress.sent_commit_index <",
            )
        ],
        "membership_changes::all_others_hear_of_the_commit_that_removes_their_leader",
    ),
    Mutant(
        "membership",
        "takes entries behind its own removal",
        "leader",
        [
            (
                "is_removed = state.id not in [s.id for s in state.membership.newest.servers]",
                "is_removed = False",
            )
        ],
        "membership_changes::leader_that_is_to_be_removed_takes_no_more_entries",
    ),
    Mutant(
        "membership",
        "sends a member that is to be removed more than the others hold",
        "replication",
        [
            (
                "max(state.commit_index, self._majority_match_index(membership.newest))",
                "state.log.last_index",
            )
        ],
        "membership_changes::leader_that_forgot_that_it_is_alone_is_elected_by_the_member_that_it_removed",
    ),
    Mutant(
        "membership",
        "tells a member of its removal before its own disk knows",
        "replication",
        [("*batch, is_held=True)", "*batch)")],
        "membership_changes::follower_hears_of_its_removal_once_the_leader_cannot_forget_it",
    ),
    Mutant(
        "membership",
        "tells a member that it is removed, but not by which Configuration",
        "replication",
        [("if log.first_index <= progress.next_index <= limit:", "if False:")],
        "membership_changes::removed_follower_gets_the_change_with_the_commit_if_it_was_not_needed_for_it",
    ),
    Mutant(
        "membership",
        "counts a server that only joins",
        "replication",
        [
            ("for s in configuration.servers\n", "for s in self.servers\n"),
            (
                "return matches[(len(matches) - 1) // 2]",
                "return matches[len(matches) - state.membership.quorum]",
            ),
        ],
        "membership_joining::server_that_joins_counts_in_no_majority",
    ),
    Mutant(
        "membership",
        "waits for a write before a smaller majority counts",
        "leader",
        [("                self.maybe_commit()  #", "                pass  #")],
        "membership_changes::entries_behind_a_change_are_committed_by_the_majority_that_it_makes",
    ),
    Mutant(
        "membership",
        "adds a server that has not caught up",
        "joiner",
        [("if match_index < self._round_end:\n            return False\n        state =", "state =")],
        "membership_joining::configuration_is_not_appended_before_the_round_is_over",
    ),
    Mutant(
        "membership",
        "names entries as held, when it is invited, that may have been given up",
        "requests",
        [
            (
                "state.respond(token, kind, request.source, state.commit_index + 1, True)",
                "state.respond(token, kind, request.source, state.log.last_index + 1, True)",
            )
        ],
        "membership_joining::entries_that_an_earlier_leader_lost_are_not_taken_for_committed_by_packs",
    ),
    Mutant(
        "snapshot",
        "drops entries behind a snapshot that may be acknowledged",
        "log",
        [("fits = self.first_index", "fits = False and self.first_index")],
        "snapshots::log_behind_a_snapshot_stays_where_it_meets_it",
    ),
    Mutant(
        "snapshot",
        "keeps entries behind a snapshot that they do not meet",
        "log",
        [(" and self.term(index) == term", "")],
        "snapshots::log_that_does_not_meet_the_snapshot_is_dropped",
    ),
    Mutant(
        "snapshot",
        "hands entries out before the snapshot below them",
        "state",
        [("\n            and not self.durability.is_restoring\n", "\n")],
        "snapshots::entries_that_were_durable_before_the_snapshot_are_handed_out_after_it",
    ),
    Mutant(
        "snapshot",
        "restores from a snapshot that is not durable",
        "durability",
        [("restore is None or restore.token > self._durable_token", "restore is None")],
        "snapshots::piece_is_answered_when_it_is_stored_and_the_last_when_it_is_the_log",
    ),
    Mutant(
        "snapshot",
        "begins at 0 whatever the receiver holds",
        "replication",
        [("snapshot.offset = held", "snapshot.offset = expected")],
        "snapshots_sent::follower_that_kept_pieces_gets_only_the_others_from_a_new_leader",
    ),
    Mutant(
        "snapshot",
        "installs a snapshot of what it has committed already",
        "follower",
        [("if snapshot is not None and snapshot.index > state.commit_index:", "if snapshot is not None:")],
        "snapshots::snapshot_that_was_overtaken_by_entries_is_not_installed",
    ),
    Mutant(
        "transfer",
        "appends while it hands over",
        "leader",
        [("return self._transfer.is_active or is_removed", "return is_removed")],
        "transfer::nothing_is_appended_while_it_hands_over",
    ),
    Mutant(
        "transfer",
        "tells a member to stand that does not hold all",
        "transfer",
        [
            (
                "not self._is_backing_off and target.match_index == state.log.last_index",
                "not self._is_backing_off",
            )
        ],
        "transfer::transfer_to_a_member_that_lags_first_brings_it_up_to_date",
    ),
    Mutant(
        "transfer",
        "hands over to a member that has not answered",
        "transfer",
        [("if p in active]", "]")],
        "transfer::new_leader_hands_over_to_a_member_that_has_answered_it",
    ),
    Mutant(
        "transfer",
        "never gives a transfer up",
        "transfer",
        [("if self.is_active and self._state.now_ms >= self._deadline_ms:", "if False:")],
        "transfer::transfer_to_a_dead_member_times_out_and_the_leader_goes_on",
    ),
    Mutant(
        "transfer",
        "stands on the order of one that does not lead",
        "votes",
        [("return is_of_leader and can_campaign", "return can_campaign")],
        "transfer::order_of_one_that_does_not_lead_is_refused_and_changes_nothing",
    ),
    Mutant(
        "transfer",
        "does not mark an ordered election",
        "candidate",
        [("TRANSFER_CAMPAIGN if is_marked else 0", "0")],
        "transfer::leadership_changes_hands_within_a_round_though_all_hear_the_leader",
    ),
    Mutant(
        "pre-vote",
        "stands without a poll",
        "candidate",
        [("        if is_transfer:\n", "        if True:\n")],
        "pre_vote::isolated_member_never_raises_its_term",
    ),
    Mutant(
        "pre-vote",
        "grants a poll to a log behind its own",
        "votes",
        [
            (
                "        and is_up_to_date(state.log, request)\n        and not state.is_disk_hanging",
                "        and not state.is_disk_hanging",
            )
        ],
        "pre_vote::pre_vote_is_granted_by_term_and_log_and_changes_nothing",
    ),
    Mutant(
        "pre-vote",
        "grants a poll while it hears a leader",
        "votes",
        [("        and not has_live_leader\n", "")],
        "pre_vote::member_that_returns_from_a_partition_does_not_depose_the_leader",
    ),
    Mutant(
        "pre-vote",
        "takes a granted poll for a vote",
        "candidate",
        [("        self._granted.clear()\n", "")],
        "pre_vote::granted_poll_is_no_vote",
    ),
    Mutant(
        "pre-vote",
        "takes a refused poll for a granted one",
        "candidate",
        [
            (
                "is_granted = response.accepted or response.type is MessageType.REQUEST_VOTE_RESPONSE",
                "is_granted = True",
            )
        ],
        "pre_vote::poll_that_a_majority_grants_is_followed_by_the_vote",
    ),
    Mutant(
        "check-quorum",
        "leads though nobody answers",
        "leader",
        [
            (
                "            self._set_quorum_end()\n        if state.now_ms > self._quorum_end_ms:\n",
                "            self._set_quorum_end()\n        if False:\n",
            )
        ],
        "check_quorum::leader_that_nobody_answers_steps_down_after_the_upper_election_timeout",
    ),
    Mutant(
        "check-quorum",
        "remembers a majority though the members have changed",
        "leader",
        [
            (
                "(self._conf_change.replication_targets())\n        self._set_quorum_end()\n",
                "(self._conf_change.replication_targets())\n",
            )
        ],
        "check_quorum::majority_that_a_change_of_the_members_made_silent_does_not_keep_the_leader",
    ),
    Mutant(
        "check-quorum",
        "leads though only one answers",
        "replication",
        [("sorted(heard)[len(heard) - state.membership.quorum]", "sorted(heard)[max(0, len(heard) - 2)]")],
        "check_quorum::leader_stays_as_long_as_a_majority_answers",
    ),
    Mutant(
        "check-quorum",
        "takes a new leader's patience for a sign of life",
        "progress",
        [("self.has_answered and self.last_heard_ms", "self.last_heard_ms")],
        "membership_changes::member_that_never_answered_this_leader_is_not_heard",
    ),
    Mutant(
        "lease",
        "votes while it hears a leader",
        "requests",
        [("if is_refused_by_lease(request, self._roles.has_live_leader):", "if False:")],
        "vote_lease::vote_is_refused_while_the_leader_is_heard_and_the_term_stays",
    ),
    Mutant(
        "lease",
        "refuses what the leader ordered",
        "votes",
        [("return has_live_leader and request.commit_index != TRANSFER_CAMPAIGN", "return has_live_leader")],
        "vote_lease::ordered_vote_is_judged_by_term_and_log_alone",
    ),
    Mutant(
        "lease",
        "takes a leader for alive for ever",
        "election_timer",
        [("self._lease_end_ms = None\n        if now_ms", "pass\n        if now_ms")],
        "vote_lease::vote_is_given_once_the_leader_was_silent_for_the_lower_election_timeout",
    ),
    Mutant(
        "leader gone",
        "takes evidence about any leader",
        "roles",
        [("(leader, term) == (state.leader_id, state.term)", "term == state.term")],
        "leader_gone::evidence_about_another_leader_or_term_changes_nothing",
    ),
    Mutant(
        "leader gone",
        "takes evidence about any term",
        "roles",
        [("(leader, term) == (state.leader_id, state.term)", "leader == state.leader_id")],
        "leader_gone::evidence_about_the_leader_of_a_term_that_is_over_says_nothing_of_its_next_term",
    ),
    Mutant(
        "leader gone",
        "campaigns soon where no leader is known",
        "roles",
        [("leader not in (0, state.id) and ", "")],
        "leader_gone::member_that_knows_no_leader_campaigns_no_sooner",
    ),
    Mutant(
        "leader gone",
        "enters the next term by itself",
        "roles",
        [
            (
                "            self._timer.on_leader_gone()\n",
                "            self._timer.on_leader_gone()\n            state.advance_term(term + 1)\n",
            )
        ],
        "leader_gone::term_vote_and_log_stay_as_they_are",
    ),
    Mutant(
        "leader gone",
        "forgets the leader, so that its term may get a second one",
        "roles",
        [
            (
                "            self._timer.on_leader_gone()\n",
                "            self._timer.on_leader_gone()\n            state.leader_id = 0\n",
            )
        ],
        "leader_gone::term_that_has_a_leader_gets_no_other_though_that_one_is_gone",
    ),
    Mutant(
        "leader gone",
        "campaigns without a poll",
        "roles",
        [
            (
                "            self._timer.on_leader_gone()\n",
                "            self.campaign_at_once()\n",
            )
        ],
        "leader_gone::living_leader_that_a_minority_takes_for_gone_is_not_deposed",
    ),
    Mutant(
        "leader gone",
        "grants votes without a look at the log",
        "votes",
        [
            (
                "        and is_up_to_date(state.log, request)\n    )",
                "        and (not state.leader_id or is_up_to_date(state.log, request))\n    )",
            )
        ],
        "leader_gone::logs_are_compared_as_ever",
    ),
    Mutant(
        "leader gone",
        "goes on withholding what the lease withheld",
        "election_timer",
        [("if not self._state.leader_id or self._is_leader_gone:", "if not self._state.leader_id:")],
        "leader_gone::poll_of_the_turn_in_which_the_evidence_came_is_granted",
    ),
    Mutant(
        "leader gone",
        "takes up the lease again at the next tick",
        "election_timer",
        [("self._lease_end_ms, self._is_leader_gone = None, False", "self._is_leader_gone = False")],
        "leader_gone::vote_that_the_lease_would_withhold_is_given_when_the_leader_is_gone",
    ),
    Mutant(
        "leader gone",
        "puts the campaign off with each piece of evidence",
        "election_timer",
        [("min(self._deadline_ms, soon_ms)", "soon_ms")],
        "leader_gone::evidence_again_and_again_does_not_put_the_poll_off",
    ),
    Mutant(
        "leader gone",
        "takes a leader for gone that it hears again",
        "election_timer",
        [("self._deadline_ms, self._is_leader_gone = None, False", "self._deadline_ms = None")],
        "leader_gone::append_of_the_turn_in_which_the_evidence_came_makes_the_leader_alive_again",
    ),
    Mutant(
        "leader gone",
        "has all campaign in the same moment",
        "election_timer",
        [("state.randint(0, spread_ms)", "0")],
        "leader_gone::wait_is_drawn_anew_by_each_member",
    ),
    Mutant(
        "leader gone",
        "begins the wait before the time is told",
        "election_timer",
        [("        self._is_leader_gone = True\n", "        self._cut_short()\n")],
        "leader_gone::time_in_which_the_process_stood_still_does_not_shorten_the_wait",
    ),
    Mutant(
        "read-index",
        "answers a read by a lease, since a majority answered a moment ago",
        "leader",
        [
            (
                "        self._reads.add(token, index, follower)\n",
                "        self._reads.add(token, index, follower)\n"
                "        state, heard_ms = self._state, self._replication.quorum_heard_ms()\n"
                "        if state.now_ms - heard_ms < state.config.election_timeout_min_ms:\n"
                "            self._reads._waiting[-1].confirmed_by.update(self._replication.progress)\n"
                "            self._reads.release()\n",
            )
        ],
        "leader_gone::leader_that_was_deposed_by_mistake_answers_no_read_though_it_was_heard_a_moment_ago",
    ),
    Mutant(
        "read-index",
        "answers a read by its own word alone",
        "read_index",
        [
            (
                "is_quorum(read.confirmed_by)",
                "is_quorum({s.id for s in self._state.membership.in_force.servers})",
            )
        ],
        "reads::minority_leader_never_answers_a_read_and_says_so_when_it_steps_down",
    ),
    Mutant(
        "read-index",
        "takes an answer from before the read for a confirmation",
        "read_index",
        [("if seq <= read.after_seq:", "if False:")],
        "reads::answer_to_a_request_that_was_sent_before_the_read_confirms_nothing",
    ),
    Mutant(
        "read-index",
        "reads at a commit index that may be behind, as a new leader",
        "leader",
        [("max(self._state.commit_index, self._term_start_index)", "self._state.commit_index")],
        "reads::read_of_a_new_leader_waits_for_its_first_commit",
    ),
    Mutant(
        "read-index",
        "keeps reads waiting for a member that was removed",
        "leader",
        [("                self._reads.release()\n", "")],
        "reads::read_that_waits_for_a_member_is_answered_when_that_is_removed",
    ),
    Mutant(
        "highest term",
        "takes any term that a store can hold",
        "state",
        [("        return term <= self.term_ceiling\n", "        return term <= MAX_TERM\n")],
        "extreme_numbers::message_raises_the_term_to_the_ceiling_or_to_the_next_one",
    ),
    Mutant(
        "highest term",
        "bounds the step from its own term, which parts members for good",
        "state",
        [("return term <= self.term_ceiling", "return term <= self.term + 2**16")],
        "extreme_numbers::members_that_messages_brought_apart_find_together_again",
    ),
    Mutant(
        "highest term",
        "never takes the next term above the ceiling",
        "state",
        [("if term <= self.term + 1 or", "if term <= self.term or")],
        "extreme_numbers::message_raises_the_term_to_the_ceiling_or_to_the_next_one",
    ),
    Mutant(
        "highest term",
        "counts an answer of a term too high as an answer",
        "core",
        [
            (
                "            self.report_unreachable(response.source, seq)\n        elif",
                "            roles.leader and roles.leader.step_response(seq, response)\n        elif",
            )
        ],
        "extreme_numbers::answer_of_a_member_in_a_term_too_high_counts_as_none",
    ),
    Mutant(
        "highest term",
        "takes a Configuration that names an index which is never applied",
        "append_checks",
        [("configuration.log_index > index:", "False:")],
        "extreme_numbers::configuration_that_names_an_index_which_is_never_applied_is_refused",
    ),
    Mutant(
        "hanging disk",
        "stands while its disk hangs",
        "votes",
        [("state.term < MAX_TERM and not state.is_disk_hanging", "state.term < MAX_TERM")],
        "disk_hangs::member_whose_disk_hangs_neither_polls_nor_stands_and_its_term_stays",
    ),
    Mutant(
        "hanging disk",
        "promises a vote that it cannot give",
        "votes",
        [("        and not state.is_disk_hanging\n", "")],
        "disk_hangs::member_whose_disk_hangs_promises_no_vote",
    ),
    Mutant(
        "hanging disk",
        "goes on as a candidate",
        "core",
        [("if is_hanging and self._roles.candidate is not None:", "if False:")],
        "disk_hangs::candidate_whose_disk_hangs_gives_up",
    ),
    Mutant(
        "hanging disk",
        "leads on without its disk",
        "leader",
        [
            (
                "return self._disk_deadline_ms is not None and state.now_ms >= self._disk_deadline_ms",
                "return False",
            )
        ],
        "disk_hangs::leader_whose_disk_hangs_leads_no_longer_than_another_election_timeout",
    ),
    Mutant(
        "hanging disk",
        "steps down without having handed over",
        "leader",
        [("                self.transfer(0)\n", "                pass\n")],
        "disk_hangs::leader_whose_disk_hangs_hands_over_to_a_member_that_holds_all",
    ),
    Mutant(
        "hanging disk",
        "steps down though its disk answered in time",
        "leader",
        [("            self._disk_deadline_ms = None\n        elif", "            pass\n        elif")],
        "disk_hangs::leader_goes_on_where_its_disk_answers_in_time_and_no_member_took_over",
    ),
    Mutant(
        "commit notice",
        "tells no commit index without entries",
        "replication",
        [("is_notice_due = progress.notice_at_ms is not None and", "is_notice_due = False and")],
        "commit_notice::commit_index_waits_for_the_pause",
    ),
    Mutant(
        "commit notice",
        "lets a member that posted wait for the pause",
        "leader",
        [
            (
                "                    self._replication.hurry_commit_index(proposal.source)\n",
                "                    pass\n",
            )
        ],
        "commit_notice::member_that_posted_is_told_at_once",
    ),
    Mutant(
        "commit notice",
        "lets a member that read wait for the pause",
        "replication",
        [("        self.hurry_commit_index(*self._reads.answered_followers)\n", "")],
        "commit_notice::member_that_was_answered_a_read_is_told_as_soon_as_it_can_be",
    ),
    Mutant(
        "read-index",
        "answers a follower by its own word alone",
        "read_index",
        [("if not state.membership", "if read.follower is None and not state.membership")],
        "reads::leader_without_a_majority_answers_an_empty_client_request_and_no_follower",
    ),
    Mutant(
        "read-index",
        "answers a follower before an entry of its term is committed",
        "read_index",
        [("while self._waiting and self._waiting[0].index <= state.commit_index:", "while self._waiting:")],
        "reads::new_leader_answers_only_once_an_entry_of_its_term_is_committed",
    ),
    Mutant(
        "read-index",
        "reads as a follower at its own commit index",
        "core",
        [
            ("import ConfChange, RaftConfig", "import ConfChange, ReadOutcome, RaftConfig"),
            (
                "self._forwarder.add(token)",
                "self._state.reads.append(ReadOutcome(token, self._state.commit_index))",
            ),
        ],
        "reads::follower_asks_its_leader_for_the_index",
    ),
    Mutant(
        "read-index",
        "takes an index of an earlier term",
        "read_index",
        [("asked == (state.term, state.leader_id)", "asked")],
        "reads::index_of_an_earlier_term_does_not_count",
    ),
    Mutant(
        "read-index",
        "takes a refusal for an index",
        "read_index",
        [("if response.accepted and is_of_leader", "if is_of_leader")],
        "reads::read_that_the_leader_refuses_has_no_index",
    ),
    Mutant(
        "admission",
        "takes 64 MiB whatever the pace",
        "uncommitted",
        [
            (
                "            if waited_ms > self._max_wait_ms or self._bound != self._max_bytes:\n",
                "            if False:\n",
            )
        ],
        "slow_disk::posts_are_committed_in_time_under_a_flood_that_the_disk_cannot_follow",
    ),
    Mutant(
        "admission",
        "large proposals shut out small ones",
        "uncommitted",
        [("else 2 * size", "else size")],
        "slow_disk::posts_are_committed_in_time_under_a_flood_that_the_disk_cannot_follow",
    ),
    Mutant(
        "admission",
        "the bound never rises again",
        "uncommitted",
        [(" or in_time > self._bound", "")],
        "slow_disk::disk_that_is_fast_again_gets_all_that_it_got_before",
    ),
)
