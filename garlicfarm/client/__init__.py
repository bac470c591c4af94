"""Clients of a farm, for the command line and for other programs. Imported when first asked for.

* `open_farm_client` → `FarmClient`: posts over the farm's own protocol, straight to the leader.
* `AdminClient`: reads, posts and administers over the admin API of any node, and iterates over live events
  (`EntryEvent`, `LeaderEvent` …). `from_config` makes one for the node of this machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garlicfarm.lazy_names import lazy_names

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

__getattr__ = lazy_names(
    __name__,
    {
        "garlicfarm.client.admin": ("AdminClient", "Page"),
        "garlicfarm.client.events": ("EventStream",),
        "garlicfarm.client.farm": ("FarmClient", "open_farm_client"),
        "garlicfarm.client.local_node": ("from_config",),
        "garlicfarm.feed.events": (
            *("EntryEvent", "HealthEvent", "LeaderEvent", "MembersEvent", "PositionEvent", "PublisherEvent"),
        ),
    },
)
