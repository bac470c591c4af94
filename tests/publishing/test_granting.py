"""What a leader's leases take from the state of a farm, and the entries that they become."""

from __future__ import annotations

import json

import msgspec

from garlicfarm.leases import Holding, LeaseGranter
from garlicfarm.publishing import granting
from garlicfarm.publishing.entries import encode_admin, encode_status
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.granting import Finding
from garlicfarm.round_trips import RoundTrips
from tests.publishing.scripted_log import T0, configuration, status


def _farm(level: int) -> PublisherFold:
    """Member 1 is named at index 2."""
    farm = PublisherFold("farm")
    farm.configure(1, msgspec.structs.replace(configuration(1, 2, 3, index=1), level=level))
    farm.apply(2, 1, encode_status(status(1, T0)))
    assert farm.publisher == 1
    return farm


def _findings(
    granter: LeaseGranter, farm: PublisherFold, now_ms: int, trips: RoundTrips | None = None
) -> list[Finding]:
    trips = trips or RoundTrips(40_000, 40_000, 0)
    return granting.findings(granter, trips, farm, 2, now_ms, lambda election_ms: 2 * election_ms + 20_000)


def test_clocks_that_differ_by_a_hundredth_each_are_allowed_for() -> None:
    granter = LeaseGranter(2, 1, 0)
    granting.tell(granter, _farm(2), 0)
    assert granter.holdings == (Holding(1, 2, is_named=True),)
    assert granter.wake_ms() == 45_450  # of 45 s
    granter.on_sent(3, 1, 0)
    granter.on_answered(3, 1, 1)
    grant = granter.grant((1, 2, 3), 0)
    assert grant is not None
    assert grant.lasts_ms == 44_550


def test_longer_leases_of_before_are_waited_for_and_then_settled() -> None:
    farm, granter = _farm(1), LeaseGranter(2, 1, 0)
    granting.tell(granter, farm, 0)
    assert (granter.holdings, granter.wake_ms()) == ((), None)
    farm.configure(3, msgspec.structs.replace(configuration(1, 2, 3, index=3), level=2))
    farm.apply(4, 1, _order("lease", {"ms": 2_000}))
    granting.tell(granter, farm, 7)
    assert granter.wake_ms() == 7 + 45_450
    found = _findings(granter, farm, 7 + 45_450)
    for place, (entry, done) in enumerate(found):
        done()
        farm.apply(5 + place, 1, entry)
    said = [json.loads(entry)["config"]["admin"] for entry, _ in found]
    assert [(each["action"], each["by"]) for each in said] == [("lost", "leader"), ("settled", "leader")]
    assert [each["args"] for each in said] == [
        {"member": 1, "index": 2, "term": 1},
        {"index": 4, "term": 1},
    ]
    assert farm.skipped == {}
    assert (farm.is_lost(1), farm.unsettled_index, farm.lease_waits_ms) == (True, 0, 2_000)
    assert _findings(granter, farm, 10**9) == []


def test_timeouts_that_round_trips_allow_are_told_once_with_the_lease_that_they_need() -> None:
    farm, granter, trips = _farm(2), LeaseGranter(2, 1, 0), RoundTrips(20_000, 40_000, 0)
    told = []
    for now_ms in range(0, 1_800_000, 5_000):
        trips.on_sent(3, now_ms, now_ms)
        trips.on_answered(3, now_ms, now_ms + (1_000 if now_ms < 1_500_000 else 9_000))
        granter.on_applied((), lasts_ms=1, waits_ms=1, now_ms=now_ms)
        for entry, done in _findings(granter, farm, now_ms, trips):
            done()
            assert _findings(granter, farm, now_ms, trips) == []  # though it is not applied yet
            farm.apply(3 + now_ms, 1, entry)
            told.append(json.loads(entry)["config"]["admin"]["args"])
    assert told == [
        {"election_ms": 28_280, "lease_ms": 76_560, "term": 1},
        {"election_ms": 20_000, "lease_ms": 60_000, "term": 1},
        {"election_ms": 40_000, "lease_ms": 600_000, "term": 1},
    ]
    assert farm.skipped == {}


def test_timeouts_are_told_since_level_2_and_shorten_no_lease_below_a_minute() -> None:
    trips = RoundTrips(1_000, 2_000, 0)
    granter = LeaseGranter(2, 1, 0)
    for now_ms in range(0, 1_300_000, 5_000):
        trips.on_sent(3, now_ms, now_ms)
        trips.on_answered(3, now_ms, now_ms)
    assert _findings(granter, _farm(1), 1_300_000, trips) == []
    ((entry, _),) = _findings(granter, _farm(2), 1_300_000, trips)
    assert json.loads(entry)["config"]["admin"]["args"] == {
        "election_ms": 1_414,
        "lease_ms": 60_000,
        "term": 1,
    }


def _order(action: str, args: dict[str, object]) -> bytes:
    return encode_admin("farm", T0, 2, None, action, "alice", args)
