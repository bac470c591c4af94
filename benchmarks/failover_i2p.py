"""How long a service inside I2P is away when what serves it dies, or hands over in order.

Each run has a private network of real i2pd routers: four floodfills, those of the service, and four of
clients. Each router is on a machine (a network namespace) of its own. A node is on that of its router, which
has one link to the other routers and one to the other nodes. A client asks for the site in a new connection
twice a second and waits 6 s for an answer. Once the first client has been served for half a minute, the fault
strikes the machine that serves it. What serves:

* ``naive``: two routers have a server tunnel with the same keys, as many operators do today.
* ``sam``: a farm of three nodes with a router each; the elected one publishes through SAM.
* ``i2cp``: the same through I2CP in service mode, with leases of 90 s; ``i2cp-fast``: with those of 50 s.
* ``i2cp-inside``, ``i2cp-fast-inside``: the same by a farm inside I2P, with the preset ``i2p``: its nodes
  reach each other through their routers only, and the machines have no other link. The fault waits until a
  lease is as short as ``--lease-s``: for 60 s, some 22 minutes of quick round trips; for 120 s, no time. Not
  among the default ways.
* ``naive-java``, ``i2cp-java``, ``i2cp-fast-java``: the routers that serve are Java I2P's. They need
  ``JAVA_I2P`` (see `tests.java.java_router`) and an i2pd of 2.47 or later; half of the floodfills are Java
  I2P's then. Not among the default ways.

The faults:

* ``router``, ``node``, ``both``: ``kill -9``; what is killed stays away. ``restarted``: the node is killed
  and started again half a second later, as by its unit.
* ``move``: an administrator takes the role from the node.
* ``stop``: SIGTERM of the node, which is started again once it has ended. ``rolling``: the same with all
  nodes in turn, this one first; each waits until the farm is healthy and has served a client for 10 s more.
* ``leader``: the leader's node is killed and stays away; before that, the one that serves hands the
  leadership over if it has it.
* ``machine``: both links of the machine are cut; ``farm-link``: only that to the nodes, for 3 s;
  ``i2p-link``: only that to the routers, which the others find as they test what it serves (D25). They know
  before that it answers tests, and the fault strikes at random within the minute from one test to the next.
* ``clock``: the wall clock of node and router is set back by 3 min (needs Debian's ``faketime``). ``full``: a
  client opens streams, and holds them, until the service can have no more.

Four clients, each behind an i2pd of its own: one ``knew`` the service when the fault struck; one is ``new``
and asks for the first time then; one asks for the first time ``soon``, 45 s later; one asks ``later``, after
150 s. With ``--java-clients N`` so many more knew it, each behind a Java I2P of its own; the table has them
in one line. The figures of each: the time from the fault, or from its first request after it, to the first
answer of another one than the fault struck; and how many of its requests were lost, in ``rolling`` at each
stop. After ``stop``, ``rolling``, ``restarted``, ``leader``, ``farm-link`` and ``full`` the same node may
serve on: the time is then the longest between two requests that were answered. Beside them: the time from the
fault until another node says that it publishes; nodes are asked twice a second. i2pd asks for a LeaseSet
again only when the one that it knows has nearly run out: the benchmark waits for ``--watch-s``, and says so
where there was no answer within that time.

Prints a line of JSON for each run, and one table of all runs, which take turns. ``--i2pd`` names another i2pd
than the one in ``PATH``. Exit code 1: a bound was missed, or a run failed twice. The machine should have
nothing else to do: without a processor i2pd loses messages, and every figure is worse.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
from bisect import bisect_left
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec
import trio
from rich.console import Console
from rich.table import Table

from benchmarks.bench_farm import command_line
from benchmarks.failover_i2p_faults import (
    FAKETIME,
    FAULTS,
    LOOK_S,
    NODES,
    SERVED_S,
    Machines,
    clock_routers,
)
from benchmarks.i2p import SANDBOX, print_i2pd_version, why_not
from garlicfarm.config.model import PRESET_INTERVALS_MS
from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.errors import GarlicFarmError, RouterError, first_error
from garlicfarm.i2p.encoding import decode
from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm.lab.directory import lab_directory
from garlicfarm.lab.i2pd import I2pdRouter
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.lab.processes import ProcessFarm
from garlicfarm.lab.service import (
    FARM_LINK,
    FLOODFILLS,
    I2P_LINK,
    I2PD,
    INTERVAL_MS,
    KEYS,
    Kinds,
    Leases,
    Service,
    elected_service,
    i2cp_service,
    sam_table,
    server_plan,
    service_network,
)
from garlicfarm.lab.site import Client, Fetch, serve_site
from garlicfarm.lab.tun_network import Network, network
from garlicfarm.setup.i2p_tunnel import Tunnel
from tests.java.java_router import JavaPlan
from tests.java.java_router import why_unavailable as why_no_java

INSIDE, JAVA = "-inside", "-java"
DEFAULT_WAYS = ("naive", "sam", "i2cp", "i2cp-fast")
WAYS = (
    *DEFAULT_WAYS,
    *(f"{way}{INSIDE}" for way in ("i2cp", "i2cp-fast")),
    *(f"{way}{JAVA}" for way in ("naive", "i2cp", "i2cp-fast")),
)
ASKS_AFTER_S = {"knew": 0.0, "new": 0.0, "soon": 45.0, "later": 150.0}
"""Seconds from the fault to a client's first request; the one that ``knew`` the service never stops."""
KNEW = ("knew", "java")
"""Clients that never stop; the second is any of those behind Java I2P."""
ASK_EACH_S = 0.5
STEADY_S = 30.0
SENSED_S = 60.0
"""The same where the nodes test each other's services: no test counts in the first minute (D25). Then up to
as much again."""
REST_S = 10.0
"""Longer than a client waits for an answer."""
ATTEMPTS = 2
TABLE_COLUMNS = 110

