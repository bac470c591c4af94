"""``lab``: a whole farm on this machine, to try it and to watch it."""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.options import Options, shared_options
from garlicfarm.cli.say import put, say
from garlicfarm.durations import DURATION_RULE, format_ms, parse_ms

if TYPE_CHECKING:
    from garlicfarm.cli.farm_watch import FarmWatch
    from garlicfarm.cli.lab_rank import RankProcess
    from garlicfarm.cli.lab_site import SiteWatch
    from garlicfarm.lab.processes import NodeProcess, ProcessFarm
    from garlicfarm.setup.provision import MemberPlan

POLL_S = 0.5
INTERVAL_MS = 1000
SITE_INTERVAL_MS = 3000  # the role lasts while routers are busy with tunnels
UNTIL_TIMEOUT_S = 120.0
UNTIL_TIMEOUTS_S = {
    "ranked": 300.0,  # Spark alone takes a minute to start on a busy machine
    "moved": 300.0,  # routers take half a minute to build tunnels
}


class Duration(click.ParamType[int]):
    """``1s``, ``500ms``, ``2m``: milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from garlicfarm.publishing.documents import MAX_INTERVAL_MS, MIN_INTERVAL_MS

        interval_ms = parse_ms(str(value))
        if interval_ms is None:
            self.fail(f"{value!r} must be {DURATION_RULE}", param, ctx)
        if not MIN_INTERVAL_MS <= interval_ms <= MAX_INTERVAL_MS:
            bounds = f"{format_ms(MIN_INTERVAL_MS)} to {format_ms(MAX_INTERVAL_MS)}"
            self.fail(f"{value!r} must be {bounds}", param, ctx)
        return interval_ms


@click.command(cls=Command, examples=["garlicfarm lab", "garlicfarm lab --nodes 5 --rank"])
@click.option("--nodes", type=click.IntRange(1, 9), default=3, show_default=True, help="How many nodes.")
@click.option(
    "--interval",
    type=Duration(),
    help="How often routers' statuses are posted. Default: 1s, with --site 3s.",
)
@click.option(
    "--router",
    type=click.Choice(["simulated", "i2pcontrol"]),
    default="simulated",
    show_default=True,
    help="Simulated routers, or real i2pd ones on a private network (needs the Debian package i2pd).",
)
@click.option(
    "--site",
    is_flag=True,
    help="A web site inside I2P that the publisher publishes through I2CP, and a client that fetches it. "
    "Implies real routers.",
)
@click.option(
    "--until",
    type=click.Choice(["leader", "publisher", "ranked", "moved"]),
    help="End with exit code 0 once there is one, with 124 if it takes longer than --timeout (120 s). "
    "ranked (300 s): once Spark ranks as a node does at the same index; implies --rank. "
    "moved (300 s): kill the router that serves the site, and end once another serves it; implies "
    "--site.",
)
@click.option("--rank", is_flag=True, help="Rank the members in Spark too (needs the extra spark, and Java).")
@click.option(
    "--prepare",
    metavar="COMMAND",
    help="With --rank: run this first, beside the farm. So `make lab` installs Spark.",
)
@shared_options("timeout")
def lab(
    options: Options,
    nodes: int,
    interval: int | None,
    router: str,
    site: bool,
    until: str | None,
    rank: bool,
    prepare: str | None,
) -> None:
    """Run a farm of real processes, with data, TLS and fsync of their own, in a temporary directory.

    On a terminal it shows the farm until Ctrl-C, and leaves nothing behind.
    """
    import trio

    with_site = site or until == "moved"
    if router == "i2pcontrol" or with_site:
        from garlicfarm.lab.i2pd import check_programs, in_private_network, reexec_in_private_network

        check_programs()
        if not in_private_network():
            reexec_in_private_network([sys.executable, "-m", "garlicfarm", *sys.argv[1:]])
    with_rank = rank or until == "ranked"
    if with_rank and prepare is None:
        from garlicfarm.cli.rank import plugin

        plugin("session").check_installed()
    kind = "site" if with_site else router
    if interval is None:
        interval = SITE_INTERVAL_MS if with_site else INTERVAL_MS
    trio.run(_main, nodes, interval, kind, until, with_rank, prepare, options.timeout_s)


async def _main(
    nodes: int,
    interval: int,
    kind: str,
    until: str | None,
    with_rank: bool,
    prepare: str | None,
    timeout_s: float | None,
) -> None:
    import trio

    from garlicfarm.cli.lab_rank import rank_process
    from garlicfarm.cli.sign_of_life import sign_of_life
    from garlicfarm.cli.signals import ended_by_signals
    from garlicfarm.lab.directory import lab_directory

    until_s = UNTIL_TIMEOUTS_S.get(until or "", UNTIL_TIMEOUT_S)
    deadline_s = (timeout_s or until_s) if until else (timeout_s or math.inf)
    if not until and sys.stderr.isatty():
        say(f"starting {nodes} nodes")
    what = f"the farm: {until}" if until else f"{nodes} nodes to start"
    async with ended_by_signals(), sign_of_life(what) as came:
        with lab_directory() as directory, trio.fail_after(deadline_s):
            async with _running(directory, nodes, interval, kind) as (farm, site):
                ranking = rank_process(directory / "rank", farm, prepare) if with_rank else nullcontext()
                async with ranking as rank:
                    if until is None:
                        came()
                        await _show(farm, rank, site)
                        return
                    await _wait(farm, "publisher" if until in ("ranked", "moved") else until)
                    if rank and until == "ranked":
                        put(f"ranked by Spark as by the nodes at index {await rank.wait_equal()}")
                    if site and until == "moved":
                        await _move(site)


@asynccontextmanager
async def _running(
    directory: Path, nodes: int, interval_ms: int, kind: str
) -> AsyncIterator[tuple[ProcessFarm, SiteWatch | None]]:
    """A farm, and where it publishes a site a client that fetches it, for as long as the block lasts."""
    if kind != "site":
        async with running_lab(directory, nodes, interval_ms, kind) as farm:
            yield farm, None
        return
    from garlicfarm.cli.lab_site import site_watch
    from garlicfarm.lab.service import FLOODFILLS, i2cp_service

    say(f"starting {nodes + 1 + FLOODFILLS} i2pd routers on a network of their own")
    # Short leases: the only clients here are i2pd's.
    made = i2cp_service(directory, 1, nodes, leases="fast", interval_ms=interval_ms)
    async with made as (service, farm), site_watch(service) as watch:
        yield farm, watch


async def _move(site: SiteWatch) -> None:
    """Kill the router that serves the site, and wait until another one does; says both."""
    import trio

    before = await site.wait_served()
    put(f"node {before} serves the site; its router is killed")
    site.service.network.kill(before)
    killed_s = trio.current_time()
    after = await site.wait_moved(before)
    put(f"node {after} serves it {trio.current_time() - killed_s:.0f} s later")


@asynccontextmanager
async def running_lab(
    directory: Path, nodes: int, interval_ms: int, router: str
) -> AsyncIterator[ProcessFarm]:
    """The lab's farm below ``directory``, for as long as the block lasts.

    ``router``: ``simulated``, or ``i2pcontrol`` (in a private network only: `garlicfarm.lab.i2pd`).
    """
    from garlicfarm.credentials.destination_keys import create_keys
    from garlicfarm.i2p.encoding import encode
    from garlicfarm.lab.processes import FAST, process_farm
    from garlicfarm.setup.provision import FarmPlan

    key_file = directory / "master.key"
    master = encode(create_keys(key_file).destination)
    plan = FarmPlan(raft=FAST, master=master, master_key_file=key_file, interval_ms=interval_ms)
    async with AsyncExitStack() as stack:
        members = await _members(stack, directory, nodes, router)
        yield await stack.enter_async_context(process_farm(directory / "farm", members, plan))


async def _members(stack: AsyncExitStack, directory: Path, nodes: int, router: str) -> dict[int, MemberPlan]:
    from garlicfarm.i2p.encoding import encode
    from garlicfarm.lab.destinations import simulated_destination
    from garlicfarm.lab.processes import free_ports
    from garlicfarm.setup.provision import MemberPlan

    routers: list[tuple[dict[str, Any], bytes]]  # the table, and the leaf
    if router == "i2pcontrol":
        from garlicfarm.lab.i2pd import i2pd_network
        from garlicfarm.lab.i2pd_files import RouterPlan
        from garlicfarm.lab.service import router_table

        say(f"starting {nodes} i2pd routers on a network of their own")
        network = i2pd_network(directory / "routers", [RouterPlan()] * nodes, hops=1)
        routers = [(router_table(each), each.leaf) for each in await stack.enter_async_context(network)]
    else:
        seeds = range(1, nodes + 1)
        routers = [({"plugin": "simulated", "seed": seed}, simulated_destination(seed)) for seed in seeds]
    return {
        node_id: MemberPlan(
            endpoint=f"ssl://127.0.0.1:{port}",
            admin_url="https://127.0.0.1:0",
            router=table,
            leaves=(encode(leaf),),
            publishers=({"plugin": "simulated"},) if router == "simulated" else (),
        )
        for node_id, port, (table, leaf) in zip(count(1), free_ports(nodes), routers, strict=False)
    }


async def _ask(farm: ProcessFarm) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The status and the ranking that the first node answers with, or the leader where one answers."""
    from garlicfarm.errors import GarlicFarmError

    found: tuple[dict[str, Any] | None, dict[str, Any] | None] = None, None
    for node in farm.nodes.values():
        if node.pid is None:
            continue
        try:
            async with node.client() as client:
                answered = await client.status(farm.name), await client.ranking(farm.name)
        except GarlicFarmError:
            continue
        if answered[0]["role"] == "leader":
            return answered
        found = answered if found[0] is None else found
    return found


