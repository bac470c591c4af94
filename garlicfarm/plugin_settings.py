"""The settings of plugins: how a field of their ``Config`` says what it means, and what several have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec

from garlicfarm.errors import ConfigError


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plugin's table, in which no other keys may be."""


def setting(meaning: str, *, ge: float | None = None, le: float | None = None) -> msgspec.Meta:
    """What a key means, in a sentence that `garlicfarm plugins` shows, and its least and greatest values."""
    return msgspec.Meta(description=meaning, ge=ge, le=le)


@contextmanager
def collect_problems(problems: list[str], where: str) -> Iterator[None]:
    """Add the problems of a `ConfigError` in the block to ``problems``, behind ``where``."""
    try:
        yield
    except ConfigError as error:
        problems += [f"{where}: {problem}" for problem in error.problems]


Hops = Annotated[int, msgspec.Meta(ge=0, le=7)]
"""The length of tunnels."""
Quantity = Annotated[int, msgspec.Meta(ge=1, le=16)]
"""Tunnels in each direction."""
