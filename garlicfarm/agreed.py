"""What every member of a farm computes with, so that a store and a join token name it."""

from __future__ import annotations

__all__ = ["ALGORITHM_VERSION", "EPOCH_LENGTH", "unknown_algorithm"]

ALGORITHM_VERSION = 2
"""That of the common algorithm: of the validity rule, the score and the fold together. Stores, snapshots and
join tokens name it."""

EPOCH_LENGTH = 100_000
"""How many Application entries make an epoch (D23), unless a farm is made with another length."""


def unknown_algorithm(version: int) -> str:
    """Which other version of the common algorithm this is, in words; "" for that of this program."""
    if version == ALGORITHM_VERSION:
        return ""
    return f"version {version} of the common algorithm; this program has {ALGORITHM_VERSION}"
