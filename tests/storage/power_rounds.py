"""Cut the power of `compaction_child.py` again and again: ``python -m tests.storage.power_rounds MOUNTPOINT
ROUNDS``, in a mount namespace of its own. Prints the last index reported, the first index, and how many
unsynced changes there were, of which a random part was lost.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import trio

from garlicfarm.storage import Genesis, create_store
from garlicfarm.wire import ClusterServer, Configuration
from tests.crash import powerloss
from tests.storage import compaction_child

CHILD = (sys.executable, compaction_child.__file__)


def run_until_killed(directory: Path, lines: int) -> int:
    """The last index that was reported durable."""
    with subprocess.Popen([*CHILD, str(directory)], stdout=subprocess.PIPE) as child:
        told = [child.stdout.readline() for _ in range(lines)]
        child.kill()
        told += child.stdout.readlines()
    return int([line for line in told if line.endswith(b"\n")][-1].split()[1])


async def main(mountpoint: Path, rounds: int) -> None:
    rnd = random.Random(4)
    unsynced = reported = first = 0
    async with powerloss.mounted(mountpoint) as storage:
        directory = mountpoint / "farm"
        genesis = Genesis(
            "farm", b"farm-id-16-bytes", "log", 2, Configuration(0, 0, (ClusterServer(1, "ssl://a:1"),))
        )
        await trio.to_thread.run_sync(create_store, directory, genesis)
        for _ in range(rounds):
            reported = await trio.to_thread.run_sync(run_until_killed, directory, rnd.randint(5, 30))
            unsynced += await storage.lose(rnd.choice((0, 0.5, 0.9)), rnd.getrandbits(32))
            first = await trio.to_thread.run_sync(compaction_child.check, directory, reported)
    print(reported, first, unsynced)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]))
