"""Cut the power of a store again and again while it is produced for: ``python -m tests.dafka.store_power
MOUNTPOINT ROUNDS [MUTANT]``, in a mount namespace of its own. What was acknowledged to the producer has to
be there. All unsynced changes are lost.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import trio

from garlicfarm_plugin_dafka import MeshConfig, open_producer
from garlicfarm_plugin_dafka.producer import DafkaProducer
from garlicfarm_plugin_dafka.record_files import RecordFiles, RecordReader
from tests.crash import powerloss
from tests.dafka.meshes import plain_tower

COMMAND = [sys.executable, "-m", "garlicfarm", "dafka"]
MUTATED = [sys.executable, "-m", "tests.dafka.store_mutant"]
RECORDS = 300  # to be acknowledged in each round


def content(sequence: int) -> bytes:
    return b"record %d" % sequence


@asynccontextmanager
async def running(command: list[str], directory: Path, url: str) -> AsyncIterator[None]:
    """A store, killed at the end of the block."""
    async with trio.open_nursery() as nursery:
        kill = partial(trio.run_process, check=False, deliver_cancel=_kill)
        nursery.start_soon(kill, [*command, "store", str(directory), "--tower", url, "-q"])
        yield
        nursery.cancel_scope.cancel()


async def _kill(process: trio.Process) -> None:
    process.kill()


async def produce(producer: DafkaProducer) -> None:
    while True:
        first = producer.next_sequence
        await producer.send_many(map(content, range(first, first + 10)))
        await trio.sleep(0.005)


def check(directory: Path, partition: str, acked: int) -> None:
    with closing(RecordFiles(directory)) as files, closing(RecordReader(files)) as reader:
        found = {each.partition: each.next for each in files.partitions()}
        assert found.get(partition, 0) >= acked, f"record {acked - 1} is missing"
        contents = reader.read("t", partition, 0, acked, max_bytes=1 << 40)
        assert list(contents) == [content(sequence) for sequence in range(acked)]


async def main(mountpoint: Path, rounds: int, mutant: list[str]) -> None:
    command = [*MUTATED, *mutant] if mutant else COMMAND
    directory = mountpoint / "store"
    unsynced = acked = 0
    async with powerloss.mounted(mountpoint) as storage, plain_tower() as tower:
        url = str(tower.endpoint)
        async with open_producer(MeshConfig(towers=(url,)), "t") as producer, trio.open_nursery() as nursery:
            nursery.start_soon(produce, producer)
            for number in range(rounds):
                async with running(command, directory, url):
                    while producer.acked < acked + RECORDS:  # noqa: ASYNC110 - another process
                        await trio.sleep(0.01)
                acked = producer.acked
                unsynced += await storage.lose(0, number)
                await trio.to_thread.run_sync(check, directory, producer.partition, acked)
            nursery.cancel_scope.cancel()
    assert unsynced, "there was nothing to lose"


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
