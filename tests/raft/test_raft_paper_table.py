"""What etcd/raft tests sentence by sentence of the paper (`raft_paper_test.go`, 26 tests), and where the
same sentence is tested here. Names tell section and sentence; one test here may stand for several there,
where it runs in every role."""

from __future__ import annotations

import importlib

import pytest

_ELECTIONS, _REPLICATION = "test_raft_paper_elections", "test_raft_paper_replication"

COUNTERPARTS = {
    # §5.1
    "FollowerUpdateTermFromMessage": (
        _ELECTIONS,
        "test_5_1_current_term_smaller_than_the_others_is_updated_to_the_larger_value",
    ),
    "CandidateUpdateTermFromMessage": (
        _ELECTIONS,
        "test_5_1_current_term_smaller_than_the_others_is_updated_to_the_larger_value",
    ),
    "LeaderUpdateTermFromMessage": (
        _ELECTIONS,
        "test_5_1_current_term_smaller_than_the_others_is_updated_to_the_larger_value",
    ),
    "RejectStaleTermMessage": (_ELECTIONS, "test_5_1_request_with_a_stale_term_number_is_rejected"),
    # §5.2
    "StartAsFollower": (_ELECTIONS, "test_5_2_when_servers_start_up_they_begin_as_followers"),
    "LeaderBcastBeat": (_ELECTIONS, "test_5_2_leader_sends_periodic_heartbeats_to_all_followers"),
    "FollowerStartElection": (
        _ELECTIONS,
        "test_5_2_no_communication_over_an_election_timeout_begins_an_election",
    ),
    "CandidateStartNewElection": (
        _ELECTIONS,
        "test_5_2_no_communication_over_an_election_timeout_begins_an_election",
    ),
    "LeaderElectionInOneRoundRPC": (
        _ELECTIONS,
        "test_5_2_votes_of_a_majority_in_one_term_win_the_election",
    ),
    "FollowerVote": (
        _ELECTIONS,
        "test_5_2_server_votes_for_at_most_one_candidate_in_a_term_first_come_first_served",
    ),
    "CandidateFallback": (
        _ELECTIONS,
        "test_5_2_candidate_that_hears_a_legitimate_leader_returns_to_follower",
    ),
    "FollowerElectionTimeoutRandomized": (
        _ELECTIONS,
        "test_5_2_election_timeouts_are_chosen_randomly_from_a_fixed_interval",
    ),
    "CandidateElectionTimeoutRandomized": (
        _ELECTIONS,
        "test_5_2_candidate_restarts_its_randomized_timeout_at_the_start_of_each_election",
    ),
    "FollowersElectionTimeoutNonconflict": (
        _ELECTIONS,
        "test_5_2_timeouts_are_spread_so_that_in_most_cases_only_a_single_server_times_out",
    ),
    "CandidatesElectionTimeoutNonconflict": (
        _ELECTIONS,
        "test_5_2_timeouts_are_spread_so_that_in_most_cases_only_a_single_server_times_out",
    ),
    # §5.3
    "LeaderStartReplication": (
        _REPLICATION,
        "test_5_3_leader_appends_the_command_and_sends_it_in_parallel_to_all_others",
    ),
    "LeaderCommitEntry": (
        _REPLICATION,
        "test_5_3_entry_stored_on_a_majority_is_committed_and_applied_by_the_leader",
    ),
    "LeaderAcknowledgeCommit": (_REPLICATION, "test_5_3_entry_is_committed_once_a_majority_has_it"),
    "LeaderCommitPrecedingEntries": (
        _REPLICATION,
        "test_5_3_commit_of_an_entry_commits_all_preceding_ones_of_other_leaders_too",
    ),
    "FollowerCommitEntry": (
        _REPLICATION,
        "test_5_3_follower_that_learns_of_a_commit_applies_it_in_log_order",
    ),
    "FollowerCheckMsgApp": (
        _REPLICATION,
        "test_5_3_follower_refuses_entries_whose_predecessor_it_does_not_have",
    ),
    "FollowerAppendEntries": (
        _REPLICATION,
        "test_5_3_conflicting_entries_are_deleted_with_all_that_follow_and_others_stay",
    ),
    "LeaderSyncFollowerLog": (
        _REPLICATION,
        "test_5_3_leader_brings_the_followers_log_of_figure_7_into_consistency_with_its_own",
    ),
    # §5.4
    "VoteRequest": (_ELECTIONS, "test_5_4_1_vote_request_says_how_up_to_date_the_candidates_log_is"),
    "Voter": (_ELECTIONS, "test_5_4_1_voter_denies_its_vote_if_its_own_log_is_more_up_to_date"),
    "LeaderOnlyCommitsLogFromCurrentTerm": (
        _REPLICATION,
        "test_5_4_2_only_entries_of_the_current_term_are_committed_by_counting",
    ),
}
"""Name there, without "Test" -> (module, name here)."""


def test_all_26_of_etcds_paper_tests_have_a_counterpart() -> None:
    assert len(COUNTERPARTS) == 26


@pytest.mark.parametrize("theirs", COUNTERPARTS)
def test_counterpart_of_each_paper_test_of_etcd_is_there(theirs: str) -> None:
    module, ours = COUNTERPARTS[theirs]
    assert callable(getattr(importlib.import_module(f"tests.raft.{module}"), ours))
