"""Cut the power of `parquet_child.py` again and again: ``parquet_power.py MOUNTPOINT ROUNDS [MUTANT]``, in a
mount namespace of its own.

In each round it is killed at a call of the file system, then the power goes; the next one stores the same
batches. Prints how many batches were reported stored, and how many unsynced changes there were, of which a
random part was lost.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from random import Random

import pyarrow
import trio

from tests.crash import powerloss
from tests.spark import parquet_child

MOST_CALLS = 100


def stored(directory: Path, what: str, call: int, mutant: list[str]) -> set[int]:
    """The numbers of the batches that are reported stored."""
    command = [sys.executable, "-m", parquet_child.__name__, str(directory), what, str(call), *mutant]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return {int(line.removeprefix("stored ")) for line in done.stdout.splitlines()}


def check(directory: Path, reported: set[int]) -> None:
    expected = {row["log_index"] for number in reported for row in parquet_child.BATCHES[number]}
    if not expected:
        return
    try:
        found = set(parquet_child.rows(directory)["log_index"].to_pylist())
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise AssertionError(f"rows that were reported stored cannot be read: {error}") from error
    assert expected <= found, f"rows that were reported stored are missing: {sorted(expected - found)}"


async def main(mountpoint: Path, rounds: int, mutant: list[str]) -> None:
    rnd = Random(7)
    unsynced = total = 0
    async with powerloss.mounted(mountpoint) as storage:
        for number in range(rounds):
            directory = mountpoint / f"rankings {number // 3}"
            if not number % 3:
                reported: set[int] = set()
            call = rnd.randint(MOST_CALLS // 2, MOST_CALLS) if number % 3 == 0 else rnd.randint(1, MOST_CALLS)
            what = "compact" if number % 3 == 2 else "write"
            reported |= await trio.to_thread.run_sync(stored, directory, what, call, mutant)
            unsynced += await storage.lose(rnd.choice((0, 0, 0.5)), rnd.getrandbits(32))
            await trio.to_thread.run_sync(partial(check, directory, reported))
            total += len(reported)
    print(total, unsynced)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
