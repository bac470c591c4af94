"""What a service inside I2P carries, published through the plugin i2cp and by i2pd's own server tunnel.

A private network of real i2pd routers: one serves, one is the client's, the others store LeaseSets and are
the hops of tunnels, if there are any. The same program answers behind both ways; the same router leads to
both. The ways take turns, and each pair of runs is one ratio: other work on the machine slows both.

* ``down``, ``up``: one stream, from the service and to it.
* ``few``, ``many``: 20 and 50 streams at once from the service.
* ``lossy``: one stream from the service, with 2 % of the packets lost between the routers and up to 20 ms of
  jitter; the tunnel carries a tenth of that, before and after. The routers speak NTCP2 only: TCP repeats what
  is lost, so that streams see packets late, and in bursts.

All that arrives is compared with what was sent. The CPU time of each process and its memory stand beside the
figures. The plugin runs alone in its process, so that nothing else of a node counts.

Prints a line of JSON for each transfer, and a table of medians. Exit code 1: a bound was missed: the median
of the ratios is below that of `RATIO_AT_LEAST`, or a byte was wrong, or missing after 2 minutes (``lossy``:
20). The tunnel itself may hang, with many streams above all: i2pd 2.45.1 drops what its link cannot pass on
at once, and the router that has missed too many packets of a session can decrypt no more of it. Then there is
no ratio.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import trio
from rich.console import Console
from rich.table import Table

from benchmarks.bench_farm import command_line, cpu_s, resident_mb
from benchmarks.i2p import SANDBOX, hurry, print_i2pd_version, why_not
from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.errors import GarlicFarmError, PublisherError, first_error
from garlicfarm.i2p.encoding import b32_address, decode
from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm.lab.i2pd import I2pdRouter, i2pd_network
from garlicfarm.lab.i2pd_files import ClientTunnel, RouterPlan
from garlicfarm.lab.service import i2cp_table
from garlicfarm.lab.tun_network import LinkFaults, Network, network
from garlicfarm.plugins import make_publisher
from garlicfarm.publisher import PublisherSite, PublishOrder
from garlicfarm.setup.i2p_tunnel import Tunnel

WAYS = ("tunnel", "plugin")
PORTS = {"tunnel": 7001, "plugin": 7002}
"""Of the client's loopback."""
TARGET_PORT = 8080
KEYS = "service.dat"
READY = "ready"
SERVER, CLIENT = 0, 1
FLOODFILLS = 2
FLOODFILLS_WITH_HOPS = 4
LOSSY = LinkFaults(loss=0.02, jitter_s=0.02)
FEW, MANY = 20, 50
MB = 1_000_000
RATIO_AT_LEAST = {"down": 0.5, "up": 0.5, "few": 0.5, "many": 0.5, "lossy": 0.5}
READY_S = 120.0
TRY_S = 10.0
TRANSFER_S = 120.0
LOSSY_TRANSFER_S = 1200.0
CHUNK_BYTES = 1 << 16


class Transfer(NamedTuple):
    """``streams`` at once, of ``size`` bytes each."""

    name: str
    size: int
    streams: int = 1


class Usage(msgspec.Struct, frozen=True):
    """Of a process: ``cpu_s``, during a transfer; ``rss_mb``, after it."""

    cpu_s: float
    rss_mb: float


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """``wrong``: how many streams did not carry all bytes, and no other."""

    way: str
    transfer: str
    megabytes: float
    seconds: float
    wrong: int
    usage: dict[str, Usage]
    load: float

    @property
    def mb_per_s(self) -> float:
        return self.megabytes / self.seconds


# ---------------------------------------------------------------------- on the hosts


def pattern(size: int) -> memoryview:
    """Bytes that do not repeat. Stream N carries those from number N on: no two carry the same."""
    return memoryview(hashlib.shake_128(b"garlicfarm").digest(size + MANY))


async def serve(largest: int, *, task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED) -> None:
    """``down SIZE N``: send so many bytes, from number N on; ``up SIZE N``: take them, and answer with their
    SHA-256. Starts once it listens."""
    body = pattern(largest)

    async def answer(stream: trio.SocketStream) -> None:
        line = b""
        while not line.endswith(b"\n"):
            data = await stream.receive_some(1)
            if not data:
                return
            line += data
        name, *numbers = line.decode().split()
        size, begin = map(int, numbers)
        if name == "down":
            await stream.send_all(body[begin : begin + size])
            return
        digest, left = hashlib.sha256(), size
        while left and (data := await stream.receive_some(min(left, CHUNK_BYTES))):
            digest.update(data)
            left -= len(data)
        await stream.send_all(digest.digest())

    async def handle(stream: trio.SocketStream) -> None:
        try:
            await answer(stream)
        except trio.BrokenResourceError:
            print("a stream broke", file=sys.stderr)

    await trio.serve_tcp(handle, TARGET_PORT, host="127.0.0.1", task_status=task_status)


