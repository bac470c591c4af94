"""The health of a farm as one word, from the body of ``GET …/status``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

__all__ = ["Health", "judge"]

Health = Literal["healthy", "degraded", "no-quorum"]


def judge(status: Mapping[str, Any]) -> Health:
    """Degraded: the farm can lose fewer members than its size allows, or the disk of the node that answered
    hangs. No quorum: that node knows no leader, or sees no majority."""
    whole = status["fault_tolerance"] == (len(status["members"]) - 1) // 2
    good = whole and status.get("disk_hangs_s") is None  # a node of 0.1 does not tell
    return "no-quorum" if not status["quorum"] else "healthy" if good else "degraded"
