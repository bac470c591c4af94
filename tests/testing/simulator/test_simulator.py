"""The simulator itself: seeds that must pass, runs that must repeat, and rules broken on purpose that
it must find."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from garlicfarm import round_trips
from garlicfarm.publishing import granting
from garlicfarm.testing.simulator import simulation
from garlicfarm.testing.simulator.cluster import Outcome
from garlicfarm.testing.simulator.faults import Faults
from garlicfarm.testing.simulator.invariants import Violation
from garlicfarm.testing.simulator.leader_kills import KILLS, LeaderKills
from garlicfarm.testing.simulator.outside_simulation import OutsideSimulation
from garlicfarm.testing.simulator.publisher_setting import QUICK, preset_setting
from garlicfarm.testing.simulator.publisher_simulation import PublisherSimulation
from garlicfarm.testing.simulator.simulation import Simulation
from garlicfarm.testing.simulator.slow_simulation import SlowSimulation
from tests.mutants import Mutant, planted, read_mutants

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("first", [1, pytest.param(13, marks=pytest.mark.slow)])
def test_twelve_seeds_of_three_nodes_hold_every_invariant_and_heal(first: int) -> None:
    outcomes = [Simulation(seed).run() for seed in range(first, first + 12)]
    counts = sum((Counter(outcome.counts) for outcome in outcomes), Counter[str]())
    for what in ("ADD", "REMOVE", "SET", "crashes", "cut_messages", "repeated", "restored", "transfers"):
        assert counts[what], what
    assert counts["reads"] > 100
    assert counts["follower_reads"] > 10
    assert counts["acknowledged"] > 500


@pytest.mark.parametrize("nodes", [1, 2, *(pytest.param(size, marks=pytest.mark.slow) for size in (4, 5))])
def test_other_sizes_hold_every_invariant_and_heal(nodes: int) -> None:
    for seed in range(1, 5):
        assert Simulation(seed, nodes).run().counts["acknowledged"]


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 3])
def test_farms_have_one_publisher_at_a_time_and_another_after_it(nodes: int) -> None:
    assert sum(PublisherSimulation(seed, nodes).run().counts["hand_overs"] for seed in range(1, 3)) > 3


def test_status_that_is_posted_again_is_not_taken_for_a_flap() -> None:
    assert PublisherSimulation(342, 5).run().counts["drained_two"]


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "seeds"), [(3, range(108, 113)), (5, range(200, 206))])
def test_farms_leave_a_publisher_that_is_not_reached_and_no_liar_moves_the_role(
    nodes: int, seeds: range
) -> None:
    runs = [OutsideSimulation(seed, nodes) for seed in seeds]
    counts = sum((Counter(one.run().counts) for one in runs), Counter[str]())
    assert counts["unreached"] > 3
    assert counts["lost_i2p"] + counts["lost_all"] + counts["lost_nothing"] > 2
    assert len({one.liar for one in runs}) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        Simulation,
        pytest.param(PublisherSimulation, marks=pytest.mark.slow),
        pytest.param(OutsideSimulation, marks=pytest.mark.slow),
    ],
)
def test_same_seed_gives_the_same_run_and_another_seed_another(
    run: Callable[[int], Simulation | PublisherSimulation],
) -> None:
    first, again = [[run(seed).run() for seed in range(7, 9)] for _ in range(2)]
    assert first == again
    assert len({outcome.digest for outcome in first}) == 2


def test_same_seed_gives_the_same_run_in_a_process_with_another_hash_seed() -> None:
    code = "from tests.testing.simulator.test_simulator import digests; print(*digests(11))"
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True
    )
    assert process.stdout.decode().split() == digests(11)


def digests(seed: int) -> list[str]:
    """Of a run of each kind."""
    slow = SlowSimulation(seed, 5)
    slow.run(0.5)
    outcomes = (Simulation(seed).run(), PublisherSimulation(seed).run(), slow.outcome())
    return [outcome.digest for outcome in outcomes]


def _run_seeds(run: Callable[[int], Outcome], count: int) -> None:
    for seed in range(1, count + 1):
        run(seed)


MUTANTS = read_mutants("testing/simulator").values()
STALE_LEADERS = {
    "kinds": ("isolate_leader", "heal"),
    "every_ms": 250,
    "read_ms": 5,
    "rates": (600, 1700),
    "entries_every_ms": 5,
}
FOCUS: dict[str, tuple[int, dict[str, Any]]] = {
    "asks for votes before a sync": (3, {"kinds": ("crash", "crash_leader"), "every_ms": 100, "disk_ms": 40}),
    "reads without asking the others": (3, STALE_LEADERS),
    "answers followers without asking the others": (5, {**STALE_LEADERS, "no_extensions": 0}),
}
"""Members and faults with which these are found soon; any mix finds them in a few of a hundred seeds. Of
three members, a leader with a follower is a majority."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant", [one for one in MUTANTS if one.rule == "the core"], ids=lambda mutant: mutant.name
)
def test_broken_rule_is_found_within_fifty_seeds(mutant: Mutant) -> None:
    nodes, faults = FOCUS.get(mutant.name, (3, {}))

    def run(seed: int) -> Outcome:
        mix = msgspec.structs.replace(Faults.draw(random.Random(seed)), **faults) if faults else None
        return Simulation(seed, nodes, faults=mix).run()

    with planted(mutant), pytest.raises(Violation) as found:
        _run_seeds(run, 50)
    assert found.value.name in mutant.found_by.split(", ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant", [one for one in MUTANTS if one.rule == "publishing"], ids=lambda mutant: mutant.name
)
def test_broken_rule_of_publishers_is_found_within_twenty_seeds(mutant: Mutant) -> None:
    with planted(mutant), pytest.raises(Violation, match=mutant.found_by):
        _run_seeds(lambda seed: PublisherSimulation(seed).run(), 20)