async def serve_alone(largest: int) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, largest)
        print(READY, flush=True)


async def publish(directory: Path, table: Mapping[str, object]) -> None:
    """Publish the service until this process ends."""
    site = PublisherSite(farm="farm", node_id=1, directory=directory)
    options = dict(table)
    publisher = make_publisher(str(options.pop("plugin")), options, directory, site)
    async with publisher:
        while True:
            try:
                await publisher.standby()
                now_ms = time.time_ns() // 1_000_000
                order = PublishOrder(due_index=1, published_ms=now_ms, expires_ms=now_ms + 86_400_000)
                await publisher.publish(order)
                break
            except PublisherError as error:
                print(error, file=sys.stderr, flush=True)
                await trio.sleep(1)
        print(READY, flush=True)
        await trio.sleep_forever()


async def is_right(port: int, name: str, body: memoryview, begin: int) -> bool:
    """Whether one stream carries ``body``, the pattern from number ``begin`` on, unchanged."""
    expected = hashlib.sha256(body).digest()
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(f"{name} {len(body)} {begin}\n".encode())
        if name == "up":
            await stream.send_all(body)
            answer = b""
            while len(answer) < len(expected) and (data := await stream.receive_some(CHUNK_BYTES)):
                answer += data
            return answer == expected
        digest, left = hashlib.sha256(), len(body)
        while left > 0 and (data := await stream.receive_some(CHUNK_BYTES)):
            digest.update(data)
            left -= len(data)
        return not left and digest.digest() == expected


async def carry(port: int, transfer: Transfer, deadline_s: float) -> tuple[float, int]:
    """How long it took, in s, and how many streams failed."""
    body = pattern(transfer.size)
    name = "up" if transfer.name == "up" else "down"
    results: list[bool] = []

    async def one(begin: int) -> None:
        try:
            results.append(await is_right(port, name, body[begin : begin + transfer.size], begin))
        except (OSError, trio.BrokenResourceError) as error:
            print(f"{transfer.name}: {error}", file=sys.stderr)

    begun_s = time.monotonic()
    with trio.move_on_after(deadline_s):
        async with trio.open_nursery() as nursery:
            for number in range(transfer.streams):
                nursery.start_soon(one, number)
    return time.monotonic() - begun_s, transfer.streams - sum(results)


async def ask(port: int, name: str, size: int, streams: int, deadline_s: float) -> None:
    print(json.dumps(await carry(port, Transfer(name, size, streams), deadline_s)))


# ---------------------------------------------------------------------- the driver


def on_host(router: I2pdRouter, *arguments: object) -> list[str]:
    """The command that runs a function of this file on a router's host."""
    into = ["nsenter", f"--net={router.place}"] if router.place else []
    return [*into, sys.executable, "-m", __spec__.name, *map(str, arguments)]


@asynccontextmanager
async def running(command: Sequence[str]) -> AsyncIterator[int]:
    """A process that says ``ready``; its process id."""
    async with trio.open_nursery() as nursery:
        process = await nursery.start(partial(trio.run_process, command, stdout=subprocess.PIPE))
        with trio.fail_after(READY_S):
            told = b""
            while f"{READY}\n".encode() not in told:
                data = await process.stdout.receive_some()
                if not data:
                    raise GarlicFarmError("the process has ended that should serve, or publish")
                told += data
        yield process.pid
        nursery.cancel_scope.cancel()


