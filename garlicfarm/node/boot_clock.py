"""The clock of leases."""

from __future__ import annotations

import time

import trio


def boot_ms() -> int:
    """This moment: Trio's clock, with the time while the machine was suspended added, in ms."""
    suspended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return round(1000 * trio.current_time()) + suspended_ns // 1_000_000