@pytest.mark.parametrize(
    "publisher", [[], ["--publisher"], pytest.param(["--outside"], marks=pytest.mark.slow)]
)
def test_main_tells_rate_events_and_violations(
    publisher: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulation.main(["--seeds", "2", "--first", "5", *publisher]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("2 seeds of 3 nodes, 0 violations: ")
    assert " seeds a CPU minute, " in shown
    assert " events, " in shown


def test_main_violation_prints_its_story_and_the_command_that_repeats_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with planted(read_mutants("testing/simulator")["acknowledges before a sync"]):
        assert simulation.main(["--seeds", "50", "--first", "3"]) == 1
        *trace, verdict, replay, _, _ = capsys.readouterr().out.splitlines()
        assert len(trace) == 50
        assert verdict.startswith("seed ")
        command = replay.removeprefix("replay: python -m garlicfarm.testing.simulator ")
        assert command != replay
        assert simulation.main(command.split()) == 1
        assert verdict in capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_one_publishes_at_a_time_while_leases_follow_round_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaders find every half minute how long a lease has to be, and it gets shorter and longer."""
    monkeypatch.setattr(round_trips, "WINDOW_MS", 30_000)
    monkeypatch.setattr(granting, "LEAST_BOUND_MS", 1_000)
    following = msgspec.structs.replace(QUICK, least_election_ms=3_500)
    outcomes = [PublisherSimulation(seed, 3, following).run() for seed in range(1, 11)]
    assert sum(outcome.counts.get("shortened", 0) for outcome in outcomes) > 3


@pytest.mark.timeout(1200)  # seconds of work, not of waiting
@pytest.mark.parametrize("preset", ["clearnet", pytest.param("i2p", marks=pytest.mark.slow)])
def test_farm_of_a_preset_has_one_publisher_at_a_time_and_another_after_it(preset: str) -> None:
    outcomes = [PublisherSimulation(seed, 3, preset_setting(preset)).run() for seed in range(1, 4)]
    assert sum(outcome.counts["hand_overs"] for outcome in outcomes) > 3


@pytest.mark.slow
@pytest.mark.timeout(1200)  # seconds of work, not of waiting
@pytest.mark.parametrize("preset", ["clearnet", "i2p"])
def test_publisher_of_a_preset_goes_on_while_twenty_leaders_die(preset: str) -> None:
    simulation = LeaderKills(3, preset_setting(preset))
    outcome = simulation.run()
    assert outcome.counts["leader_kills"] == KILLS == 20
    assert 0 < outcome.counts["failed_elections"] < KILLS
    assert outcome.counts["hand_overs"] == 1
    assert simulation.least_left_ms > 0


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["clearnet", "i2p"])
def test_publisher_with_a_lower_r_has_to_stop_when_leaders_die(preset: str) -> None:
    LeaderKills(3, preset_setting(preset), on_statuses=True).run()
    with pytest.raises(Violation, match="would have to stop"):
        _run_seeds(lambda seed: LeaderKills(seed, preset_setting(preset, 3), on_statuses=True).run(), 5)


@pytest.mark.parametrize(
    ("preset", "lease_ms"), [("clearnet", 4_000), pytest.param("i2p", 50_000, marks=pytest.mark.slow)]
)
def test_publisher_with_a_shorter_lease_has_to_stop_when_leaders_die(preset: str, lease_ms: int) -> None:
    with pytest.raises(Violation, match="would have to stop"):
        _run_seeds(lambda seed: LeaderKills(seed, preset_setting(preset, 0, lease_ms)).run(), 5)


@pytest.mark.slow
def test_main_leader_kills_tells_how_long_the_lease_lasted(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulation.main(["--leader-kills", "--preset", "clearnet", "--seeds", "1"]) == 0
    shown = capsys.readouterr().out
    assert "leader_kills 20" in shown
    assert "the publisher's lease always lasted " in shown
    assert simulation.main(["--leader-kills", "--preset", "i2p", "--R", "3", "--seeds", "5"]) == 1
    assert "--nodes 3 --leader-kills --preset i2p --R 3" in capsys.readouterr().out
