"""The score of a status, algorithm version 2: how well a router could publish. Integers only.

Each *part* lies in 0 … 1,000,000. The score is ``sum(weight * part) // 100``, so it lies there too.
``x / y`` below is ``1_000_000 * x // y``, cut to that range; ``y`` = 0 gives 0. Where a figure has no
natural end, the part is ``x / (x + half)``: a change of a tenth moves it by at most a fortieth of its range,
which keeps noise below the margin.

====================  ======  ===========================================================================
part                  weight  value
====================  ======  ===========================================================================
router_uptime             20  ``router.uptime``, half at 6 h: rises, and saturates
job_lag                   15  ``router.jobLag``, half at 250 ms: falls
tunnel_health             15  mean of ``exploratoryTunnels`` / 4 and ``participatingTunnels``, half at 50
bandwidth_headroom        25  (configured − current) / configured, of the worse direction of ``router``
destination_health        20  mean over ``destinations``, and both directions, of ``currentTunnels`` /
                              ``configuredTunnels``
remote_sensing             5  share of this server's connect tests that succeeded: those of
                              ``config.node.tests`` (where absent: ``remoteRouters``),
                              ``remoteDestinations`` and ``remoteMeta``
====================  ======  ===========================================================================

**D13**: an absent statistic counts as the middle of its range, 500,000, so that leaving one out
does not pay: a whole part (then explained as "not reported"), one of the two counts of tunnel_health,
or one destination's tunnels within destination_health. Without any destination, or any connect test, the
part is not reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from garlicfarm.publishing.documents import (
    Bandwidth,
    DestinationStatus,
    NodeReport,
    RouterStatus,
    StatusDocument,
    Tunnels,
    connect_tests,
)

FULL = 1_000_000
MIDDLE = FULL // 2

WEIGHTS = {
    "router_uptime": 20,
    "job_lag": 15,
    "tunnel_health": 15,
    "bandwidth_headroom": 25,
    "destination_health": 20,
    "remote_sensing": 5,
}
"""Percent of each part in the score, unless administrators set others; they add up to 100."""

UPTIME_HALF_MS = 21_600_000
JOB_LAG_HALF_MS = 250
EXPLORATORY_FULL = 4
PARTICIPATING_HALF = 50


def parts(document: StatusDocument, node: NodeReport) -> dict[str, int | None]:
    """The parts of the score of a status, whose ``config.node`` is ``node``; None: not reported."""
    router = document.router or RouterStatus()
    return {
        "router_uptime": None if router.uptime is None else _rising(router.uptime, UPTIME_HALF_MS),
        "job_lag": None if router.job_lag is None else FULL - _rising(router.job_lag, JOB_LAG_HALF_MS),
        "tunnel_health": _tunnel_health(router),
        "bandwidth_headroom": _headroom(router.configured_bandwidth, router.current_bandwidth),
        "destination_health": _destination_health(document.destinations or ()),
        "remote_sensing": _remote_sensing(document, node),
    }


def score(parts: Mapping[str, int | None], weights: Mapping[str, int] = WEIGHTS) -> int:
    """The mean of all parts, 0 … 1,000,000, by ``weights``, which add up to 100."""
    return sum(weight * _or_middle(parts[name]) for name, weight in weights.items()) // 100


def _or_middle(value: int | None) -> int:
    return MIDDLE if value is None else value


def _share(part: int, whole: int) -> int:
    return min(max(FULL * part // whole, 0), FULL) if whole else 0


def _rising(figure: int, half: int) -> int:
    return FULL * figure // (figure + half)


def _mean(values: Sequence[int]) -> int:
    return sum(values) // len(values)


def _tunnel_health(router: RouterStatus) -> int | None:
    exploratory, participating = router.exploratory_tunnels, router.participating_tunnels
    if exploratory is None and participating is None:
        return None
    return _mean(
        (
            MIDDLE if exploratory is None else _share(exploratory, EXPLORATORY_FULL),
            MIDDLE if participating is None else _rising(participating, PARTICIPATING_HALF),
        )
    )


def _headroom(configured: Bandwidth | None, current: Bandwidth | None) -> int | None:
    if configured is None or current is None:
        return None
    return min(
        _share(configured.in_ - current.in_, configured.in_),
        _share(configured.out - current.out, configured.out),
    )


def _tunnel_share(configured: Tunnels | None, current: Tunnels | None) -> int:
    if configured is None or current is None:
        return MIDDLE
    return _mean((_share(current.in_, configured.in_), _share(current.out, configured.out)))


def _destination_health(destinations: Sequence[DestinationStatus]) -> int | None:
    if all(one.configured_tunnels is None or one.current_tunnels is None for one in destinations):
        return None
    return _mean([_tunnel_share(one.configured_tunnels, one.current_tunnels) for one in destinations])


def _remote_sensing(document: StatusDocument, node: NodeReport) -> int | None:
    tests = [ok for _, ok in connect_tests(document, node)]
    sensed = (*(document.remote_destinations or ()), document.remote_meta)
    tests += [one.connect_test.ok for one in sensed if one is not None and one.connect_test is not None]
    return _share(sum(tests), len(tests)) if tests else None
