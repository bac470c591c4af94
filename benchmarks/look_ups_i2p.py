"""What short leases of a service inside I2P cost: how often its clients ask floodfills for its LeaseSet.

A private network of real i2pd routers: one serves, one is the clients', four are floodfills. Each is on a
host of its own, and every packet between two hosts is ``--delay-ms`` late. At the router that serves, the
publisher `i2cp` publishes two services: one with leases of 90 s (``default``), one with those of 50 s
(``fast``). Each has ``--clients`` with a destination of their own, and the two take turns with these loads:

* ``seldom``: each client opens a stream every 5 s, 36 times, and gets 1 kB.
* ``often``: the same every 0.1 s, 300 times.
* ``download``: each client gets 4 MB in one stream.

Before each load every client opens one stream, so that it knows the LeaseSet. The figures:

* ``look_ups``: DatabaseLookup messages for the service's LeaseSet that reached a floodfill during the load.
* ``first_byte_ms``: from the beginning of a stream to its first byte; p50, p99.
* ``floodfills_kb``: IP packets from and to the floodfills' routers during the load.
* ``client_cpu_s``: CPU time of the clients' router during the load.
* At the end ``publisher``, per minute: look-ups while the other service had the load, with which a router
  verifies what it has published; ``stores``: how often a floodfill got a newer LeaseSet.

Prints a line of JSON for each load, and a table. Exit code 1: a stream was not served, or the median time to
the first byte of ``seldom`` or ``often`` is a quarter longer with ``fast``. With hops that time depends on
the tunnels that there are, and is not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec
import trio
from rich.console import Console
from rich.table import Table

from benchmarks.bench_farm import command_line, cpu_s, percentile
from benchmarks.i2p import SANDBOX, print_i2pd_version, why_not
from benchmarks.throughput_i2p import CHUNK_BYTES, TARGET_PORT, on_host, running
from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.errors import first_error
from garlicfarm.i2p.encoding import b32_address, encode
from garlicfarm.lab.i2pd import I2pdRouter, i2pd_network
from garlicfarm.lab.i2pd_files import ClientTunnel, RouterPlan
from garlicfarm.lab.service import FLOODFILLS, Leases, i2cp_table
from garlicfarm.lab.tun_network import LinkFaults, network

LEASES: tuple[Leases, ...] = ("default", "fast")
PORTS = {"default": 7100, "fast": 7200}
"""The first client's, of its router's loopback; the next client's is one higher."""
READY_S = 180.0
TRY_S = 20.0
STREAM_S = 300.0
TABLE_COLUMNS = 100
FIRST_BYTE_AT_MOST = 1.25
"""Times the median with default leases."""


class Load(NamedTuple):
    """Of each client: so many streams, one every ``every_s``, of ``size`` bytes each."""

    streams: int
    every_s: float
    size: int


LOADS = {
    "seldom": Load(36, 5.0, 1_000),
    "often": Load(300, 0.1, 1_000),
    "download": Load(1, 0.0, 4_000_000),
}


