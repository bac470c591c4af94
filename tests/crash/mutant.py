"""Runs a node that acknowledges before it has synced: ``python -m tests.crash.mutant NAME node start …``.

The crash test on storage that loses unsynced writes has to find every one of them.
"""

from __future__ import annotations

import os
import sys
from collections import deque

from garlicfarm.cli import main

BEHIND = 20


def never_sync() -> None:
    """Batches are written, and not synced."""
    setattr(os, "fdatasync", lambda descriptor: None)  # noqa: B010


def report_before_the_write() -> None:
    """Batches are reported at once, and written once twenty more are: never are all of them on disk."""
    write = os.pwrite
    waiting: deque[tuple[int, bytes | bytearray, int]] = deque()

    def write_later(file: int, data: bytes | bytearray, offset: int) -> int:
        waiting.append((file, data, offset))
        while len(waiting) > 2 * BEHIND:  # each time the frame, and how far all is synced
            write(*waiting.popleft())
        return len(data)

    setattr(os, "pwrite", write_later)  # noqa: B010


MUTANTS = {"unsynced": never_sync, "early": report_before_the_write}

if __name__ == "__main__":
    MUTANTS[sys.argv.pop(1)]()
    main()
