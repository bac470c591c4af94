"""The feed contract: what carries a farm's committed entries elsewhere.

A feed plugin is a class found through the entry point group ``garlicfarm.feeds``. Its name is the value of
``plugin =`` in ``[[farm.feed]]``. Check your plugin with `garlicfarm.testing.FeedSuite`. The contract is in
`contract` and `source`; `lines` has entries as JSON lines. The other modules are the room's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garlicfarm.lazy_names import lazy_names

if TYPE_CHECKING:
    from garlicfarm.feed.contract import Feed, FeedSite, FeedSource
    from garlicfarm.feed.lines import decode_lines, encode_lines
    from garlicfarm.raft.types import Entry
    from garlicfarm.wire.messages import ValueType

__all__ = ["Entry", "Feed", "FeedSite", "FeedSource", "ValueType", "decode_lines", "encode_lines"]

__getattr__ = lazy_names(
    __name__,
    {
        "garlicfarm.feed.contract": ("Feed", "FeedSite", "FeedSource"),
        "garlicfarm.feed.lines": ("decode_lines", "encode_lines"),
        "garlicfarm.raft.types": ("Entry",),
        "garlicfarm.wire.messages": ("ValueType",),
    },
)
