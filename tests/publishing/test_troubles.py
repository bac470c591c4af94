"""What operators should see to: told when it lasts, and never of elections, hand-overs and correct clocks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from garlicfarm.publishing.documents import MetaStatus, NodeReport, StatusDocument
from garlicfarm.publishing.fold import PublisherFold
from tests.publishing.dated_log import Log
from tests.publishing.posting import INTERVAL_MS, WEEK_MS, Posting
from tests.publishing.scripted_log import T0

HOUR_MS = 3_600_000
NIGHT_MS = 8 * HOUR_MS


class Skewed(Posting):
    """Members whose clocks may be wrong, by as many ms as ``skews`` says."""

    skews: Mapping[int, int] = MappingProxyType({})

    def status(self, member: int) -> bytes:
        document = msgspec.json.decode(super().status(member), type=StatusDocument)
        date = document.date + self.skews.get(member, 0)
        return msgspec.json.encode(msgspec.structs.replace(document, date=date))


def sentences(farm: PublisherFold, *arguments: Any) -> list[str]:
    return [trouble.text for trouble in farm.troubles(*arguments)]


def troubles(posting: Posting) -> list[str]:
    return sentences(posting.farm, T0 + posting.now_ms)


def told(posting: Posting, for_ms: int) -> set[str]:
    """All troubles at any time of the next ``for_ms``."""
    found: set[str] = set()
    end = posting.now_ms + for_ms
    while posting.now_ms < end:
        posting.step()
        found.update(troubles(posting))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_elections_hand_overs_and_nights_are_no_troubles(seed: int) -> None:
    starting = {1: 3, 2: 3, 3: 3}  # a publisher needs more than an interval to start

    def publishes(member: int) -> bool:
        starting[member] = max(0, starting[member] - 1)
        return not starting[member]

    posting = Posting((1, 2, 3), seed, publishes=publishes)
    assert told(posting, HOUR_MS) == set()
    for _ in range(3):
        publisher = posting.farm.publisher
        assert publisher is not None
        posting.alive.remove(publisher)
        assert told(posting, HOUR_MS) == set()
        starting[publisher] = 3
        posting.revive(publisher)
        assert told(posting, HOUR_MS) == set()
    posting.alive.clear()
    while posting.pending:
        posting.step()
    posting.now_ms += NIGHT_MS
    for member in (1, 2, 3):
        posting.revive(member)
    assert told(posting, HOUR_MS) == set()


@pytest.mark.parametrize("seed", range(3))
def test_a_publisher_that_never_publishes_is_told_after_three_r_statuses(seed: int) -> None:
    posting = Posting((1, 2, 3), seed, publishes=lambda member: False)
    assert told(posting, 8 * INTERVAL_MS) == set()
    posting.run(4 * INTERVAL_MS)
    (one,) = troubles(posting)
    assert one.startswith("no member publishes: member ")
    # Sanctions and changes of the publisher do not hide it.
    for _ in range(200):
        posting.step()
        (one,) = troubles(posting)
        assert one.startswith("no member publishes: ")


def test_a_farm_without_publishers_is_not_expected_to_publish() -> None:
    posting = Posting((1, 2, 3), 1, publishes=lambda member: None)
    assert told(posting, HOUR_MS) == set()


def test_why_nobody_publishes() -> None:
    log = Log(1, 2)

    def rounds(count: int, first: int, *members: int, publishing: bool | None = False) -> list[str]:
        for each in range(count):
            for member in members:
                log.post(member, first + each, publishing=publishing)
        return sentences(log.farm, T0)

    assert rounds(10, 0, 1, 2) == [
        "no member publishes: member 2 is named and fails; `garlicfarm publish show` on its machine says why"
    ]
    log.override(1, "off")
    log.override(2, "off")
    assert sentences(log.farm, T0) == [
        "no member publishes: no member is eligible; `garlicfarm farm show` says why"
    ]


def test_the_only_member_that_could_publish_is_silent() -> None:
    posting = Posting((1, 2, 3), 1, publishes=lambda member: True if member == 1 else None)
    assert told(posting, HOUR_MS) == set()
    posting.alive.remove(1)
    posting.run(20 * INTERVAL_MS)
    assert troubles(posting) == ["no member publishes: only member 1 could, which is silent"]
    posting.revive(1)
    posting.run(3 * INTERVAL_MS)
    assert troubles(posting) == []


def test_members_whose_publishers_are_not_ready_are_to_publish_all_the_same() -> None:
    def rounds(log: Log) -> list[str]:
        for second in range(10):
            for member in log.farm.members:
                # As of a node whose router is gone: it says when it published, and not that it could.
                meta = MetaStatus(last_published_time=0) if member > 1 else None
                log.post(member, second, publishing=None, meta=meta)
        return sentences(log.farm, T0)

    assert rounds(Log(1, 2)) == [
        "no member publishes: member 2 is not ready; `garlicfarm publish show` on its machine says why"
    ]
    log = Log(1, 2, 3)
    assert rounds(log) == [
        "no member publishes: members 2, 3 are not ready; "
        "`garlicfarm publish show` on their machines says why"
    ]
    log.post(2, 20, meta=MetaStatus(publishing=True, last_published_time=T0))
    assert sentences(log.farm, T0) == []


SHOW = "`garlicfarm publish show` on its machine says why"


def test_publication_that_is_not_renewed_is_told_by_the_statuses_of_its_publisher() -> None:
    log = Log(1, 2)
    hour, last = 3600, {1: 0}

    def post(second: float, *, named: bool = True, publishing: bool = True) -> list[str]:
        ls = "AAAA" if named else None
        meta = MetaStatus(publishing=publishing, last_published_ls=ls, last_published_time=T0 + last[1])
        log.post(2, second)
        log.post(1, second, meta=meta)
        return sentences(log.farm, T0 + int(second * 1000))

    assert post(0) == post(1800) == post(hour) == []
    # Past its end, as in a first attempt after a night: so it may stay for as long as that takes.
    assert post(hour + 1) == post(hour + 150) == []
    told = [f"what member 1 publishes expired 3 min ago; {SHOW}"]
    assert post(hour + 151) == told
    assert sentences(log.farm, 0) == told  # it is the farm's time that counts
    # A router that publishes by itself names no LeaseSet; and who does not publish has nothing that expires.
    assert post(hour + 152, named=False) == []
    assert post(hour + 153) == []
    assert post(2 * hour) == [f"what member 1 publishes expired 60 min ago; {SHOW}"]
    assert post(2 * hour + 1, publishing=False) == []
    last[1] = 2 * hour * 1000
    assert post(2 * hour + 2) == []


def test_a_shorter_lifetime_is_for_what_is_published_from_then_on() -> None:
    log = Log(1, 2)

    def post(second: int, last_s: int) -> list[str]:
        last_ms = T0 + last_s * 1000
        log.post(
            1, second, meta=MetaStatus(publishing=True, last_published_ls="AAAA", last_published_time=last_ms)
        )
        return sentences(log.farm, T0)

    post(0, 0)
    log.order("publisher", {"lifetime_ms": 600_000})
    assert post(1000, 0) == post(1800, 0) == []
    assert post(1801, 1801) == post(2402, 1801) == []
    assert post(2602, 1801) == [f"what member 1 publishes expired 3 min ago; {SHOW}"]


def test_what_the_node_itself_publishes_has_expired_a_minute_after_its_end() -> None:
    farm = Log(1, 2).farm
    assert sentences(farm, T0 + 59_999, {1: T0}) == []
    assert sentences(farm, T0 + 60_000, {1: T0}) == [f"what member 1 publishes expired 60 s ago; {SHOW}"]
    assert sentences(farm, T0 + 60_000, {3: 0}) == []  # no member


def test_keys_that_expire_within_14_days_are_told_by_the_wall_clock() -> None:
    log, day_ms = Log(1, 2), 86_400_000
    log.post(2, 0, config={"node": NodeReport(key_expires=T0 + 20 * day_ms)})
    assert sentences(log.farm, T0 + 6 * day_ms) == []
    (problem,) = sentences(log.farm, T0 + 6 * day_ms + 1)
    assert problem.startswith("keys of member 2 expire in 13 days: make new bundles")
    (problem,) = sentences(log.farm, T0 + 20 * day_ms)
    assert problem.startswith("keys of member 2 have expired: make new bundles")


@pytest.mark.parametrize(
    ("skew_ms", "text"),
    [
        (-HOUR_MS, "60 min behind"),
        (-3 * HOUR_MS, "3 h behind"),
        (HOUR_MS, "60 min ahead of"),
        (WEEK_MS, "7 days ahead of"),
    ],
)
@pytest.mark.parametrize("member", [1, 3])
def test_a_clock_that_is_wrong_is_told_until_it_is_corrected(skew_ms: int, text: str, member: int) -> None:
    posting = Skewed((1, 2, 3), 1)
    posting.skews = {member: skew_ms}
    posting.run(4 * INTERVAL_MS)
    wanted = f"the clock of member {member} is {text} the farm's: correct it"
    for _ in range(50):
        assert troubles(posting) == [wanted]
        posting.step()
    posting.skews = {}
    posting.run(2 * INTERVAL_MS)
    assert troubles(posting) == []


@pytest.mark.parametrize("skew_ms", [0, -HOUR_MS])
def test_own_clock_that_is_off_is_told_once_and_what_follows_from_it(skew_ms: int) -> None:
    posting = Skewed((1, 2, 3), 1)
    posting.skews = {3: skew_ms}
    posting.run(4 * INTERVAL_MS)
    own = {3: "is at least 60 min behind the farm's: correct it"}
    assert sentences(posting.farm, T0 + posting.now_ms, {}, own) == [
        "the clock of member 3 is at least 60 min behind the farm's, so it does not offer itself to publish: "
        "correct it"
    ]


def test_of_two_clocks_none_is_said_to_be_wrong() -> None:
    posting = Skewed((1, 2), 1)
    posting.skews = {2: HOUR_MS}
    assert told(posting, HOUR_MS) == set()


def test_clocks_that_differ_by_half_a_minute_are_no_trouble() -> None:
    posting = Skewed((1, 2, 3), 1)
    posting.skews = {2: 30_000, 3: -30_000}
    assert told(posting, HOUR_MS) == set()


def test_troubles_are_no_part_of_the_state() -> None:
    posting = Skewed((1, 2, 3), 1, publishes=lambda member: False)
    posting.skews = {3: -HOUR_MS}
    posting.run(HOUR_MS)
    assert len(troubles(posting)) == 2
    again = PublisherFold("farm")
    again.restore(posting.farm.snapshot())
    assert sentences(again, T0 + posting.now_ms) == []
    assert again.snapshot() == posting.farm.snapshot()