P50_AT_MOST_S = {
    ("i2cp", "router"): 45.0,
    ("i2cp-fast", "router"): 5.0,
    ("i2cp-fast", "restarted"): 5.0,
    ("i2cp-fast", "node"): 9.0,
    ("i2cp-fast", "both"): 9.0,
    ("i2cp-fast", "machine"): 9.0,
    ("i2cp-fast", "i2p-link"): 90.0,
    ("i2cp-fast", "clock"): 90.0,
    ("i2cp-fast", "full"): 90.0,
}
MAX_AT_MOST_S = {
    ("i2cp", "router"): 75.0,
    ("i2cp-fast", "i2p-link"): 135.0,
    ("i2cp-fast", "clock"): 135.0,
    ("i2cp-fast", "full"): 135.0,
}
"""Of a client that knew the service, by way and fault, without hops. One publication in a quarter is lost at
first and repeated: of the p50 of ``i2cp``, some 25 s more."""
BEYOND_LEASE_P50_AT_MOST_S = {("i2cp-inside", "machine"): 15.0, ("i2cp-fast-inside", "machine"): 1.0}
"""The same less the lease, of runs in which the dead one did not lead: a leader takes an election longer."""
PUBLISHING_P50_AT_MOST_S = 3.0
"""After the death of its publisher's router, until the next node of a farm with `i2cp` publishes."""
LOST_AT_MOST = {"move": 1, "stop": 1, "rolling": 1, "leader": 0, "farm-link": 0}
"""Of such a client's requests, at each strike."""


