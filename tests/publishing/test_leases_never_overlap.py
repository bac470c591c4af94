"""Two members never publish at once, whatever is late: posts, commits, and what a member knows of them.

No Raft here: what is committed, when, and when each member applies it is drawn, and worse than any network
would do it. Members are cut off for many intervals, and their last status is committed long after it was
begun; one has a wall clock that shows anything; clocks run at different rates; processes die. What each then
does, when it posts, what it says, and until when its lease runs, is as in
`garlicfarm.node.publisher.status_reporter`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import lru_cache

import pytest

from garlicfarm.publishing import fold as fold_module
from garlicfarm.publishing.documents import (
    Bandwidth,
    DestinationStatus,
    MetaStatus,
    NodeReport,
    RouterStatus,
    StatusDocument,
)
from garlicfarm.publishing.entries import encode_admin, encode_status, parse_entry
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.lease import Lease
from tests.mutants import Mutant, planted, read_mutants
from tests.publishing.scripted_log import T0, configuration, destination

INTERVALS_MS = (1_000, 1_000, 4_000)


@dataclass
class Begun:
    """A status on its way; ``index`` once it is committed."""

    at_ms: int
    named_ms: int
    sequence: int
    entry: bytes
    index: int | None = None


@dataclass
class Node:
    """A member's process, and its replica of the state."""

    id: int
    rate: float
    application: PublisherFold
    applied: int = 0
    lease: Lease = field(default_factory=Lease)
    due_ms: int = 0
    begun: Begun | None = None
    sequence: int = 0
    cut_until: int = 0

    def clock_ms(self, now_ms: int) -> int:
        return int(now_ms * self.rate)

    def may_publish(self, now_ms: int) -> bool:
        return self.application.may_publish(self.id, self.clock_ms(now_ms), self.lease.expires_ms)


