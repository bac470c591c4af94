"""What operators should see to: told when it lasts, and never of elections, hand-overs and correct clocks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec
import pytest

from garlicfarm.publishing.documents import StatusDocument
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


def troubles(posting: Posting) -> list[str]:
    return posting.farm.troubles(T0 + posting.now_ms)


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
        return log.farm.troubles(T0)

    assert rounds(10, 0, 1, 2) == [
        "no member publishes: member 2 is named and fails; `garlicfarm publish show` on its machine says why"
    ]
    log.override(1, "off")
    log.override(2, "off")
    assert log.farm.troubles(T0) == [
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
    assert again.troubles(T0 + posting.now_ms) == []
    assert again.snapshot() == posting.farm.snapshot()
