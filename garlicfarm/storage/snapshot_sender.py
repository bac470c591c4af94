"""Snapshots as they are sent: pieces of files that stay readable until they are through."""

from __future__ import annotations

from os import SEEK_END
from pathlib import Path
from typing import BinaryIO

from garlicfarm.storage.snapshots import list_snapshots

__all__ = ["SnapshotSender"]

_MAX_OPEN = 4


class SnapshotSender:
    """Reads pieces of the snapshots in ``directory``. A file that was begun stays open, so that it can be
    sent to its end though newer ones replace it: otherwise a member on a slow path would never get one
    whole. At most four are open; the one begun first is closed for a fifth.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[int, BinaryIO] = {}

    def piece(self, index: int, offset: int, max_bytes: int) -> tuple[bytes, bool] | None:
        """At most ``max_bytes`` from ``offset`` on, and whether they are the last: none, behind the end.
        None if there is no snapshot of ``index``. Raises `OSError`."""
        file = self._open.get(index)
        if file is None:
            path = next((p for p in list_snapshots(self._directory) if p.stem.startswith(f"{index}-")), None)
            if path is None:
                return None
            try:
                file = path.open("rb")
            except FileNotFoundError:  # the thread that deletes older ones was quicker
                return None
            while len(self._open) >= _MAX_OPEN:
                self._open.pop(next(iter(self._open))).close()
            self._open[index] = file
        start, end = self._start(file), file.seek(0, SEEK_END)
        file.seek(min(start + offset, end))  # the receiver names the offset, whatever it is
        data = file.read(max_bytes)
        last = not file.read(1)
        if last:
            self._open.pop(index).close()
        return data, last

    def _start(self, file: BinaryIO) -> int:
        """Where what is sent begins in the file."""
        return 0

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()