class Asked(msgspec.Struct, frozen=True):
    """What clients saw: the time to the first byte of each stream that was served to its end."""

    seconds: float
    first_byte_ms: list[float]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One load of all clients of one service. ``other_look_ups``: of the other service meanwhile."""

    leases: Leases
    load: str
    streams: int
    failed: int
    seconds: float
    first_byte_ms: list[float]
    look_ups: int
    other_look_ups: int
    floodfills_kb: float
    client_cpu_s: float
    machine_load: float


# ---------------------------------------------------------------------- on the clients' host


async def ask(first_port: int, clients: int, load: Load) -> Asked:
    """Let each client open its streams, on time whether or not those before have ended."""
    first_byte_ms: list[float] = []

    async def one(port: int) -> None:
        begun_s = time.monotonic()
        first_s, left = 0.0, load.size
        with trio.move_on_after(STREAM_S), suppress(OSError, trio.BrokenResourceError):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(f"down {load.size} 0\n".encode())
                while left > 0 and (data := await stream.receive_some(CHUNK_BYTES)):
                    first_s = first_s or time.monotonic() - begun_s
                    left -= len(data)
        if not left:
            first_byte_ms.append(round(1000 * first_s, 1))

    begun_s = time.monotonic()
    async with trio.open_nursery() as nursery:
        for _ in range(load.streams):
            for client in range(clients):
                nursery.start_soon(one, first_port + client)
            await trio.sleep(load.every_s)
    return Asked(round(time.monotonic() - begun_s, 1), first_byte_ms)


# ---------------------------------------------------------------------- the driver


@dataclass(frozen=True, slots=True)
class Bench:
    client: I2pdRouter
    floodfills: Sequence[I2pdRouter]
    clients: int
    destinations: dict[Leases, bytes]

    async def wait_served(self, leases: Leases) -> None:
        """Until each client has been served once."""
        for number in range(self.clients):
            with trio.fail_after(READY_S):
                while not (await self._ask(PORTS[leases] + number, 1, Load(1, 0.0, 1), TRY_S)).first_byte_ms:
                    pass

    async def run(self, leases: Leases, name: str) -> Run:
        await self.wait_served(leases)
        load, (other,) = LOADS[name], (each for each in LEASES if each != leases)
        before = self._look_ups(leases), self._look_ups(other), self._bytes(), cpu_s([self.client.pid])
        asked = await self._ask(PORTS[leases], self.clients, load)
        run = Run(
            leases=leases,
            load=name,
            streams=load.streams * self.clients,
            failed=load.streams * self.clients - len(asked.first_byte_ms),
            seconds=asked.seconds,
            first_byte_ms=asked.first_byte_ms,
            look_ups=self._look_ups(leases) - before[0],
            other_look_ups=self._look_ups(other) - before[1],
            floodfills_kb=round((self._bytes() - before[2]) / 1000, 1),
            client_cpu_s=round(cpu_s([self.client.pid]) - before[3], 2),
            machine_load=round(os.getloadavg()[0], 2),
        )
        print(json.dumps(line(run)), flush=True)
        return run

    def stores(self, leases: Leases) -> float:
        """How often a floodfill has got a newer LeaseSet so far."""
        address = b32_address(self.destinations[leases]).removesuffix(".b32.i2p")
        return self._logged(f"LeaseSet2 updated: {address}") / len(self.floodfills)

    async def _ask(self, port: int, clients: int, load: Load, deadline_s: float = 4 * STREAM_S) -> Asked:
        command = into(self.client, "ask", port, clients, *load)
        with trio.move_on_after(deadline_s):
            done = await trio.run_process(command, capture_stdout=True)
            return msgspec.json.decode(done.stdout, type=Asked)
        return Asked(deadline_s, [])

    def _look_ups(self, leases: Leases) -> int:
        key = encode(sha256(self.destinations[leases]).digest())
        return self._logged(f"DatabaseLookup for {key} received")

    def _logged(self, words: str) -> int:
        return sum((each.data_dir / "i2pd.log").read_text().count(words) for each in self.floodfills)

    def _bytes(self) -> int:
        """From and to the floodfills' hosts."""
        return sum(interface_bytes(Path(f"/proc/{each.pid}/net/dev").read_text()) for each in self.floodfills)


def interface_bytes(devices: str) -> int:
    """Received and sent by all interfaces but the loopback, by what ``/proc/net/dev`` says."""
    found = re.findall(r"^ *(\w+): *(\d+)(?: +\d+){7} +(\d+)", devices, re.MULTILINE)
    return sum(int(received) + int(sent) for name, received, sent in found if name != "lo")


def line(run: Run) -> dict[str, object]:
    """What is printed of it: two percentiles in place of each stream's time."""
    p50_ms, p99_ms = (
        percentile(run.first_byte_ms, each) if run.first_byte_ms else None for each in (0.5, 0.99)
    )
    return {**msgspec.to_builtins(run), "first_byte_ms": [p50_ms, p99_ms]}


def into(router: I2pdRouter, *arguments: object) -> list[str]:
    """The command that runs a function of this file on a router's host."""
    return ["nsenter", f"--net={router.place}", sys.executable, "-m", __spec__.name, *map(str, arguments)]


