"""Hours over links as slow and broken as those of I2P: what they cost, and that the simulation would notice
if it were more. The bound itself is of a hundred hours (`make sim`): fewer may have more by chance."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import Any

import msgspec
import pytest

from garlicfarm.raft import Role
from garlicfarm.testing.simulator import simulation, slow_simulation
from garlicfarm.testing.simulator.invariants import Violation
from garlicfarm.testing.simulator.slow_cluster import PARTITIONS
from garlicfarm.testing.simulator.slow_links import Path, SimulatedLink
from garlicfarm.testing.simulator.slow_simulation import PATH, RunStatistics, SlowSimulation

ROUND_TRIP_MS = 3_400
STEADY = Path(ROUND_TRIP_MS // 2, ROUND_TRIP_MS // 2, loss=0, life_ms=10**9)


@pytest.mark.slow
def test_eight_hours_hold_every_invariant_and_the_bounds() -> None:
    statistics, kinds = RunStatistics(), Counter[str]()
    for seed, nodes, resent in ((1, 3, True), (2, 3, False), (3, 5, True), (4, 5, False)):
        simulation = SlowSimulation(seed, nodes, PATH._replace(resent=resent))
        statistics.add(simulation.run(2))
        kinds.update(simulation.counts)
    assert statistics.problems == []
    assert statistics.due > 2_000
    assert statistics.led > 0.9 * statistics.looked
    assert len(set(PARTITIONS) & set(kinds)) > 5
    assert kinds["snapshots"]


@pytest.mark.slow
def test_same_seed_gives_the_same_hour_and_another_seed_another() -> None:
    runs = [SlowSimulation(seed) for seed in (7, 7, 8)]
    for run in runs:
        run.run(1)
    first, again, other = [run.outcome() for run in runs]
    assert first == again
    assert first.digest != other.digest


# ---------------------------------------------------------------------- what it would notice


def test_timing_of_clearnet_is_noticed_by_what_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Members ask for votes again before the answers can come: whether they would agree in the end is chance.
    monkeypatch.setattr(SlowSimulation, "_heal", lambda simulation: None)
    statistics = SlowSimulation(1, 5, preset="clearnet").run(0.25)
    assert (statistics.committed, statistics.led) == (0, 0)
    assert statistics.problems == ["less than 95% of the entries in time"]


@pytest.mark.slow
def test_members_without_pre_vote_are_noticed_by_their_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        slow_simulation, "FAULTS", msgspec.structs.replace(slow_simulation.FAULTS, no_extensions=1)
    )
    statistics = RunStatistics()
    for seed in range(2, 5):
        statistics.add(SlowSimulation(seed, 5).run(2))
    assert statistics.problems == ["more than 3 terms an hour"]


@pytest.mark.slow
def test_connections_that_are_not_made_again_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedLink, "_again", lambda link, attempts: None)
    monkeypatch.setattr(SimulatedLink, "poke", lambda link: None)
    simulation = SlowSimulation(1)
    with pytest.raises(Violation, match="liveness"):
        simulation.run(0.5)
    assert "less than 95% of the entries in time" in simulation.statistics.problems


def test_main_slow_tells_terms_commits_and_who_led(capsys: pytest.CaptureFixture[str]) -> None:
    status = simulation.main(["--slow", "--hours", "1", "--first", "2"])
    shown = capsys.readouterr().out
    assert shown.startswith("all: 1 hours, ")
    assert "3 members, resent: 1 hours, " not in shown
    assert "3 members, cut: 1 hours, " in shown
    for what in ("terms an hour (at most", "commits, in round trips p50", "a leader", "in time"):
        assert what in shown
    assert "1 seeds, 0 violations, " in shown
    assert status == 0


@pytest.mark.slow
def test_main_slow_fails_where_a_bound_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_simulation, "MAX_TERMS_AN_HOUR", 0.1)
    assert simulation.main(["--slow", "--hours", "2"]) == 1
    assert "all: more than 0.1 terms an hour\n" in capsys.readouterr().out


def test_main_slow_violation_prints_the_command_that_repeats_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_simulation, "HEALING_MS", 100)  # less than a round trip
    assert simulation.main(["--slow", "--hours", "0.1", "--first", "3"]) == 1
    *_, verdict, replay = capsys.readouterr().out.splitlines()
    assert verdict.startswith("seed 3 of 5 nodes: Violation: liveness: ")
    command = replay.removeprefix("replay: python -m garlicfarm.testing.simulator ")
    assert simulation.main(command.split()) == 1
    assert verdict in capsys.readouterr().out.splitlines()


def test_main_slow_violation_names_the_round_trips_in_that_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_simulation, "HEALING_MS", 10)  # less than a round trip
    assert simulation.main(["--slow", "--hours", "0.1", "--round-trips", "quick", "--fixed"]) == 1
    assert capsys.readouterr().out.endswith("--slow --hours 0.1 --first 1 --round-trips quick --fixed\n")


def test_dials_that_lead_nowhere_cost_a_third_of_their_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = SlowSimulation(1, 3, STEADY)
    scheduler = simulation.scheduler
    network: Any = simulation.network
    opened, connect = network.opened, network.connect
    up: list[int] = []

    def noted(*ends: Any) -> Any:
        up.append(scheduler.now)
        return connect(*ends)

    monkeypatch.setattr(network, "opened", lambda round_trips: opened(round_trips) if scheduler.now else None)
    monkeypatch.setattr(network, "connect", noted)
    _pass(simulation, 12_000)
    assert up == [4_000 + 2 * ROUND_TRIP_MS] * len(list(permutations(simulation.members, 2)))


# ---------------------------------------------------------------------- time-outs that follow round trips


@pytest.mark.parametrize("is_fixed", [False, True])
def test_quick_hour_shortens_the_timeouts_of_all_and_a_slow_one_restores_them(
    is_fixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_simulation, "TOGGLE_MS", 10**12)  # no partitions
    monkeypatch.setattr(SlowSimulation, "_heal", lambda simulation: None)
    quick, slow = Path(250, 500, loss=0), Path(2_000, 4_000, loss=0)
    simulation = SlowSimulation(1, 3, quick, slow, is_fixed=is_fixed)
    statistics = simulation.run(1)
    assert _told(simulation) == {0 if is_fixed else 20_000}
    assert (0 < statistics.shortened < statistics.led) is not is_fixed
    _pass(simulation, 300_000)
    assert _told(simulation) == {0 if is_fixed else 40_000}
    assert (statistics.terms, statistics.needless) == (1, 0)


def _told(simulation: SlowSimulation) -> set[int]:
    return {simulation.farm(member).election_timeout_ms for member in simulation.members.values()}


# ---------------------------------------------------------------------- on links that are only slow


def _led(seed: int = 1, nodes: int = 3) -> SlowSimulation:
    """Members that have had a leader for a minute, on links that are slow and nothing else."""
    simulation = SlowSimulation(seed, nodes, STEADY)
    while not simulation.leading():
        simulation.scheduler.next_event()
    _pass(simulation, 60_000)
    return simulation


def _pass(simulation: SlowSimulation, time_ms: int) -> None:
    end = simulation.scheduler.now + time_ms
    while simulation.scheduler.now < end:
        simulation.scheduler.next_event()


def _commit_times(simulation: SlowSimulation, entries: int) -> list[int]:
    """Post so many entries, spread over one round trip; how long each took to be committed, in ms."""
    scheduler, (leader,) = simulation.scheduler, simulation.leading()
    node = leader.node
    times: list[int] = []

    def post(begun: int) -> None:
        simulation.call(
            leader, node.propose, (b"",), then=lambda outcome: times.append(scheduler.now - begun)
        )

    for number in range(entries):
        at = scheduler.now + number * ROUND_TRIP_MS // entries
        scheduler.at(at, post, at)
    while len(times) < entries:
        scheduler.next_event()
    return times


def test_entries_spread_over_a_round_trip_are_each_committed_within_little_more_than_one() -> None:
    for seed in range(1, 6):
        times = _commit_times(_led(seed), 64)
        assert min(times) >= ROUND_TRIP_MS
        assert max(times) < 1.05 * ROUND_TRIP_MS


def test_entries_wait_for_the_batch_before_where_one_is_on_its_way_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the test above is to notice."""
    one = msgspec.structs.replace(slow_simulation.FAULTS, config={"max_inflight_messages": 1})
    monkeypatch.setattr(slow_simulation, "FAULTS", one)
    assert max(_commit_times(_led(), 64)) > 1.9 * ROUND_TRIP_MS


@pytest.mark.parametrize("nodes", [3, 5])
def test_black_holes_around_a_follower_cost_no_term_and_it_is_brought_up_to_date(nodes: int) -> None:
    simulation = _led(nodes=nodes)
    (leader,) = simulation.leading()
    term = leader.node.term
    follower = next(member for member in simulation.members.values() if member is not leader)
    for connection in simulation.network.of(follower.id):
        connection.is_broken = True
    _commit_times(simulation, 4)
    assert follower.applied < leader.applied
    _pass(simulation, 60_000)
    assert follower.applied == leader.applied
    assert (leader.node.role, leader.node.term) == (Role.LEADER, term)


def test_black_holes_around_the_leader_cost_no_term() -> None:
    simulation = _led()
    (leader,) = simulation.leading()
    term = leader.node.term
    for connection in simulation.network.of(leader.id):
        connection.is_broken = True
    _pass(simulation, 120_000)
    assert (leader.node.role, leader.node.term) == (Role.LEADER, term)
