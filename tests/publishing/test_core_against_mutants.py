"""The rules of a member's core, broken one at a time: the simulator finds each, with plugins that fail."""

from __future__ import annotations

import pytest

from garlicfarm.testing.simulator.invariants import Violation
from garlicfarm.testing.simulator.publisher_simulation import PublisherSimulation
from tests.mutants import Mutant, planted, read_mutants

RULES = ("the core of a member", "leases on heartbeats")
MUTANTS = [one for one in read_mutants("publishing").values() if one.rule in RULES]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_broken_rule_of_the_core_is_found_in_its_seed(mutant: Mutant) -> None:
    """Where a change draws other runs, look for the seeds anew: a few tens are enough for each."""
    seed, _, violation = mutant.found_by.removeprefix("seed ").partition(": ")
    with planted(mutant), pytest.raises(Violation, match=violation):
        PublisherSimulation(int(seed)).run()
