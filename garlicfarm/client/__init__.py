"""Clients of a farm, for the command line and for other programs. Imported when first asked for.

* `open_farm_client` → `FarmClient`: posts over the farm's own protocol, straight to the leader.
* `AdminClient`: reads, posts and administers over the admin API of any node. `from_config` makes one for
  the node of this machine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient, Page
    from garlicfarm.client.farm import FarmClient, open_farm_client
    from garlicfarm.client.local_node import from_config

__all__ = ["AdminClient", "FarmClient", "Page", "from_config", "open_farm_client"]

_MODULES = {
    "AdminClient": "garlicfarm.client.admin",
    "FarmClient": "garlicfarm.client.farm",
    "Page": "garlicfarm.client.admin",
    "from_config": "garlicfarm.client.local_node",
    "open_farm_client": "garlicfarm.client.farm",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
