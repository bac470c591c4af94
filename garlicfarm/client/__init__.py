"""Clients of a farm, for the command line and for other programs. Imported when first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient
    from garlicfarm.client.farm import FarmClient

__all__ = ["AdminClient", "FarmClient"]

_MODULES = {"AdminClient": "garlicfarm.client.admin", "FarmClient": "garlicfarm.client.farm"}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
