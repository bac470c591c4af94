"""The Trio shells of the roles, on nodes in memory."""

from __future__ import annotations

import json
import os
from contextlib import closing

import pytest
import trio

from garlicfarm.errors import FellBehind, LocalProtocolError, StorageDamaged, StorageError, StorageInUse
from garlicfarm_plugin_dafka import consumer as consumer_module
from garlicfarm_plugin_dafka.codec import Ack, Fetch, Head, Record
from garlicfarm_plugin_dafka.consumer import run_consumer
from garlicfarm_plugin_dafka.consumer_core import ConsumerCore, ReceivedRecord
from garlicfarm_plugin_dafka.offsets import OffsetsFile
from garlicfarm_plugin_dafka.producer import MAX_CONTENT_BYTES, run_producer
from garlicfarm_plugin_dafka.record_files import RecordFiles
from garlicfarm_plugin_dafka.store import Retention, run_store
from garlicfarm_plugin_dafka.store_core import SavedPartition, Unsaved
from tests.dafka.cores import producer as producer_core
from tests.dafka.memory_network import MemoryNetwork

pytestmark = pytest.mark.usefixtures("no_threads")


def fill(directory, first: int, end: int, partition: str = "p", now_ms: int = 0) -> None:
    with closing(RecordFiles(directory)) as files:
        files.save([Unsaved("t", partition, first, [b"%d" % n for n in range(first, end)])], now_ms)


async def read(consumer, number: int) -> list[int]:
    return [(await anext(consumer)).sequence for _ in range(number)]


async def test_a_record_is_stored_acknowledged_and_read(network, autojump_clock, tmp_path):
    async with (
        run_store(network.node("s"), tmp_path) as store,
        run_producer(network.node("p"), producer_core()) as producer,
        run_consumer(network.node("c"), ConsumerCore("c", ["t"])) as consumer,
    ):
        await trio.testing.wait_all_tasks_blocked()
        assert await producer.send(b"one") == 0
        assert await producer.send_many([b"two", b"three"]) == 3
        await producer.wait_acked()
        assert (producer.acked, producer.next_sequence) == (3, 3)
        assert store.partitions() == [SavedPartition("t", "p", 0, 3)]
        contents = [(await anext(consumer)).content for _ in range(3)]
        assert contents == [b"one", b"two", b"three"]
        assert consumer.offsets() == {("t", "p"): 3}


async def test_a_role_hears_what_it_provokes_with_its_first_command(autojump_clock, tmp_path):
    # A C store acknowledges once: the producer has to be subscribed by then.
    network = MemoryNetwork()
    async with run_producer(network.node("p"), producer_core()):
        assert network.nodes[0].prefixes == {b"Kp", b"Fp", b"Gt", b"Ep"}
    async with (
        run_consumer(network.node("c"), ConsumerCore("c", ["t"])),
        run_store(network.node("s"), tmp_path),
    ):
        assert network.nodes[1].prefixes == {b"Mt", b"Ht", b"Dc", b"Ec", b"Tc", b"Lc"}
        assert network.nodes[2].prefixes == {b"M", b"H", b"G", b"F", b"Ds", b"Ts", b"Ws"}


async def test_a_slow_consumer_holds_no_more_than_it_may_and_loses_nothing(
    autojump_clock, tmp_path, monkeypatch
):
    monkeypatch.setattr(consumer_module, "_MAX_BUFFERED", 100)
    network = MemoryNetwork()
    node = network.node("c", limit=4500)
    async with (
        run_store(network.node("s", limit=1 << 20), tmp_path),
        run_producer(network.node("p"), producer_core(limit_records=1 << 20)) as producer,
        run_consumer(node, ConsumerCore("c", ["t"])) as consumer,
    ):
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(10):
            await producer.send_many([b"x"] * 1000)
            await trio.sleep(0.1)
        await producer.wait_acked()
        fetches = sum(isinstance(command, Fetch) for command in node.sent)
        await trio.sleep(100)  # nobody reads: nothing is fetched in vain
        assert sum(isinstance(command, Fetch) for command in node.sent) == fetches
        waiting = [record.sequence for record in await consumer.receive()]
        assert len(waiting) < 1200
        assert waiting + await read(consumer, 10_000 - len(waiting)) == [*range(10_000)]


async def test_a_producer_waits_for_room_until_a_store_has_acknowledged(network, autojump_clock, tmp_path):
    async with run_producer(network.node("p"), producer_core(limit_records=3)) as producer:
        with trio.move_on_after(10) as scope:
            await producer.send_many([b"x"] * 5)
        assert scope.cancelled_caught
        assert producer.next_sequence == 3
        async with run_store(network.node("s"), tmp_path):
            assert await producer.send_many([b"x"] * 5) == 8
            await producer.wait_acked()


