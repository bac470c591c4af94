"""Every part of the score: its range, its ends, its middle, its weight."""

from __future__ import annotations

from typing import Any

import pytest

from garlicfarm.publishing.documents import (
    Bandwidth,
    ConnectTest,
    DestinationStatus,
    MemberTest,
    NodeReport,
    RemoteRouter,
    RemoteStatus,
    RouterStatus,
    StatusDocument,
    Tunnels,
)
from garlicfarm.publishing.scoring import (
    ALL,
    FIGURES,
    FULL,
    MIDDLE,
    NAMES,
    WEIGHTS,
    counted_parts,
    figures,
    names,
    parts,
    reported,
    score,
    set_of,
)

DAY_MS = 86_400_000
HUGE = 2**63 - 1


def part(name: str, node: NodeReport = NodeReport(), **changes: Any) -> int | None:  # noqa: B008 - frozen
    return parts(StatusDocument(cluster="farm", date=1, id=1, **changes), node)[name]


def bandwidth(in_: int, out: int) -> Bandwidth:
    return Bandwidth(in_=in_, out=out)


def remote(ok: bool | None) -> RemoteStatus:
    return RemoteStatus(hash="", connect_test=None if ok is None else ConnectTest(ms=1, ok=ok))


def connected(ok: bool) -> RemoteRouter:
    return RemoteRouter(member=3, connect_test=ConnectTest(ms=1, ok=ok))


def leaf(configured: tuple[int, int] | None, current: tuple[int, int] | None) -> DestinationStatus:
    both = [None if one is None else Tunnels(in_=one[0], out=one[1]) for one in (configured, current)]
    return DestinationStatus(destination="", configured_tunnels=both[0], current_tunnels=both[1])


