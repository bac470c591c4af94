"""The fold since level 3 (point 9): a publisher whose service the others do not reach. Each state is also
restored from its snapshot, which has to make no difference."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from garlicfarm.errors import EntryRefused, StorageDamaged
from garlicfarm.i2p.encoding import encode
from garlicfarm.levels import OUTSIDE
from garlicfarm.publishing import outside
from garlicfarm.publishing.documents import OutsideReport
from garlicfarm.publishing.entries import parse_entry
from garlicfarm.publishing.fold import PublisherFold
from tests.publishing.scripted_log import T0, configuration
from tests.publishing.test_fold_leases import LeaseLog, named_1, role

CONTROL = encode(bytes(32))


def report(log: LeaseLog, failed: int = 3, control: str | None = CONTROL, **changes: Any) -> OutsideReport:
    """What a member says of the present publisher, that fails unless ``changes`` say otherwise."""
    about: dict[str, Any] = {"publisher": log.farm.publisher, "since": log.farm.due_since} | changes
    return OutsideReport(failed=failed, control=control, **about)


def say(log: LeaseLog, *members: int, second: float = 2, **changes: Any) -> int:
    """Each member posts such a status; returns the index of the last one."""
    headroom, publishing = {1: 90, 2: 50}, log.farm.publisher
    index = 0
    for member in members:
        outside = report(log, **changes)
        index = log.post(
            member,
            second,
            headroom=headroom.get(member, 10),
            outside=outside,
            publishing=member == publishing,
        )
    return index


def live(log: LeaseLog, second: float, *members: int) -> None:
    """Statuses of all these, the publisher's with ``publishing``, that say nothing of others."""
    for member in members:
        log.post(
            member, second, headroom={1: 90, 2: 50}.get(member, 10), publishing=member == log.farm.publisher
        )


def sanction(log: LeaseLog, member: int) -> int:
    return log.farm.state.records[member].sanction


def times(log: LeaseLog) -> dict[int, int]:
    assert log.farm.state.outside
    return log.farm.state.outside.unreached


def test_publisher_that_all_others_fail_to_reach_loses_the_role_at_that_index() -> None:
    log = named_1(level=3)
    say(log, 2)
    assert role(log) == (1, (1,), 2)
    index = say(log, 3)
    assert (log.farm.publisher, log.farm.state.since, log.farm.state.because) == (2, index, "unreached")
    assert (sanction(log, 1), times(log)) == (30, {1: 1})
    ranking: Any = log.farm.ranking()
    assert ranking["because"] == "unreached"
    log.restores = False
    assert log.farm.holders == (1, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"failed": 2},
        {"control": None},
        {"failed": 0},
        {"publisher": 3},
        {"since": 1},
    ],
)
def test_report_that_says_less_moves_nothing(changes: dict[str, Any]) -> None:
    log = named_1(level=3)
    say(log, 2)
    say(log, 3, **changes)
    assert (log.farm.publisher, sanction(log, 1)) == (1, 0)


def test_report_below_level_3_is_an_unknown_key() -> None:
    log = named_1(level=2)
    say(log, 2, 3)
    log.configure(1, 2, 3, level=3)
    live(log, 3, 1)
    assert (log.farm.publisher, sanction(log, 1)) == (1, 0)
    say(log, 2, 3, second=4)
    assert log.farm.publisher == 2


def test_state_does_not_depend_on_whether_the_genesis_had_the_level() -> None:
    """As of founders and of members that joined; the raise counts once somebody has posted."""
    founder, joiner = PublisherFold("farm"), PublisherFold("farm")
    founder.configure(0, msgspec.structs.replace(configuration(1, 2, 3), level=3))
    joiner.configure(0, configuration())
    for farm in (founder, joiner):
        farm.configure(1, msgspec.structs.replace(configuration(1, 2, 3, index=1), level=3))
    assert founder.snapshot() == joiner.snapshot()


def test_one_liar_of_three_or_five_moves_nothing_and_two_of_five_do_not() -> None:
    log = named_1(level=3)
    say(log, 2)
    assert log.farm.publisher == 1
    say(log, 3, failed=0)
    assert log.farm.publisher == 1
    log = named_1(level=3)
    log.configure(1, 2, 3, 4, 5)
    live(log, 2, 4, 5)
    say(log, 2, 3)
    assert log.farm.publisher == 1
    say(log, 4)
    assert log.farm.publisher == 2


def test_word_of_the_publisher_itself_and_of_one_other_do_not_count() -> None:
    log = named_1(level=3)
    log.configure(1, 2)
    say(log, 1, 2)
    assert log.farm.publisher == 1


def test_report_of_a_member_that_is_silent_does_not_count() -> None:
    log = named_1(level=3)
    say(log, 3)
    for second in range(3, 8):
        live(log, second, 1, 2)
    assert log.farm.recent() == [1, 2]
    say(log, 2, second=9)
    assert log.farm.publisher == 1


def test_publisher_stays_where_all_others_are_sanctioned_or_cannot_be_named() -> None:
    log = named_1(level=3)
    log.override(2, "off")
    log.override(3, "off")
    say(log, 2, 3)
    assert (log.farm.publisher, sanction(log, 1)) == (1, 0)
    log.override(3, "auto")
    assert (log.farm.publisher, log.farm.state.because, sanction(log, 1)) == (3, "unreached", 30)


def release(log: LeaseLog, second: float, *others: int) -> None:
    """Those that held have stopped."""
    for member in others:
        log.post(member, second, publishing=False, applied=log.index, headroom={1: 90, 2: 50}.get(member, 10))


