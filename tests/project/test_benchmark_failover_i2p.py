"""What the benchmark of failover inside I2P makes of its runs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from benchmarks.failover_i2p import (
    ASKS_AFTER_S,
    Case,
    Outage,
    PublisherWatch,
    Run,
    cases_of,
    longest_gap,
    lost_at_each,
    lost_of,
    missed,
    seconds_of,
)
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.lab.service import I2PD
from garlicfarm.lab.site import Fetch
from tests.java.java_router import JavaPlan


def runs(
    case: Case,
    answered_s: Sequence[float | None],
    *,
    lost: int = 0,
    publishing_s: float | None = 2.0,
    lease_s: float = 5.0,
    led: bool = False,
) -> list[Run]:
    return [
        Run(
            **case._asdict(),
            clients=dict.fromkeys(ASKS_AFTER_S, Outage(each, [0, lost])),
            publishing_s=publishing_s,
            had_two_publishers=False,
            load=0.0,
            lease_s=lease_s,
            led=led,
        )
        for each in answered_s
    ]


@pytest.mark.parametrize(
    ("way", "answered_s", "found"),
    [
        ("i2cp-fast", [1.0, 5.0, 40.0], []),
        ("i2cp-fast", [1.0, 5.1, 40.0], ["p50 5.1 s, at most 5 s"]),
        ("i2cp", [30.0, 45.0, 75.0], []),
        ("i2cp", [30.0, 45.0, 75.1], ["max 75.1 s, at most 75 s"]),
        ("i2cp", [30.0, None, None], ["p50 inf s, at most 45 s", "max inf s, at most 75 s"]),
        ("sam", [500.0, 500.0, None], []),
        ("i2cp", [30.0, 30.0], ["2 of 3 runs"]),
        ("i2cp", [], ["0 of 3 runs"]),
    ],
)
def test_death_of_the_router_is_bound_for_the_client_that_knew_the_service(
    way: str, answered_s: list[float | None], found: list[str]
) -> None:
    case = Case(way, "router", 0)
    told = {case: runs(case, answered_s)}
    assert missed(told, 3) == [f"{case}: {each}" for each in found]
    beyond = case._replace(hops=1)
    assert missed({beyond: runs(beyond, [None] * 3)}, 3) == []


@pytest.mark.parametrize(
    ("fault", "most"), [("move", 1), ("stop", 1), ("rolling", 1), ("leader", 0), ("farm-link", 0)]
)
def test_move_or_stop_loses_one_request_at_most_and_the_leader_none(fault: str, most: int) -> None:
    case = Case("i2cp", fault, 0)
    assert missed({case: runs(case, [3.0] * 2, lost=most)}, 2) == []
    found = missed({case: runs(case, [3.0] * 2, lost=most + 1)}, 2)
    assert found == [f"{case}: {most + 1} requests lost, at most {most}"]


@pytest.mark.parametrize("fault", ["node", "both", "machine"])
def test_dead_machine_is_replaced_within_seconds_where_leases_are_fast(fault: str) -> None:
    case = Case("i2cp-fast", fault, 0)
    assert missed({case: runs(case, [9.0])}, 1) == []
    assert missed({case: runs(case, [9.1])}, 1) == [f"{case}: p50 9.1 s, at most 9 s"]


@pytest.mark.parametrize(("way", "most"), [("i2cp-fast-inside", 1.0), ("i2cp-inside", 15.0)])
@pytest.mark.parametrize("lease_s", [60.0, 120.0])
def test_dead_machine_inside_i2p_is_replaced_within_a_lease(way: str, most: float, lease_s: float) -> None:
    case = Case(way, "machine", 0)
    leaders = runs(case, [lease_s + 90.0] * 3, lease_s=lease_s, led=True)
    others = runs(case, [lease_s + most], lease_s=lease_s)
    assert missed({case: [*leaders, *others]}, 4) == []
    assert missed({case: leaders}, 3) == []
    others = runs(case, [lease_s + most + 0.1], lease_s=lease_s)
    found = f"{case}: p50 {most + 0.1:.1f} s beyond the lease, at most {most:.0f} s"
    assert missed({case: [*leaders, *others]}, 4) == [found]


@pytest.mark.parametrize("fault", ["i2p-link", "clock", "full"])
def test_publisher_that_is_not_reached_is_left_within_two_minutes(fault: str) -> None:
    case = Case("i2cp-fast", fault, 0)
    assert missed({case: runs(case, [60.0, 90.0, 135.0])}, 3) == []
    told = missed({case: runs(case, [60.0, 90.1, 135.1])}, 3)
    assert told == [f"{case}: p50 90.1 s, at most 90 s", f"{case}: max 135.1 s, at most 135 s"]


def test_node_inside_i2p_whose_router_died_cannot_say_so() -> None:
    case = Case("i2cp-inside", "router", 0)
    assert missed({case: runs(case, [65.0], publishing_s=60.0, lease_s=60.0)}, 1) == []


def test_cases_are_those_that_the_way_has() -> None:
    found = cases_of(["naive", "i2cp", "i2cp-inside"], ["router", "farm-link"], [0])
    assert {(case.way, case.fault) for case in found} == {
        ("naive", "router"),
        ("i2cp", "router"),
        ("i2cp", "farm-link"),
        ("i2cp-inside", "router"),
    }


def test_faults_that_others_find_need_nodes_that_test() -> None:
    assert cases_of(["naive", "sam", "i2cp"], ["i2p-link"], [0]) == [Case("i2cp", "i2p-link", 0)]


def test_move_takes_the_client_that_knew_the_service_elsewhere() -> None:
    case = Case("i2cp", "move", 0)
    stays = f"{case}: the client that knew the service stayed where it was"
    assert missed({case: runs(case, [3.0, None])}, 2) == [stays]


def test_longest_gap_is_between_answered_requests_since_the_fault() -> None:
    began = [
        (1.0, "node 1"),
        (8.0, "node 1"),
        (11.0, "node 1"),
        (12.0, None),
        (16.0, "node 2"),
        (17.0, "node 2"),
    ]
    fetches = [Fetch(began_s, began_s + 0.1, text) for began_s, text in began]
    assert longest_gap(fetches, 10.0) == 5.0
    assert longest_gap(fetches, 18.0) is None


def test_lost_request_counts_for_the_last_strike_before_its_end() -> None:
    ended = [(9.0, None), (10.5, None), (11.0, "node 1"), (16.0, None), (21.0, "node 2"), (22.0, None)]
    fetches = [Fetch(ended_s - 6, ended_s, text) for ended_s, text in ended]
    assert lost_at_each(fetches, [10.0, 20.0, 30.0]) == [2, 1, 0]


@pytest.mark.parametrize(
    ("publishing_s", "found"),
    [
        (3.0, []),
        (3.1, ["p50 3.1 s until the next node publishes, at most 3 s"]),
        (None, ["p50 inf s until the next node publishes, at most 3 s"]),
    ],
)
def test_death_of_the_router_is_bound_until_the_next_node_publishes(
    publishing_s: float | None, found: list[str]
) -> None:
    case = Case("i2cp", "router", 0)
    told = {case: runs(case, [30.0] * 3, publishing_s=publishing_s)}
    assert missed(told, 3) == [f"{case}: {each}" for each in found]
    dead = case._replace(fault="node")
    assert missed({dead: runs(dead, [30.0] * 3, publishing_s=40.0)}, 3) == []


def test_next_publisher_is_one_that_was_seen_to_begin_since() -> None:
    watch = PublisherWatch()
    for now_s, node_id, is_publishing in [
        (1, 1, True),
        (2, 2, False),
        (4, 1, False),
        (5, 2, True),
        (6, 2, True),
    ]:
        watch.note(node_id, is_publishing=is_publishing, now_s=float(now_s))
    assert watch.next_after(3.0, but=1) == 5.0
    assert watch.next_after(3.0, but=2) is None


@pytest.mark.parametrize(
    ("looks", "had_two"),
    [
        ("1+ 2- 1+ 2-", False),
        ("1+ 2+ 1- 2+", False),
        ("1+ 2+ 1+", True),
        ("1+ 2+ 1- 2+ 1+ 2-", False),
        ("1- 2+ 1- 2+ 1+ 2+", True),
    ],
    ids=["one", "handed-over", "both", "back", "later"],
)
def test_two_publish_at_once_where_one_does_before_and_after_the_other(looks: str, had_two: bool) -> None:
    watch = PublisherWatch()
    for look in looks.split():
        watch.note(int(look[0]), is_publishing=look[1] == "+", now_s=0.0)
    assert watch.had_two is had_two


def test_two_publishers_are_a_missed_bound_in_any_case() -> None:
    case = Case("sam", "node", 1)
    [run] = runs(case, [0.0])
    two = Run(**{**{name: getattr(run, name) for name in run.__struct_fields__}, "had_two_publishers": True})
    assert missed({case: [two]}, 1) == [f"{case}: two nodes published at once"]


def test_clients_behind_java_i2p_are_told_together_and_bound_by_nothing() -> None:
    case = Case("i2cp-fast", "router", 0)
    outages = {"knew": Outage(1.0, [1]), "java 1": Outage(80.0, [160]), "java 2": Outage(None, [600])}
    told = [msgspec.structs.replace(each, clients=outages) for each in runs(case, [1.0])]
    assert seconds_of(told, "java") == [80.0, float("inf")]
    assert lost_of(told, "java") == [160, 600]
    assert missed({case: told}, 1) == []


def test_half_of_the_floodfills_are_java_i2p_where_another_router_is() -> None:
    case = Case("i2cp", "router", 0)
    mixed = (RouterPlan, JavaPlan) * 2
    assert case.kinds(0) == I2PD
    assert case.kinds(2) == (RouterPlan, (JavaPlan, JavaPlan), mixed)
    assert case._replace(way="i2cp-java").kinds(0) == (JavaPlan, (), mixed)
