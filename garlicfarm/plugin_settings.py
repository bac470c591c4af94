"""The settings of plugins: how a field of their ``Config`` says what it means, and what several have."""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = ["Hops", "Quantity", "Settings", "setting"]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plugin's table, in which no other keys may be."""


def setting(meaning: str, *, ge: float | None = None, le: float | None = None) -> msgspec.Meta:
    """What a key means, in a sentence that `garlicfarm plugins` shows, and its least and greatest values."""
    return msgspec.Meta(description=meaning, ge=ge, le=le)


Hops = Annotated[int, msgspec.Meta(ge=0, le=7)]
"""The length of tunnels."""
Quantity = Annotated[int, msgspec.Meta(ge=1, le=16)]
"""Tunnels in each direction."""