class Bench:
    """``pids``: of the processes whose use counts, by name."""

    def __init__(self, client: I2pdRouter, pids: Mapping[str, int]) -> None:
        self._client = client
        self._pids = pids

    async def wait_served(self, way: str) -> None:
        """Until the first small transfer has come through."""
        with trio.fail_after(READY_S):
            while (await self._carry(way, Transfer("down", 1), TRY_S, is_quiet=True))[1]:  # noqa: ASYNC110
                await trio.sleep(1)

    async def run(self, way: str, transfer: Transfer) -> Run:
        before = {name: cpu_s([pid]) for name, pid in self._pids.items()}
        deadline_s = LOSSY_TRANSFER_S if transfer.name == "lossy" else TRANSFER_S
        seconds, wrong = await self._carry(way, transfer, deadline_s)
        run = Run(
            way=way,
            transfer=transfer.name,
            megabytes=transfer.size * transfer.streams / MB,
            seconds=round(seconds, 2),
            wrong=wrong,
            usage={
                name: Usage(round(cpu_s([pid]) - before[name], 2), round(resident_mb(pid)[0], 1))
                for name, pid in self._pids.items()
            },
            load=round(os.getloadavg()[0], 2),
        )
        print(json.dumps({**msgspec.to_builtins(run), "mb_per_s": round(run.mb_per_s, 3)}), flush=True)
        return run

    async def _carry(
        self, way: str, transfer: Transfer, deadline_s: float, *, is_quiet: bool = False
    ) -> tuple[float, int]:
        command = on_host(
            self._client, "ask", PORTS[way], transfer.name, transfer.size, transfer.streams, deadline_s
        )
        done = await trio.run_process(
            command, capture_stdout=True, stderr=subprocess.DEVNULL if is_quiet else None
        )
        seconds, wrong = json.loads(done.stdout)
        return seconds, wrong


