"""What is wrong with a store: the disk or the system, or its contents."""

from __future__ import annotations

import os
import struct
from collections.abc import Collection
from pathlib import Path

from garlicfarm._version import __version__
from garlicfarm.errors import RemoteProtocolError, StorageDamaged, StorageError, StorageVersion
from garlicfarm.regular_files import IrregularFile
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import Configuration

_NAMED = 5


class Corrupt(Exception):
    """One of our checks failed."""


def storage_error(error: Exception, path: Path) -> StorageError:
    """Map a failure: `StorageError` if the disk or the system failed, `StorageDamaged` if the contents are
    wrong."""
    if isinstance(error, IrregularFile):
        return StorageError(f"{error.filename}: {error.strerror}. Nothing was changed; move it away")
    cause = getattr(error, "strerror", None) or str(error)
    if isinstance(error, OSError | struct.error):
        return StorageError(
            f"{path}: {cause}; the disk or the system failed, and nothing is tried again: repair that, then "
            "start the node"
        )
    return StorageDamaged(
        f"{path} is damaged: {cause}. Nothing was changed; remove the member from the farm and enrol it "
        "under a new id, since one that forgot something can undo what was acknowledged"
    )


def unknown_files(directory: Path, known: Collection[str]) -> StorageVersion | None:
    """The refusal of a directory without a store, but with files beside the ``known`` ones; None if there are
    none. Raises `OSError`."""
    names = sorted({*os.listdir(directory)} - {*known}) if directory.exists() else []
    if not names:
        return None
    told = ", ".join(names[:_NAMED]) + (", …" if names[_NAMED:] else "")
    return StorageVersion(
        f"{directory} holds {told}, which this program, garlicfarm {__version__}, does not know: another "
        "version or another program wrote that. Nothing was changed; use the program that wrote it, or name "
        "another directory"
    )


def configuration_of(value: bytes) -> Configuration:
    """The Configuration in a stored value. Raises `Corrupt`."""
    try:
        return decode_configuration(value)
    except RemoteProtocolError as error:
        raise Corrupt(f"a stored Configuration cannot be decoded: {error}") from error
