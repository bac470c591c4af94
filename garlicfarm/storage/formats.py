"""The formats of segments that this program knows, and how it refuses what it does not know.

A format belongs to a level of the farm (`garlicfarm.levels`): a segment is written in the newest format that
its level needs, so older programs can read the store until that level is raised.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from garlicfarm._version import __version__
from garlicfarm.errors import StorageVersion
from garlicfarm.levels import HIGHEST, LOWEST


class Format(NamedTuple):
    """``since``: the first release with this format. ``level``: the lowest level whose segments have it."""

    since: str
    level: int


FORMATS = {4: Format("0.2", 0), 5: Format("0.3", 1)}
"""The formats of segments, the oldest first."""


def format_of(level: int) -> int:
    """The format of a segment at ``level``."""
    return max(number for number, known in FORMATS.items() if known.level <= level)


def other_version(path: Path, found: object, known: Collection[int], program: str = "") -> StorageVersion:
    """The refusal of a file of ours in the format ``found``, which is none of those that are ``known``.
    ``program``: the version of garlicfarm that wrote it, "" if that is not known."""
    age = ""
    if isinstance(found, int):
        age = "newer " if found > max(known) else "older "
    use = f"garlicfarm {program} or newer" if program else f"the {age}garlicfarm that wrote it"
    return StorageVersion(
        f"{path} has format version {found}, this program, garlicfarm {__version__}, knows "
        f"{' and '.join(map(str, known))}. Nothing was changed; use {use}"
    )


def other_level(path: Path, level: int, program: str) -> StorageVersion:
    """The refusal of a segment of a level above `HIGHEST`, which garlicfarm ``program`` wrote."""
    return StorageVersion(
        f"{path} is at level {level}, written by garlicfarm {program}; this program, garlicfarm "
        f"{__version__}, can levels {LOWEST} to {HIGHEST}. Nothing was changed; use garlicfarm {program} or "
        "newer"
    )
