"""Numbers that all members of a farm share; stores and join tokens record them."""

from __future__ import annotations

EPOCH_LENGTH = 100_000
"""How many Application entries make an epoch (D23), unless a farm is made with another length."""