async def test_a_producer_whose_acks_all_get_lost_learns_what_is_saved(autojump_clock, tmp_path):
    # A C store sends each ACK once, so all of them can get lost.
    network = MemoryNetwork()
    network.loses = lambda sender, recipient, command: isinstance(command, Ack)
    async with (
        run_producer(network.node("p"), producer_core(limit_records=3)) as producer,
        run_store(network.node("s"), tmp_path) as store,
    ):
        with trio.fail_after(60):
            assert await producer.send_many([b"x"] * 5) == 5
            await producer.wait_acked()
        assert store.partitions() == [SavedPartition("t", "p", 0, 5)]


async def test_two_stores_are_two_by_their_connections(network, autojump_clock, tmp_path):
    async with (
        run_producer(network.node("p"), producer_core(acks=2)) as producer,
        run_store(network.node("s1"), tmp_path / "1"),
    ):
        await producer.send(b"x")
        await trio.sleep(10)
        assert producer.acked == 0
        async with run_store(network.node("s2"), tmp_path / "2"):
            await producer.wait_acked()


async def test_a_record_that_is_too_large_is_refused(autojump_clock):
    async with run_producer(MemoryNetwork().node("p"), producer_core()) as producer:
        with pytest.raises(LocalProtocolError):
            await producer.send(bytes(MAX_CONTENT_BYTES + 1))
        assert producer.next_sequence == 0


async def test_what_cannot_be_saved_is_not_acknowledged_and_ends_the_store(
    network, autojump_clock, tmp_path, monkeypatch
):
    node = network.node("s")

    def fail(*arguments):
        raise StorageError("the disk is full")

    monkeypatch.setattr(RecordFiles, "save", fail)
    async with run_producer(network.node("p"), producer_core()) as producer:
        with pytest.RaisesGroup(pytest.RaisesExc(StorageError), flatten_subgroups=True):
            async with run_store(node, tmp_path):
                await trio.testing.wait_all_tasks_blocked()
                await producer.send(b"x")
                await trio.sleep(10)
    assert not any(isinstance(command, Ack) for command in node.sent)


async def test_a_damaged_record_is_told_and_the_others_are_served(autojump_clock, tmp_path, caplog):
    fill(tmp_path, 0, 3, "sound")
    fill(tmp_path, 0, 3, "broken")
    fill(tmp_path, 3, 4, "broken")
    path = tmp_path / "records.sqlite"
    data = path.read_bytes()
    at = data.rindex(b"\x93\xc4\x010\xc4\x011")  # of three records
    path.write_bytes(data[: at + 3] + b"8" + data[at + 4 :])
    network = MemoryNetwork()
    async with (
        run_store(network.node("s"), tmp_path),
        run_consumer(network.node("c"), ConsumerCore("c", ["t"])) as consumer,
    ):
        found = [(await anext(consumer)).partition for _ in range(3)]
        await trio.sleep(5)
    assert found in (["sound"] * 3, ["broken"] * 3)
    told = [vars(record)["garlicfarm_fields"] for record in caplog.records if record.levelname == "ERROR"]
    assert "records 0 to 2 of topic t, partition" in told[0]["error"]


async def test_retention_shows_in_the_tail_and_spares_who_lives(autojump_clock, tmp_path):
    fill(tmp_path, 0, 5, "p", now_ms=0)
    fill(tmp_path, 0, 5, "dead", now_ms=0)
    fill(tmp_path, 5, 8, "p", now_ms=50_000)
    network = MemoryNetwork()
    core = producer_core()
    for _ in range(8):
        core.append(b"", 0.0)
    async with (
        run_store(
            network.node("s"), tmp_path, retention=Retention(max_age_s=100), wall_clock_s=trio.current_time
        ) as store,
        run_producer(network.node("p"), core),
    ):
        await trio.sleep(90)
        assert len(store.partitions()) == 2
        await trio.sleep(30)
        assert store.partitions() == [SavedPartition("t", "p", 5, 8)]
        await trio.sleep(1000)
        assert store.partitions() == [SavedPartition("t", "p", 5, 8)]


async def test_records_that_all_stores_have_deleted_raise_and_the_others_go_on(autojump_clock, tmp_path):
    fill(tmp_path, 7, 10)
    network = MemoryNetwork()
    node = network.node("c")
    async with run_store(network.node("s"), tmp_path):
        async with (
            run_consumer(node, ConsumerCore("c", ["t"], offsets={("t", "p"): 2})) as consumer,
            run_producer(network.node("q"), producer_core(partition="q")) as producer,
        ):
            with pytest.raises(FellBehind, match="partition p: records 2 to 6 are deleted"):
                await anext(consumer)
            await producer.send(b"x")
            assert await anext(consumer) == ReceivedRecord("t", "q", 0, b"x")
        network.remove(node)
        core = ConsumerCore("c2", ["t"], offsets={("t", "p"): 2}, skip_lost=True)
        async with run_consumer(network.node("c2"), core) as consumer:
            assert {(await anext(consumer)).sequence for _ in range(4)} == {7, 8, 9, 0}