@pytest.mark.parametrize(
    ("name", "router", "value"),
    [
        ("router_uptime", {"uptime": 0}, 0),
        ("router_uptime", {"uptime": DAY_MS // 4}, MIDDLE),
        ("router_uptime", {"uptime": DAY_MS}, 800_000),
        ("router_uptime", {"uptime": HUGE}, FULL - 1),
        ("router_uptime", {}, None),
        ("job_lag", {"job_lag": 0}, FULL),
        ("job_lag", {"job_lag": 250}, MIDDLE),
        ("job_lag", {"job_lag": 1000}, 200_000),
        ("job_lag", {"job_lag": HUGE}, 1),
        ("job_lag", {}, None),
        ("tunnel_health", {"exploratory_tunnels": 4, "participating_tunnels": HUGE}, FULL - 1),
        ("tunnel_health", {"exploratory_tunnels": 0, "participating_tunnels": 0}, 0),
        ("tunnel_health", {"exploratory_tunnels": 9, "participating_tunnels": 50}, 750_000),
        ("tunnel_health", {"participating_tunnels": 150}, 625_000),
        ("tunnel_health", {"exploratory_tunnels": 0}, 250_000),
        ("tunnel_health", {}, None),
        (
            "bandwidth_headroom",
            {"configured_bandwidth": bandwidth(100, 100), "current_bandwidth": bandwidth(20, 70)},
            300_000,
        ),
        (
            "bandwidth_headroom",
            {"configured_bandwidth": bandwidth(100, 100), "current_bandwidth": bandwidth(0, HUGE)},
            0,
        ),
        (
            "bandwidth_headroom",
            {"configured_bandwidth": bandwidth(0, 100), "current_bandwidth": bandwidth(0, 0)},
            0,
        ),
        ("bandwidth_headroom", {"configured_bandwidth": bandwidth(100, 100)}, None),
        ("bandwidth_headroom", {"current_bandwidth": bandwidth(100, 100)}, None),
    ],
)
def test_part_of_router_statistics_has_its_value(name, router, value):
    assert part(name, router=RouterStatus(**router)) == value


@pytest.mark.parametrize(
    ("destinations", "value"),
    [
        ([], None),
        ([leaf(None, None)], None),
        ([leaf((4, 4), None)], None),
        ([leaf((4, 4), (4, 4))], FULL),
        ([leaf((4, 4), (9, 1))], 625_000),
        ([leaf((0, 4), (0, 4))], 500_000),
        ([leaf((4, 4), (4, 4)), leaf((4, 4), None)], 750_000),
    ],
)
def test_destination_health_is_the_mean_over_leaves_and_directions(destinations, value):
    assert part("destination_health", destinations=tuple(destinations)) == value


def test_remote_sensing_is_the_share_of_connect_tests_that_succeeded() -> None:
    assert part("remote_sensing") is None
    assert part("remote_sensing", remote_routers=(RemoteRouter(member=2),)) is None
    sensed: Any = {
        "remote_routers": (RemoteRouter(member=2), connected(True), connected(False)),
        "remote_destinations": (remote(True), remote(None)),
        "remote_meta": remote(True),
    }
    assert part("remote_sensing", **sensed) == 750_000


def test_remote_sensing_prefers_the_tests_of_the_node_report_to_remote_routers() -> None:
    routers = (connected(False), connected(False))
    node = NodeReport(tests=(MemberTest(2, 0), MemberTest(3, -1), MemberTest(4, 7), MemberTest(5, 8)))
    assert part("remote_sensing", node, remote_routers=routers) == 750_000
    assert part("remote_sensing", node, remote_meta=remote(False)) == 600_000
    assert part("remote_sensing", NodeReport(tests=()), remote_routers=routers) is None


def test_score_of_nothing_reported_is_the_middle_and_weights_add_up() -> None:
    assert sum(WEIGHTS.values()) == 100
    assert score(dict.fromkeys(WEIGHTS)) == MIDDLE
    assert score(dict.fromkeys(WEIGHTS, FULL)) == FULL
    assert score(dict.fromkeys(WEIGHTS, 0)) == 0


@pytest.mark.parametrize(("name", "weight"), WEIGHTS.items())
def test_score_each_part_counts_by_its_weight(name: str, weight: int) -> None:
    assert score({**dict.fromkeys(WEIGHTS, 0), name: FULL}) == weight * 10_000


def figure(name: str, **changes: Any) -> int | None:
    document = StatusDocument(cluster="farm", date=1, id=1, **changes)
    return figures(document, NodeReport())[NAMES.index(name)]


def test_figures_are_those_of_the_parts_in_their_order() -> None:
    assert FIGURES.keys() == WEIGHTS.keys()
    assert names(ALL) == [*NAMES]
    assert set_of(names(0b101)) == 0b101
    assert set_of(["router.jobLag", "router.luck"]) == 0b10
    document = StatusDocument(
        cluster="farm", date=1, id=1, router=RouterStatus(uptime=0, participating_tunnels=0)
    )
    own = figures(document, NodeReport())
    assert names(reported(own)) == ["router.uptime", "router.participatingTunnels"]
    assert counted_parts(own, ALL) == parts(document, NodeReport())
    assert counted_parts(own, reported(own)) == {"router_uptime": 0, "tunnel_health": 0}


@pytest.mark.parametrize(
    ("leaves", "values"),
    [
        ([], (None, None)),
        ([leaf(None, (4, 4))], (None, None)),
        ([leaf((4, 4), (4, 1))], (FULL, 250_000)),
        ([leaf((4, 4), (HUGE, 0)), leaf((4, 4), None)], (750_000, 250_000)),
    ],
)
def test_tunnels_of_leaves_are_a_figure_each_way(leaves: list[Any], values: tuple[int | None, ...]) -> None:
    ways = [figure(f"destinations.currentTunnels.{way}", destinations=tuple(leaves)) for way in ("in", "out")]
    assert tuple(ways) == values


def test_bandwidth_is_that_of_the_worst_leaf_where_the_router_reports_none() -> None:
    leaves = tuple(
        DestinationStatus(
            destination="", configured_bandwidth=bandwidth(100, 100), current_bandwidth=bandwidth(used, 0)
        )
        for used in (20, 70)
    )
    other = DestinationStatus(destination="", current_bandwidth=bandwidth(100, 100))
    assert figure("currentBandwidth", destinations=(other,)) is None
    assert figure("currentBandwidth", destinations=(*leaves, other)) == 300_000
    router = RouterStatus(configured_bandwidth=bandwidth(100, 100), current_bandwidth=bandwidth(0, 0))
    assert figure("currentBandwidth", destinations=leaves, router=router) == FULL


def test_score_without_any_part_or_weight_is_the_middle() -> None:
    assert score({}) == MIDDLE
    assert score({"job_lag": FULL}, dict.fromkeys(WEIGHTS, 0) | {"router_uptime": 100}) == MIDDLE
    assert score({"job_lag": FULL, "remote_sensing": 0}) == FULL * 15 // 20
