"""Sending snapshots: pieces of files that stay open until they are sent completely."""

from __future__ import annotations

import os
from os import SEEK_END
from pathlib import Path
from typing import BinaryIO

from garlicfarm.regular_files import open_file
from garlicfarm.storage.snapshots import list_snapshots

_MAX_OPEN = 4


class SnapshotSender:
    """Reads pieces of the snapshots in ``directory``. Once begun, a file stays open and can be sent to its
    end even if newer ones replace it: otherwise a member on a slow path would never receive a complete one.
    At most four files are open; for a fifth, the one begun first is closed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[int, BinaryIO] = {}

    def piece(self, index: int, offset: int, max_bytes: int) -> tuple[bytes, bool] | None:
        """At most ``max_bytes`` from ``offset`` on (none beyond the end), and whether they are the last ones.
        None if there is no snapshot of ``index``. Raises `OSError`."""
        file = self._open.get(index)
        if file is None:
            path = next((p for p in list_snapshots(self._directory) if p.stem.startswith(f"{index}-")), None)
            if path is None:
                return None
            try:
                file = os.fdopen(open_file(path), "rb")
            except FileNotFoundError:  # deleted by another thread meanwhile
                return None
            while len(self._open) >= _MAX_OPEN:
                self._open.pop(next(iter(self._open))).close()
            self._open[index] = file
        start, end = self._start(file), file.seek(0, SEEK_END)
        file.seek(min(start + offset, end))  # the receiver chooses the offset
        data = file.read(max_bytes)
        last = not file.read(1)
        if last:
            self._open.pop(index).close()
        return data, last

    def _start(self, file: BinaryIO) -> int:
        """The position in the file at which the sent bytes begin."""
        return 0

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()
