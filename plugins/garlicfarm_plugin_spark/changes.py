"""What a history keeps of a farm: a row for each entry that changes one of five things.

What is compared is a function of the fold's state before and after an entry. So the rows depend on the log
alone, however it was cut into batches, by whichever engine, over whatever restarts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.policy import Order
from garlicfarm_plugin_spark.period import PERIODS_MS

__all__ = ["Key", "changed", "is_later_hour", "key"]

_HOUR_MS = PERIODS_MS["hour"]


class Key(NamedTuple):
    """The state of a farm, as far as a change of it makes a row."""

    publisher: int | None
    holders: tuple[int, ...]
    """members named and not yet released, ascending"""
    recent: list[int]
    """current members that are recent, ascending"""
    order: list[int]
    """all current members, best first"""
    orders: Mapping[str, Order]
    """the administrators' orders in force: each that changes the policy changes them, as its index is new"""
    farm_time_ms: int


_NAMES = ("publisher", "holders", "recency", "order", "policy")


def key(farm: PublisherFold, before: Key | None = None) -> Key:
    """Of the state of ``farm`` now. ``before``: the key before the last entry, for speed."""
    orders: Mapping[str, Order] = farm.policy.orders
    # The fold changes the mapping in place. Most entries do not.
    kept = before.orders if before is not None and before.orders == orders else dict(orders)
    return Key(farm.publisher, farm.holders, farm.recent(), farm.order(), kept, farm.farm_time_ms)


def changed(before: Key, after: Key) -> list[str]:
    """Which of publisher, holders, recency, order and policy differ."""
    if before[:5] == after[:5]:
        return []
    return [name for name, old, new in zip(_NAMES, before, after, strict=False) if old != new]


def is_later_hour(before: Key, after: Key) -> bool:
    """Whether farm time moved on to a later hour. That makes a row too, so that a history has no holes where
    nothing changes for days."""
    return after.farm_time_ms // _HOUR_MS > before.farm_time_ms // _HOUR_MS
