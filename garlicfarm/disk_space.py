"""How full the file system of a node's data is: one judgement, for the node and for `garlicfarm doctor`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal, NamedTuple

NEARLY_FULL, FULL = 0.8, 0.9
RESERVE_BYTES = 64 << 20
REMEDY = "make room, or lower keep_entries and keep_bytes in [farm.retention]"


class DiskSpace(NamedTuple):
    """Bytes of one file system. What it keeps for root is neither ``taken`` nor ``free``, as ``df`` has it.
    ``path``: a directory on it."""

    path: Path
    taken: int
    free: int

    @property
    def used(self) -> float:
        """The part that is taken, 0 … 1."""
        return self.taken / max(1, self.taken + self.free)

    @property
    def state(self) -> Literal["ok", "note", "problem"]:
        return "problem" if self.used >= FULL else "note" if self.used >= NEARLY_FULL else "ok"

    @property
    def reserve(self) -> int:
        """So many bytes are kept for what the farm itself needs; on a small file system a twentieth."""
        return min(RESERVE_BYTES, (self.taken + self.free) // 20)

    def __str__(self) -> str:
        gigabytes = f"{self.free / 1e9:.1f} GB are free"
        return f"the file system of {self.path} is {self.used:.0%} full, {gigabytes}"


def disk_space(path: Path) -> DiskSpace:
    """How full the file system of ``path`` is now. Blocking, as long as a network file system takes. Raises
    `OSError`."""
    _, taken, free = shutil.disk_usage(path)
    return DiskSpace(path, taken, free)