def test_two_that_nobody_reaches_change_only_when_a_sanction_is_over_and_each_lasts_twice_as_long() -> None:
    log = named_1(level=3)
    log.restores = False
    log.override(3, "off")
    turns, second = [], 2.0
    before, since = 1, log.index
    for _ in range(400):
        second += 1
        for member in (1, 2, 3):
            log.post(
                member,
                second,
                applied=log.index,
                headroom={1: 90, 2: 50}.get(member, 10),
                outside=report(log)
                if log.farm.due_since is not None and member != log.farm.publisher
                else None,
                publishing=member == log.farm.publisher,
            )
        if log.farm.publisher != before:
            turns.append(round((log.index - since) / 3))
            before, since = log.farm.publisher or 0, log.index
    assert turns == [1, 30, 29, 60, 59, 120]  # 1 posts first in each round
    assert times(log) == {1: 3, 2: 3}


def test_sanction_lasts_an_hour_at_most() -> None:
    assert [outside.statuses_behind(times, 3, 30_000) for times in (1, 2, 3, 20)] == [30, 60, 120, 120]
    assert outside.statuses_behind(1, 3, 3_600_000) == outside.statuses_behind(9, 3, 3_600_000) == 30
    assert outside.statuses_behind(30, 3, 1_000) == 3_600


def test_count_begins_anew_once_most_others_reach_what_the_member_publishes() -> None:
    log = named_1(level=3)
    say(log, 2, 3)
    assert times(log) == {1: 1}
    release(log, 3, 1)
    log.override(2, "off")
    log.override(3, "off")
    assert log.farm.publisher == 1  # sanctioned, but the only one
    release(log, 4, 2, 3)
    assert log.farm.due_since is not None
    say(log, 2, second=5, failed=0)
    assert times(log) == {1: 1}
    say(log, 3, second=5, failed=0)
    assert times(log) == {}


def test_failure_to_publish_does_not_shorten_a_longer_sanction() -> None:
    log = named_1(level=3)
    say(log, 2, 3, second=2)
    release(log, 3, 1)
    log.override(2, "off")
    log.override(3, "off")
    release(log, 4, 2, 3)
    log.farm.state.records[1].sanction = 100
    log.restores = False
    for second in range(5, 8):
        log.post(1, second, publishing=False, applied=log.index)
    assert sanction(log, 1) == 97


def test_member_that_is_removed_has_no_count() -> None:
    log = named_1(level=3)
    say(log, 2, 3)
    log.configure(2, 3)
    assert times(log) == {}
    log.configure(1, 2, 3)
    assert times(log) == {}


def test_snapshot_with_a_count_of_a_stranger_or_without_its_level_contradicts_itself() -> None:
    log = named_1(level=3)
    good = json.loads(log.farm.snapshot())
    for changes in ({"outside": {"since": 1, "unreached": {"9": 1}}}, {"algorithm": 4}):
        with pytest.raises(StorageDamaged):
            PublisherFold("farm").restore(json.dumps(good | changes).encode())


def row(log: LeaseLog, member: int) -> Any:
    ranking: Any = log.farm.ranking()
    return next(each for each in ranking["members"] if each["id"] == member)


def test_ranking_says_who_reaches_the_publisher_and_why_another_one_took_over() -> None:
    log = named_1(level=3)
    log.restores = False
    say(log, 2)
    say(log, 3, failed=0)
    does_not = (
        "does not reach what member 1 publishes: 3 tests in a row failed, while another destination answered"
    )
    assert does_not in row(log, 2)["why"]
    assert "reaches what member 1 publishes" in row(log, 3)["why"]
    ranking: Any = log.farm.ranking()
    assert ranking["publication"]["problems"] == [
        "member 2 does not reach what member 1 publishes, but others' destinations"
    ]
    say(log, 2, second=3, failed=1, control=None)
    assert any("1 test in a row failed, while nothing else answered" in why for why in row(log, 2)["why"])
    say(log, 2, 3, second=4)
    assert row(log, 1)["reason"] == "behind member 2: most others did not reach it"
    behind = "ranks behind the others for 30 more statuses: most others did not reach what it published"
    assert behind in row(log, 1)["why"]
    event = log.farm.events()[-1]
    assert event["text"] == "member 2 took over from 1 (which the others do not reach)"


def test_trouble_is_told_where_nobody_can_take_over() -> None:
    log = named_1(level=3)
    log.override(2, "off")
    log.override(3, "off")
    say(log, 2)
    assert log.farm.troubles(T0) == []
    say(log, 3)
    assert [one.text for one in log.farm.troubles(T0)] == [
        "most other members do not reach what member 1 publishes, and no other member can take over; "
        "`garlicfarm farm show` says why"
    ]


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"outside": []}, "config.node.outside", "not an object"),
        ({"outside": {"since": 1, "failed": 0}}, "config.node.outside.publisher", "missing"),
        (
            {"outside": {"publisher": 1, "since": 1, "failed": -1}},
            "config.node.outside.failed",
            "out of range",
        ),
        (
            {"outside": {"publisher": 1, "since": 1, "failed": 0, "control": "AAAA"}},
            "config.node.outside.control",
            "not a hash",
        ),
        ({"control": "AAAA"}, "config.node.control", "not a hash"),
    ],
)
def test_report_is_checked_since_level_3_and_an_unknown_key_before(
    changes: dict[str, Any], field: str, reason: str
) -> None:
    entry = json.dumps({"cluster": "farm", "date": T0, "id": 1, "config": {"node": changes}}).encode()
    parse_entry(entry, "farm", OUTSIDE - 1)
    with pytest.raises(EntryRefused) as refused:
        parse_entry(entry, "farm", OUTSIDE)
    assert (refused.value.field, refused.value.reason) == (field, reason)
