"""Evidence that the leader is gone, in simulated clusters: right, it saves the election timeout; wrong, it
costs little."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest

from garlicfarm.log_application import LogApplication
from garlicfarm.testing.simulator.cluster import SimulatedCluster
from garlicfarm.testing.simulator.faults import CALM
from garlicfarm.testing.simulator.member import SimulatedMember
from garlicfarm.testing.simulator.simulation import TIMING, Simulation

ROUNDS = 20
SEEDS = range(1, 4)


class _Cluster(SimulatedCluster):
    """A cluster without faults but for those of the test, and without users."""

    def __init__(self, seed: int, nodes: int, seen_crashes: float = 0) -> None:
        faults = msgspec.structs.replace(CALM, seen_crashes=seen_crashes)
        super().__init__(seed, nodes, lambda rng: faults, LogApplication, TIMING)
        self.elected: list[int] = []  # terms
        for member in self.members.values():  # as nodes do, so that each knows what the others speak
            for peer in self.members:
                if peer != member.id and member.node is not None:
                    self._connect(member, member.node, peer)
        self.run_for(2_000)

    def on_elected(self) -> None:
        self.elected += [member.node.term for member in self.leading() if member.node is not None]

    def run_for(self, ms: int) -> None:
        until = self.scheduler.now + ms
        self.scheduler.at(until, lambda: None)  # not only when something happens
        while self.scheduler.now < until:
            self.scheduler.next_event()

    @property
    def leader(self) -> SimulatedMember:
        """The one leader, which all that run follow."""
        (leader,) = self.leading()
        running = [member.node for member in self.members.values() if member.node is not None]
        assert {(node.leader, node.term) for node in running} == {(leader.id, running[0].term)}
        return leader

    def mislead(self, members: Sequence[int]) -> None:
        for member_id in members:
            member = self.members[member_id]
            evidence = member.node.leader, member.node.term
            self.drive(member, member.node.report_leader_gone, *evidence)


@pytest.mark.parametrize(("nodes", "wrong"), [(3, 1), (5, 2), (7, 3)])
@pytest.mark.parametrize("seed", SEEDS)
def test_minority_that_takes_the_leader_for_gone_again_and_again_deposes_none(
    seed: int, nodes: int, wrong: int
) -> None:
    cluster = _Cluster(seed, nodes)
    leader, elected = cluster.leader, list(cluster.elected)
    others = [member for member in cluster.members if member != leader.id]
    for _ in range(ROUNDS):
        cluster.mislead(cluster.rng.sample(others, wrong))
        cluster.run_for(cluster.rng.randint(150, 200))
    assert cluster.leader is leader
    assert cluster.elected == elected


@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize("seed", SEEDS)
def test_majority_that_takes_the_leader_for_gone_costs_one_leader_each_time(seed: int, nodes: int) -> None:
    cluster = _Cluster(seed, nodes)
    terms = [cluster.elected[-1]]
    for round_ in range(1, ROUNDS + 1):
        cluster.mislead(list(cluster.members))
        cluster.run_for(cluster.rng.randint(950, 1_000))
        assert cluster.leader
        terms.append(cluster.elected[-1])
        assert len(set(cluster.elected)) <= 1 + round_
    grown = Counter(after - before for before, after in pairwise(terms))
    assert max(grown) <= 4, "elections fail by chance, as after any timeout"
    assert grown[0] < ROUNDS * 3 / 4, "a heartbeat may come first"


@pytest.mark.parametrize("seed", SEEDS)
def test_evidence_about_earlier_terms_and_other_members_does_nothing(seed: int) -> None:
    cluster = _Cluster(seed, 3)
    leader, elected = cluster.leader, list(cluster.elected)
    for _ in range(ROUNDS):
        for member in cluster.members.values():
            for other in cluster.members:
                for term in (member.node.term - 1, member.node.term, member.node.term + 1):
                    if (other, term) != (leader.id, member.node.term):
                        cluster.drive(member, member.node.report_leader_gone, other, term)
        cluster.run_for(50)
    assert cluster.leader is leader
    assert cluster.elected == elected


def test_leader_whose_crash_is_seen_is_replaced_sooner_than_one_that_falls_silent() -> None:
    took_ms: dict[float, list[int]] = {0: [], 1: []}
    for seen in took_ms:
        for seed in SEEDS:
            cluster = _Cluster(seed, 3, seen)
            crashed_at = cluster.scheduler.now
            cluster.crash(cluster.leader)
            while not cluster.leading():
                cluster.scheduler.next_event()
            took_ms[seen].append(cluster.scheduler.now - crashed_at)
    assert min(took_ms[0]) > TIMING["election_timeout_min_ms"] - TIMING["heartbeat_ms"]
    assert sorted(took_ms[1])[len(SEEDS) // 2] < min(took_ms[0])


def test_seeds_give_evidence_that_is_right_and_evidence_that_is_wrong() -> None:
    counts = sum((Counter(Simulation(seed).run().counts) for seed in range(1, 4)), Counter[str]())
    assert counts["seen_crashes"]
    assert counts["false_evidence"]
