"""The clocks that a member's part in publishing goes by."""

from __future__ import annotations

import time

from garlicfarm.publishing.member_core import Now


def now() -> Now:
    """This moment, by the clock that counts suspended time, and by the wall clock."""
    return Now(time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000, time.time_ns() // 1_000_000)
