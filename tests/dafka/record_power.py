"""Cut the power of `record_child.py` again and again: ``python -m tests.dafka.record_power MOUNTPOINT ROUNDS
[MUTANT]``, in a mount namespace of its own. In every second round the syncs fail before the power does.

Of the unsynced changes a random part is lost.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import trio

from tests.crash import powerloss
from tests.dafka import record_child

CHILD = (sys.executable, record_child.__file__)
ENDLESS = 1_000_000


class Process:
    """The child, and what it reported saved."""

    def __init__(
        self, directory: Path, seed: int, batches: int, mutant: list[str], reported: dict[str, int]
    ) -> None:
        command = [*CHILD, str(directory), str(seed), str(batches), *mutant]
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._reported = reported
        self.has_failed = False

    def read(self, lines: int) -> None:
        """That many lines."""
        assert self._child.stdout is not None
        for _ in range(lines):
            self._take(self._child.stdout.readline())

    def kill(self) -> None:
        self._child.kill()
        self.wait()

    def wait(self) -> None:
        """Until it ends."""
        assert self._child.stdout is not None
        for line in self._child.stdout.readlines():
            self._take(line)
        self._child.stdout.close()
        self._child.wait()

    def _take(self, line: bytes) -> None:
        if line.startswith(b"StorageError"):
            self.has_failed = True
        elif line.endswith(b"\n"):
            _, name, upto = line.split()
            self._reported[name.decode()] = int(upto)


async def main(mountpoint: Path, rounds: int, mutant: list[str]) -> None:
    rnd = Random(4)
    run = trio.to_thread.run_sync
    unsynced = held = 0
    reported: dict[str, int] = {}
    async with powerloss.mounted(mountpoint) as storage:
        directory = mountpoint / "store"
        for number in range(rounds):
            child = await run(Process, directory, number, ENDLESS, mutant, reported)
            await run(child.read, rnd.randint(3, 60))
            keep = rnd.choice((0, 0.5, 0.9))
            if number % 2:
                keep = 0
                await storage.fail("sync")
                await run(child.wait)
                assert child.has_failed
                await storage.fail("none")
                # It says what it takes for saved; a commit would sync what it did before.
                child = await run(Process, directory, number, 0, mutant, reported)
                await run(child.read, 2)
            await run(child.kill)
            unsynced += await storage.lose(keep, rnd.getrandbits(32))
            held = await run(record_child.check, directory, reported)
    assert 0 < held < sum(reported.values()), "retention deleted none, or all"
    assert unsynced, "there was nothing to lose"


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
