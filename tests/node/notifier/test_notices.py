"""What is told, once for the farm: bodies of the status in, notices out."""

from __future__ import annotations

from typing import Any

import pytest

from garlicfarm.node.notifier.notices import FarmNotices, Notice

STEADY_MS = 10_000
LOST = {"index": 7, "date_ms": 5000, "text": "member 3 lost, 2 took over", "kinds": ["member", "publisher"]}
BACK = {"index": 9, "date_ms": 6000, "text": "member 3 is back", "kinds": ["member"]}
LED = {"index": 8, "date_ms": 5500, "text": "member 1 leads in term 2", "kinds": ["leader"]}
KEYS = {"kind": "keys", "about": "keys 2", "text": "keys of member 2 expire in 9 d", "own": False}


def status(node: int = 1, leader: int | None = 1, absent: int = 0, **changes: Any) -> dict[str, Any]:
    members = [
        {"id": one, "role": "follower" if one + absent <= 3 else "unreachable", "trouble": None}
        for one in (1, 2, 3)
    ]
    body = {
        "farm": "farm",
        "farm_id": "f00d",
        "node": node,
        "leader": leader,
        "leader_lost": None,
        "quorum": leader is not None,
        "fault_tolerance": max(0, 1 - absent),
        "level": {"in_force": 2},
        "disk_hangs_s": None,
        "members": members,
        "events": [],
        "problems": [],
        "troubles": [],
    }
    return body | changes


def notices() -> FarmNotices:
    return FarmNotices(1000, STEADY_MS)


def told(found: list[Notice]) -> list[tuple[str, str]]:
    return [(notice.kind, notice.text) for notice in found]


def test_events_are_told_once_and_by_the_leader_alone() -> None:
    leader, follower = notices(), notices()
    for at, (event, wanted) in enumerate(((LOST, "publisher"), (LED, ""), (BACK, "member"))):
        body: dict[str, Any] = {"events": [LOST, LED, BACK][: at + 1]}
        found = leader.look(status(**body), 5000)
        assert told(found) == ([(wanted, event["text"])] if wanted else [])
        assert follower.look(status(node=2, **body), 5000) == []
        assert leader.look(status(**body), 5000) == []
    # The follower leads from now on, and does not repeat them.
    assert follower.look(status(node=2, leader=2, events=[LOST, LED, BACK]), 6000) == []


def test_event_has_the_same_id_from_whichever_member() -> None:
    found = [notices().look(status(node=node, leader=node, events=[LOST]), 5000)[0] for node in (1, 2)]
    assert [notice.id for notice in found] == ["f00d-7", "f00d-7"]
    assert [notice.node for notice in found] == [1, 2]


def test_events_from_before_the_start_are_not_told_as_the_log_is_replayed() -> None:
    old = {**LOST, "date_ms": 999}
    assert notices().look(status(events=[old]), 5000) == []


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"absent": 1}, "health", "degraded: can lose 0 more members; absent: 3"),
        ({"troubles": [KEYS], "problems": [KEYS["text"]]}, "keys", KEYS["text"]),
        ({"disk_hangs_s": 7.0}, "disk", "the disk of node 1 does not answer"),
        ({"problems": ["node 1 makes no backups: full"]}, "health", "node 1 makes no backups: full"),
    ],
)
def test_state_is_told_when_it_has_lasted_and_again_when_it_is_over(
    changes: dict[str, Any], kind: str, says: str
) -> None:
    watch = notices()
    assert watch.look(status(), 0) == []
    assert watch.look(status(**changes), 1000) == []
    assert watch.look(status(**changes), 1000 + STEADY_MS - 1) == []
    (begun,) = watch.look(status(**changes), 1000 + STEADY_MS)
    assert (begun.kind, begun.text, begun.over) == (kind, says, False)
    assert watch.look(status(**changes), 1000 + 9 * STEADY_MS) == []
    assert watch.look(status(), 200_000) == []
    assert watch.look(status(**changes), 201_000) == []  # too short a pause
    assert watch.look(status(**changes), 201_000 + STEADY_MS) == []
    assert watch.look(status(), 300_000) == []
    (ended,) = watch.look(status(), 300_000 + STEADY_MS)
    assert (ended.kind, ended.text, ended.over) == (kind, f"over: {says}", True)
    assert watch.look(status(), 500_000) == []


def test_state_that_flickers_is_never_told() -> None:
    watch = notices()
    for at in range(0, 100_000, 3000):
        assert watch.look(status(absent=at // 3000 % 2), at) == []


def test_figures_in_a_sentence_make_no_other_state_of_it() -> None:
    watch = notices()
    found = []
    for at in range(0, 100_000, 1000):
        found += watch.look(status(problems=[f"it failed {at} ms ago"]), at)
    assert told(found) == [("health", f"it failed {STEADY_MS} ms ago")]


def test_states_of_the_farm_are_told_by_the_leader_and_not_repeated_by_the_next() -> None:
    leader, follower = notices(), notices()
    for at in (0, STEADY_MS):
        found = leader.look(status(absent=1, troubles=[KEYS]), at)
        assert follower.look(status(node=2, absent=1, troubles=[KEYS]), at) == []
    assert sorted(notice.kind for notice in found) == ["health", "keys"]
    for at in (20_000, 40_000):
        assert follower.look(status(node=2, leader=2, absent=1, troubles=[KEYS]), at) == []
    follower.look(status(node=2, leader=2), 60_000)
    ended = follower.look(status(node=2, leader=2), 60_000 + STEADY_MS)
    assert all(notice.over for notice in ended)
    assert sorted(notice.kind for notice in ended) == ["health", "keys"]


def test_what_only_a_follower_knows_is_told_by_it() -> None:
    watch = notices()
    own = {**KEYS, "own": True}
    body = status(node=2, disk_hangs_s=9.0, troubles=[own], problems=["its backups fail"])
    watch.look(body, 0)
    assert [kind for kind, _ in told(watch.look(body, STEADY_MS))] == ["disk", "keys", "health"]


def test_every_member_tells_that_it_sees_no_quorum() -> None:
    for node in (1, 2):
        watch = notices()
        body = status(node=node, leader=None, leader_lost={"id": 3, "date_ms": 0})
        watch.look(body, 0)
        (notice,) = watch.look(body, STEADY_MS)
        assert notice.kind == "health"
        assert notice.text == f"no quorum, as node {node} sees it: lost leader 3 at 00:00:00 UTC"


def test_raised_level_is_told_by_the_leader_once() -> None:
    leader, follower = notices(), notices()
    for watch, node in ((leader, 1), (follower, 2)):
        assert watch.look(status(node=node), 0) == []
    raised: dict[str, Any] = {"level": {"in_force": 3}}
    assert told(leader.look(status(**raised), 1)) == [("level", "the farm is at level 3 now")]
    assert leader.look(status(**raised), 2) == []
    assert follower.look(status(node=2, **raised), 2) == []
    assert follower.look(status(node=2, leader=2, **raised), 3) == []


def test_farm_of_another_application_has_neither_events_nor_troubles() -> None:
    body = status(absent=1)
    del body["troubles"], body["problems"]
    watch = notices()
    watch.look(body, 0)
    assert [kind for kind, _ in told(watch.look(body, STEADY_MS))] == ["health"]
