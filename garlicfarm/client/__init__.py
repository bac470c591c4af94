"""Clients of a farm, for the command line and for other programs. Imported when first asked for.

* `open_farm_client` → `FarmClient`: posts over the farm's own protocol, straight to the leader.
* `AdminClient`: reads, posts and administers over the admin API of any node, and iterates over live events
  (`EntryEvent`, `LeaderEvent` …). `from_config` makes one for the node of this machine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient, Page
    from garlicfarm.client.events import EventStream
    from garlicfarm.client.farm import FarmClient, open_farm_client
    from garlicfarm.client.local_node import from_config
    from garlicfarm.feed.events import (
        EntryEvent,
        HealthEvent,
        LeaderEvent,
        MembersEvent,
        PositionEvent,
        PublisherEvent,
    )

__all__ = [
    "AdminClient",
    "EntryEvent",
    "EventStream",
    "FarmClient",
    "HealthEvent",
    "LeaderEvent",
    "MembersEvent",
    "Page",
    "PositionEvent",
    "PublisherEvent",
    "from_config",
    "open_farm_client",
]

_EVENTS = ("EntryEvent", "HealthEvent", "LeaderEvent", "MembersEvent", "PositionEvent", "PublisherEvent")
_MODULES = {
    "AdminClient": "garlicfarm.client.admin",
    "EventStream": "garlicfarm.client.events",
    "FarmClient": "garlicfarm.client.farm",
    "Page": "garlicfarm.client.admin",
    "from_config": "garlicfarm.client.local_node",
    "open_farm_client": "garlicfarm.client.farm",
    **dict.fromkeys(_EVENTS, "garlicfarm.feed.events"),
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
