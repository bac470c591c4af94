"""`garlicfarm dafka produce | consume | store`, as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from random import Random
from typing import IO

import pytest
import trio

from garlicfarm.cli import run
from garlicfarm.cli.exits import Exit
from garlicfarm.cli.log_batch import MAX_ENTRY_BYTES
from garlicfarm_plugin_dafka.config import MeshConfig
from garlicfarm_plugin_dafka.consumer import run_consumer
from garlicfarm_plugin_dafka.consumer_core import ConsumerCore
from garlicfarm_plugin_dafka.mesh import open_mesh
from garlicfarm_plugin_dafka.producer import open_producer
from garlicfarm_plugin_dafka.record_files import RecordFiles, RecordReader
from garlicfarm_plugin_dafka.store_core import Unsaved
from tests.running import running, wait_until, without_signs_of_life

COMMAND = (sys.executable, "-m", "garlicfarm", "dafka")


@contextmanager
def store_process(directory: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A store that runs by now."""
    command = [*COMMAND, "store", str(directory), "--tower", url]
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"tcp://127.0.0.1:")
        yield process


async def dafka(*arguments: str, lines: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return await trio.run_process(
        [*COMMAND, *arguments], stdin=lines, capture_stdout=True, capture_stderr=True, check=False
    )


def rows(done: subprocess.CompletedProcess[bytes]) -> list[dict]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def read_one_line(url: str) -> int:
    """Close the output of a consumer after a line; its exit code."""
    command = [*COMMAND, "consume", "t", "--tower", url]
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        return process.wait()


async def test_lines_are_produced_stored_and_consumed_once(tower, tmp_path):
    offsets = ("--offsets", str(tmp_path / "offsets.json"))
    url = ("--tower", str(tower.endpoint))
    with store_process(tmp_path / "store", url[1]) as store:
        done = await dafka("produce", "hello", *url, lines=b"one\n\nt\xffree\nfour")
        assert done.returncode == 0, done.stderr
        told = without_signs_of_life(done.stderr.decode())
        partition = told.split()[4].rstrip(",")
        assert told == f"4 records in partition {partition}, 4 saved\n"
        first = await dafka("consume", "hello", *url, *offsets, "--count", "3")
        assert (first.returncode, without_signs_of_life(first.stderr.decode())) == (0, "")
        second = await dafka("consume", "hello", *url, *offsets, "--count", "1")
        place = {"topic": "hello", "partition": partition}
        assert rows(first) + rows(second) == [
            {**place, "sequence": 0, "value": "one"},
            {**place, "sequence": 1, "value": ""},
            {**place, "sequence": 2, "value_base64": "dP9yZWU="},
            {**place, "sequence": 3, "value": "four"},
        ]
        third = await dafka("consume", "hello", *url, "--from", "2", "--count", "2")
        assert [row["sequence"] for row in rows(third)] == [2, 3]
        store.send_signal(signal.SIGTERM)
        assert await trio.to_thread.run_sync(store.wait) == Exit.OK


def piped(*arguments: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A command that runs, with pipes."""
    pipe = subprocess.PIPE
    return running([*COMMAND, *arguments], stdin=pipe, stdout=pipe, stderr=pipe)


async def ended(process: subprocess.Popen[bytes]) -> int:
    """Its exit code after SIGTERM."""
    process.send_signal(signal.SIGTERM)
    return await trio.to_thread.run_sync(process.wait)


async def lines_of(stream: IO[bytes] | None, count: int) -> list[bytes]:
    """So many lines of a stream."""
    assert stream is not None
    return [(await trio.to_thread.run_sync(stream.readline)).rstrip(b"\n") for _ in range(count)]


async def test_consume_ends_in_order_when_it_is_told_to_and_has_saved_what_it_printed(tower, tmp_path):
    with closing(RecordFiles(tmp_path / "store")) as files:
        files.save([Unsaved("t", "p", 0, [b"%d" % number for number in range(3)])], 0)
    offsets = tmp_path / "offsets.json"
    url = ("--tower", str(tower.endpoint))
    with store_process(tmp_path / "store", url[1]):
        with piped("consume", "t", *url, "--offsets", str(offsets)) as process:
            assert len(await lines_of(process.stdout, 3)) == 3
            assert await ended(process) == Exit.OK
        (saved,) = json.loads(offsets.read_text())["offsets"]
        assert saved["next"] == 3
        with piped("consume", "t", *url, "--count", "4") as process:
            await lines_of(process.stdout, 3)
            assert await ended(process) == Exit.INTERRUPTED, "it was to print one more"


@pytest.mark.parametrize(
    ("acks", "lines", "code"),
    [("1", [], Exit.OK), ("1", [b"one", b"two"], Exit.INTERRUPTED), ("0", [b"one", b"two"], Exit.OK)],
)
async def test_produce_that_is_told_to_end_says_by_its_code_whether_all_is_saved(tower, acks, lines, code):
    url = str(tower.endpoint)
    with piped("produce", "t", "--tower", url, "--acks", acks) as process:
        async with (
            open_mesh(MeshConfig(towers=(url,))) as mesh,
            run_consumer(mesh, ConsumerCore(mesh.address, ["t"])) as consumer,
        ):
            await wait_until(lambda: mesh.peers)
            assert process.stdin is not None
            process.stdin.writelines(line + b"\n" for line in lines)
            process.stdin.flush()
            assert [(await anext(consumer)).content for _ in lines] == lines
            assert await ended(process) == code
            told, *rest = await lines_of(process.stderr, 2 if code else 1)
    assert told.startswith(b"%d records in partition " % len(lines))
    assert rest == [b"interrupted"] * (code == Exit.INTERRUPTED)


async def test_produce_says_what_no_store_has_saved(tower, tmp_path):
    long = b"x" * (MAX_ENTRY_BYTES + 1)
    done = await dafka(
        *("produce", "t", "--tower", str(tower.endpoint), "--timeout", "2"), lines=b"a\n%b\nb\n" % long
    )
    assert done.returncode == Exit.DEADLINE
    told = done.stderr.decode()
    assert "2 records in partition" in told
    assert f"0 saved, 1 lines refused, which have more than {MAX_ENTRY_BYTES} bytes" in told
    assert "not all records are saved" in told


async def test_consume_says_what_is_lost(tower, tmp_path):
    with closing(RecordFiles(tmp_path / "store")) as files:
        files.save([Unsaved("t", "p", 5, [b"x"])], 0)
    offsets = tmp_path / "offsets.json"
    text = '{"schema":"garlicfarm.dafka.offsets/1","offsets":[{"topic":"t","partition":"p","next":2}]}'
    offsets.write_text(text)
    arguments = (
        "consume",
        "t",
        "--tower",
        str(tower.endpoint),
        "--offsets",
        str(offsets),
        "--count",
        "1",
    )
    with store_process(tmp_path / "store", str(tower.endpoint)):
        done = await dafka(*arguments)
        assert (done.returncode, done.stdout) == (Exit.USAGE, b"")
        assert b"error: topic t, partition p: records 2 to 4 are deleted; skip them" in done.stderr
        assert offsets.read_text() == text
        done = await dafka(*arguments, "--skip-lost")
        assert (done.returncode, [row["sequence"] for row in rows(done)]) == (0, [5])
        assert b"event=records-lost" in done.stderr


async def test_consume_ends_when_nobody_reads_its_output(tower, tmp_path):
    with closing(RecordFiles(tmp_path / "store")) as files:
        files.save([Unsaved("t", "p", 0, [b"x" * 1000] * 1000)], 0)
    with store_process(tmp_path / "store", str(tower.endpoint)):
        assert await trio.to_thread.run_sync(read_one_line, str(tower.endpoint)) == Exit.ERROR


async def test_a_store_that_is_killed_again_and_again_loses_nothing_that_it_acknowledged(tower, tmp_path):
    rnd = Random(5)
    directory = tmp_path / "store"
    config = MeshConfig(towers=(str(tower.endpoint),))
    async with open_producer(config, "t") as producer, trio.open_nursery() as nursery:

        async def produce() -> None:
            while True:
                await producer.send_many(
                    b"record %d" % n for n in range(producer.next_sequence, producer.next_sequence + 50)
                )
                await trio.sleep(0.01)

        nursery.start_soon(produce)
        acked = 0
        for _ in range(3):
            with store_process(directory, str(tower.endpoint)) as store:
                while producer.acked < acked + rnd.randint(1, 500):  # noqa: ASYNC110
                    await trio.sleep(0.01)
                os.kill(store.pid, signal.SIGKILL)
                await trio.to_thread.run_sync(store.wait)
            acked = producer.acked
            with closing(RecordFiles(directory)) as files, closing(RecordReader(files)) as reader:
                (saved,) = files.partitions()
                assert saved.next >= acked
                contents = reader.read("t", producer.partition, 0, saved.next, max_bytes=1 << 30)
                assert contents == [b"record %d" % n for n in range(saved.next)]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["store", "d", "--max-age", "3x"], "--max-age must be seconds, or a number and one of"),
        (["store", "d", "--listen", "tcp://0.0.0.0:0"], "only loopback addresses"),
        (["consume", "t", "--from", "-1"], "is not earliest, latest or a sequence"),
        (["consume"], "Missing argument 'TOPIC"),
        (["produce", "t", "--tower", "nowhere"], "error: towers:"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, monkeypatch, capfd, arguments, told):
    monkeypatch.chdir(tmp_path)
    assert run(["dafka", *arguments]) == Exit.USAGE
    assert told in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []
