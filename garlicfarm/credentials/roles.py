"""The roles of users."""

from __future__ import annotations

from typing import Literal, get_args

__all__ = ["ROLES", "Role"]

Role = Literal["reader", "writer", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""What a user may do; each role includes those before it."""
