"""An edit of the product that puts a mutant out of action is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import Mutant, planted, read_mutants

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("room", ["publishing", "raft", "storage", "testing/simulator"])
def test_each_mutant_changes_what_is_there_once(room: str) -> None:
    for mutant in read_mutants(room).values():
        with planted(mutant):
            pass
        file, is_test, test = mutant.found_by.partition("::")
        assert not is_test or f"def {test.partition('[')[0]}(" in (TESTS / room / file).read_text()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("raft.votes.can_grant_vote: no_such_name => True", "occurs 0 times"),
        ("raft.votes.can_grant_vote: request => True", "occurs [1-9][0-9]* times"),
        ("raft.votes.no_such_function: request => True", "no_such_function is no function"),
        ('publishing.offer.STATES[offered][able]: "withdrawn" => None', "is None"),
    ],
)
def test_change_that_does_not_find_one_place_is_refused(change: str, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem), planted(Mutant("vote", "lost", [change], "")):
        pass
