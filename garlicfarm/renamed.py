"""Words and numbers that version 0.1 stored, and those of today: the one place that knows both.

What 0.1 stored is read with today's word: the application in a store, in a snapshot and in a join token, the
role in a users file; and so is the version of the common algorithm. It is written so whenever it is written
again. Configuration and command line take
today's words only; what they say of an old one is `called`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

__all__ = [
    "ALGORITHM_VERSIONS",
    "APPLICATIONS",
    "COMMANDS",
    "EPOCH_LENGTH",
    "ROLES",
    "called",
    "unknown_algorithm",
    "update",
]

ALGORITHM_VERSIONS: Mapping[int, int] = MappingProxyType({1: 2})
"""Versions of the common algorithm: the old one → the one that continues its farms. A log without the keys
and actions that are new gives the same state under both."""

EPOCH_LENGTH = 100_000
"""How many Application entries make an epoch (D23) in a farm of version 0.1, which did not know them; and in
a new one, unless it is made with another length."""

APPLICATIONS: Mapping[str, str] = MappingProxyType({"farm": "publisher"})
"""Applications of a farm: the old word → the new one."""

COMMANDS: Mapping[str, str] = MappingProxyType({"transports": "plugins"})
"""Commands: the old word → the new one."""

ROLES: Mapping[str, str] = MappingProxyType({"poster": "writer"})
"""Roles of a user: the old word → the new one."""


def update(stored: Any, key: str, words: Mapping[Any, Any]) -> Any:
    """A stored record, as JSON was decoded, with today's word or number at ``key``. What is no such record is
    returned as it is: it is checked elsewhere."""
    if isinstance(stored, dict) and type(word := stored.get(key)) in (str, int):
        return {**stored, key: words.get(word, word)}
    return stored


def unknown_algorithm(version: int) -> str:
    """Which other version of the common algorithm this is, in words; "" for that of this program."""
    if version in ALGORITHM_VERSIONS.values():
        return ""
    known = max(ALGORITHM_VERSIONS.values())
    return f"version {version} of the common algorithm; this program has {known}"


def called(word: str, words: Mapping[str, str]) -> str:
    """What to say of an old word of ``words``."""
    return f'"{word}" is called "{words[word]}" since version 0.2'
