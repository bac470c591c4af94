"""The soak of a farm inside I2P: what routers and their network do to it in earnest (make soak-i2p).

Two farms of three nodes of preset `i2p` behind real i2pd routers, each on a host of its own
(`tun_network`), and a client that posts to each of them all the time. In the end the logs that the nodes
leave on their disks have to be one, with all that was acknowledged.

* ``routers``: the router of a follower is killed, and started again a minute later; then that of the
  leader, which is the publisher as well, and started again when another node is to publish.
* ``delay``: once the farm is connected, packets between the routers are late and lost for so many minutes,
  as those of I2P are.

And beside them ``service``: for so many minutes the routers of a service are killed (`soak_service`).

All run at once, each in namespaces of its own, and print what came about, a line of JSON each. Exit 0: all
promises were kept, or this machine cannot run it (a line says why); 1: one was broken, and a line says which.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import trio

from garlicfarm.config.model import PRESETS
from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.errors import ConfigError
from garlicfarm.i2p.encoding import encode
from garlicfarm.lab.i2pd import I2pdNetwork, check_programs, i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.lab.processes import ProcessFarm, process_farm
from garlicfarm.lab.tun_network import LinkFaults, Network, network, why_unavailable
from garlicfarm.setup.provision import FarmPlan
from tests.crash.crash_checks import Violation
from tests.crash.watched_farm import RETENTION, WatchedFarm
from tests.i2p import soak_client, soak_service
from tests.i2p.echo import Side
from tests.i2p.farm_over_i2p import (
    NETWORK_FAILED,
    PORTS,
    REACHED_S,
    Report,
    Unreached,
    behind_tunnel,
    check_routers,
    plan_of,
    sides_of,
)

NODES = (1, 2, 3)
WRITERS = 12
PAUSE_S = 2.0
SANDBOX = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")

LATE_AND_LOSSY = LinkFaults(delay_s=0.4, jitter_s=0.33, loss=0.01)
"""On each of the three wires between one node and the other, by tunnels of one hop each: in the mean 1.7 s
one way, which is what I2P takes, and 3 % of the packets lost."""
DOWN_S = 60.0
REACHABLE_S = 15 * 60.0
NETWORKS = 3
"""How many networks are tried where two routers never get through to each other."""

I2P = PRESETS["i2p"]
STEP_DOWN_S = I2P["election_timeout_max_s"] + I2P["heartbeat_s"] + 2.0
"""A leader that hears nobody has stepped down by then (check-quorum)."""
ELECTION_S = 2 * I2P["election_timeout_max_s"] + I2P["rpc_timeout_s"]
"""A leader that is cut off has been replaced by then, also where the first votes were split."""
PUBLISHER_S = ELECTION_S + 5 * 30.0
"""A publisher that is cut off has been replaced by then: the others post three statuses, each after 30 s."""
GAP_S = 10.0
"""So long there is no commit at most while the leader is well."""
SLOW_GAP_S = I2P["election_timeout_max_s"]
"""The same in `LATE_AND_LOSSY`: never as long as if the leader had died."""

Status = dict[str, Any]


class Soak(WatchedFarm):
    """The farm, and what can be asked of it."""

    patience_s = 300.0
    ask_s = 30.0

    def __init__(self, act: Act, farm: ProcessFarm, directory: Path, routers: I2pdNetwork) -> None:
        super().__init__(farm, directory, random.Random())
        self._routers = routers
        self.tell = partial(Report().tell, act=act.name)
        self._moments: list[float] = []

    async def progress(self) -> list[bytes] | None:
        acks = await super().progress()
        self._moments += [float(line.split()[1]) for line in acks or []]
        return acks

    async def gap(self, since: float) -> float:
        """The longest time without a commit since then, in s."""
        await self.progress()
        return round(soak_service.longest_gap(self._moments, since, time.monotonic()), 1)

    async def status(self, node_id: int) -> Status | None:
        return await self.ask(self.farm.nodes[node_id], lambda client: client.status("farm"))

    async def until_all(
        self, nodes: Iterable[int], holds: Callable[[Status], Any], within_s: float, otherwise: str
    ) -> float:
        """Wait until it holds of what all these nodes say of themselves; how long that took, in s."""
        begun = time.monotonic()
        statuses: list[Status | None] = []
        while time.monotonic() - begun < within_s:
            statuses = [await self.status(node_id) for node_id in nodes]
            if all(status is not None and holds(status) for status in statuses):
                return round(time.monotonic() - begun, 1)
            await trio.sleep(0.5)
        keys = ("node", "role", "leader", "term", "commit", "publisher", "quorum")
        told = [status and {key: status[key] for key in keys} for status in statuses]
        raise Violation(f"{otherwise} within {within_s:g} s: {told}")

    async def lead(self) -> Status:
        """What the leader says, once all nodes name it."""
        leader = await self.until("there was no leader", self.leader)
        await self.until_all(NODES, lambda status: status["leader"] == leader, ELECTION_S, "no leader of all")
        status = await self.status(leader)
        assert status is not None
        return status

    async def connected(self, within_s: float = REACHABLE_S) -> float:
        """Wait until every node reaches every other one, so that any two can elect; how long, in s."""
        return await self.until_all(NODES, reaches_all, within_s, "not every node reached every other one")

    async def begin(self, sides: Mapping[int, Side]) -> None:
        """Wait for a leader, and until every node reaches every other one; once more so much later than
        their routers do. Raises `Unreached`."""
        for is_last in (False, True):
            try:
                status = await self.lead()
                self.tell("election", leader=status["leader"], term=status["term"])
                await self.connected(REACHED_S)
                return
            except Violation:
                await check_routers(sides)
                if is_last:
                    raise

    def kill_router(self, victim: int) -> float:
        """When it was, by the clock of the journal."""
        self._routers.kill(victim)
        return time.monotonic()

    async def restart_router(self, victim: int, leader: int) -> dict[str, float]:
        """Start it again: how long until the leader reaches its node, until that has what was committed
        then, and until all reach all, in s. After that nobody may lead who did not before."""
        await self._routers.start(victim)
        before = await self.status(leader)
        assert before is not None
        reachable_s = await self.until_all(
            [leader],
            lambda status: row(status, victim)["role"] == "follower",
            REACHABLE_S,
            f"node {victim} was not reached again",
        )
        reached = await self.status(leader)
        assert reached is not None
        caught_up_s = await self.until_all(
            [victim],
            lambda status: status["applied"] >= reached["commit"],
            I2P["election_timeout_max_s"],
            f"node {victim} did not catch up",
        )
        connected_s = await self.connected()
        await trio.sleep(I2P["election_timeout_max_s"])
        after = await self.lead()
        unchanged(before, after, f"when the router of node {victim} came back")
        return {
            "reachable_s": reachable_s,
            "caught_up_s": round(reachable_s + caught_up_s, 1),
            "connected_s": round(reachable_s + caught_up_s + connected_s, 1),
        }

    def answers(self) -> dict[str, float]:
        """How long posts took, as the client tells in the end."""
        return msgspec.json.decode(soak_client.figures_file(self.journal).read_bytes(), type=dict[str, float])

    def log_lines(self) -> int:
        """How many lines the nodes logged, but for those on entries that the client posted twice."""
        lines = [line for node in self.farm.nodes.values() for line in node.log_file.read_text().split("\n")]
        return sum("event=entry-skipped" not in line for line in lines)


def row(status: Status, member: int) -> dict[str, Any]:
    """What a node says of another one."""
    [found] = [each for each in status["members"] if each["id"] == member]
    return dict(found)


def reaches_all(status: Status) -> bool:
    return all(each["role"] != "unreachable" for each in status["members"])


def unchanged(before: Status, after: Status, when: str) -> None:
    """Raises `Violation` where another node leads, or the same one in another term."""
    if (before["leader"], before["term"]) != (after["leader"], after["term"]):
        raise Violation(
            f"{when}, node {after['leader']} came to lead in term {after['term']} "
            f"after node {before['leader']} in term {before['term']}"
        )


def bounded(gap_s: float, at_most_s: float, when: str) -> None:
    """Raises `Violation` where commits stopped for longer."""
    if gap_s > at_most_s:
        raise Violation(f"{when}, nothing was committed for {gap_s:g} s; {at_most_s:g} s are allowed")


@asynccontextmanager
async def soaked_farm(act: Act, directory: Path, wires: Network) -> AsyncIterator[Soak]:
    """The farm and its client, for as long as the block lasts; then all is checked that they leave."""
    plans = [behind_tunnel(port) for port in PORTS[: len(NODES)]]
    plans += [RouterPlan()] * (act.routers - len(NODES))
    master = directory / "master.key"
    plan = FarmPlan(
        preset="i2p",
        master=encode(create_keys(master).destination),
        master_key_file=master,
        retention=RETENTION,
    )
    hops = int(act.routers > len(NODES))
    async with i2pd_network(directory / "routers", plans, wires, hops=hops, ssu2=act.ssu2) as routers:
        members = {}
        for node_id, port, router in zip(NODES, PORTS, routers, strict=False):
            plan_ = plan_of(router, port, 27161)
            members[node_id] = msgspec.structs.replace(plan_, admin_url=f"https://{router.address}:27151")
        places = {node_id: router.place for node_id, router in zip(NODES, routers, strict=False)}
        async with process_farm(directory / "farm", members, plan, places=places, start=False) as farm:
            soak = Soak(act, farm, directory, routers)
            async with soak.client(soak_client.__name__, WRITERS, PAUSE_S):
                await soak.begin(sides_of(routers[: len(NODES)]))
                soak.tell("connected")
                await soak.until_all(NODES, lambda status: status["publisher"], PUBLISHER_S, "no publisher")
                yield soak
            index, states = await soak.settle()
            soak.tell(
                "check", **await soak.check(index, states), **soak.answers(), log_lines=soak.log_lines()
            )


async def routers_die(soak: Soak, wires: Network, minutes: float) -> None:
    """The routers of a follower and of the leader are killed and started again."""
    await a_followers_router_dies(soak)
    await the_leaders_router_dies(soak)


async def a_followers_router_dies(soak: Soak) -> None:
    before = await soak.lead()
    [victim, *_] = [node_id for node_id in NODES if node_id not in (before["leader"], before["publisher"])]
    since = soak.kill_router(victim)
    await trio.sleep(DOWN_S)
    took = await soak.restart_router(victim, before["leader"])
    after, gap_s = await soak.lead(), await soak.gap(since)
    soak.tell("follower", node=victim, **took, gap_s=gap_s, term=after["term"])
    unchanged(before, after, "while the router of a follower was away")
    bounded(gap_s, GAP_S, "while the router of a follower was away")


async def the_leaders_router_dies(soak: Soak) -> None:
    before = await soak.lead()
    victim = int(before["publisher"])
    if victim != before["leader"]:
        async with soak.farm.nodes[before["leader"]].client() as client:
            await client.step_down("farm", to=victim)
        before = await soak.lead()
    others = [node_id for node_id in NODES if node_id != victim]
    took: dict[str, float] = {}

    async def note(
        what: str, nodes: list[int], holds: Callable[[Status], Any], within_s: float, otherwise: str
    ) -> None:
        took[what] = await soak.until_all(nodes, holds, within_s, otherwise)

    since = soak.kill_router(victim)
    async with trio.open_nursery() as nursery:
        start = nursery.start_soon
        start(note, "stepped_down_s", [victim], is_alone, STEP_DOWN_S, "the leader did not step down")
        start(note, "leader_s", others, lambda told: told["leader"] in others, ELECTION_S, "no new leader")
        publishes = "the publisher did not move"
        start(note, "publisher_s", others, lambda told: told["publisher"] in others, PUBLISHER_S, publishes)
    if "event=router-silent" not in soak.farm.nodes[victim].log_file.read_text():
        raise Violation(f"node {victim} does not log that its router is silent")
    leader = await soak.until("there was no leader", soak.leader)
    gap_s, since = await soak.gap(since), time.monotonic()
    bounded(gap_s, ELECTION_S + GAP_S, "after the router of the leader had died")
    back = await soak.restart_router(victim, leader)
    after, gap_back_s = await soak.lead(), await soak.gap(since)
    soak.tell("leader", node=victim, **took, gap_s=gap_s, **back, gap_back_s=gap_back_s, term=after["term"])
    bounded(gap_back_s, GAP_S, "when the router of the old leader came back")


def is_alone(status: Status) -> bool:
    """Whether a node says that it has no leader, no quorum, and why: its router is down."""
    others = [each for each in status["members"] if each["id"] != status["node"]]
    why = "nothing listens at the I2P proxy"
    alone = status["leader"] is None and not status["quorum"]
    return alone and all(why in (each["error"] or "") for each in others)


async def packets_are_late(soak: Soak, wires: Network, minutes: float) -> None:
    """Load for so long in `LATE_AND_LOSSY`, which comes at once. Not from the start: i2pd before 2.51.0 does
    not publish the LeaseSet of a destination whose inbound tunnels were all there before its first outbound
    one, until they are renewed; and the slower tunnels are built, the more likely that is."""
    before = await soak.lead()
    since = time.monotonic()
    await wires.set_faults(LATE_AND_LOSSY)
    round_trips: list[float] = []
    while time.monotonic() - since < 60 * minutes:
        await trio.sleep(5)
        status = await soak.lead()
        rows = [row(status, member) for member in NODES if member != status["leader"]]
        round_trips += [each["rtt_s"] for each in rows if each["rtt_s"] is not None]
    gap_s = await soak.gap(since)
    lost = await wires.set_faults(LinkFaults())
    after = await soak.lead()
    soak.tell(
        "delay",
        minutes=minutes,
        packets_lost=lost,
        rtt_p50_s=round(statistics.median(round_trips), 3),
        gap_s=gap_s,
        new_terms=after["term"] - before["term"],
    )
    bounded(gap_s, SLOW_GAP_S, "with late packets")
    if after["term"] > before["term"] + 1:
        raise Violation(f"with late packets, term {before['term']} became {after['term']}")


class Act(NamedTuple):
    """``routers``: how many; where they are more than the nodes, tunnels have a hop. ``ssu2``: over UDP too,
    where no connection is opened in `LATE_AND_LOSSY`: i2pd gives up after 5 s."""

    name: str
    play: Callable[[Soak, Network, float], Awaitable[None]]
    routers: int
    ssu2: bool

    async def run(self, directory: Path, minutes: float, seed: int) -> None:
        async with network(self.routers) as wires, soaked_farm(self, directory, wires) as soak:
            await self.play(soak, wires, minutes)


async def service(directory: Path, minutes: float, seed: int) -> None:
    tell = partial(Report().tell, act="service")
    await soak_service.service_lives(directory, minutes, seed, tell)


ACTS: Mapping[str, Callable[[Path, float, int], Awaitable[None]]] = {
    "routers": Act("routers", routers_die, 3, ssu2=True).run,
    "delay": Act("delay", packets_are_late, 6, ssu2=False).run,
    "service": service,
}


def run_act(act: str, minutes: float, seed: int, directory: Path) -> int:
    """Inside the sandbox. The exit code."""
    broken: list[str] = []
    unreached = False
    try:
        trio.run(ACTS[act], directory, minutes, seed)
    except* Unreached as group:
        unreached = True
        print(f"soak-i2p: {act}: {leaves(group)}", flush=True)
    except* (Violation, trio.TooSlowError) as group:
        broken += map(repr, leaves(group))
    for error in broken:
        print(f"soak-i2p: {act}: a promise was broken: {error}", flush=True)
    if broken:
        return 1
    return NETWORK_FAILED if unreached else 0


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in leaves(one)]
    return [error]


async def run_acts(acts: list[str], minutes: float, seed: int, base: Path) -> list[str]:
    """Run each in a sandbox of its own, all at once; which of them failed, or were not let end."""
    failed = set(acts)

    async def run(act: str) -> None:
        for attempt in range(NETWORKS):
            place = base / f"{act}-{attempt}"
            place.mkdir()
            arguments = [
                "--acts",
                act,
                "--minutes",
                str(minutes),
                "--seed",
                str(seed),
                "--inside",
                str(place),
            ]
            done = await trio.run_process(
                [*SANDBOX, sys.executable, "-m", __spec__.name, *arguments],
                check=False,
                start_new_session=True,
                deliver_cancel=kill_sandbox,
            )
            if done.returncode != NETWORK_FAILED:
                break
        if done.returncode == 0:
            failed.remove(act)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(until_told, nursery.cancel_scope)
        async with trio.open_nursery() as running:
            for act in acts:
                running.start_soon(run, act)
        nursery.cancel_scope.cancel()
    return sorted(failed)


async def until_told(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as told:
        async for _ in told:
            scope.cancel()


async def kill_sandbox(process: trio.Process) -> None:
    """And with it everything inside."""
    process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--acts", nargs="+", choices=ACTS, default=list(ACTS), help="only these")
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="how long packets are late, and routers of a service die"
    )
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(2**32), help="of the kills"
    )
    parser.add_argument("--must-run", default="", help="i2pd, tun: fail without (blanks between them)")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        return run_act(options.acts[0], options.minutes, options.seed, options.inside)
    lacking = dict(lacks())
    for need, reason in lacking.items():
        print(f"soak-i2p: skipped: {need}: {reason}")
    if lacking:
        return 1 if lacking.keys() & set(options.must_run.split()) else 0
    base = Path(tempfile.mkdtemp(prefix="garlicfarm-soak-"))
    failed = trio.run(run_acts, options.acts, options.minutes, options.seed, base)
    if failed:
        print(f"soak-i2p: {', '.join(failed)} failed; what nodes, routers and the client wrote: {base}")
        return 1
    shutil.rmtree(base)
    return 0


def lacks() -> Iterator[tuple[str, str]]:
    """What this machine lacks, and why."""
    try:
        check_programs()
    except ConfigError as error:
        yield "i2pd", str(error)
    reason = why_unavailable(SANDBOX)
    if reason is not None:
        yield "tun", reason


if __name__ == "__main__":
    sys.exit(main())
