"""Kills the leader again and again: a healthy publisher keeps its role and its lease.

    python -m garlicfarm.testing.simulator --leader-kills --preset clearnet --seeds 100 [--first N]
        [--lease MS | --R 3]

A farm of three with the timing, the interval and the lease of a preset, or, with ``--R``, one whose leases
rest on statuses. No fault strikes the publisher. The leader, always another member, dies 20 times: its
machine falls silent, and peers notice it by their timeouts. In half of the cases the members that are left do
not reach each other for the upper election timeout, so that the first election fails. The machine is back
some intervals later.

The lease of the publisher must never be so short that its publishers would be asked to stop, and no other
member may be named. Both are checked after every event, as is that no two may publish at once.
"""

from __future__ import annotations

import random

import msgspec

from garlicfarm.errors import ProposalDropped
from garlicfarm.levels import LEASES
from garlicfarm.publishing.lease import lease_ms
from garlicfarm.testing.simulator.cluster import Outcome
from garlicfarm.testing.simulator.faults import CALM, Faults
from garlicfarm.testing.simulator.invariants import Violation
from garlicfarm.testing.simulator.member import SimulatedMember
from garlicfarm.testing.simulator.network import NetworkFaults
from garlicfarm.testing.simulator.publisher_setting import Setting
from garlicfarm.testing.simulator.publisher_simulation import PublisherSimulation

KILLS = 20
_NODES = 3
_DELAYS_MS = (1, 10, 50)
_FOREVER_MS = 10**12


class LeaderKills(PublisherSimulation):
    """The run of one seed. ``least_left_ms``: the shortest time for which the publisher could still go on
    without another commit, in the whole run."""

    modes = ("auto",)

    def __init__(self, seed: int, setting: Setting, *, on_statuses: bool = False) -> None:
        self._on_statuses = on_statuses
        super().__init__(seed, _NODES, setting)
        self.measure_ms = 20
        self._kept: int | None = None  # the publisher
        lasts_ms = lease_ms(setting.interval_ms, setting.R) if on_statuses else setting.lease_ms
        self._retire_ms = min(setting.retire_timeout_ms, lasts_ms // 4)
        self.least_left_ms = _FOREVER_MS

    def draw_faults(self, rng: random.Random) -> Faults:
        self.has_leases = not self._on_statuses
        self.genesis_level = LEASES if self.has_leases else 0
        delay_ms = self.setting.slowness * rng.choice(_DELAYS_MS) / 100
        return msgspec.structs.replace(CALM, network=NetworkFaults(delay_ms, 0, 0.1))

    def used_bandwidth(self) -> int:
        return 50  # all score alike: no member takes over because it is better

    def run(self) -> Outcome:
        """Found the farm, and kill its leaders. Raises `Violation`."""
        setting = self.setting
        self.found()
        self.scheduler.at(0, self._order_again)
        self._pass(4 * setting.R * setting.interval_ms)
        publishing = [member.id for member in self.members.values() if self.publishes(member)]
        if not publishing:
            raise Violation("liveness", "no member publishes in a farm without faults")
        self._kept = publishing[0]
        for _ in range(KILLS):
            self._kill(self._leader())
        self.observer.on_end()
        return self.outcome()

    def _order_again(self) -> None:
        self._admin.send()
        self.scheduler.at(self.scheduler.around(50 * self.setting.slowness) + 1, self._order_again)

    def _kill(self, leader: SimulatedMember) -> None:
        setting, rng = self.setting, self.rng
        told_ms = self.application(leader).election_timeout_ms
        election_ms = setting.timeouts.shortened(told_ms, setting.least_election_ms).election_max_ms
        self.counts["leader_kills"] += 1
        leader.paused_until = _FOREVER_MS
        if rng.random() < 0.5:
            self.counts["failed_elections"] += 1
            left = [other for other in self.members if other != leader.id]
            self.separate(left[:1], left[1:])
            self._pass(election_ms)
            self.network.blocked.clear()
            self.network.drain_all()
        self._pass(setting.rpc_timeout_ms)
        self.crash(leader)
        leader.paused_until = 0
        self._pass(rng.randint(0, 2 * setting.interval_ms))
        self.start(leader)
        self._pass(2 * election_ms + rng.randint(setting.interval_ms, 3 * setting.interval_ms))

    def _leader(self) -> SimulatedMember:
        """The leader, once it is not the publisher. After a transfer, which is a change of its own, the
        publisher's lease is renewed first."""
        while True:
            leading = [member for member in self.leading() if member.node is not None]
            leader = max(leading, key=lambda member: member.node.term if member.node else 0, default=None)
            if leader is not None and leader.id != self._kept:
                return leader
            if leader is not None and leader.node is not None:
                try:
                    self.drive(leader, leader.node.transfer_leadership, 0)
                    self.counts["transfers"] += 1
                except ProposalDropped:
                    pass  # one is in progress
            self._pass(self.setting.timing["election_timeout_max_ms"] + 2 * self.setting.interval_ms)

    def _next_event(self) -> None:
        super()._next_event()
        self._check_kept()

    def _check_kept(self) -> None:
        if self._kept is None:
            return
        member = self.members[self._kept]
        left_ms = self.lease_left_ms(member) - self._retire_ms
        if left_ms <= 0 or not self.publishes(member):
            raise Violation("a healthy publisher goes on", f"{member} would have to stop")
        named = {self.application(other).publisher for other in self.members.values() if other.node}
        if not named <= {None, self._kept}:  # None: a member that has just started
            raise Violation("a healthy publisher keeps the role", f"{named} are named, not {member}")
        self.least_left_ms = min(self.least_left_ms, left_ms)
