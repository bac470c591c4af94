"""What the fold tells of the farm's history, and why each member stands where it does in one phrase."""

from __future__ import annotations

import json
from typing import Any

from garlicfarm.publishing.documents import NodeReport
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.ranking import reason
from tests.publishing.dated_log import Log
from tests.publishing.scripted_log import FILE, configuration


def folded(upto: int = 80) -> PublisherFold:
    farm = PublisherFold("farm")
    farm.configure(1, configuration(1, 2, 3, index=1))
    for line in map(json.loads, FILE.read_text().splitlines()):
        if line["index"] <= upto:
            farm.apply(line["index"], 1, line["entry"].encode())
    return farm


def reasons(farm: PublisherFold, *, told: bool = True) -> dict[int, str]:
    body: dict[str, Any] = farm.ranking()
    events = farm.events() if told else []
    return {row["id"]: reason(row, body["since"], events) for row in body["members"]}


def test_events_tell_who_was_lost_who_took_over_and_why() -> None:
    assert [(event["index"], event["text"]) for event in folded().events()] == [
        (3, "member 2 publishes"),
        (19, "member 3 took over from 2 (ahead three times in a row)"),
        (37, "member 3 lost, 2 took over"),
        (44, "member 3 is back"),
        (52, "member 3 took over from 2 (no longer eligible)"),
        (67, "member 2 took over from 3 (by an override)"),
    ]


def test_events_name_the_two_of_a_takeover_and_the_farms_time() -> None:
    event = next(event for event in folded().events() if event["index"] == 37)
    assert event["date_ms"] == folded(37).farm_time_ms
    assert (event["publisher"], event["previous"], event["because"]) == (2, 3, "ineligible")


def test_events_keep_the_newest_only_and_a_restored_farm_tells_what_follows() -> None:
    farm = folded(36)
    other = PublisherFold("farm")
    other.restore(farm.snapshot())
    assert other.events() == []
    for line in map(json.loads, FILE.read_text().splitlines()):
        if line["index"] > 36:
            other.apply(line["index"], 1, line["entry"].encode())
    later = [event["text"] for event in other.events()]
    assert later[0] == "member 3 lost, 2 took over"
    assert later[1] == "member 3 is back"
    assert other.snapshot() == folded().snapshot()
    log = Log(1, 2)
    for second in range(100):
        log.post(1, second, leaves=(1,) if second % 2 else ())
    assert len(log.farm.events()) == 50
    assert log.farm.events()[-1]["text"] == "member 1 publishes"
    assert log.farm.events()[-2]["text"] == "no publisher: no member is eligible"


def test_events_tell_of_members_that_join_and_leave() -> None:
    log = Log(1, 2)
    log.farm.configure(7, configuration(1, 2, 5, index=7))
    log.farm.configure(8, configuration(1, 5, index=8))
    assert [event["text"] for event in log.farm.events()] == ["member 5 joined", "member 2 removed"]


def test_events_tell_of_a_leader_once_per_term() -> None:
    log = Log(1, 2)
    for second, (member, term) in enumerate([(1, 1), (1, 1), (2, 3), (1, 1), (2, 3)]):
        log.post(member, second, config={"node": NodeReport(role="leader", term=term)}, leaves=())
    assert [(event["index"], event["text"]) for event in log.farm.events()] == [
        (1, "member 1 leads in term 1"),
        (3, "member 2 leads in term 3"),
    ]


def test_reason_is_one_phrase_for_each_member() -> None:
    log = Log(1, 2, 3, 4)
    log.post(1, 0, headroom=50)
    log.post(2, 0, headroom=40)
    log.post(3, 0, mode="off")
    assert reasons(log.farm) == {
        1: "publisher since index 1: the role was vacant",
        2: "25,000 behind member 1",
        3: "its mode is off",
        4: "no status yet",
    }
    log.post(2, 1, headroom=60)
    assert reasons(log.farm)[2] == "25,000 ahead of member 1, takes over at 50,000"
    log.post(2, 2, headroom=70)
    assert reasons(log.farm)[2] == "50,000 ahead of member 1, 1 of 3 times"
    log.override(1, "on")
    assert reasons(log.farm)[2] == "behind member 1, whose mode is on"
    log.override(1, "off")
    assert reasons(log.farm)[1] == "its mode is off by override"
    assert reasons(log.farm)[2] == "took over from 1 at index 7 (by an override)"
    taken = "publisher since index 7: an override took it from the one before"
    assert reasons(log.farm, told=False)[2] == taken
    log.override(3, "auto")
    assert reasons(log.farm, told=False)[2] == taken
    log.override(1, None)  # what was ordered is forgotten
    assert (
        reasons(log.farm, told=False)[2] == "publisher since index 7: the one before was no longer eligible"
    )


def test_reason_of_a_publisher_after_a_time_without_one_does_not_call_it_the_first() -> None:
    log = Log(1, 2)
    log.post(1, 0)
    log.override(1, "off")
    assert log.farm.publisher is None
    log.override(1, "on")
    for told in (True, False):
        assert reasons(log.farm, told=told)[1] == "publisher since index 3: the role was vacant"


def test_reason_of_a_silent_member_names_its_last_status() -> None:
    assert reasons(folded(37))[3] == "no status since index 31"
