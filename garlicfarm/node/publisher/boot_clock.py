"""The clock of leases: it counts the time while the machine is suspended."""

from __future__ import annotations

import time


def boot_ms() -> int:
    """Milliseconds since the machine was started, suspended time included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