async def measure(megabytes: int, lossy_megabytes: int, runs: int, hops: int) -> list[Run]:
    """Both networks, one after the other."""
    told = []
    if runs:
        async with served(megabytes * MB, None, hops) as bench:
            for _ in range(runs):
                for transfer in (
                    Transfer("down", megabytes * MB),
                    Transfer("up", megabytes * MB),
                    Transfer("few", megabytes * MB // FEW, FEW),
                    Transfer("many", megabytes * MB // MANY, MANY),
                ):
                    for way in WAYS:
                        told.append(await bench.run(way, transfer))
    if lossy_megabytes:
        async with served(lossy_megabytes * MB, LOSSY, hops) as bench:
            shorter = Transfer("lossy", lossy_megabytes * MB // 10)
            told.append(await bench.run("tunnel", shorter))
            told.append(await bench.run("plugin", Transfer("lossy", lossy_megabytes * MB)))
            told.append(await bench.run("tunnel", shorter))
    return told


def floodfills(hops: int) -> int:
    return FLOODFILLS_WITH_HOPS if hops else FLOODFILLS


@asynccontextmanager
async def served(largest: int, faults: LinkFaults | None, hops: int) -> AsyncIterator[Bench]:
    """The service, published in both ways. ``largest``: bytes that a stream may ask for. ``faults``: of the
    links between the routers; None: they share one loopback. ``hops``: of each tunnel."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR"))))
        keys = {way: create_keys(directory / f"{way}.key") for way in WAYS}
        wires = None if faults is None else await stack.enter_async_context(network(2 + floodfills(hops)))
        bench = await stack.enter_async_context(published(directory, keys, largest, wires, hops))
        if faults is not None and wires is not None:
            await wires.set_faults(faults)
        yield bench
        if wires is not None:
            print(json.dumps({"packets_lost": await wires.set_faults(LinkFaults())}), flush=True)


@asynccontextmanager
async def published(
    directory: Path, keys: Mapping[str, DestinationKeys], largest: int, wires: Network | None, hops: int
) -> AsyncIterator[Bench]:
    """``keys``: of each way. ``wires``: between the routers; None: they share one loopback."""
    plans = [
        RouterPlan(
            is_floodfill=False,
            has_leaf=False,
            has_i2cp=True,
            tunnels=(Tunnel("service", "127.0.0.1", TARGET_PORT, TARGET_PORT, KEYS),),
            files={KEYS: decode(keys["tunnel"].sam_private_key())},
        ),
        RouterPlan(
            is_floodfill=False,
            has_leaf=False,
            tunnels=[
                ClientTunnel(b32_address(keys[way].destination), PORTS[way], f"{way}.dat") for way in WAYS
            ],
        ),
        *[RouterPlan(has_leaf=False)] * floodfills(hops),
    ]
    async with (
        i2pd_network(directory / "routers", plans, wires, hops=hops, ssu2=False) as routers,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(hurry, list(routers))
        server, client = routers[SERVER], routers[CLIENT]
        target = f"127.0.0.1:{TARGET_PORT}"
        table = i2cp_table(directory, keys["plugin"], 1, server.i2cp, target, hops=hops)
        async with (
            running(on_host(server, "serve", largest)),
            running(on_host(server, "publish", directory, json.dumps(table))) as plugin,
        ):
            pids = {"plugin": plugin, "server's i2pd": server.pid, "client's i2pd": client.pid}
            bench = Bench(client, pids)
            for way in WAYS:
                await bench.wait_served(way)
            yield bench
        nursery.cancel_scope.cancel()


# ---------------------------------------------------------------------- what comes of it


def missed(told: Sequence[Run]) -> list[str]:
    """The bounds that these runs miss."""
    found = [
        f"{run.transfer}: {run.wrong} streams of the plugin were cut short or wrong"
        for run in told
        if run.wrong and run.way == "plugin"
    ]
    for transfer, ratio in ratios(told).items():
        if ratio < RATIO_AT_LEAST[transfer]:
            least = RATIO_AT_LEAST[transfer]
            found.append(f"{transfer}: {ratio:.2f} of the tunnel's throughput, at least {least}")
    return found


def ratios(told: Sequence[Run]) -> dict[str, float]:
    """By transfer: the median of the plugin's throughput divided by the tunnel's,
    of the pairs of runs that both carried all bytes."""
    found = {}
    for transfer in dict.fromkeys(run.transfer for run in told):
        tunnel, plugin = ([run for run in told if (run.way, run.transfer) == (way, transfer)] for way in WAYS)
        pairs = [
            ours.mb_per_s / theirs.mb_per_s
            for theirs, ours in zip(tunnel, plugin, strict=False)  # lossy: the tunnel has a second turn
            if not (theirs.wrong or ours.wrong)
        ]
        if pairs:
            found[transfer] = statistics.median(pairs)
    return found


def median(told: Sequence[Run], way: str, transfer: str) -> float:
    """MB/s, where all bytes arrived; 0: they never did."""
    runs = [run for run in told if (run.way, run.transfer) == (way, transfer)]
    return statistics.median([run.mb_per_s for run in runs if not run.wrong] or [0.0])


def table(told: Sequence[Run]) -> Table:
    """The medians, and what each process used: CPU seconds for 100 MB, and the most memory in MB."""
    shown = Table(title="throughput of a service inside I2P; CPU seconds for 100 MB and memory in MB")
    processes = list(told[0].usage) if told else []
    for column in ("transfer", "way", "runs", "failed", "MB/s", "ratio", *processes):
        shown.add_column(column, justify="left" if column in ("transfer", "way") else "right")
    found = ratios(told)
    for transfer in dict.fromkeys(run.transfer for run in told):
        for way in WAYS:
            runs = [run for run in told if (run.way, run.transfer) == (way, transfer)]
            cells = []
            for name in processes:
                each_cpu_s = statistics.median(run.usage[name].cpu_s * 100 / run.megabytes for run in runs)
                cells.append(f"{each_cpu_s:.1f} s, {max(run.usage[name].rss_mb for run in runs):.0f}")
            shown.add_row(
                transfer,
                way,
                str(len(runs)),
                str(sum(run.wrong > 0 for run in runs)),
                f"{median(told, way, transfer):.2f}",
                f"{found[transfer]:.2f}" if way == "plugin" and transfer in found else "",
                *cells,
            )
    return shown


def main() -> int:
    match sys.argv[1:]:
        case ["serve", largest]:
            trio.run(serve_alone, int(largest))
        case ["publish", directory, options]:
            trio.run(publish, Path(directory), json.loads(options))
        case ["ask", port, name, size, streams, deadline_s]:
            trio.run(ask, int(port), name, int(size), int(streams), float(deadline_s))
        case _:
            return measure_all()
    return 0


def measure_all() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each transfer in each way")
    parser.add_argument("--hops", type=int, default=0, choices=(0, 1), help="of each tunnel")
    parser.add_argument("--megabytes", type=int, default=100, help="of each transfer")
    parser.add_argument("--lossy-megabytes", type=int, default=100, help="of the transfer with loss; 0: none")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        if reason := why_not():
            print(f"throughput_i2p: skipped: {reason}")
            return 0
        print_i2pd_version()
        os.execvp(SANDBOX[0], [*SANDBOX, sys.executable, "-m", __spec__.name, *sys.argv[1:], "--inside"])
    try:
        told = trio.run(measure, options.megabytes, options.lossy_megabytes, options.runs, options.hops)
    except Exception as group:  # noqa: BLE001 - one line says why it failed
        error = first_error(group)
        print(f"throughput_i2p: failed: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    Console().print(table(told))
    failures = missed(told)
    for failure in failures:
        print(f"throughput_i2p: missed: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
