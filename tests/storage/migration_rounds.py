"""Cut the power at each call of a migration: ``python -m tests.storage.migration_rounds MOUNTPOINT``, in a
mount namespace of its own. Prints how often it was cut, and how many unsynced changes there were, of which a
random part was lost. Then the disk is full.
"""

from __future__ import annotations

import itertools
import shutil
import sys
from contextlib import closing
from pathlib import Path
from random import Random

import trio

from garlicfarm.storage import LogStore
from tests.crash import powerloss
from tests.storage.mixed_store import (
    Contents,
    contents_of,
    finish,
    is_there,
    make_mixed_store,
    process,
    small_pieces,
)


def open_until(directory: Path, dies_at: int) -> bool:
    """Whether the process came to that call."""
    with small_pieces(), process(dies_at) as has_come:
        LogStore.open(directory, farm="farm").close()
    return has_come()


def check(directory: Path, expected: Contents) -> None:
    with small_pieces():
        is_there(directory)
        finish(directory, expected)
    shutil.rmtree(directory)


def open_without_room(directory: Path, expected: Contents) -> None:
    with closing(LogStore.open(directory, farm="farm")) as store:
        assert "No space left on device. It is used as it is" in store.not_migrated
        assert contents_of(store) == expected


async def main(mountpoint: Path) -> None:
    rnd, rounds, unsynced, directory = Random(6), 0, 0, mountpoint / "farm"
    async with powerloss.mounted(mountpoint) as storage:
        for dies_at in itertools.count(1):
            for keep in (0.0, 0.5):
                expected = await trio.to_thread.run_sync(make_mixed_store, directory)
                has_come = await trio.to_thread.run_sync(open_until, directory, dies_at)
                unsynced += await storage.lose(keep, rnd.getrandbits(32))
                await trio.to_thread.run_sync(check, directory, expected)
                rounds += 1
            if not has_come:
                break
        expected = await trio.to_thread.run_sync(make_mixed_store, directory)
        await storage.fail("full")
        await trio.to_thread.run_sync(open_without_room, directory, expected)
        await storage.fail("none")
        await trio.to_thread.run_sync(check, directory, expected)
    print(rounds, unsynced)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
