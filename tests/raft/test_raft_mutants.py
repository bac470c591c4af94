"""Every rule of the core is tested: a core that breaks it fails the test that is named for it."""

from __future__ import annotations

from functools import cache

import pytest

from tests.raft.mutants import MUTANTS, Mutant, run

RULES = {
    "durability",
    "vote",
    "log match",
    "commit",
    "membership",
    "snapshot",
    "transfer",
    "pre-vote",
    "check-quorum",
    "lease",
    "leader gone",
    "read-index",
    "hanging disk",
    "highest term",
    "admission",
    "commit notice",
}


@cache
def _clean(test: str) -> BaseException | None:
    return run(test, None)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_killed_by_its_test_which_the_clean_core_passes(mutant: Mutant) -> None:
    assert _clean(mutant.killed_by) is None
    # By what it asserts: a mutant that only stumbles would be killed by any test.
    assert isinstance(run(mutant.killed_by, mutant), AssertionError | pytest.fail.Exception)


def test_mutants_cover_every_rule_and_have_names_of_their_own() -> None:
    assert {mutant.rule for mutant in MUTANTS} == RULES
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20


def test_mutant_whose_text_is_gone_is_noticed() -> None:
    gone = MUTANTS[0]._replace(changes=[("no such text", "")])
    with pytest.raises(AssertionError, match="occurs 0 times"):
        run(gone.killed_by, gone)
