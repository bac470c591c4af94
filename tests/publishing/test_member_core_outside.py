"""A member's core since level 3: what it tests of another's service, and what it says of that (D25)."""

from __future__ import annotations

import json
from typing import Any

from garlicfarm.i2p.destination import destination_hash
from garlicfarm.i2p.encoding import encode
from garlicfarm.publishing.member_core import Figures, MemberCore
from garlicfarm.publishing.member_standing import MemberSetup, Now
from garlicfarm.publishing.orders import ClockReading
from tests.publishing.scripted_log import T0, destination
from tests.publishing.test_fold_leases import LeaseLog, named_1

HASHES = [destination_hash(destination(seed)) for seed in range(4)]
BEACON = bytes(range(32))


class Member:
    """Node 3 of a farm whose member 1 publishes. Its tests take a second, and its statuses are committed at
    once."""

    def __init__(self, log: LeaseLog) -> None:
        log.restores = False
        self.log = log
        self.served: set[bytes] = set()
        self.down: set[bytes] = set()
        self.tested: list[bytes] = []
        self.said: list[dict[str, Any]] = []
        self.now = Now(0, T0)
        self.posted = 0
        self.core = MemberCore(log.farm, MemberSetup(node_id=3), [], self, self.now)

    def figures(self) -> Figures:
        return Figures(control=encode(BEACON))

    def clocks(self) -> dict[int, ClockReading]:
        return {}

    def can_test(self, hash_: bytes) -> bool:
        return hash_ not in self.served

    def run(self, seconds: float) -> None:
        end_ms = self.now.boot_ms + round(seconds * 1000)
        while True:
            self.settle()
            if self.now.boot_ms >= end_ms:
                return
            ms = min(self.core.wake_ms(), end_ms)
            self.now = Now(ms, T0 + ms)

    def settle(self) -> None:
        core, turns = self.core, self.core.turns
        while True:
            core.step(self.now, self.log.index)
            if (probe := next(iter(core.sensing.probes.values()), None)) is not None:
                self.tested.append(probe.hash)
                self.now = Now(self.now.boot_ms + 1000, self.now.wall_ms + 1000)
                core.on_tested(probe.number, probe.hash not in self.down, self.now)
            elif turns.number == self.posted or turns.state not in ("measuring", "posting"):
                return
            elif turns.state == "measuring":
                core.on_measured(turns.number, self.now)
            else:
                self.posted = turns.number
                self.said.append(json.loads(turns.entry)["config"]["node"])
                core.on_committed(turns.number, self.log.append(turns.entry), self.now)

    @property
    def outside(self) -> list[Any]:
        return [node.get("outside") for node in self.said]


def test_member_reports_what_it_tested_and_says_at_once_that_the_service_does_not_answer() -> None:
    member = Member(named_1(level=3))
    member.run(70)
    assert member.outside[-1] == {"publisher": 1, "since": 2, "failed": 0}
    assert {*member.tested} == {HASHES[1]}
    assert member.said[-1]["control"] == encode(BEACON)
    member.down = {HASHES[1]}
    member.run(72)
    assert {*member.tested} == {HASHES[1], HASHES[2]}
    failed = [report["failed"] for report in member.outside if report]
    assert failed[-1] == 3
    assert member.outside[-1]["control"] == encode(HASHES[2])
    begun = member.core.turns.begun
    assert begun is not None
    assert begun.boot_ms % 30_000 != 0  # out of turn
    member.down = set()
    member.run(12)
    assert member.outside[-1]["failed"] == 0


def test_member_tests_nothing_while_the_publisher_is_itself_or_not_due_or_below_level_3() -> None:
    for log in (named_1(level=2), named_1(level=3)):
        if log.level == 3:
            log.override(1, "off")  # which has not let go
            assert log.farm.due_since is None
        member = Member(log)
        member.run(200)
        assert member.tested == []
        assert [*filter(None, member.outside)] == []
        assert all(("control" in node) == (log.level == 3) for node in member.said)
    log = named_1(level=3)
    log.override(1, "off")
    log.override(2, "off")
    for holder in (1, 2):
        log.post(holder, 3, publishing=False)
    assert log.farm.publisher == 3
    member = Member(log)
    member.run(200)
    assert member.tested == []


def test_member_whose_router_serves_the_service_itself_reports_nothing() -> None:
    member = Member(named_1(level=3))
    member.served = {HASHES[1]}
    member.run(200)
    assert (member.tested, [*filter(None, member.outside)]) == ([], [])


def test_service_that_answers_no_tests_keeps_its_publisher() -> None:
    member = Member(named_1(level=3))
    member.down = {HASHES[1]}
    member.run(300)
    assert not any(member.outside)


def test_control_is_what_another_member_names_where_all_serve_one_destination() -> None:
    log = LeaseLog(1, 2, 3, level=3)
    for one in (1, 2, 3):
        log.post(one, 0, headroom=90 // one, leaves=(1,), publishing=False, control=encode(BEACON))
    log.post(1, 1, headroom=90, leaves=(1,), publishing=True)
    member = Member(log)
    member.run(1)
    member.down = {HASHES[1]}
    member.run(100)
    assert {*member.tested} == {HASHES[1], BEACON}
    assert member.outside[-1]["control"] == encode(BEACON)


def test_member_that_was_restarted_judges_a_service_of_which_it_has_reported() -> None:
    """Its own word, in its newest status: nobody else's."""
    log = named_1(level=3)
    before = Member(log)
    before.run(70)
    assert before.outside[-1] == {"publisher": 1, "since": 2, "failed": 0}
    restarted = Member(log)
    restarted.down = {HASHES[1]}
    restarted.run(100)
    report = restarted.outside[-1]
    assert report is not None
    assert report["failed"] > 3


def test_member_tests_nothing_while_an_access_list_would_refuse_its_tests() -> None:
    log = named_1(level=3)
    log.order("allow", {"hash": encode(BEACON)})
    member = Member(log)
    member.run(70)
    assert (member.tested, member.outside[-1]) == ([], None)
    log.order("disallow", {"hash": encode(BEACON)})
    member.run(70)
    assert {*member.tested} == {HASHES[1]}


def test_control_is_tested_as_often_as_the_order_of_the_farm_asks_for() -> None:
    counts = []
    for control_ms in (60_000, 20_000):
        log = named_1(level=3)
        log.order("control", {"ms": control_ms})
        member = Member(log)
        member.run(70)
        member.down = {HASHES[1]}
        member.run(150)
        counts.append(member.tested.count(HASHES[2]))
    assert 2 * counts[0] <= counts[1]