async def _wait(farm: ProcessFarm, until: str) -> None:
    """Until the nodes name a leader or a publisher; says which."""
    import trio

    while True:
        status, _ = await _ask(farm)
        if status is not None and status["leader"] and status[until]:
            put(f"leader {status['leader']}, publisher {status['publisher'] or 'none'}")
            return
        await trio.sleep(POLL_S)


async def _show(farm: ProcessFarm, rank: RankProcess | None, site: SiteWatch | None) -> None:
    """The live display, until Ctrl-C. The nodes push that something has changed; then one is asked."""
    import trio
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from garlicfarm.cli.farm_watch import FarmWatch
    from garlicfarm.cli.lab_screen import LabScreen

    console = Console(highlight=False)
    screen = LabScreen(farm, rank, site)
    watch = FarmWatch()
    async with trio.open_nursery() as nursery:
        for node in farm.nodes.values():
            nursery.start_soon(_follow, node, farm.name, watch)
        with Live(Text("waiting for the nodes …"), console=console, auto_refresh=False) as live:
            status, ranking = await _ask(farm)
            while True:
                live.update(screen.drawn(status, ranking, console.width, console.height), refresh=True)
                await trio.sleep(POLL_S)
                if status is None or watch.take():
                    status, ranking = await _ask(farm)


async def _follow(node: NodeProcess, farm: str, watch: FarmWatch) -> None:
    """Note the changes that one node pushes, each of its processes that is started."""
    import trio

    from garlicfarm.errors import GarlicFarmError

    while True:
        try:
            async with node.client() as client:
                await watch.follow(client, farm)
        except GarlicFarmError:
            await trio.sleep(POLL_S)
