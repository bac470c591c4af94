"""Farms at level 4, from one seed, in which one member comes to hold something else than the others.

    python -m garlicfarm.testing.simulator --comparing --seeds 100 [--first N] [--nodes 3] [--preset NAME]

All of `publisher_simulation` happens. Besides, at some time a member's state goes wrong, or its chain, for as
long as its process lasts, or for good where a snapshot of its own or that other members restore has kept it.
Its fold stays right, so that all other invariants hold: only what it digests is wrong.

* Never do most members contradict one that is right.
* No member that knows itself contradicted leads for longer than two upper election timeouts.
* None of them is named.

After all faults have ended, a member goes wrong once more. It is contradicted within 12 intervals of each
member, and repaired: within 30 intervals all of them hold the same again.
"""

from __future__ import annotations

import random
from functools import partial
from hashlib import sha256

import msgspec

from garlicfarm.digests import DigestKeeper, Digests
from garlicfarm.levels import COMPARING
from garlicfarm.publishing.comparing import STATUSES_EACH
from garlicfarm.publishing.documents import DigestReport
from garlicfarm.publishing.member_core import Figures
from garlicfarm.raft import RawNode, Ready, SnapshotMeta
from garlicfarm.testing.simulator.faults import Faults
from garlicfarm.testing.simulator.invariants import Violation
from garlicfarm.testing.simulator.member import SimulatedMember
from garlicfarm.testing.simulator.publisher_setting import QUICK, Setting
from garlicfarm.testing.simulator.publisher_simulation import PublisherSimulation
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import ValueType


class _Held(msgspec.Struct):
    """What a member holds, or a snapshot. ``mark``: what is wrong with its state, b"": nothing."""

    keeper: DigestKeeper
    mark: bytes = b""
    is_wrong: bool = False
    origin: int = 0

    def kept(self) -> tuple[bytes | None, bytes, bool, int]:
        return self.keeper.chain, self.mark, self.is_wrong, self.origin


