"""The clocks that a member's part in publishing goes by."""

from __future__ import annotations

import time

import trio

from garlicfarm.publishing.member_core import Now


def now() -> Now:
    """This moment. The clock of leases is Trio's, with the time while the machine was suspended added."""
    suspended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return Now(round(1000 * trio.current_time()) + suspended_ns // 1_000_000, wall_ms())


def wall_ms() -> int:
    """ms since 1970."""
    return time.time_ns() // 1_000_000
