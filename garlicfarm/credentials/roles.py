"""The roles of users."""

from __future__ import annotations

from typing import Literal, get_args

__all__ = ["ROLES", "Role", "includes"]

Role = Literal["reader", "writer", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""What a user may do; each role includes those before it."""


def includes(role: Role | None, least: Role) -> bool:
    """Whether ``role`` is ``least`` or includes it; None includes nothing."""
    return role is not None and ROLES.index(role) >= ROLES.index(least)