# Offsets


async def test_a_consumer_goes_on_behind_what_it_has_saved(autojump_clock, tmp_path):
    fill(tmp_path / "store", 0, 10)
    network = MemoryNetwork()
    path = tmp_path / "offsets" / "mine.json"
    async with run_store(network.node("s"), tmp_path / "store"):
        found = []
        for name in "abc":
            node = network.node(name)
            with closing(OffsetsFile(path)) as file:
                async with run_consumer(
                    node, ConsumerCore(name, ["t"], offsets=file.saved), file
                ) as consumer:
                    found += await read(consumer, 3)
                    await consumer.save_offsets()
                    if name != "c":
                        await anext(consumer)  # returned, and not saved
            network.remove(node)
        assert found == [*range(9)]
    assert json.loads(path.read_text()) == {
        "schema": "garlicfarm.dafka.offsets/1",
        "offsets": [{"topic": "t", "partition": "p", "next": 9}],
    }
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_latest_consumer_saves_where_it_began(network, autojump_clock, tmp_path):
    async with run_producer(network.node("p"), producer_core()) as producer:
        await producer.send_many([b"x"] * 5)
        with closing(OffsetsFile(tmp_path / "offsets.json")) as file:
            async with run_consumer(network.node("c"), ConsumerCore("c", ["t"], "latest"), file) as consumer:
                await trio.sleep(5)
                await consumer.save_offsets()
            assert file.saved == {("t", "p"): 5}


def test_offsets_are_saved_whole_and_used_by_one(tmp_path):
    path = tmp_path / "offsets.json"
    with closing(OffsetsFile(path)) as file:
        file.save({("t", "p"): 1})
        file.save({("t", "p"): 2, ("t", "q"): 0})
        with pytest.raises(StorageInUse):
            OffsetsFile(path)
    with closing(OffsetsFile(path)) as file:
        assert file.saved == {("t", "p"): 2, ("t", "q"): 0}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"schema":"garlicfarm.dafka.offsets/2","offsets":[]}',
        '{"schema":"garlicfarm.dafka.offsets/1","offsets":[{"topic":"t","partition":"p","next":-1}]}',
        '{"schema":"garlicfarm.dafka.offsets/1","offsets":[{"topic":"t","partition":"p"}]}',
    ],
)
def test_a_file_that_holds_no_offsets_is_refused_and_kept(tmp_path, text):
    path = tmp_path / "offsets.json"
    path.write_text(text)
    with pytest.raises(StorageDamaged):
        OffsetsFile(path)
    assert path.read_text() == text


async def test_hostile_commands_are_counted_and_told_once_a_second(network, autojump_clock, tmp_path, caplog):
    stranger = network.node("x")
    async with (
        run_store(network.node("s"), tmp_path) as store,
        run_producer(network.node("p"), producer_core()) as producer,
        run_consumer(network.node("c"), ConsumerCore("c", ["t"])) as consumer,
    ):
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            for number in range(500):
                stranger.send(Ack("p", "t", number))
                stranger.send(Record("t", "liar", 2**64 - 1 - number, b"lies"))
            await trio.sleep(1)
        await producer.send(b"x")
        await producer.wait_acked()
        assert await anext(consumer) == ReceivedRecord("t", "p", 0, b"x")
        assert producer.dropped == {"ACK of what was never sent": 1500}
        assert store.dropped["sequence out of range"] == consumer.dropped["sequence out of range"] == 1500
    told = [record for record in caplog.records if record.getMessage() == "command-dropped"]
    assert 3 <= len(told) <= 9  # three roles, three seconds


async def test_records_that_no_node_has_are_told_now_and_then(network, autojump_clock, tmp_path, caplog):
    liar = network.node("x")
    async with (
        run_store(network.node("s"), tmp_path),
        run_consumer(network.node("c"), ConsumerCore("c", ["t"])),
    ):
        await trio.testing.wait_all_tasks_blocked()
        liar.send(Head("t", "p", 99))
        await trio.sleep(60)
    told = [vars(record)["garlicfarm_fields"] for record in caplog.records]
    told = [fields for fields in told if fields["event"] == "records-awaited"]
    assert {(fields["role"], fields["partition"], fields["next"], fields["head"]) for fields in told} == {
        ("store", "p", 0, 99),
        ("consumer", "p", 0, 99),
    }
    assert 8 <= len(told) <= 12


def test_offsets_in_a_fifo_are_refused(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(StorageError, match="it is a FIFO, not a regular file"):
        OffsetsFile(tmp_path / "fifo")
