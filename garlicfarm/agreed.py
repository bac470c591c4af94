"""Numbers that all members of a farm share; stores and join tokens record them."""

from __future__ import annotations

ALGORITHM_VERSION = 2
"""The version of the common algorithm: the validity rule, the score and the fold together. Snapshots record
it, too."""

EPOCH_LENGTH = 100_000
"""How many Application entries make an epoch (D23), unless a farm is made with another length."""


def unknown_algorithm(version: int) -> str:
    """Which other version of the common algorithm this is, in words; "" for that of this program."""
    if version == ALGORITHM_VERSION:
        return ""
    return f"version {version} of the common algorithm; this program has {ALGORITHM_VERSION}"
