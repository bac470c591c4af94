"""Injects faults into a simulated cluster, as its `Faults` say, until they end."""

from __future__ import annotations

from garlicfarm.errors import ProposalDropped
from garlicfarm.testing.simulator.cluster import SimulatedCluster
from garlicfarm.testing.simulator.faults import CALM
from garlicfarm.testing.simulator.member import SimulatedMember


class FaultInjector:
    """Injects a fault now and then, until `end`."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster

    def act(self) -> None:
        """Inject one fault and schedule the next."""
        cluster, faults = self._cluster, self._cluster.faults
        if not faults.kinds:
            return
        cluster.scheduler.at(cluster.scheduler.around(faults.every_ms) + 1, self.act)
        kind = cluster.rng.choice(faults.kinds)
        member = cluster.pick(list(cluster.members))
        if kind.endswith("leader"):
            member = cluster.rng.choice(cluster.leading() or [member])
        cluster.scheduler.trace.append((cluster.scheduler.now, kind, member))
        if kind.startswith("crash"):
            cluster.crash_for_a_while(member)
        elif kind in ("partition", "isolate_leader", "one_way"):
            self._part(kind, member)
        elif kind == "heal":
            cluster.network.blocked.clear()
            cluster.network.drain_all()
        elif kind == "transfer":
            self._transfer()
        else:
            self._upset(kind, member)

    def _part(self, kind: str, member: SimulatedMember) -> None:
        cluster, rng = self._cluster, self._cluster.rng
        others = [other for other in cluster.members if other != member.id]
        if kind == "partition":
            side = [other for other in cluster.members if rng.random() < 0.5]
            cluster.separate(side, [other for other in cluster.members if other not in side])
        elif kind == "isolate_leader":
            with_it = rng.sample(others, rng.randint(0, max(len(others) - 1, 0) // 2))  # always a minority
            cluster.separate([member.id, *with_it], [other for other in others if other not in with_it])
        elif others:
            cluster.cut(member.id, rng.choice(others))

    def _upset(self, kind: str, member: SimulatedMember) -> None:
        scheduler = self._cluster.scheduler
        if kind == "pause":  # as by SIGSTOP: afterwards it reads everything that arrived meanwhile
            member.paused_until = scheduler.around(self._cluster.faults.away_ms)
            scheduler.at(member.paused_until, self._cluster.network.drain_all)
        elif kind == "jump":  # as after a suspend, which its clock counts
            jump_ms = scheduler.around(self._cluster.faults.away_ms) - scheduler.now
            member.set_clock(scheduler.now, member.rate, jump_ms)
            self._cluster.tick(member, member.generation)
        else:
            assert kind == "slow_disk"
            member.disk_factor = 21 - member.disk_factor

    def _transfer(self) -> None:
        cluster = self._cluster
        leading = [member for member in cluster.leading() if not cluster.is_paused(member.id)]
        if leading:
            member = cluster.rng.choice(leading)
            to = cluster.rng.choice((0, *[s.id for s in cluster.newest.servers if s.id != member.id]))
            assert member.node is not None
            try:
                cluster.drive(member, member.node.transfer_leadership, to)
            except ProposalDropped:
                pass
            else:
                cluster.counts["transfers"] += 1

    def mislead(self) -> None:
        """Some members, perhaps all, take the leader that they hold for gone, or another member, or the
        leader of another term."""
        cluster, faults = self._cluster, self._cluster.faults
        if not faults.false_evidence_ms:
            return
        cluster.scheduler.at(cluster.scheduler.around(faults.false_evidence_ms) + 1, self.mislead)
        share = cluster.rng.choice((0.3, 1))
        for member in list(cluster.members.values()):
            if member.node is None or cluster.is_paused(member.id) or not cluster.scheduler.chance(share):
                continue
            leader, term = member.node.leader, member.node.term
            other = cluster.rng.choice(list(cluster.members))
            likely = leader, term
            evidence = cluster.rng.choice((likely, likely, (other, term), (leader, term - 1)))
            cluster.counts["false_evidence"] += 1
            cluster.drive(member, member.node.report_leader_gone, *evidence)

    def snapshot(self) -> None:
        """A member, in half of the cases the leader, takes a snapshot and shortens its log."""
        cluster, faults = self._cluster, self._cluster.faults
        if not faults.snapshot_ms:
            return
        cluster.scheduler.at(cluster.scheduler.around(faults.snapshot_ms) + 1, self.snapshot)
        of = cluster.leading() if cluster.scheduler.chance(0.5) else list(cluster.members.values())
        if of:
            cluster.take_snapshot(cluster.rng.choice(of), cluster.rng.choice(faults.tails))

    def end(self) -> None:
        """End all faults and start the members that are down."""
        cluster = self._cluster
        cluster.faults = CALM
        cluster.network.faults = CALM.network
        cluster.network.blocked.clear()
        for member in cluster.members.values():
            member.paused_until = 0
            member.disk_factor = 1
            member.set_clock(cluster.scheduler.now, 1000)
            cluster.start(member)
            cluster.tick(member, member.generation)
        cluster.network.drain_all()
