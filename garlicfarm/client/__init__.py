"""Clients of a farm, for the command line and for other programs. Imported when first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient

__all__ = ["AdminClient"]


def __getattr__(name: str) -> object:
    if name == "AdminClient":
        from garlicfarm.client.admin import AdminClient

        return AdminClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
