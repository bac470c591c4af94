"""What Dafka costs in Python, beside ZeroMQ alone: records of 100 bytes, all on loopback, each role a
process.

* ``dafka_live_ratio``: records per second from a producer to a consumer, as a share of what a bare PUB/SUB
  loop carries that encodes and decodes the same frames. At least 0.8.
* ``dafka_stored_ratio``: records per second until a store has acknowledged all, with its syncs, as a share
  of the same to a consumer. At least 0.25.
* ``dafka_catch_up_steady``: catching up from a store whose producer is gone, the rate of the last tenth as a
  share of that of the first. At least 0.8. The store and the consumer use at most 100 MB of memory.

All are medians of ``--rounds`` rounds, in each of which the loads follow each other. Exit
code 1 if a limit is not kept. Run by `make bench-dafka`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import trio

CONTENT = b"x" * 100
TOPIC, PARTITION = "readings", "0123456789ABCDEF0123456789ABCDEF"
LIVE_AT_LEAST, STORED_AT_LEAST, STEADY_AT_LEAST, MEMORY_AT_MOST_MB = 0.8, 0.25, 0.8, 100
QUEUE = 1_000_000  # messages, so that a queue is never full
BATCH = 1000


def told(**values: object) -> None:
    print(json.dumps(values), flush=True)


def memory_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


class Meter:
    """Counts records, and prints their rate when all ``number`` have come."""

    def __init__(self, number: int) -> None:
        self.left = number
        self._number = number
        self._marks: list[float] = []

    def count(self, records: int) -> None:
        now = time.perf_counter()
        if not self._marks:  # the clock begins with the first ones, which do not count
            self._number = self.left = self.left - records
            self._marks.append(now)
            return
        self.left -= records
        while len(self._marks) <= 10 * (self._number - self.left) // self._number:
            self._marks.append(now)
        if self.left <= 0:
            tenths = [after - before for before, after in pairwise(self._marks)]
            told(
                rate=self._number / (now - self._marks[0]),
                tenths=[round(self._number / 10 / max(each, 1e-6)) for each in tenths],
                memory_mb=memory_mb(),
            )


# Each role, in a process of its own: its arguments are those of the command line.


def bare_subscriber(endpoint: str, number: int) -> None:
    import zmq

    from garlicfarm_plugin_dafka.codec import decode

    socket = zmq.Context().socket(zmq.SUB)
    socket.set_hwm(0)
    socket.connect(endpoint)
    socket.subscribe(b"M")
    meter = Meter(number)
    while meter.left > 0:
        for _ in range(BATCH):
            decode(socket.recv_multipart())
        meter.count(BATCH)


def bare_publisher(number: int) -> None:
    import zmq

    from garlicfarm_plugin_dafka.codec import Record, encode

    socket = zmq.Context().socket(zmq.XPUB)
    socket.set_hwm(0)
    told(endpoint=f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}")
    socket.recv()  # the subscription
    for sequence in range(number):
        socket.send_multipart(encode(Record(TOPIC, PARTITION, sequence, CONTENT)))
    sys.stdin.read()


async def tower() -> None:
    from garlicfarm_plugin_dafka.config import TowerConfig
    from garlicfarm_plugin_dafka.tower import open_tower

    async with open_tower(TowerConfig(listen="tcp://127.0.0.1:0")) as opened:
        told(endpoint=str(opened.endpoint))
        await trio.sleep_forever()


def node(url: str) -> Any:
    from garlicfarm_plugin_dafka import MeshConfig

    return MeshConfig(towers=(url,), high_water_mark=QUEUE)


async def producer(url: str, number: int, acks: int) -> None:
    from garlicfarm_plugin_dafka.mesh import open_mesh
    from garlicfarm_plugin_dafka.producer import run_producer
    from garlicfarm_plugin_dafka.producer_core import ProducerCore

    async with open_mesh(node(url)) as mesh:
        core = ProducerCore(TOPIC, mesh.address, acks=acks, limit_records=number, limit_bytes=1 << 40)
        async with run_producer(mesh, core) as opened:
            while not await mesh.subscriptions():
                pass
            await trio.sleep(1.0)  # by then all of them have arrived
            begun = time.perf_counter()
            await opened.send_many([CONTENT] * number)
            await opened.wait_acked()
            told(rate=number / (time.perf_counter() - begun), memory_mb=memory_mb())
            await trio.sleep_forever()


async def consumer(url: str, number: int) -> None:
    from garlicfarm_plugin_dafka import open_consumer

    meter = Meter(number)
    async with open_consumer(node(url), [TOPIC]) as opened:
        while meter.left > 0:
            meter.count(len(await opened.receive()))


async def store(url: str, directory: Path) -> None:
    from garlicfarm_plugin_dafka import open_store

    async with open_store(node(url), directory):
        told(endpoint="")
        await trio.to_thread.run_sync(sys.stdin.read)
        told(memory_mb=memory_mb())


def fill(directory: Path, number: int) -> None:
    from garlicfarm_plugin_dafka.record_files import RecordFiles
    from garlicfarm_plugin_dafka.store_core import Unsaved

    files = RecordFiles(directory)
    for first in range(0, number, BATCH):
        files.save([Unsaved(TOPIC, PARTITION, first, [CONTENT] * BATCH)], 0)
    files.close()


# The loads.


class Process:
    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._data = b""

    async def line(self) -> dict[str, Any]:
        """The next line of its output."""
        assert self._process.stdout is not None
        while b"\n" not in self._data:
            data = await self._process.stdout.receive_some()
            if not data:
                raise EOFError(f"{self._process.args!r} has ended")
            self._data += data
        line, _, self._data = self._data.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    async def end_input(self) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.aclose()


@asynccontextmanager
async def processes() -> AsyncIterator[Any]:
    """A function that starts a role; all end with the block."""
    async with trio.open_nursery() as nursery:

        async def start(*arguments: object) -> Process:
            command = [sys.executable, "-m", __spec__.name, "--role", *map(str, arguments)]
            run = partial(trio.run_process, command, stdin=-1, stdout=-1)
            return Process(await nursery.start(run))

        yield start
        nursery.cancel_scope.cancel()


async def bare(number: int) -> float:
    async with processes() as start:
        publisher = await start("bare-publisher", number)
        subscriber = await start("bare-subscriber", (await publisher.line())["endpoint"], number)
        return float((await subscriber.line())["rate"])


async def live(number: int) -> float:
    async with processes() as start:
        url = (await (await start("tower")).line())["endpoint"]
        receiver = await start("consumer", url, number)
        await start("producer", url, number, 0)
        return float((await receiver.line())["rate"])


async def stored(number: int, directory: Path) -> float:
    async with processes() as start:
        url = (await (await start("tower")).line())["endpoint"]
        await (await start("store", url, directory)).line()
        return float((await (await start("producer", url, number, 1)).line())["rate"])


async def catch_up(number: int, directory: Path) -> tuple[list[int], dict[str, int]]:
    """The rates of each tenth, and the memory of both."""
    async with processes() as start:
        url = (await (await start("tower")).line())["endpoint"]
        served = await start("store", url, directory)
        await served.line()
        read = await (await start("consumer", url, number)).line()
        await served.end_input()
        memory = {"consumer_mb": read["memory_mb"], "store_mb": (await served.line())["memory_mb"]}
        return read["tenths"], memory


def report(figure: str, value: float, at_least: float, ok: bool = True, **values: object) -> bool:
    """Print a figure as a line of JSON; return whether it is within its limits."""
    ok = ok and value >= at_least
    line = {"figure": figure, "ok": ok, "value": round(value, 3), "at_least": at_least, **values}
    print(json.dumps({**line, "load": round(os.getloadavg()[0], 2)}), flush=True)
    return ok


async def measure(rounds: int, number: int, many: int) -> bool:
    ratios: dict[str, list[float]] = {"live": [], "stored": []}
    rates: dict[str, list[int]] = {"bare": [], "live": [], "stored": []}
    caught_up: list[tuple[list[int], dict[str, int]]] = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as temporary:
        fill(Path(temporary) / "full", many)
        for each in range(rounds):
            caught_up.append(await catch_up(many, Path(temporary) / "full"))
            alone, carried = await bare(number), await live(number)
            kept = await stored(number, Path(temporary) / f"store-{each}")
            ratios["live"].append(carried / alone)
            ratios["stored"].append(kept / carried)
            for name, rate in (("bare", alone), ("live", carried), ("stored", kept)):
                rates[name].append(round(rate))
    ok = True
    for name, at_least in (("live", LIVE_AT_LEAST), ("stored", STORED_AT_LEAST)):
        each_round, value = [round(each, 3) for each in ratios[name]], statistics.median(ratios[name])
        ok &= report(f"dafka_{name}_ratio", value, at_least, rounds=each_round, records_s=rates[name])
    print(json.dumps({"figure": "bare_records_s", "rounds": rates["bare"]}), flush=True)
    steady = [tenths[-1] / tenths[0] for tenths, _ in caught_up]
    most_mb = max(max(memory.values()) for _, memory in caught_up)
    return ok & report(
        "dafka_catch_up_steady",
        statistics.median(steady),
        STEADY_AT_LEAST,
        most_mb <= MEMORY_AT_MOST_MB,
        rounds=[round(each, 3) for each in steady],
        memory_mb=most_mb,
        tenths_s=[tenths for tenths, _ in caught_up],
    )


def run_role(role: str, *arguments: str) -> None:
    if role == "bare-publisher":
        bare_publisher(int(arguments[0]))
    elif role == "bare-subscriber":
        bare_subscriber(arguments[0], int(arguments[1]))
    elif role == "tower":
        trio.run(tower)
    elif role == "producer":
        trio.run(producer, arguments[0], int(arguments[1]), int(arguments[2]))
    elif role == "consumer":
        trio.run(consumer, arguments[0], int(arguments[1]))
    else:
        trio.run(store, arguments[0], Path(arguments[1]))


def main() -> int:
    if sys.argv[1:2] == ["--role"]:
        run_role(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=200_000, help="in each load of a round")
    parser.add_argument("--many", type=int, default=1_000_000, help="to catch up with")
    options = parser.parse_args()
    return 0 if trio.run(measure, options.rounds, options.records, options.many) else 1


if __name__ == "__main__":
    sys.exit(main())
