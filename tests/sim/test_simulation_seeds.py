"""The simulator itself: seeds that must pass, runs that must repeat, and rules broken on purpose that
it must find. `mutants.py` holds the broken rules."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from garlicfarm.testing import simulate
from garlicfarm.testing.invariants import Violation
from garlicfarm.testing.simulate import Simulation
from tests.sim import mutants


@pytest.mark.parametrize("first", range(1, 201, 20))
def test_twenty_seeds_of_three_nodes_hold_every_invariant_and_heal(first: int) -> None:
    outcomes = [Simulation(seed).run() for seed in range(first, first + 20)]
    assert sum(outcome.crashes for outcome in outcomes)
    assert sum(outcome.cut_messages for outcome in outcomes)
    assert sum(outcome.acknowledged for outcome in outcomes) > 500


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_other_sizes_hold_every_invariant_and_heal(nodes: int) -> None:
    for seed in range(1, 11):
        assert Simulation(seed, nodes).run().acknowledged


def test_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    first, again = [[Simulation(seed).run() for seed in range(7, 10)] for _ in range(2)]
    assert first == again
    assert len({outcome.digest for outcome in first}) == 3


def _run_seeds(count: int) -> None:
    for seed in range(1, count + 1):
        Simulation(seed).run()


@pytest.mark.parametrize("mutant", mutants.EXPECTED, ids=lambda mutant: mutant.__name__)
def test_broken_rule_is_found_within_forty_seeds(
    mutant: mutants.Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(Violation) as found:
        _run_seeds(40)
    assert found.value.name in mutants.EXPECTED[mutant]


def test_main_counts_what_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--seeds", "2", "--first", "5"]) == 0
    assert capsys.readouterr().out.startswith("2 seeds of 3 nodes, no violation: ")


def test_main_violation_prints_seed_invariant_and_the_last_fifty_events(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutants.acknowledges_before_fsync(monkeypatch)
    assert simulate.main(["--seeds", "50"]) == 1
    *story, verdict = capsys.readouterr().out.splitlines()
    assert len(story) == 50
    assert verdict.startswith("seed ")
    assert any(name in verdict for name in mutants.EXPECTED[mutants.acknowledges_before_fsync])


def test_same_seed_gives_the_same_run_in_a_process_with_another_hash_seed() -> None:
    code = "from garlicfarm.testing.simulate import Simulation; print(Simulation(11).run().digest)"
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert run.stdout.decode().strip() == Simulation(11).run().digest
