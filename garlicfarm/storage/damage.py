"""What is wrong with a store: the disk or the system, or its contents."""

from __future__ import annotations

import struct
from pathlib import Path

from garlicfarm.errors import RemoteProtocolError, StorageDamaged, StorageError
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import Configuration

__all__ = ["Corrupt", "configuration_of", "storage_error"]


class Corrupt(Exception):
    """One of our checks failed."""


def storage_error(error: Exception, path: Path) -> StorageError:
    """Map a failure: `StorageError` if the disk or the system failed, `StorageDamaged` if the contents are
    wrong."""
    cause = getattr(error, "strerror", None) or str(error)
    if isinstance(error, OSError | struct.error):
        return StorageError(
            f"{path}: {cause}; the disk or the system failed, and nothing is tried again: mend that, then "
            "start the node"
        )
    return StorageDamaged(
        f"{path} is damaged: {cause}. Nothing was changed; remove the member from the farm and enrol it "
        "under a new id, since one that forgot something can undo what was acknowledged"
    )


def configuration_of(value: bytes) -> Configuration:
    """The Configuration in a stored value. Raises `Corrupt`."""
    try:
        return decode_configuration(value)
    except RemoteProtocolError as error:
        raise Corrupt(f"a stored Configuration cannot be decoded: {error}") from error
