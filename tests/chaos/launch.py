"""Runs a node with a wall clock of its own: ``python -m tests.chaos.launch CLOCKS MUTANT node start …``.

``MUTANT`` is what it does wrong (one of `chaos_mutants`), or ``-``. In the directory ``CLOCKS``,
``clock-ID`` holds how many seconds (a double) the wall clock of node ID is off at the moment.

No kernel has a wall clock per process (time namespaces have none), so the clock is Python's: ``time.time``
and ``time.time_ns``, which is where everything in a node has the time of day from, log lines included.
What C libraries ask the kernel themselves is not off. The monotonic clock is left alone.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time
from pathlib import Path

_OFFSET = struct.Struct("d")


class Clock:
    """The file of a clock, shared between the node and whoever sets it; made when there is none."""

    def __init__(self, file: Path) -> None:
        with file.open("a+b") as clock:
            clock.truncate(_OFFSET.size)
            self._shared = mmap.mmap(clock.fileno(), _OFFSET.size)

    @property
    def off_s(self) -> float:
        """How far the clock is off, in seconds."""
        return float(_OFFSET.unpack(self._shared)[0])

    @off_s.setter
    def off_s(self, value: float) -> None:
        _OFFSET.pack_into(self._shared, 0, value)

    def wear(self) -> None:
        """Let this process see this clock."""
        true, true_ns = time.time, time.time_ns
        time.time = lambda: true() + self.off_s
        time.time_ns = lambda: true_ns() + int(self.off_s * 1e9)


def main() -> None:
    clocks, mutated = Path(sys.argv.pop(1)), sys.argv.pop(1)
    node = Path(sys.argv[sys.argv.index("--config") + 1]).parent.name.removeprefix("node-")
    Clock(clocks / f"clock-{node}").wear()

    from garlicfarm.cli import main as cli
    from tests.chaos import chaos_mutants

    if mutated != "-":
        chaos_mutants.MUTANTS[mutated]()
    cli()


if __name__ == "__main__":
    main()
