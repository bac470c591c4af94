"""The clocks that a member's part in publishing goes by."""

from __future__ import annotations

import time

from garlicfarm.node.boot_clock import boot_ms
from garlicfarm.publishing.member_standing import Now


def now() -> Now:
    """This moment."""
    return Now(boot_ms(), wall_ms())


def wall_ms() -> int:
    """ms since 1970."""
    return time.time_ns() // 1_000_000
