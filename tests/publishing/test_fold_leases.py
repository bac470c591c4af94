"""The fold since level 2 (point 8): members that the leader finds lost, processes that end, and how long a
lease lasts. Each state is also restored from its snapshot, which has to make no difference."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from garlicfarm.leases import Holding
from garlicfarm.publishing.administration import LEADER
from garlicfarm.publishing.entries import encode_admin
from garlicfarm.publishing.farm_queries import FarmQueries
from garlicfarm.publishing.fold import PublisherFold
from tests.mutants import Mutant, planted, read_mutants
from tests.publishing.dated_log import Log
from tests.publishing.scripted_log import T0, configuration

TERM = 7
MUTANTS = [one for one in read_mutants("publishing").values() if one.rule == "how long a lease lasts"]


class LeaseLog(Log):
    """A log of a farm at ``level``, all of one term. ``restores``: after each entry the fold goes on from its
    snapshot."""

    restores = True

    def __init__(self, *members: int, level: int = 2) -> None:
        super().__init__(*members)
        self.level = level
        self.configure(*members)

    def configure(self, *members: int, level: int = 0) -> int:
        self.index += 1
        self.level = max(level, self.level)
        in_force = configuration(*members, index=self.index)
        self.farm.configure(self.index, msgspec.structs.replace(in_force, level=self.level))
        return self._restored()

    def post(self, member: int, second: float, **changes: Any) -> int:
        return super().post(member, second, **{"boot": 1} | changes)

    def append(self, entry: bytes) -> int:
        self.index += 1
        self.farm.apply(self.index, TERM, entry)
        return self._restored()

    def lost(self, member: int, since: int, term: int = TERM) -> int:
        return self.find("lost", {"member": member, "index": since, "term": term})

    def settled(self, changed: int, term: int = TERM) -> int:
        return self.find("settled", {"index": changed, "term": term})

    def find(self, action: str, args: dict[str, Any]) -> int:
        leader = self.farm.members[-1]
        return self.append(encode_admin("farm", T0, leader, None, action, LEADER, args))

    def timeouts(self, election_ms: int, lease_ms: int, term: int = TERM) -> int:
        return self.find("timeouts", {"election_ms": election_ms, "lease_ms": lease_ms, "term": term})

    def lease(self, ms: int) -> int:
        return self.order("lease", {"ms": ms})

    def _restored(self) -> int:
        if not self.restores:
            return self.index
        snapshot = self.farm.snapshot()
        self.farm = PublisherFold("farm")
        self.farm.restore(snapshot)
        assert self.farm.snapshot() == snapshot
        return self.index


def named_1(*, level: int = 2) -> LeaseLog:
    """Member 1 is named and publishes; 2 is the next best."""
    log = LeaseLog(1, 2, 3, level=level)
    log.post(1, 0, headroom=90)
    log.post(2, 0, headroom=50)
    log.post(3, 0, headroom=10)
    log.post(1, 1, headroom=90, publishing=True)
    assert role(log) == (1, (1,), 2)
    return log


def taken_from_1(*, level: int = 2) -> tuple[LeaseLog, int]:
    """Member 2 is named, and 1 has not let go. Also returns the index that took the role from it."""
    log = named_1(level=level)
    taken = log.override(1, "off")
    assert role(log) == (2, (1, 2), None)
    return log, taken


def role(log: LeaseLog) -> tuple[int | None, tuple[int, ...], int | None]:
    """Who is named, who holds, and since when the named one is due."""
    return log.farm.publisher, log.farm.holders, log.farm.due_since


def lengths(farm: FarmQueries) -> tuple[int, int, int]:
    """How long a lease lasts, how long one has to be waited for, and which change is not settled."""
    return farm.lease_lasts_ms, farm.lease_waits_ms, farm.unsettled_index


def told(log: LeaseLog) -> dict[str, object]:
    """What administrators read of it."""
    return {
        key: value for key, value in log.farm.ranking().items() if key.startswith(("lease_", "election_"))
    }


# Members that are lost


def test_lost_of_the_named_member_moves_the_role_at_that_index_and_releases_it() -> None:
    log = named_1()
    assert log.farm.holdings() == (Holding(1, 2, is_named=True),)
    found = log.lost(1, since=2)
    assert role(log) == (2, (2,), found)
    assert log.farm.state.since == found
    ranking: Any = log.farm.ranking()
    assert ranking["because"] == "lost"
    assert "the leader no longer heard the one before" in ranking["members"][0]["reason"]


def test_lost_of_the_named_member_where_no_other_can_follow_leaves_the_role_vacant() -> None:
    log = LeaseLog(1, 2)
    log.post(1, 0, headroom=90)
    log.post(2, 0, mode="off")
    assert log.farm.publisher == 1
    log.lost(1, since=2)
    assert role(log) == (None, (), None)
    log.override(2, "auto")
    assert (log.farm.publisher, log.farm.state.because) == (2, "vacant")


def test_lost_of_a_member_that_has_not_let_go_releases_it() -> None:
    log, taken = taken_from_1()
    assert log.farm.holdings() == (Holding(1, taken, is_named=False), Holding(2, taken, is_named=True))
    found = log.lost(1, since=taken)
    assert role(log) == (2, (2,), found)
    assert log.farm.is_lost(1)


def test_lost_of_a_removed_member_that_has_not_let_go_releases_it() -> None:
    log = named_1()
    removed = log.configure(2, 3)
    for second in range(2, 9):
        log.post(2, second)
        log.post(3, second)
    assert role(log) == (2, (1, 2), None)  # for all that it is silent
    found = log.lost(1, since=removed)
    assert role(log) == (2, (2,), found)
    assert 1 not in log.farm.state.records
    assert not log.farm.is_lost(1)


@pytest.mark.parametrize(
    ("member", "since", "term", "reason"),
    [
        pytest.param(1, 2, TERM - 1, "another term", id="found in an earlier term"),
        pytest.param(1, 2, TERM + 1, "another term", id="found in a later term"),
        pytest.param(1, 3, TERM, "another naming", id="of another index"),
        pytest.param(2, 2, TERM, "another naming", id="of a member that never held"),
        pytest.param(9, 2, TERM, "another naming", id="of no member"),
    ],
)
def test_finding_that_is_void_changes_nothing_and_is_counted(
    member: int, since: int, term: int, reason: str
) -> None:
    log = named_1()
    before = json.loads(log.farm.snapshot())
    log.lost(member, since, term)
    assert json.loads(log.farm.snapshot()) == before | {"skipped": {reason: 1}}


def test_finding_about_an_earlier_naming_is_void() -> None:
    """Schedule: found while another entry, committed before it, named the member anew."""
    log, taken = taken_from_1()
    log.post(1, 2, headroom=90)  # lets go
    again = log.override(1, "on")
    assert (log.farm.publisher, log.farm.state.since) == (1, again)
    for since in (2, taken):
        log.lost(1, since)
    assert log.farm.publisher == 1
    assert log.farm.skipped == {"another naming": 2}
    log.lost(1, again)
    assert log.farm.publisher == 2


def test_second_finding_about_the_same_naming_is_void() -> None:
    log = named_1()
    for _ in range(2):
        log.lost(1, since=2)
    assert role(log)[:2] == (2, (2,))
    assert log.farm.skipped == {"another naming": 1}


def test_lost_member_is_not_eligible_until_a_status_that_knows_of_it() -> None:
    log = named_1()
    found = log.lost(1, since=2)
    log.override(1, "on")
    for applied in (None, found - 1):  # late ones, begun before
        log.post(1, 2, headroom=90, applied=applied)
        assert log.farm.eligible() == [2, 3]
        assert log.farm.is_lost(1)
        ranking: Any = log.farm.ranking()
        assert ranking["members"][-1]["reason"] == "the leader has lost it"
        assert any("no status of it since" in sentence for sentence in ranking["members"][-1]["why"])
    log.post(1, 3, headroom=90, applied=found)
    assert not log.farm.is_lost(1)
    assert (log.farm.eligible(), log.farm.publisher) == ([1, 2, 3], 1)


def test_member_that_is_removed_while_it_is_lost_comes_back_as_a_new_one() -> None:
    log = named_1()
    log.lost(1, since=2)
    log.configure(2, 3)
    log.configure(1, 2, 3)
    assert not log.farm.is_lost(1)
    log.post(1, 2, headroom=90, applied=0)
    assert log.farm.eligible() == [1, 2, 3]


# Members that are silent


@pytest.mark.parametrize("level", [1, 2])
def test_silence_takes_the_role_and_since_level_2_releases_nobody(level: int) -> None:
    """Schedule (e): its reporter hangs, and its lease runs on by heartbeats."""
    log = named_1(level=level)
    for second in range(2, 6):
        for member in (2, 3):
            log.post(member, second)
    assert not log.farm.is_recent(1)
    if level < 2:
        assert role(log) == (2, (2,), log.farm.state.since)
        return
    taken = log.farm.state.since
    for second in range(6, 50):
        log.post(2, second)
        log.post(3, second)
    assert role(log) == (2, (1, 2), None)
    found = log.lost(1, since=taken)
    assert role(log) == (2, (2,), found)


# Processes


def test_next_process_releases_what_the_one_before_held_and_is_not_named_for() -> None:
    log, taken = taken_from_1()
    log.post(1, 2, publishing=True)
    assert role(log) == (2, (1, 2), None)
    came = log.post(1, 3, boot=2, applied=taken - 1)
    assert role(log) == (2, (2,), came)


def test_late_status_of_a_former_process_is_skipped() -> None:
    """Schedule (g): committed behind the first one of the next process, it would say that this one publishes,
    or does not."""
    log = named_1()
    log.post(1, 2, headroom=90, boot=5)
    before = json.loads(log.farm.snapshot())
    for late in (4, 1, None):
        log.post(1, 3, headroom=90, boot=late, publishing=True, sequence=T0)
    assert json.loads(log.farm.snapshot()) == before | {"skipped": {"former process": 3}}
    log.post(1, 4, headroom=90, boot=5, publishing=True)
    assert log.farm.newest(1) != (before["records"]["1"]["index"], None)
    assert log.farm.statuses[1].publishing is True


def test_next_process_of_the_named_member_stays_named_and_due() -> None:
    log = named_1()
    log.post(1, 2, headroom=90, boot=2)
    assert role(log) == (1, (1,), 2)


def test_first_number_of_a_member_releases_nobody() -> None:
    log, _ = taken_from_1(level=1)
    log.configure(1, 2, 3, level=2)
    log.post(1, 2, boot=9, publishing=True)
    assert role(log) == (2, (1, 2), None)
    log.post(1, 3, boot=10, publishing=True)
    assert role(log)[:2] == (2, (2,))


def test_number_of_a_process_counts_from_level_2_on() -> None:
    log = named_1(level=1)
    node = b'"boot":"one"'
    entry = bytes(log.farm.newest_entry(2))
    odd = entry.replace(b'"boot":1', node)
    assert odd != entry
    log.append(odd)
    assert log.farm.skipped == {}
    log.configure(1, 2, 3, level=2)
    log.append(odd)
    assert log.farm.skipped == {"not an integer": 1}
    assert log.farm.state.leases
    assert log.farm.state.leases.boots == {}


# How long a lease lasts


def test_shorter_lease_is_in_force_at_once_and_the_longer_one_is_waited_for() -> None:
    """Schedule (f)."""
    log = named_1()
    changed = log.lease(5_000)
    assert lengths(log.farm) == (5_000, 45_000, changed)
    again = log.lease(2_000)
    assert lengths(log.farm) == (2_000, 45_000, again)
    assert told(log) == {"lease_ms": 2_000, "lease_ordered_ms": 2_000, "lease_before_ms": 45_000}
    for other, term in ((changed, TERM), (again, TERM - 1), (again + 9, TERM)):
        log.settled(other, term)
    assert lengths(log.farm) == (2_000, 45_000, again)
    assert log.farm.skipped == {"another change": 2, "another term": 1}
    log.settled(again)
    assert lengths(log.farm) == (2_000, 2_000, 0)
    assert told(log) == {"lease_ms": 2_000, "lease_ordered_ms": 2_000}
    log.settled(again)
    assert log.farm.skipped["another change"] == 3


def test_longer_lease_is_waited_for_before_and_after_it_is_settled() -> None:
    log = named_1()
    changed = log.lease(60_000)
    assert lengths(log.farm) == (60_000, 60_000, changed)
    assert told(log) == {"lease_ms": 60_000, "lease_ordered_ms": 60_000}
    log.settled(changed)
    assert lengths(log.farm) == (60_000, 60_000, 0)


def test_lease_that_is_ordered_again_as_it_is_changes_nothing_but_who_ordered_it() -> None:
    log = named_1()
    changed = log.lease(5_000)
    again = log.lease(5_000)
    assert lengths(log.farm) == (5_000, 45_000, changed)
    assert log.farm.policy.orders["lease"].index == again


def test_former_lease_is_not_waited_for_while_nobody_holds() -> None:
    log = LeaseLog(1, 2, 3)
    assert lengths(log.farm) == (45_000, 45_000, 0)
    log.lease(5_000)
    assert lengths(log.farm) == (5_000, 5_000, 0)
    log.post(1, 0)
    changed = log.lease(3_000)
    assert lengths(log.farm) == (3_000, 5_000, changed)
    log.lost(1, since=log.farm.state.since)
    assert log.farm.holders == ()
    log.lease(2_000)
    assert lengths(log.farm) == (2_000, 2_000, 0)


# Time-outs that follow round trips (D27)


def test_timeouts_that_a_leader_tells_bound_the_lease_that_was_ordered() -> None:
    log = named_1()
    longer = log.lease(120_000)
    log.settled(longer)
    assert (log.farm.election_timeout_ms, told(log)) == (
        0,
        {"lease_ms": 120_000, "lease_ordered_ms": 120_000},
    )
    shorter = log.timeouts(20_000, 60_000)
    assert log.farm.election_timeout_ms == 20_000
    assert lengths(log.farm) == (60_000, 120_000, shorter)
    log.settled(shorter)
    assert lengths(log.farm) == (60_000, 60_000, 0)
    assert told(log) == {"lease_ms": 60_000, "lease_ordered_ms": 120_000, "election_timeout_ms": 20_000}
    longest = log.timeouts(40_000, 600_000)
    assert log.farm.election_timeout_ms == 40_000
    assert lengths(log.farm) == (120_000, 120_000, longest)
    assert log.farm.skipped == {}


def test_order_stays_the_bound_of_what_a_leader_tells() -> None:
    log = named_1()  # 45 s
    log.timeouts(20_000, 60_000)
    assert lengths(log.farm) == (45_000, 45_000, 0)
    changed = log.lease(30_000)
    assert lengths(log.farm) == (30_000, 45_000, changed)
    changed = log.lease(90_000)
    assert lengths(log.farm) == (60_000, 60_000, changed)
    assert told(log)["lease_ordered_ms"] == 90_000


def test_timeouts_told_again_change_nothing() -> None:
    log = named_1()
    log.timeouts(20_000, 30_000)
    before = log.farm.snapshot()
    log.timeouts(20_000, 30_000)
    assert log.farm.snapshot() == before


@pytest.mark.parametrize(
    ("election_ms", "lease_ms", "term", "reason"),
    [
        pytest.param(20_000, 60_000, TERM - 1, "another term", id="of an earlier term"),
        pytest.param(20_000, 60_000, TERM + 1, "another term", id="of a later term"),
        pytest.param(0, 60_000, TERM, "out of range", id="no time"),
        pytest.param(3_600_001, 60_000, TERM, "out of range", id="more than an hour"),
        pytest.param(20_000, 999, TERM, "out of range", id="a lease of less than a second"),
        pytest.param(20_000, 600_001, TERM, "out of range", id="a lease that no order may set"),
        pytest.param(20_000.0, 60_000, TERM, "not an integer", id="no integer"),
        pytest.param("20000", 60_000, TERM, "not an integer", id="text"),
        pytest.param(None, 60_000, TERM, "missing", id="nothing"),
    ],
)
def test_timeouts_that_are_void_or_absurd_change_nothing(
    election_ms: Any, lease_ms: int, term: int, reason: str
) -> None:
    log = named_1()
    before = json.loads(log.farm.snapshot())
    valid = encode_admin(
        "farm",
        T0,
        3,
        None,
        "timeouts",
        LEADER,
        {"election_ms": 20_000, "lease_ms": 60_000, "term": TERM},
    )
    entry = json.loads(valid)
    entry["config"]["admin"]["args"] = {"election_ms": election_ms, "lease_ms": lease_ms, "term": term}
    log.append(json.dumps(entry).encode())
    assert json.loads(log.farm.snapshot()) == before | {"skipped": {reason: 1}}


# The raise


def test_raise_without_a_holder_begins_with_the_farm_s_own_lease() -> None:
    log = LeaseLog(1, 2, 3, level=0)
    log.order("staleness", {"R": 5})
    log.order("interval", {"ms": 4_000})
    assert lengths(log.farm) == (12_000, 12_000, 0)
    assert not log.farm.has_leases
    log.configure(1, 2, 3, level=2)
    assert log.farm.has_leases
    assert lengths(log.farm) == (12_000, 12_000, 0)


def test_raise_with_a_holder_waits_for_the_longest_lease_of_a_status() -> None:
    log = LeaseLog(1, 2, 3, level=1)
    log.order("interval", {"ms": 2_000})
    log.post(2, 0, headroom=90, interval_ms=9_000, R=4)
    log.post(1, 0, interval_ms=1_000)  # member 3 has no status, and so no lease
    raised = log.configure(1, 2, 3, level=2)
    assert lengths(log.farm) == (3_000, 20_250, raised)
    log.settled(raised)
    assert lengths(log.farm) == (3_000, 3_000, 0)


def test_raise_with_a_holder_waits_for_a_status_that_may_be_under_way() -> None:
    log = LeaseLog(1, 2, 3, level=1)
    log.post(1, 0, interval_ms=1_000)
    log.order("interval", {"ms": 10_000})  # member 1 may have begun a status since it knows
    raised = log.configure(1, 2, 3, level=2)
    assert lengths(log.farm) == (15_000, 15_000, raised)


def test_raise_keeps_a_lease_within_what_an_order_may_set() -> None:
    for interval_ms, R, lasts_ms in ((1_000, 3, 1_500), (3_600_000, 1_000, 600_000)):
        log = LeaseLog(1, level=0)
        log.order("staleness", {"R": R})
        log.order("interval", {"ms": interval_ms})
        log.configure(1, level=2)
        assert log.farm.lease_lasts_ms == lasts_ms


def test_lease_does_not_depend_on_whether_the_genesis_had_the_level() -> None:
    """As of founders and of members that joined."""
    founder, joiner = PublisherFold("farm"), PublisherFold("farm")
    at_level_2 = msgspec.structs.replace(configuration(1, 2, 3), level=2)
    founder.configure(0, at_level_2)
    joiner.configure(0, configuration())
    orders: list[tuple[str, dict[str, object]] | None]
    orders = [("staleness", {"R": 5}), ("interval", {"ms": 4_000}), None, ("lease", {"ms": 7_000}), None]
    for index, order in enumerate(orders, 1):
        for farm in (founder, joiner):
            if order is None:
                farm.configure(index, at_level_2)
            else:
                farm.apply(index, TERM, encode_admin("farm", T0, 1, None, order[0], "alice", order[1]))
        if index > 2:
            assert founder.snapshot() == joiner.snapshot()
            assert founder.lease_lasts_ms == (12_000 if index == 3 else 7_000)


def test_shorter_interval_of_a_running_farm_changes_no_lease() -> None:
    log = named_1()
    log.order("interval", {"ms": 4_000})
    log.configure(1, 2, 3)
    assert lengths(log.farm) == (45_000, 45_000, 0)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_broken_rule_of_how_long_a_lease_lasts_fails_its_test(mutant: Mutant) -> None:
    with planted(mutant), pytest.raises(AssertionError):
        globals()[mutant.found_by.partition("::")[2]]()


def test_raise_leaves_those_who_hold_to_be_released_as_since_level_2() -> None:
    log, taken = taken_from_1(level=1)
    log.configure(1, 2, 3, level=2)
    for second in range(2, 20):
        log.post(2, second)
        log.post(3, second)
    assert role(log) == (2, (1, 2), None)
    found = log.lost(1, since=taken)
    assert role(log) == (2, (2,), found)


@pytest.mark.parametrize("level", [0, 1])
def test_below_level_2_an_order_of_it_is_unknown_and_no_state_has_leases(level: int) -> None:
    log = named_1(level=level)
    assert b'"leases"' not in log.farm.snapshot()
    before = json.loads(log.farm.snapshot())
    log.lease(5_000)
    log.lost(1, since=2)
    log.settled(2)
    log.timeouts(20_000, 30_000)
    assert json.loads(log.farm.snapshot()) == before | {"skipped": {"unknown action": 4}}
    assert (log.farm.is_lost(1), log.farm.unsettled_index) == (False, 0)
    assert told(log) == {}