class SimulatedFarm:
    """One seed's farm."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        size = self.chance.choice([3, 3, 3, 4, 5])
        self.members = [*range(1, size + 1)]
        self.liar = self.chance.choice(self.members)
        self.now_ms = 0
        self.steps_ms = self.chance.choice([(10, 30, 80, 160), (10, 50, 150, 300)])
        self.log: list[bytes | list[int]] = [[*self.members]]  # entries and memberships, from index 1 on
        self.late: list[Begun] = []  # of processes that are no more
        self.nodes = {one: self.process(one) for one in self.members}
        self.handed_over = 0
        self.publisher = 0

    def process(self, member: int) -> Node:
        rate = self.chance.choice([0.96, 1.0, 1.04])
        return Node(member, rate, PublisherFold("farm"))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now_ms += self.chance.choice(self.steps_ms)
            for node in self.chance.sample([*self.nodes.values()], len(self.nodes)):
                self.turn(node)
                publishing = [one.id for one in self.nodes.values() if one.may_publish(self.now_ms)]
                assert len(publishing) <= 1, f"members {publishing} publish at once"
                if publishing and publishing[0] != self.publisher:
                    self.publisher, self.handed_over = publishing[0], self.handed_over + 1
            if self.chance.random() < 0.03:
                self.cut()
            if self.chance.random() < 0.02:
                self.log.append(self.order())
            if self.late and self.chance.random() < 0.05:
                self.commit(self.late.pop())
            if self.chance.random() < 0.004:
                self.change_members()

    def cut(self) -> None:
        """Some are heard of no more for a while, all others at once: just before it was these, perhaps."""
        for node in self.nodes.values():
            node.cut_until = 0
        for node in self.chance.sample([*self.nodes.values()], self.chance.randrange(len(self.nodes))):
            node.cut_until = self.now_ms + self.chance.choice([300, 1_000, 2_500, 6_000, 12_000])

    def turn(self, node: Node) -> None:
        chance = self.chance
        if self.now_ms < node.cut_until:
            if node.begun and node.begun.index is None and chance.random() < 0.15:
                self.commit(node.begun)  # of which it does not learn
            self.begin(node)
            return
        if node.begun and node.begun.index is None and chance.random() < 0.6:
            self.commit(node.begun)
        if chance.random() < 0.7:
            self.apply(node, chance.randint(node.applied, len(self.log)))
        self.settle(node)
        self.begin(node)
        if chance.random() < 0.003:
            self.late += [node.begun] if node.begun and node.begun.index is None else []
            self.nodes[node.id] = self.process(node.id)
            self.apply(self.nodes[node.id], node.applied)

    def commit(self, begun: Begun) -> None:
        self.log.append(begun.entry)
        begun.index = len(self.log)

    def apply(self, node: Node, upto: int) -> None:
        for index in range(node.applied + 1, upto + 1):
            entry = self.log[index - 1]
            if isinstance(entry, bytes):
                node.application.apply(index, 1, entry)
            else:
                node.application.configure(index, configuration(*entry, index=index))
        node.applied = upto

    def settle(self, node: Node) -> None:
        begun = node.begun
        if begun is None or begun.index is None or begun.index > node.applied:
            return
        if node.application.last_sequence(node.id) == begun.sequence:
            node.lease.committed(begun.at_ms)
        interval_ms = min(node.application.interval_ms, begun.named_ms)
        node.due_ms = max(node.due_ms + interval_ms, node.clock_ms(self.now_ms))
        node.begun = None

    def begin(self, node: Node) -> None:
        clock_ms, application = node.clock_ms(self.now_ms), node.application
        if node.begun or not node.applied or clock_ms < node.due_ms or node.id not in self.members:
            return
        node.lease.begin(clock_ms, application.interval_ms, application.R)
        date = T0 + clock_ms
        if node.id == self.liar:
            date += self.chance.choice([0, 1, -1]) * self.chance.choice([500, 3_000, 10**9])
        node.sequence = max(node.sequence + 1, application.last_sequence(node.id) + 1, date)
        report = NodeReport(
            applied=node.applied, interval_ms=application.interval_ms, R=application.R, role="follower"
        )
        used = Bandwidth(in_=self.chance.randrange(101), out=0)
        status = StatusDocument(
            cluster="farm",
            date=date,
            id=node.id,
            sequence=node.sequence,
            config={"node": report},
            meta=MetaStatus(
                publish_config=self.chance.choice(("auto", "auto", "auto", "on", "off")),
                publishing=node.may_publish(self.now_ms),
            ),
            router=RouterStatus(configured_bandwidth=Bandwidth(in_=100, out=100), current_bandwidth=used),
            destinations=(DestinationStatus(destination=destination(node.id)),),
        )
        node.begun = Begun(clock_ms, application.interval_ms, node.sequence, encode_status(status))

    def order(self) -> bytes:
        chance = self.chance
        action, args = chance.choice(
            [
                ("interval", {"ms": chance.choice(INTERVALS_MS)}),
                ("staleness", {"R": chance.choice([3, 3, 5])}),
                ("override", {"member": chance.choice(self.members), "mode": chance.choice(["on", None])}),
            ]
        )
        return encode_admin("farm", T0, self.members[0], None, action, "alice", args)

    def change_members(self) -> None:
        """A farm of two has only one to judge, who may be the one with the wrong clock."""
        one = self.chance.choice([*self.members, max(self.nodes) + 1])
        if one in self.members and len(self.members) > 3:
            self.members.remove(one)
        elif one not in self.nodes and len(self.members) < 6:
            self.members.append(one)
            self.nodes[one] = self.process(one)
        self.log.append([*self.members])


@pytest.fixture(autouse=True)
def parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All members apply the same entries: what an entry says is read of it for all of them."""
    monkeypatch.setattr(fold_module, "parse_entry", lru_cache(maxsize=1000)(parse_entry))


@pytest.mark.slow
def test_two_members_never_publish_at_once_however_late_everything_is() -> None:
    handed_over = 0
    for seed in range(20):
        simulated = SimulatedFarm(seed)
        simulated.run(1500)
        handed_over += simulated.handed_over
    assert handed_over > 100


@pytest.mark.parametrize("mutant", read_mutants("publishing").values(), ids=lambda mutant: mutant.name)
def test_broken_rule_lets_two_publish_at_once(mutant: Mutant) -> None:
    """In the first seed that finds it. Where a change draws other worlds, look for the seeds anew; more than
    a hundred needed for one, and the worlds are too kind."""
    seed = int(mutant.found_by.removeprefix("seed "))
    with planted(mutant), pytest.raises(AssertionError, match="publish at once"):
        SimulatedFarm(seed).run(1500)
