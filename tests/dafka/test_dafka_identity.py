"""The identity of a producer: its partition goes on, and nothing that it took is lost or sent as another."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import trio

from garlicfarm.cli import run
from garlicfarm.cli.exits import Exit
from garlicfarm.errors import StorageDamaged, StorageError, StorageInUse, StorageVersion
from garlicfarm_plugin_dafka import MeshConfig, open_consumer, open_store
from garlicfarm_plugin_dafka.consumer import run_consumer
from garlicfarm_plugin_dafka.consumer_core import ConsumerCore
from garlicfarm_plugin_dafka.identity import ProducerIdentity
from garlicfarm_plugin_dafka.producer import DafkaProducer, run_producer
from garlicfarm_plugin_dafka.producer_core import Backlog
from garlicfarm_plugin_dafka.store import run_store
from tests.dafka.cores import producer as producer_core
from tests.dafka.memory_network import MemoryNetwork, MemoryNode


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "producer.db"


def test_file_keeps_the_partition_and_what_is_not_acknowledged(path: Path) -> None:
    with closing_at(ProducerIdentity(path, "t"), 0) as identity:
        assert (identity.first, identity.next, identity.contents) == (0, 0, [])
        partition = identity.partition
        identity.append(0, [b"a", b"b"], 0)
        identity.append(2, [b"c"], 1)
    assert path.stat().st_mode & 0o777 == 0o600
    with closing_at(ProducerIdentity(path, "t"), 3) as identity:
        assert (identity.partition, identity.first, identity.contents) == (partition, 1, [b"b", b"c"])
    with closing_at(ProducerIdentity(path, "t"), 3) as identity:
        assert (identity.first, identity.next, identity.contents) == (3, 3, [])


class closing_at:
    def __init__(self, identity: ProducerIdentity, acked: int) -> None:
        self.identity, self.acked = identity, acked

    def __enter__(self) -> ProducerIdentity:
        return self.identity

    def __exit__(self, *error: object) -> None:
        self.identity.close(self.acked)


def test_file_is_used_by_one_producer_of_one_topic(path: Path) -> None:
    with (
        closing_at(ProducerIdentity(path, "t"), 0),
        pytest.raises(StorageInUse, match="in use by another producer"),
    ):
        ProducerIdentity(path, "t")
    with pytest.raises(StorageDamaged, match="of a producer of 't'; name another file"):
        ProducerIdentity(path, "u")
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 2")
    with pytest.raises(StorageVersion, match="has version 2, and this program knows 1"):
        ProducerIdentity(path, "t")


def test_what_is_no_identity_is_refused_and_kept(path: Path, tmp_path: Path) -> None:
    path.write_bytes(b"no database" * 100)
    with pytest.raises(StorageDamaged, match="holds no identity of a producer"):
        ProducerIdentity(path, "t")
    assert path.read_bytes() == b"no database" * 100
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as database:
        database.execute("CREATE TABLE mine (x)")
    with pytest.raises(StorageDamaged, match="holds no identity of a producer"):
        ProducerIdentity(other, "t")
    os.mkfifo(tmp_path / "fifo")
    for wrong in ("fifo", "."):
        with pytest.raises(StorageError, match="not a regular file"):
            ProducerIdentity(tmp_path / wrong, "t")


async def _open(
    nursery: trio.Nursery, node: MemoryNode, identity: ProducerIdentity, **options: int
) -> tuple[DafkaProducer, trio.CancelScope]:
    scope = trio.CancelScope()

    async def task(task_status: trio.TaskStatus[DafkaProducer]) -> None:
        with scope:
            backlog = Backlog(identity.first, identity.contents)
            core = producer_core(partition=identity.partition, backlog=backlog, **options)
            async with run_producer(node, core, identity) as producer:
                task_status.started(producer)
                await trio.sleep_forever()

    return await nursery.start(task), scope


async def test_later_producer_sends_what_no_store_had_and_goes_on(path, tmp_path, nursery):
    network = MemoryNetwork()
    first = ProducerIdentity(path, "t")
    producer, scope = await _open(nursery, network.node("one"), first)
    assert await producer.send(b"a") == 0
    assert await producer.send_many([b"b", b"c"]) == 3
    scope.cancel()
    first.close(0)  # which deletes nothing
    network.remove(network.nodes[0])

    identity = ProducerIdentity(path, "t")
    async with (
        run_store(network.node("s"), tmp_path / "store"),
        run_consumer(network.node("c"), ConsumerCore("c", ["t"])) as consumer,
    ):
        producer, scope = await _open(nursery, network.node("two"), identity)
        assert (producer.first, producer.next_sequence, producer.partition) == (0, 3, first.partition)
        assert await producer.send(b"d") == 3
        await producer.wait_acked()
        records = [await anext(consumer) for _ in range(4)]
        assert [(each.partition, each.sequence, each.content) for each in records] == [
            (first.partition, number, content) for number, content in enumerate([b"a", b"b", b"c", b"d"])
        ]
        scope.cancel()
    identity.close(producer.acked)
    with closing_at(ProducerIdentity(path, "t"), 4) as last:
        assert (last.first, last.next) == (4, 4)


async def test_record_is_in_the_file_before_anybody_can_hear_of_it(path, nursery, monkeypatch):
    node = MemoryNetwork().node("one")
    identity = ProducerIdentity(path, "t")
    producer, _ = await _open(nursery, node, identity)
    append = identity.append

    def failing(first: int, contents: object, acked: int) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(identity, "append", failing)
    with pytest.raises(StorageError):
        await producer.send(b"lost")
    await trio.sleep(1.5)
    assert node.sent == []
    monkeypatch.setattr(identity, "append", append)
    assert await producer.send(b"other") == 0
    identity.close(0)


async def test_producer_with_an_identity_keeps_no_more_than_it_may(path: Path, nursery: trio.Nursery) -> None:
    identity = ProducerIdentity(path, "t")
    producer, _ = await _open(nursery, MemoryNetwork().node("one"), identity, limit_records=3)
    with trio.move_on_after(0.5):
        await producer.send_many(b"%d" % n for n in range(5))
    assert producer.next_sequence == 3
    identity.close(0)


LINES = 3000


@pytest.mark.slow
async def test_produce_that_is_killed_loses_and_repeats_nothing_that_it_had_taken(tower, tmp_path, path):
    """Each run is killed somewhere; the last one ends. What was kept is there once, in order."""
    url = str(tower.endpoint)
    command = [sys.executable, "-m", "garlicfarm", "dafka", "produce", "t", "--tower", url]
    command += ["--identity", str(path), "-q"]
    kept, config = 0, MeshConfig(towers=(url,))
    while kept < LINES:
        process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdin is not None
        await process.stdin.send_all(b"".join(b"%d\n" % n for n in range(kept, kept + 1000)))
        before = _size(path)
        while _size(path) <= before:  # noqa: ASYNC110
            await trio.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        with closing_at(ProducerIdentity(path, "t"), 0) as identity:
            kept = identity.next
    async with open_store(config, tmp_path / "store"), open_consumer(config, ["t"]) as consumer:
        last = await trio.run_process(
            [*command, "--timeout", "200s"], stdin=b"", capture_stderr=True, check=False
        )
        assert last.returncode == 0, last.stderr
        found = [await anext(consumer) for _ in range(kept)]
    assert {record.partition for record in found} == {identity.partition}
    assert [int(record.content) for record in found] == [*range(kept)]


def _size(path: Path) -> int:
    """Grows with what is kept."""
    files = (path, path.with_name(f"{path.name}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def test_produce_refuses_a_file_that_is_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "text"
    wrong.write_text("no database, but text, which is longer than a header of SQLite would be" * 3)
    arguments = ["dafka", "produce", "t", "--tower", "tcp://127.0.0.1:1?out=2", "--identity", str(wrong)]
    assert run(arguments) == Exit.STORAGE
    assert "holds no identity of a producer" in capfd.readouterr().err
