"""What an operator reads of a store that fails: one line, with what to do."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import pytest

from garlicfarm.errors import StorageDamaged, StorageError
from garlicfarm.storage.tables import storage_error


def test_failed_system_call_is_told_without_repeating_the_path() -> None:
    told = storage_error(PermissionError(errno.EACCES, "Permission denied", "/x/log.db"), Path("/x/log.db"))
    assert type(told) is StorageError
    assert str(told).startswith("/x/log.db: Permission denied; the disk or the system failed")
    assert str(told).endswith("then start the node")


@pytest.mark.parametrize("text", ["*** in database main ***\nPage 9: btreeInitPage() returns error code 11"])
def test_damage_is_told_in_one_line(text: str) -> None:
    told = storage_error(sqlite3.DatabaseError(text), Path("/x/log.db"))
    assert isinstance(told, StorageDamaged)
    assert "*** in database main *** Page 9: btreeInitPage() returns error code 11. Nothing" in str(told)
