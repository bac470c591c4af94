"""How long a service inside I2P is away after `kill -9` of the router that serves it.

Each run has a private network of real i2pd routers: four floodfills, those of the service, and four of
clients; tunnels have no hops. A client asks for the site in a new connection each second and waits 6 s for
an answer. Once the first client has been served for half a minute, the router that serves it is killed, and
stays away. Two ways to serve:

* ``naive``: two routers have a server tunnel with the same keys, as many operators do today.
* ``sam``: a farm of three nodes with a router each; the elected one publishes through SAM.

Four clients, each behind a router of its own: one ``knew`` the service when the router was killed; one is
``new`` and asks for the first time at the kill; one asks for the first time ``soon``, 45 s after it, before
the farm has named another member; one asks ``later``, after 150 s, when that member publishes. A figure is
the time from the kill, or from a client's first request after it, to its first answer. i2pd asks for a
LeaseSet again only when the one that it knows has nearly run out, which takes up to 9 minutes: the benchmark
waits for ``--watch-s``, and says so where there was no answer within that time.

Prints a line of JSON for each run, and one table of all runs; the two ways take turns. The machine should
have nothing else to do: without a processor i2pd loses messages, and every figure is worse.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import trio
from rich.console import Console
from rich.table import Table

from garlicfarm.errors import ConfigError
from garlicfarm.lab.i2pd import check_programs
from garlicfarm.lab.line_server import startup_error
from garlicfarm.lab.service import Service, naive_service, sam_service
from garlicfarm.lab.site import Client

SANDBOX = ("unshare", "--map-root-user", "--net")
ASKS_AFTER_S = {"knew": 0.0, "new": 0.0, "soon": 45.0, "later": 150.0}
"""Seconds from the kill to a client's first request; the one that ``knew`` the service never stops asking."""
SERVED_S = 300.0
STEADY_S = 30.0
GAVE_UP = math.inf

Outages = Mapping[str, float]
"""By client: seconds without an answer, or `GAVE_UP`."""


@asynccontextmanager
async def elected_service(directory: Path, clients: int) -> AsyncIterator[Service]:
    async with sam_service(directory, clients) as (service, _):
        yield service


WAYS: Mapping[str, Callable[[Path, int], AbstractAsyncContextManager[Service]]] = {
    "naive": naive_service,
    "sam": elected_service,
}


async def outages(service: Service, watch_s: float) -> Outages:
    """Kill the router that serves the first client; how long each client was without an answer then."""
    clients = [Client(router.proxy, service.host) for router in service.clients]
    found: dict[str, float] = {}

    async def watch(name: str, client: Client, begin_s: float) -> None:
        await trio.sleep_until(begin_s)
        if name != "knew":
            nursery.start_soon(client.run)
        found[name] = GAVE_UP
        with trio.move_on_after(watch_s):
            found[name] = (await client.wait_answered()).ended_s - begin_s

    async with trio.open_nursery() as nursery:
        knew = clients[0]
        nursery.start_soon(knew.run)
        with trio.fail_after(SERVED_S):
            await knew.wait_answered()
            await trio.sleep(STEADY_S)
            served = await knew.wait_answered()
        service.network.kill(service.router_of(served))
        killed_s = trio.current_time()
        async with trio.open_nursery() as watches:
            for (name, after_s), client in zip(ASKS_AFTER_S.items(), clients, strict=True):
                watches.start_soon(watch, name, client, killed_s + after_s)
        nursery.cancel_scope.cancel()
    return found


async def one(way: str, watch_s: float) -> None:
    """One run, in this private network."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as directory:
        async with WAYS[way](Path(directory), len(ASKS_AFTER_S)) as service:
            found = await outages(service, watch_s)
    load = round(os.getloadavg()[0], 2)
    print(json.dumps({"way": way, **{name: _told(found[name]) for name in ASKS_AFTER_S}, "load": load}))


def _told(outage_s: float) -> float | None:
    return None if outage_s == GAVE_UP else round(outage_s, 1)


async def run_all(runs: int, at_once: int, watch_s: float) -> dict[str, list[Outages]]:
    """All runs, the ways in turns, each in a private network of its own; prints what each tells."""
    told: dict[str, list[Outages]] = {way: [] for way in WAYS}
    limit = trio.CapacityLimiter(at_once)

    async def run(way: str, *, task_status: trio.TaskStatus[None]) -> None:
        command = [*SANDBOX, sys.executable, "-m", __spec__.name, "--one", way, "--watch-s", str(watch_s)]
        async with limit:
            task_status.started()
            done = await trio.run_process(command, capture_stdout=True)
        line = done.stdout.decode().strip()
        print(line, flush=True)
        outage_s = json.loads(line)
        told[way].append(
            {name: GAVE_UP if outage_s[name] is None else outage_s[name] for name in ASKS_AFTER_S}
        )

    async with trio.open_nursery() as nursery:
        for _ in range(runs):
            for way in WAYS:
                await nursery.start(run, way)
    return told


def table(told: Mapping[str, Sequence[Outages]], watch_s: float) -> Table:
    """Median, shortest and longest outage of each client, in seconds."""
    shown = Table(title="seconds without service after the death of the serving router")
    for column in ("way", "client", "runs", "median", "min", "max"):
        shown.add_column(column, justify="left" if column in ("way", "client") else "right")
    for way, runs in told.items():
        for name in ASKS_AFTER_S:
            seconds = [run[name] for run in runs]
            figures = (statistics.median_high(seconds), min(seconds), max(seconds))
            cells = [f"> {watch_s:.0f}" if each == GAVE_UP else f"{each:.1f}" for each in figures]
            shown.add_row(way, name, str(len(runs)), *cells)
    return shown


def why_not() -> str | None:
    """The reason why this machine cannot run this, or None."""
    try:
        check_programs()
    except ConfigError as error:
        return str(error)
    return startup_error([*SANDBOX, "true"])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="of each way")
    parser.add_argument(
        "--at-once", type=int, default=1, help="networks at a time, where processors are idle"
    )
    parser.add_argument("--watch-s", type=float, default=600.0, help="how long to wait for an answer")
    parser.add_argument("--one", choices=list(WAYS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        trio.run(one, options.one, options.watch_s)
    elif reason := why_not():
        print(f"failover_i2p: skipped: {reason}")
    else:
        told = trio.run(run_all, options.runs, options.at_once, options.watch_s)
        Console().print(table(told, options.watch_s))
    return 0


if __name__ == "__main__":
    sys.exit(main())