@asynccontextmanager
async def served(hops: int, delay_s: float, clients: int) -> AsyncIterator[Bench]:
    """Both services, published."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR"))))
        keys = {each: create_keys(directory / f"{each}.key") for each in LEASES}
        tunnels = [
            ClientTunnel(b32_address(keys[each].destination), PORTS[each] + number, f"{each}-{number}.dat")
            for each in LEASES
            for number in range(clients)
        ]
        plans = [
            RouterPlan(is_floodfill=False, carries_tunnels=False, has_leaf=False, has_i2cp=True),
            RouterPlan(is_floodfill=False, carries_tunnels=False, has_leaf=False, tunnels=tunnels),
            *[RouterPlan(has_leaf=False, log_level="debug")] * FLOODFILLS,
        ]
        wires = await stack.enter_async_context(network(len(plans)))
        await wires.set_faults(LinkFaults(delay_s=delay_s))
        made = i2pd_network(directory / "routers", plans, wires, hops=hops, ssu2=False)
        server, client, *floodfills = await stack.enter_async_context(made)
        await stack.enter_async_context(running(on_host(server, "serve", LOADS["download"].size)))
        for each in LEASES:
            (own := directory / each).mkdir()
            table = i2cp_table(own, keys[each], 1, server.i2cp, f"127.0.0.1:{TARGET_PORT}", each, hops)
            await stack.enter_async_context(running(on_host(server, "publish", own, json.dumps(table))))
        yield Bench(client, floodfills, clients, {each: keys[each].destination for each in LEASES})


async def measure(
    loads: Sequence[str], runs: int, hops: int, delay_s: float, clients: int
) -> tuple[list[Run], dict[Leases, float]]:
    """All runs in turns; and how often a floodfill got each LeaseSet, per minute."""
    told = []
    async with served(hops, delay_s, clients) as bench:
        for each in LEASES:
            await bench.wait_served(each)
        begun_s, before = time.monotonic(), {each: bench.stores(each) for each in LEASES}
        for number in range(runs):
            for load in loads:
                for each in LEASES if number % 2 == 0 else LEASES[::-1]:
                    told.append(await bench.run(each, load))
        minutes = (time.monotonic() - begun_s) / 60
        stores = {each: round((bench.stores(each) - before[each]) / minutes, 1) for each in LEASES}
    return told, stores


# ---------------------------------------------------------------------- what comes of it


class Figures(NamedTuple):
    """Of all runs of one load with one kind of leases. CPU: per minute."""

    streams: int
    failed: int
    per_stream: float
    per_minute: float
    p50_ms: float
    p99_ms: float
    kb_per_minute: float
    cpu_s: float


def figures(told: Sequence[Run], load: str, leases: Leases) -> Figures | None:
    """None: there was no such run, or no stream was served."""
    runs = [run for run in told if (run.load, run.leases) == (load, leases)]
    first_byte_ms = [each for run in runs for each in run.first_byte_ms]
    if not first_byte_ms:
        return None
    look_ups, streams = sum(run.look_ups for run in runs), sum(run.streams for run in runs)
    minutes = sum(run.seconds for run in runs) / 60
    return Figures(
        streams=streams,
        failed=sum(run.failed for run in runs),
        per_stream=look_ups / streams,
        per_minute=look_ups / minutes,
        p50_ms=percentile(first_byte_ms, 0.5),
        p99_ms=percentile(first_byte_ms, 0.99),
        kb_per_minute=sum(run.floodfills_kb for run in runs) / minutes,
        cpu_s=sum(run.client_cpu_s for run in runs) / minutes,
    )


def missed(told: Sequence[Run], hops: int) -> list[str]:
    """The bounds that these runs miss."""
    found = [
        f"{run.load}, {run.leases}: {run.failed} of {run.streams} streams were not served"
        for run in told
        if run.failed
    ]
    for load in () if hops else ("seldom", "often"):
        both = [figures(told, load, each) for each in LEASES]
        if both[0] and both[1] and (ratio := both[1].p50_ms / both[0].p50_ms) > FIRST_BYTE_AT_MOST:
            found.append(f"{load}: first byte after {ratio:.2f} times as long with fast")
    return found


def others_per_minute(told: Sequence[Run], leases: Leases) -> float:
    """Look-ups of a service's LeaseSet while only the other one had a load."""
    runs = [run for run in told if run.leases != leases]
    return sum(run.other_look_ups for run in runs) * 60 / sum(run.seconds for run in runs)


def table(told: Sequence[Run]) -> Table:
    shown = Table(title="look-ups of the LeaseSet; time to the first byte; per minute: kB at floodfills, CPU")
    headers = ("streams", "failed", "per stream", "per min", "p50 ms", "p99 ms", "kB", "CPU s")
    for column in ("load", "leases", *headers):
        shown.add_column(column, justify="right" if column in headers else "left", no_wrap=True)
    for load in dict.fromkeys(run.load for run in told):
        for each in LEASES:
            if found := figures(told, load, each):
                counts = map(str, (found.streams, found.failed))
                cells = zip((2, 1, 0, 0, 0, 1), found[2:], strict=True)
                shown.add_row(load, each, *counts, *[f"{value:.{digits}f}" for digits, value in cells])
    return shown


def main() -> int:
    match sys.argv[1:]:
        case ["ask", port, clients, streams, every_s, size]:
            load = Load(int(streams), float(every_s), int(size))
            print(msgspec.json.encode(trio.run(ask, int(port), int(clients), load)).decode())
            return 0
    parser = command_line(__doc__)
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=tuple(LOADS))
    parser.add_argument("--runs", type=int, default=2, help="of each load with each kind of leases")
    parser.add_argument("--hops", type=int, default=0, help="length of tunnels")
    parser.add_argument("--clients", type=int, default=1, help="of each service")
    parser.add_argument("--delay-ms", type=float, default=100.0, help="of each packet between routers")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        if reason := why_not():
            print(f"look_ups_i2p: skipped: {reason}")
            return 0
        print_i2pd_version()
        os.execvp(SANDBOX[0], [*SANDBOX, sys.executable, "-m", __spec__.name, *sys.argv[1:], "--inside"])
    try:
        told, stores = trio.run(
            measure, options.loads, options.runs, options.hops, options.delay_ms / 1000, options.clients
        )
    except Exception as group:  # noqa: BLE001 - one line says why it failed
        error = first_error(group)
        print(f"look_ups_i2p: failed: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    Console(width=TABLE_COLUMNS).print(table(told))
    for each in LEASES:
        look_ups = round(others_per_minute(told, each), 1)
        print(json.dumps({"publisher": each, "look_ups": look_ups, "stores": stores[each]}))
    failures = missed(told, options.hops)
    for failure in failures:
        print(f"look_ups_i2p: missed: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