class ComparingSimulation(PublisherSimulation):
    """One seed's run."""

    def __init__(self, seed: int, nodes: int = 3, setting: Setting = QUICK) -> None:
        self._own = random.Random(f"comparing {seed}")
        self._held: dict[int, _Held] = {}
        self._snapshots: dict[tuple[int, int], tuple[bytes | None, bytes, bool, int]] = {}
        self._sources: dict[tuple[int, int], int] = {}
        self._ever: set[int] = set()  # members that were wrong once
        self._known: dict[int, int] = {}  # since when a process knows that it is contradicted
        super().__init__(seed, nodes, setting)
        self.scheduler.at(self._own.randrange(setting.chaos_ms), self._go_wrong)

    def draw_faults(self, rng: random.Random) -> Faults:
        drawn = super().draw_faults(rng)
        self.has_leases, self.genesis_level = True, COMPARING
        self.highest_level = COMPARING
        return msgspec.structs.replace(drawn, rates=(990, 1010), no_extensions=0)

    # ------------------------------------------------------------------ what is held

    def figures(self, member: SimulatedMember) -> Figures:
        newest = self._held[member.id].keeper.newest
        return msgspec.structs.replace(
            super().figures(member), digests=None if newest is None else _report(newest)
        )

    def _go_wrong(self) -> None:
        running = [one for one in self.members.values() if one.node is not None]
        if running and not any(held.is_wrong for held in self._held.values()):
            self._spoil(self._own.choice(running))

    def _spoil(self, member: SimulatedMember) -> None:
        held, self.counts["wrong"] = self._held[member.id], self.counts["wrong"] + 1
        held.is_wrong = True
        self._ever.add(member.id)
        if self._own.random() < 0.5 or held.keeper.chain is None:
            held.mark = b"a flipped bit"
        else:
            held.keeper.chain = sha256(held.keeper.chain).digest()

    def start(self, member: SimulatedMember) -> None:
        if member.node is None and not member.retired:
            self._held[member.id] = _Held(DigestKeeper())
            self._known.pop(member.id, None)
        super().start(member)

    def _carry_out(self, member: SimulatedMember, node: RawNode, ready: Ready) -> None:
        for received in ready.chunks:
            self._sources[member.id, received.chunk.last_log_index] = received.source
        super()._carry_out(member, node, ready)

    def _apply(self, member: SimulatedMember, node: RawNode, ready: Ready) -> None:
        """One entry after the other, as a node does."""
        if ready.restore is not None:
            index, source = ready.restore.index, self._sources[member.id, ready.restore.index]
            kept = self._snapshots[source, index]
            self._snapshots[member.id, index] = (*kept[:3], source)
            super()._apply(member, node, Ready(restore=ready.restore))
        for entry in ready.committed:
            held = self._held[member.id]
            is_configuration = entry.value_type is ValueType.CONFIGURATION
            level = decode_configuration(entry.value).level if is_configuration else None
            held.keeper.add(entry.index, entry.term, entry.value_type, entry.value, level)
            super()._apply(member, node, Ready(committed=(entry,)))

    def _restore(self, member: SimulatedMember, snapshot: SnapshotMeta) -> None:
        if snapshot.index:
            chain, mark, is_wrong, origin = self._snapshots[member.id, snapshot.index]
            held = self._held[member.id] = _Held(DigestKeeper(), mark, is_wrong, origin)
            held.keeper.restore(chain, origin)
            self._ever |= {member.id} if is_wrong else set()
        super()._restore(member, snapshot)

    def take_snapshot(self, member: SimulatedMember, tail: int) -> None:
        self._snapshots[member.id, member.applied] = self._held[member.id].kept()
        super().take_snapshot(member, tail)

    # ------------------------------------------------------------------ invariants

    def on_applied(self, member: SimulatedMember) -> None:
        fold, held, node = self.application(member), self._held[member.id], member.node
        if fold.agreed_index == member.applied:
            held.keeper.take(member.applied, fold.snapshot() + held.mark)
        for one in fold.members:
            found = fold.contradicted(one)
            if found is not None and one not in self._ever:
                raise Violation("a right member is not contradicted", f"member {one}: {found}")
            if found is not None and fold.publisher == one:
                raise Violation("a contradicted member is not named", f"member {one}: {found}")
        if node is not None:
            found = fold.contradicted(member.id)
            claim = fold.claim(member.id)
            claimed = None if claim is None else Digests(claim.index, claim.state, claim.chain)
            if held.keeper.has_origin and fold.is_confirmed(member.id):
                held.keeper.confirm(claimed)
                self.counts["confirmed"] += not held.keeper.has_origin
            node.report_contradicted(held.keeper.bars("" if found is None else found.what, claimed))
            if found is None:
                self._known.pop(member.id, None)
            elif member.id not in self._known:
                self._known[member.id] = self.scheduler.now
                self.counts["contradicted"] += 1
            if node.snapshot_wanted:
                self.scheduler.at(self.scheduler.now, self._take_wanted, member)
        super().on_applied(member)

    def _check_leadership(self) -> None:
        limit_ms = 2 * self.setting.timeouts.election_max_ms
        for member_id, since in self._known.items():
            member = self.members[member_id]
            is_late = self.scheduler.now - max(since, member.paused_until) > limit_ms
            if is_late and member.is_leader and not self.is_paused(member_id):
                raise Violation("no contradicted member leads", f"{member}, since {since}")

    def _next_event(self) -> None:
        super()._next_event()
        self._check_leadership()

    # ------------------------------------------------------------------ the course of a run

    def _take_wanted(self, member: SimulatedMember) -> None:
        """A leader's node takes the snapshot that a member waits for, once it has applied more."""
        if member.node is not None and member.applied > member.node.snapshot_wanted > 0:
            self.take_snapshot(member, 1_000)

    def _heal(self) -> None:
        """Who does not vote is started anew: the members that are left may have no majority without it."""
        super()._heal()
        for member_id in [*self._known]:
            self.crash(self.members[member_id])
            self.start(self.members[member_id])

    def after(self) -> None:
        current = [self.members[server.id] for server in self.newest.servers]
        followers = [one for one in current if one.node is not None and not one.is_leader]
        if len(current) < 3 or not followers:
            return
        if not any(self._held[one.id].is_wrong for one in current):
            self._spoil(self._own.choice(followers))
        wrong = [one for one in current if self._held[one.id].is_wrong]
        self._wait("what is wrong is known", 3 * STATUSES_EACH, lambda: all(map(self._is_known, current)))
        for member in wrong:
            if not self._may_repair(member):
                return
            self._wait("a member is repaired", 30, partial(self._repair, member))
            self.counts["repaired"] += 1
        self._wait("all hold the same", 30, lambda: not any(map(self._is_known, current)))

    def _is_known(self, member: SimulatedMember) -> bool:
        fold = self.application(member)
        return bool(fold.disagreeing) or any(map(fold.contradicted, fold.members))

    def _may_repair(self, member: SimulatedMember) -> bool:
        """Whether a right member leads; where most cannot tell, a wrong one may."""
        leading = [one for one in self.leading() if one is not member]
        return bool(leading) and not self._held[leading[0].id].is_wrong

    def _repair(self, member: SimulatedMember) -> bool:
        """Whether it is right; otherwise it asks for a snapshot, again and again."""
        node = member.node
        if self._held[member.id].is_wrong and node is not None and not node.wants_snapshot:
            until_ms = member.clock_ms(self.scheduler.now) + 6 * self.setting.interval_ms
            self.drive(member, node.request_snapshot, until_ms)
        return not self._held[member.id].is_wrong


def _report(held: Digests) -> DigestReport:
    return DigestReport(index=held.index, state=held.state, chain=held.chain, origin=held.origin or None)
