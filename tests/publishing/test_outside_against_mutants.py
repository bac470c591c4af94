"""The rules of what others measure, and of what members hold, broken one at a time: a test finds each, or the
simulator, with liars, or members that hold something wrong."""

from __future__ import annotations

import importlib

import pytest

from garlicfarm.testing.simulator.comparing_simulation import ComparingSimulation
from garlicfarm.testing.simulator.invariants import Violation
from garlicfarm.testing.simulator.outside_simulation import OutsideSimulation
from tests.mutants import Mutant, planted, read_mutants
from tests.raft.test_raft_mutants import run

SIMULATIONS = {"what others measure": OutsideSimulation, "what members hold": ComparingSimulation}
MUTANTS = [one for one in read_mutants("publishing").values() if one.rule in SIMULATIONS]
SIMULATED = [one for one in MUTANTS if one.found_by.startswith("seed ")]
TESTED = [one for one in MUTANTS if one not in SIMULATED]


@pytest.mark.parametrize("mutant", TESTED, ids=lambda mutant: mutant.name)
def test_broken_rule_of_what_others_say_fails_its_test(mutant: Mutant) -> None:
    file, _, name = mutant.found_by.partition(".py::")
    function = getattr(importlib.import_module(f"tests.publishing.{file}"), name)
    # By what it asserts: a mutant that only stumbles would be killed by any test.
    with planted(mutant), pytest.raises((AssertionError, pytest.fail.Exception)):
        run(function)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", SIMULATED, ids=lambda mutant: mutant.name)
def test_broken_rule_of_what_others_say_is_found_in_its_seed(mutant: Mutant) -> None:
    """Where a change draws other runs, look for the seeds anew: a few tens are enough for each."""
    seed, _, violation = mutant.found_by.removeprefix("seed ").partition(": ")
    with planted(mutant), pytest.raises(Violation, match=violation):
        SIMULATIONS[mutant.rule](int(seed)).run()
