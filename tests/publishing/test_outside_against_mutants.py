"""The rules of what others measure, broken one at a time: a test finds each, or the simulator, with liars."""

from __future__ import annotations

import importlib

import pytest

from garlicfarm.testing.simulator.invariants import Violation
from garlicfarm.testing.simulator.outside_simulation import OutsideSimulation
from tests.mutants import Mutant, planted, read_mutants
from tests.raft.test_raft_mutants import run

MUTANTS = [one for one in read_mutants("publishing").values() if one.rule == "what others measure"]
SIMULATED = [one for one in MUTANTS if one.found_by.startswith("seed ")]
TESTED = [one for one in MUTANTS if one not in SIMULATED]


@pytest.mark.parametrize("mutant", TESTED, ids=lambda mutant: mutant.name)
def test_broken_rule_of_what_others_measure_fails_its_test(mutant: Mutant) -> None:
    file, _, name = mutant.found_by.partition(".py::")
    function = getattr(importlib.import_module(f"tests.publishing.{file}"), name)
    # By what it asserts: a mutant that only stumbles would be killed by any test.
    with planted(mutant), pytest.raises((AssertionError, pytest.fail.Exception)):
        run(function)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", SIMULATED, ids=lambda mutant: mutant.name)
def test_broken_rule_of_what_others_measure_is_found_in_its_seed(mutant: Mutant) -> None:
    """Where a change draws other runs, look for the seeds anew: a few tens are enough for each."""
    seed, _, violation = mutant.found_by.removeprefix("seed ").partition(": ")
    with planted(mutant), pytest.raises(Violation, match=violation):
        OutsideSimulation(int(seed)).run()
