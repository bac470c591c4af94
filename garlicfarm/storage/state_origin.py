"""Whose snapshot a member has restored last (D26), kept in the directory of the farm's store.

It is written before the snapshot gets its name. So a state of another member is never taken for an own one.
"""

from __future__ import annotations

from pathlib import Path

from garlicfarm.durable_files import replace_file
from garlicfarm.errors import StorageDamaged, StorageError
from garlicfarm.regular_files import read_file

ORIGIN = "origin"


def read_origin(directory: Path) -> int:
    """The member, 0: none since the members compare what they hold. ``directory``: of the farm's store.
    Raises `StorageError`, `StorageDamaged`."""
    path = directory / ORIGIN
    try:
        text = read_file(path)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    if not (text.endswith(b"\n") and text[:-1].isdigit() and 0 < int(text) < 2**31):
        raise StorageDamaged(
            f"{path} is damaged: it names no member. Write the id of the member whose snapshot this one "
            "restored last into it, or that of any other member"
        )
    return int(text)


def keep_origin(directory: Path, member: int) -> None:
    """Keep that the member's snapshot is about to be restored; durable on return. Raises `OSError`."""
    replace_file(directory / ORIGIN, [b"%d\n" % member], 0o600)
