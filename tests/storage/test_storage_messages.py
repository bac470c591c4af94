"""What an operator reads of a store that fails: one line, with what to do."""

from __future__ import annotations

import errno
from pathlib import Path

from garlicfarm.errors import StorageDamaged, StorageError
from garlicfarm.storage.damage import Corrupt, storage_error


def test_failed_system_call_is_told_without_repeating_the_path() -> None:
    told = storage_error(PermissionError(errno.EACCES, "Permission denied", "/x/log"), Path("/x/log"))
    assert type(told) is StorageError
    assert str(told).startswith("/x/log: Permission denied; the disk or the system failed")
    assert str(told).endswith("then start the node")


def test_damage_is_told_with_its_cause() -> None:
    told = storage_error(Corrupt("entry 9 is missing"), Path("/x/log"))
    assert isinstance(told, StorageDamaged)
    assert str(told).startswith("/x/log is damaged: entry 9 is missing. Nothing was changed")
