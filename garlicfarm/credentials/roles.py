"""The roles of users."""

from __future__ import annotations

from typing import Literal, get_args

UserRole = Literal["reader", "writer", "admin"]
ROLES: tuple[UserRole, ...] = get_args(UserRole)
"""What a user may do; each role includes those before it."""


def includes(role: UserRole | None, least: UserRole) -> bool:
    """Whether ``role`` is ``least`` or includes it; None includes nothing."""
    return role is not None and ROLES.index(role) >= ROLES.index(least)
