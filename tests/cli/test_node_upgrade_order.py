"""Which member is upgraded next, and whether it may be stopped now: decided from what nodes say."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import pytest

from garlicfarm import __version__
from garlicfarm.cli.node_upgrade_order import MAX_LAG, Decision, FarmReport, decide

OLD, NEW = "0.2.0", __version__
LEVEL = {"in_force": 0, "highest": 1, "brings": {"1": "more"}, "hindered_by": []}


def status(size: int = 3, *, leader: int = 1, publisher: int | None = 2, **changes: Any) -> dict[str, Any]:
    """What the leader of a healthy farm says, whose members all run the old program."""
    rows = [
        {
            "id": member,
            "role": "leader" if member == leader else "follower",
            "transport": "ssl",
            "version": OLD,
            "lag": 0,
            "trouble": None,
            "error": None,
        }
        for member in range(1, size + 1)
    ]
    body = {"farm": "farm", "node": leader, "leader": leader, "publisher": publisher, "members": rows}
    body |= {"quorum": True, "fault_tolerance": (size - 1) // 2, "disk_hangs_s": None}
    return {**body, "problems": [], "level": LEVEL, **changes}


def alter(body: dict[str, Any], member: int, **known: Any) -> dict[str, Any]:
    body["members"][member - 1] |= known
    return body


def decided(body: dict[str, Any], version: str = NEW, **report: Any) -> Decision:
    return decide([FarmReport(body, **report)], version)


@pytest.mark.parametrize(("leader", "publisher"), [*permutations((1, 2, 3), 2), (1, 1), (3, 3), (2, None)])
def test_members_are_upgraded_one_by_one_the_publisher_after_followers_and_the_leader_last(
    leader: int, publisher: int | None
) -> None:
    order = []
    body = status(leader=leader, publisher=publisher)
    while (decision := decided(body)).next is not None and decision.next != leader:
        assert decision.holds == []
        order.append(decision.next)
        alter(body, decision.next, version=NEW)
    followers = sorted({1, 2, 3} - {leader, publisher})
    assert order == followers + ([publisher] if publisher not in (None, leader) else [])
    assert decision.next == leader
    assert [hold for hold in decision.holds if "leads farm farm: let another member lead first" in hold]
    assert len(decision.holds) == 1
    body = alter(body, order[0], role="leader") | {"leader": order[0], "node": order[0]}
    assert decided(body).next == leader
    assert decided(body).holds == []
    alter(body, leader, version=NEW)
    done = decided(body)
    assert (done.next, done.holds) == (None, [])
    assert [row["state"] for row in done.rows] == ["done"] * 3
    assert done.notes == [
        "farm farm: level 0; level 1 can be raised: `garlicfarm farm level raise` (it brings: more)"
    ]


@pytest.mark.parametrize("done", [*product([False, True], repeat=3)])
def test_next_member_is_one_that_does_not_run_the_version(done: tuple[bool, ...]) -> None:
    body = status(leader=3, publisher=1)
    for member, is_done in enumerate(done, 1):
        alter(body, member, version=NEW if is_done else OLD)
    waiting = [member for member in (2, 1, 3) if not done[member - 1]]
    assert decided(body).next == (waiting[0] if waiting else None)
    states = ["done" if each else "to do" for each in done]
    if waiting:
        states[waiting[0] - 1] = "next"
    assert [row["state"] for row in decided(body).rows] == states
    assert bool(decided(body).notes) is not bool(waiting)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"fault_tolerance": 0}, "farm farm can lose no member now"),
        ({"disk_hangs_s": 3.0}, "the disk of node 1 does not answer"),
        ({"problems": ["no member publishes: …"]}, "farm farm: no member publishes: …"),
        ({"quorum": False}, "farm farm has no quorum, as far as node 1 knows: wait until it has"),
        ({"leader": None}, "farm farm has no quorum, as far as node 1 knows: wait until it has"),
        ({"node": 2}, "only member 1, which leads farm farm, knows how far the others are"),
        ({"level": LEVEL | {"in_force": 7}}, "the farm is at level 7, and this program"),
    ],
)
def test_farm_that_is_not_well_holds_the_upgrade(changes: dict[str, Any], why: str) -> None:
    body = status() | changes
    if body["node"] != 1:
        body["members"] = [row | {"lag": None} for row in body["members"]]
    decision = decided(body)
    assert decision.next == (3 if "leader" not in changes else 1)
    (hold,) = decision.holds
    assert why in hold


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({"lag": MAX_LAG + 1}, "member 2 of farm farm is 1,001 entries behind: wait for it"),
        ({"lag": None}, "it is not known how far member 2 of farm farm is: wait until it is"),
        (
            {"trouble": "it is stuck", "version": NEW, "lag": None},
            "member 2 of farm farm does not keep up: it is stuck",
        ),
    ],
)
def test_other_member_that_does_not_keep_up_holds_the_upgrade(known: dict[str, Any], why: str) -> None:
    decision = decided(alter(status(), 2, **known))
    assert (decision.next, decision.holds) == (3, [why])


def test_member_that_is_only_a_little_behind_and_the_next_one_itself_hold_nothing() -> None:
    body = alter(alter(status(), 2, lag=MAX_LAG), 3, lag=None)
    assert (decided(body).next, decided(body).holds) == (3, [])


def test_server_that_is_joining_holds_the_upgrade() -> None:
    decision = decided(status(), joining={"id": 4})
    assert decision.holds == ["member 4 is joining farm farm: wait until it has caught up"]


def test_unreachable_member_is_to_be_brought_back_before_the_next_is_stopped() -> None:
    body = alter(status(5), 4, role="unreachable", error="connection refused", lag=None)
    decision = decided(body | {"fault_tolerance": 1})
    assert decision.next == 3
    assert decision.holds == ["bring member 4 of farm farm back first: connection refused"]
    for member in (1, 2, 3, 5):
        alter(body, member, version=NEW)
    decision = decided(body)
    assert (decision.next, len(decision.holds)) == (None, 1)
    alter(body, 4, version=NEW)  # it ran that before it went away
    assert decided(body).holds == []


@pytest.mark.parametrize("stuck", [2, 3])
def test_member_that_cannot_follow_is_upgraded_first_as_nothing_depends_on_it(stuck: int) -> None:
    body = status(fault_tolerance=0, publisher=None, level=LEVEL | {"in_force": 1})
    decision = decided(alter(body, stuck, role="unreachable", trouble="upgrade it", error="upgrade it"))
    assert (decision.next, decision.holds) == (stuck, [])


@pytest.mark.parametrize(("size", "word"), [(1, "one member"), (2, "two members")])
def test_small_farm_says_plainly_that_it_stops(size: int, word: str) -> None:
    decision = decided(status(size))
    assert decision.next == size
    stops = f"farm farm has {word}: it stops while member {size} is down, and continues afterwards"
    assert decision.holds == [f"{stops}; nothing is lost"]


def test_leader_of_two_is_stopped_after_it_has_handed_over() -> None:
    decision = decided(alter(status(2), 2, version=NEW))
    assert decision.next == 1
    assert ["leads" in hold for hold in decision.holds] == [False, True]


def test_node_of_several_farms_waits_for_its_turn_in_each_and_is_held_by_each() -> None:
    one = status(leader=1, publisher=None)
    two = status(leader=2, publisher=1, farm="two")
    decision = decide([FarmReport(one), FarmReport(two)], NEW)
    assert (decision.next, decision.holds) == (3, [])
    for body in (one, two):
        alter(body, 3, version=NEW)
    decision = decide([FarmReport(one), FarmReport(two)], NEW)
    assert decision.next == 1
    assert len(decision.holds) == 1
    assert "member 1 leads farm farm" in decision.holds[0]
    two["fault_tolerance"] = 0
    assert len(decide([FarmReport(one), FarmReport(two)], NEW).holds) == 2


def test_member_of_another_farm_only_is_not_held_by_this_one() -> None:
    one, two = status(1, farm="one", publisher=None), status(publisher=None)
    alter(one, 1, version=NEW)
    alter(two, 1, version=NEW)
    assert decide([FarmReport(one), FarmReport(two)], NEW).holds == []


def test_status_of_a_node_of_0_2_0_and_of_a_farm_of_the_application_log_are_enough() -> None:
    body = status(publisher=None)
    del body["level"], body["problems"]
    decision = decided(alter(body, 3, version=None))
    assert (decision.next, decision.holds) == (2, [])
    assert decision.rows[0]["levels"] is None


def test_jraft_server_is_named_and_not_upgraded() -> None:
    body = alter(alter(alter(status(), 1, version=NEW), 2, version=NEW), 3, transport="jraft", version=None)
    decision = decided(body | {"level": LEVEL | {"highest": 0}})
    assert (decision.next, decision.holds) == (None, [])
    assert decision.notes == ["member 3 of farm farm is a JRaft server, which has no garlicfarm to upgrade"]


def test_way_back_to_a_program_that_refuses_the_stores_is_held() -> None:
    body = alter(status(level=LEVEL | {"in_force": 1, "brings": {}}), 3, version=NEW)
    for version in (OLD, "0.2.17rc1"):
        assert decided(body, version).holds == [
            "farm farm is at level 1, from which there is no way back: garlicfarm "
            f"{version} would refuse the store; it takes 0.3 or newer"
        ]
    for version in ("0.3.1", "0.10.0", "1.0", "unheard-of"):
        assert decided(body, version).holds == []
    assert decided(alter(status(), 3, version=NEW), OLD).holds == []