class Case(NamedTuple):
    way: str
    fault: str
    hops: int

    @property
    def is_inside(self) -> bool:
        return self.way.endswith(INSIDE)

    def kinds(self, java_clients: int) -> Kinds:
        """Of its routers, with so many clients behind Java I2P."""
        has_java = self.way.endswith(JAVA)
        mixed = (RouterPlan, JavaPlan) * (FLOODFILLS // 2)
        return Kinds(
            JavaPlan if has_java else RouterPlan,
            (JavaPlan,) * java_clients,
            mixed if has_java or java_clients else I2PD.floodfills,
        )

    def __str__(self) -> str:
        return f"{self.way}, {self.fault}, hops {self.hops}"


class Outage(msgspec.Struct, frozen=True):
    """``away_s``: until the first answer of another one, or the longest time between answered requests; None:
    none was answered in time. ``lost``: how many requests had no answer, at each strike of the fault."""

    away_s: float | None
    lost: list[int]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """``publishing_s``: from the fault until another node said that it publishes, None: none did.
    ``had_two_publishers``: whether two nodes ever said at once that they publish. ``led``: whether the node
    that served led the farm. ``stopped_s``: how long each stopped node took to end. ``lease_s``: how long a
    lease lasted when the fault struck, None without a farm. ``sensed``: what the other nodes said at last of
    their tests of what that node publishes, where they test it."""

    way: str
    fault: str
    hops: int
    clients: dict[str, Outage]
    publishing_s: float | None
    had_two_publishers: bool
    load: float
    led: bool = False
    stopped_s: list[float] = []
    lease_s: float | None = None
    sensed: list[str] = []


class PublisherWatch:
    """Asks all nodes in turn whether they publish."""

    def __init__(self) -> None:
        self.had_two = False
        self._looks = 0
        self._still: dict[int, int] = {}
        """Nodes that published when last asked: the number of that look."""
        self._last: dict[int, int] = {}
        """The newest look at which a node published."""
        self._began: list[tuple[float, int]] = []
        """When a node was first seen to publish, on Trio's clock; and which."""

    async def run(self, farm: ProcessFarm) -> NoReturn:
        while True:
            for node in farm.nodes.values():
                try:
                    async with node.client() as client:
                        status = await client.status(farm.name)
                except GarlicFarmError:
                    self.note(node.id, is_publishing=False, now_s=trio.current_time())
                else:
                    states = [each["state"] for each in status["publishers"]]
                    self.note(node.id, is_publishing="publishing" in states, now_s=trio.current_time())
            await trio.sleep(LOOK_S)

    def next_after(self, since_s: float, but: int) -> float | None:
        """When another node than ``but`` was first seen to publish since then."""
        return next((at_s for at_s, each in self._began if each != but and at_s >= since_s), None)

    def note(self, node_id: int, *, is_publishing: bool, now_s: float) -> None:
        """Two publish at once where one does before and after the other is seen to."""
        self._looks += 1
        if not is_publishing:
            self._still.pop(node_id, None)
            return
        if node_id not in self._still:
            self._began.append((now_s, node_id))
        since = self._still.get(node_id, self._looks)
        self.had_two |= any(look > since for each, look in self._last.items() if each != node_id)
        self._still[node_id] = self._last[node_id] = self._looks


@asynccontextmanager
async def served(
    case: Case, directory: Path, wires: Network, java_clients: int
) -> AsyncIterator[tuple[Service, ProcessFarm | None]]:
    """The service of a case, and the farm behind it if there is one."""
    clients = len(ASKS_AFTER_S)
    kinds = case.kinds(java_clients)
    if case.way.startswith("naive"):
        async with without_a_farm(directory, clients, case.hops, wires, kinds) as service:
            yield service, None
    elif case.way == "sam":

        def table(keys: DestinationKeys, router: I2pdRouter, target: str) -> dict[str, Any]:
            return sam_table(directory, keys, router.id, router.sam, target, case.hops)

        plan = server_plan(has_sam=True)
        made = elected_service(directory, plan, clients, NODES, case.hops, table, wires=wires, kinds=kinds)
        async with made as running:
            yield running
    else:
        leases: Leases = "fast" if case.way.startswith("i2cp-fast") else "default"
        inside = case.is_inside
        interval_ms = PRESET_INTERVALS_MS["i2p"] if inside else INTERVAL_MS
        async with i2cp_service(
            directory,
            clients,
            NODES,
            leases=leases,
            hops=case.hops,
            interval_ms=interval_ms,
            wires=wires,
            inside=inside,
            senses=FAULTS[case.fault].senses,
            kinds=kinds,
        ) as running:
            yield running


@asynccontextmanager
async def without_a_farm(
    directory: Path, clients: int, hops: int, wires: Network, kinds: Kinds
) -> AsyncIterator[Service]:
    """Two routers have a server tunnel with the same keys."""
    keys = create_keys(directory / "site.key")
    files = {KEYS: decode(keys.sam_private_key())}
    async with trio.open_nursery() as nursery:
        servers = []
        for router_id in (1, 2):
            place = await wires.place(router_id)
            port = await nursery.start(serve_site, f"node {router_id}", 0, place)
            tunnels = (Tunnel("site", "127.0.0.1", port, 80, KEYS),)
            servers.append(server_plan(kinds.server, tunnels=tunnels, files=files, has_leaf=False))
        made = service_network(directory, servers, keys.destination, clients, hops, wires, kinds)
        async with made as service:
            yield service
        nursery.cancel_scope.cancel()


def lost_at_each(fetches: Sequence[Fetch], struck_s: Sequence[float]) -> list[int]:
    """How many requests had no answer: each counts for the last strike before its end."""
    lost = [bisect_left(struck_s, each.ended_s) for each in fetches if each.text is None]
    return [lost.count(number) for number in range(1, len(struck_s) + 1)]


def longest_gap(fetches: Sequence[Fetch], since_s: float) -> float | None:
    """The longest time from one answered request to the next, since then; None: none was answered."""
    answered_s = sorted(each.began_s for each in fetches if each.text is not None and each.began_s >= since_s)
    return max((b - a for a, b in pairwise([since_s, *answered_s])), default=None)


async def recovered(machines: Machines, client: Client) -> None:
    """Until the farm is healthy, and its site was served for a while."""
    await machines.wait_healthy()
    with trio.fail_after(SERVED_S):
        await client.wait_answered()
    await trio.sleep(REST_S)


async def measured(case: Case, machines: Machines, watch_s: float, lease_s: float) -> Run:
    """The fault strikes the node that serves the first client; what each client had of that. A farm inside
    I2P has a lease of at most ``lease_s`` then."""
    service, farm, fault = machines.service, machines.farm, FAULTS[case.fault]
    in_force_s = None
    if farm is not None:
        await machines.wait_healthy()
        in_force_s = await machines.lease_s(lease_s if case.is_inside else float("inf"))
    more = range(1, len(service.clients) - len(ASKS_AFTER_S) + 1)
    asks_after_s = ASKS_AFTER_S | {f"java {number}": 0.0 for number in more}
    clients = {
        name: Client(router.proxy, service.host, ASK_EACH_S)
        for name, router in zip(asks_after_s, service.clients, strict=True)
    }
    know = [client for name, client in clients.items() if name.startswith(KNEW)]
    publishers = PublisherWatch()
    away_s: dict[str, float | None] = {}

    async def watch(name: str, begin_s: float) -> None:
        await trio.sleep_until(begin_s)
        if not name.startswith(KNEW):
            nursery.start_soon(clients[name].run)
        away_s[name] = None
        with trio.move_on_after(watch_s):
            but = None if fault.may_go_on else f"node {victim}"
            away_s[name] = (await clients[name].wait_answered(but)).ended_s - begin_s

    async with trio.open_nursery() as nursery:
        knew = clients["knew"]
        for client in know:
            nursery.start_soon(client.run)
        if farm is not None:
            nursery.start_soon(publishers.run, farm)
        with trio.fail_after(SERVED_S):
            for client in know:
                await client.wait_answered()
            await trio.sleep(SENSED_S if fault.senses else STEADY_S)
            victim = service.router_of(await knew.wait_answered())
        if fault.senses:
            await machines.wait_sensed(victim)
            await trio.sleep(random.uniform(0, SENSED_S))
        led = farm is not None and await machines.leads(victim)
        struck_s = [trio.current_time()]
        async with trio.open_nursery() as watches:
            for name, after_s in asks_after_s.items():
                watches.start_soon(watch, name, struck_s[0] + after_s)
            await fault.strike(machines, victim)
            for after in range(1, fault.strikes):
                await recovered(machines, knew)
                struck_s.append(trio.current_time())
                await fault.strike(machines, (victim + after - 1) % NODES + 1)
            if fault.strikes > 1:
                await recovered(machines, knew)
        nursery.cancel_scope.cancel()
    sensed = await machines.sensed(victim) if fault.senses else []
    if fault.may_go_on:
        away_s = {
            name: longest_gap(clients[name].fetches, struck_s[0] + after_s)
            for name, after_s in asks_after_s.items()
        }
    for router in service.network:
        if router.id not in machines.killed and not service.network.is_running(router.id):
            raise RouterError(f"router {router.id} has ended by itself")
    published_at_s = publishers.next_after(struck_s[0], but=victim)
    return Run(
        **case._asdict(),
        clients={
            name: Outage(_rounded(away_s[name]), lost_at_each(client.fetches, struck_s))
            for name, client in clients.items()
        },
        publishing_s=_rounded(None if published_at_s is None else published_at_s - struck_s[0]),
        had_two_publishers=publishers.had_two,
        load=round(os.getloadavg()[0], 2),
        led=led,
        stopped_s=machines.stopped_s,
        lease_s=in_force_s,
        sensed=sensed,
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


async def one(case: Case, watch_s: float, lease_s: float, java_clients: int, directory: Path) -> None:
    """One run, in this private network, which ends with the benchmark."""
    links = (I2P_LINK,) if case.is_inside else (I2P_LINK, FARM_LINK)
    if case.fault == "clock":
        clock_routers(directory)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_with_stdin)
        async with (
            network(NODES + len(ASKS_AFTER_S) + java_clients + FLOODFILLS, len(links)) as wires,
            served(case, directory, wires, java_clients) as (service, farm),
        ):
            machines = Machines(service, farm, wires)
            async with FAULTS[case.fault].prepared(machines):
                run = await measured(case, machines, watch_s, lease_s)
        nursery.cancel_scope.cancel()
    print(msgspec.json.encode(run).decode())


async def end_with_stdin() -> NoReturn:
    await trio.lowlevel.wait_readable(sys.stdin)
    raise EOFError("the benchmark has ended")


def run_one(case: Case, watch_s: float, lease_s: float, java_clients: int) -> int:
    """The exit code; says on stderr why a run failed."""
    tempfile.tempdir = os.environ.get("BENCH_DIR")
    try:
        with lab_directory() as directory:
            trio.run(one, case, watch_s, lease_s, java_clients, directory)
    except Exception as group:  # noqa: BLE001 - the next run may succeed
        error = first_error(group)
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


async def run_all(
    cases: Sequence[Case], runs: int, at_once: int, watch_s: float, lease_s: float, java_clients: int
) -> dict[Case, list[Run]]:
    """All runs, the cases in turns, each in a private network of its own; prints what each tells."""
    told: dict[Case, list[Run]] = {case: [] for case in cases}
    limit = trio.CapacityLimiter(at_once)
    lives, ends = os.pipe()  # closed when this process ends, however it does

    async def run(case: Case, *, task_status: trio.TaskStatus[None]) -> None:
        command = [
            *SANDBOX,
            sys.executable,
            "-m",
            __spec__.name,
            "--watch-s",
            str(watch_s),
            "--lease-s",
            str(lease_s),
            "--java-clients",
            str(java_clients),
            "--one",
            *map(str, case),
        ]
        async with limit:
            task_status.started()
            for _ in range(ATTEMPTS):
                done = await trio.run_process(
                    command, stdin=lives, capture_stdout=True, capture_stderr=True, check=False
                )
                if not done.returncode:
                    print(done.stdout.decode(), end="", flush=True)
                    told[case].append(msgspec.json.decode(done.stdout, type=Run))
                    return
                print(
                    f"failover_i2p: {case}: a run failed: {done.stderr.decode().strip()}",
                    file=sys.stderr,
                    flush=True,
                )

    async with trio.open_nursery() as nursery:
        for _ in range(runs):
            for case in cases:
                await nursery.start(run, case)
    os.close(lives)
    os.close(ends)
    return told


def p50(figures: Sequence[float]) -> float:
    return statistics.median_high(figures)


def outages_of(runs: Sequence[Run], client: str) -> list[Outage]:
    """Those of a client in each run, or of all that are behind Java I2P."""
    return [each for run in runs for name, each in run.clients.items() if name.split()[0] == client]


def seconds_of(runs: Sequence[Run], client: str) -> list[float]:
    """How long the service was away, in each run; endless where there was no answer."""
    return [_endless(each.away_s) for each in outages_of(runs, client)]


def lost_of(runs: Sequence[Run], client: str) -> list[int]:
    """How many requests were lost at each strike of all runs."""
    return [each for outage in outages_of(runs, client) for each in outage.lost]


def publishing_seconds(runs: Sequence[Run]) -> list[float]:
    """Until another node published, in each run; endless where none did."""
    return [_endless(run.publishing_s) for run in runs]


def beyond_lease_seconds(runs: Sequence[Run]) -> list[float]:
    """How much longer than a lease the client that knew the service was away, where no leader was struck."""
    followers = [run for run in runs if run.lease_s is not None and not run.led]
    return [_endless(run.clients["knew"].away_s) - (run.lease_s or 0.0) for run in followers]


def _endless(seconds: float | None) -> float:
    return float("inf") if seconds is None else seconds


def missed(told: Mapping[Case, Sequence[Run]], expected: int) -> list[str]:
    """The bounds that these runs miss. ``expected``: how many of each case there have to be."""
    found = []
    for case, runs in told.items():
        if len(runs) < expected:
            found.append(f"{case}: {len(runs)} of {expected} runs")
        if any(run.had_two_publishers for run in runs):
            found.append(f"{case}: two nodes published at once")
        if case.hops or not runs or not case.way.startswith("i2cp"):
            continue
        seconds = seconds_of(runs, "knew")
        lost = max(lost_of(runs, "knew"))
        of = case.way, case.fault
        is_told = case.fault == "router" and not case.is_inside
        until_s = PUBLISHING_P50_AT_MOST_S if is_told else float("inf")
        beyond_s = BEYOND_LEASE_P50_AT_MOST_S.get(of, float("inf"))
        limits = [
            ("p50", p50(seconds), "", P50_AT_MOST_S.get(of, float("inf"))),
            ("p50", p50(beyond_lease_seconds(runs) or [0.0]), " beyond the lease", beyond_s),
            ("max", max(seconds), "", MAX_AT_MOST_S.get(of, float("inf"))),
            ("p50", p50(publishing_seconds(runs)), " until the next node publishes", until_s),
        ]
        found += [
            f"{case}: {what} {is_s:.1f} s{than}, at most {most:.0f} s"
            for what, is_s, than, most in limits
            if is_s > most
        ]
        if case.fault in LOST_AT_MOST:
            if lost > (most := LOST_AT_MOST[case.fault]):
                found.append(f"{case}: {lost} requests lost, at most {most}")
            if case.fault == "move" and max(seconds) == float("inf"):
                found.append(f"{case}: the client that knew the service stayed where it was")
    return found


def table(told: Mapping[Case, Sequence[Run]], watch_s: float) -> Table:
    """The median, shortest and longest outage of each client in seconds, and its lost requests; and the time
    until another node published. ``led``: in how many runs the one that was struck led the farm."""
    shown = Table(title="seconds without service, and lost requests, after a fault")
    texts = ("way", "fault", "hops", "client")
    for column in (*texts, "runs", "led", "p50", "min", "max", "lost p50", "lost max"):
        shown.add_column(column, justify="left" if column in texts else "right")
    for case, runs in told.items():
        counts = str(len(runs)), str(sum(run.led for run in runs))
        for name in (*ASKS_AFTER_S, "java"):
            if not (lost := lost_of(runs, name)):
                continue
            cells = _cells(seconds_of(runs, name), watch_s)
            shown.add_row(*map(str, case), name, *counts, *cells, f"{p50(lost):.0f}", str(max(lost)))
        if runs and not case.way.startswith("naive"):
            cells = _cells(publishing_seconds(runs), watch_s)
            shown.add_row(*map(str, case), "(publisher)", *counts, *cells, "", "")
    return shown


def _cells(seconds: Sequence[float], watch_s: float) -> list[str]:
    figures = (p50(seconds), min(seconds), max(seconds))
    return [f"> {watch_s:.0f}" if each == float("inf") else f"{each:.1f}" for each in figures]


def cases_of(ways: Sequence[str], faults: Sequence[str], hops: Sequence[int]) -> list[Case]:
    """All of them but those that need a farm and have none, or links of its own and it is inside I2P, or
    nodes that test each other's services, as only those with `i2cp` do here."""
    every = [Case(way, fault, length) for length in hops for fault in faults for way in ways]
    return [
        case
        for case in every
        if (not case.way.startswith("naive") or case.fault == "router")
        and not (case.is_inside and case.fault == "farm-link")
        and (case.way.startswith("i2cp") or not FAULTS[case.fault].senses)
    ]


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=DEFAULT_WAYS)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=("router", "node", "both", "move"))
    parser.add_argument("--hops", nargs="+", type=int, default=[0], help="lengths of tunnels, as 0 1")
    parser.add_argument("--runs", type=int, default=5, help="of each way with each fault")
    parser.add_argument(
        "--at-once", type=int, default=1, help="networks at a time, where processors are idle"
    )
    parser.add_argument("--watch-s", type=float, default=600.0, help="how long to wait for an answer")
    parser.add_argument(
        "--lease-s", type=float, default=60.0, help="the longest lease of a farm inside I2P at the fault"
    )
    parser.add_argument("--java-clients", type=int, default=0, help="so many more clients, behind Java I2P")
    parser.add_argument("--i2pd", help="the program that runs as a router, by default as I2PD says")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.i2pd:
        os.environ["I2PD"] = options.i2pd
    if options.one:
        way, fault, hops = options.one
        case = Case(way, fault, int(hops))
        return run_one(case, options.watch_s, options.lease_s, options.java_clients)
    if reason := why_not():
        print(f"failover_i2p: skipped: {reason}")
        return 0
    if "clock" in options.faults and FAKETIME is None:
        parser.error("the fault clock needs Debian's package faketime")
    has_java = options.java_clients or any(way.endswith(JAVA) for way in options.ways)
    if has_java and (reason := why_no_java()):
        parser.error(reason)
    print_i2pd_version()
    cases = cases_of(options.ways, options.faults, options.hops)
    told = trio.run(
        run_all,
        cases,
        options.runs,
        options.at_once,
        options.watch_s,
        options.lease_s,
        options.java_clients,
    )
    Console(width=TABLE_COLUMNS).print(table(told, options.watch_s))
    failures = missed(told, options.runs)
    for failure in failures:
        print(f"failover_i2p: missed: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
