"""The order to leave a farm, kept in the directory of its store.

A leader may have removed this member, and told it so, without its having heard of the commit. After a restart
it must not campaign against the members that stay."""

from __future__ import annotations

from pathlib import Path

from garlicfarm.durable_files import fsync_path, replace_file
from garlicfarm.errors import StorageError

_NAME = "leave-order"


def has_leave_order(directory: Path) -> bool:
    """Whether a farm's leader told this member to leave. ``directory``: of the farm's store."""
    return (directory / _NAME).exists()


def keep_leave_order(directory: Path, term: int) -> None:
    """Keep that the leader of ``term`` told this member to leave; durable on return. Raises
    `StorageError`."""
    try:
        replace_file(directory / _NAME, [b"of the leader of term %d\n" % term], 0o600)
    except OSError as error:
        raise StorageError(f"cannot write {directory / _NAME}: {error.strerror}") from error


def forget_leave_order(directory: Path) -> None:
    """Forget the order, if there is one; durable on return. Raises `StorageError`."""
    try:
        if has_leave_order(directory):
            (directory / _NAME).unlink()
            fsync_path(directory)
    except OSError as error:
        raise StorageError(f"cannot delete {directory / _NAME}: {error.strerror}") from error
