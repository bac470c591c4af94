"""The score of a status: how well a router could publish. Integers only.

Each *part* lies in 0 … 1,000,000. The score is ``sum(weight * part) // sum(weight)``, so it lies there too.
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

**Since level 3** (algorithm version 5) a figure counts only where a recent member reports it. There are two
figures for tunnel_health (exploratory, participating), two for destination_health (inbound and outbound, each
the mean over ``destinations``), and one for each other part. A part is the mean of those of its figures that
count. One without any is left out for all members: the others share its weight in proportion. If nothing
counts, each score is the middle. bandwidth_headroom falls back on the worst of ``destinations`` where
``router`` does not report it. A figure that is wrong, absurd or stale moves its author by at most its part's
share of the weights that count, and only brings the others closer together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from garlicfarm.publishing.documents import (
    Bandwidth,
    DestinationStatus,
    NodeReport,
    RouterStatus,
    StatusDocument,
    connect_tests,
)

Way = Literal["in_", "out"]
WAYS: tuple[Way, Way] = ("in_", "out")
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

FIGURES: Mapping[str, tuple[str, ...]] = {
    "router_uptime": ("router.uptime",),
    "job_lag": ("router.jobLag",),
    "tunnel_health": ("router.exploratoryTunnels", "router.participatingTunnels"),
    "bandwidth_headroom": ("currentBandwidth",),
    "destination_health": ("destinations.currentTunnels.in", "destinations.currentTunnels.out"),
    "remote_sensing": ("connectTest",),
}
"""The figures of each part, by the key that is looked at."""
NAMES = tuple(name for of_part in FIGURES.values() for name in of_part)
Figures = tuple[int | None, ...]
"""The values of all figures in the order of `NAMES`, 0 … 1,000,000; None: not reported."""
ALL = (1 << len(NAMES)) - 1
"""A set of figures is an integer, with a bit for each in the order of `NAMES`."""

_BITS = {name: 1 << place for place, name in enumerate(NAMES)}

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


def figures(document: StatusDocument, node: NodeReport) -> Figures:
    """The figures of a status, whose ``config.node`` is ``node``."""
    router, leaves = document.router or RouterStatus(), document.destinations or ()
    exploratory, participating = router.exploratory_tunnels, router.participating_tunnels
    return (
        None if router.uptime is None else _rising(router.uptime, UPTIME_HALF_MS),
        None if router.job_lag is None else FULL - _rising(router.job_lag, JOB_LAG_HALF_MS),
        None if exploratory is None else _share(exploratory, EXPLORATORY_FULL),
        None if participating is None else _rising(participating, PARTICIPATING_HALF),
        _worst_headroom(router, leaves),
        _one_way([_way_share(leaf, "in_") for leaf in leaves]),
        _one_way([_way_share(leaf, "out") for leaf in leaves]),
        _remote_sensing(document, node),
    )


def reported(figures: Figures) -> int:
    """The set of those that are reported."""
    return sum(1 << place for place, value in enumerate(figures) if value is not None)


def counted_parts(figures: Figures, counted: int) -> dict[str, int | None]:
    """The parts that are not left out where the figures ``counted`` count; None: none of a part's is
    reported."""
    values = dict(zip(NAMES, figures, strict=True))
    found: dict[str, int | None] = {}
    for part, of_part in FIGURES.items():
        own = [values[name] for name in of_part if counted & _BITS[name]]
        if own:
            is_reported = any(value is not None for value in own)
            found[part] = _mean([_or_middle(value) for value in own]) if is_reported else None
    return found


def score(parts: Mapping[str, int | None], weights: Mapping[str, int] = WEIGHTS) -> int:
    """The mean of ``parts``, 0 … 1,000,000, by ``weights``, which add up to 100 for all parts."""
    total = sum(weights[name] for name in parts)
    if not total:
        return MIDDLE
    return sum(weights[name] * _or_middle(value) for name, value in parts.items()) // total


def names(figures: int) -> list[str]:
    """Those of a set, in the order of `NAMES`."""
    return [name for name, bit in _BITS.items() if figures & bit]


def set_of(names: Iterable[str]) -> int:
    """The reverse of `names`; unknown ones are left out."""
    return sum(_BITS[name] for name in {*names} & _BITS.keys())


def measured(figures: Figures, counted: int, weights: Mapping[str, int] = WEIGHTS) -> int:
    """How much of the score is measured, 0 … 100: the weights of the parts whose figures are reported. Of a
    part with two figures that count, each has half; a part that is left out is not measured."""
    values = dict(zip(NAMES, figures, strict=True))
    halves = 0
    for part, of_part in FIGURES.items():
        own = [values[name] is not None for name in of_part if counted & _BITS[name]]
        halves += 2 * weights[part] * sum(own) // len(own) if own else 0
    return halves // 2


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


def _destination_health(destinations: Sequence[DestinationStatus]) -> int | None:
    if all(one.configured_tunnels is None or one.current_tunnels is None for one in destinations):
        return None
    return _mean([_mean([_or_middle(_way_share(one, way)) for way in WAYS]) for one in destinations])


def _worst_headroom(router: RouterStatus, leaves: Sequence[DestinationStatus]) -> int | None:
    own = _headroom(router.configured_bandwidth, router.current_bandwidth)
    if own is not None:
        return own
    others = [_headroom(leaf.configured_bandwidth, leaf.current_bandwidth) for leaf in leaves]
    return min((one for one in others if one is not None), default=None)


def _way_share(leaf: DestinationStatus, way: Way) -> int | None:
    configured, current = leaf.configured_tunnels, leaf.current_tunnels
    if configured is None or current is None:
        return None
    wanted = configured.in_ if way == "in_" else configured.out
    found = current.in_ if way == "in_" else current.out
    return None if wanted is None or found is None else _share(found, wanted)


def _one_way(shares: Sequence[int | None]) -> int | None:
    if all(share is None for share in shares):
        return None
    return _mean([_or_middle(share) for share in shares])


def _remote_sensing(document: StatusDocument, node: NodeReport) -> int | None:
    tests = [ok for _, ok in connect_tests(document, node)]
    sensed = (*(document.remote_destinations or ()), document.remote_meta)
    tests += [one.connect_test.ok for one in sensed if one is not None and one.connect_test is not None]
    return _share(sum(tests), len(tests)) if tests else None
