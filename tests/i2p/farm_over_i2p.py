"""Run inside a network namespace: a farm whose members reach each other through real i2pd routers only.

Prints what came about, a line of JSON each; `test_farm_over_i2p.py` judges them, and the exit code. With
``--rank`` Spark ranks what is committed, as `garlicfarm rank`, from the nodes' admin listeners; with
``--servers java`` the routers are Java I2P, beside three of i2pd.
"""

from __future__ import annotations

import json
import os
import sys
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trio

from garlicfarm.cli.exits import Exit
from garlicfarm.cli.lab_rank import RankProcess, rank_process
from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.errors import GarlicFarmError
from garlicfarm.i2p.encoding import encode
from garlicfarm.lab.i2pd import I2pdRouter, i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.lab.processes import NodeProcess, ProcessFarm, process_farm
from garlicfarm.setup.i2p_tunnel import Tunnel
from garlicfarm.setup.provision import FarmPlan, MemberPlan
from tests.i2p.echo import Side, silent, stand_in
from tests.i2p.script import Options, options

DEADLINE_S = 600.0
REACHED_S = 120.0
NETWORK_FAILED = 75
"""The exit code for `Unreached`: try with another network."""
PORTS = (27151, 27152, 27153, 27154)
ADMIN_PORTS = (27161, 27162, 27163, 27164)  # a reader finds a node again that was started again
JOINING = 4
COMMAND = (sys.executable, "-m", "garlicfarm")

T = TypeVar("T")


def behind_tunnel(port: int, kind: type[RouterPlan] = RouterPlan) -> RouterPlan:
    """A router with a tunnel to a node that listens at this port of loopback."""
    tunnel = Tunnel("garlicfarm-farm", "127.0.0.1", port, 27150, "garlicfarm-farm.dat")
    return kind(tunnels=(tunnel,), has_proxy=True)


def plan_of(router: I2pdRouter, port: int, admin_port: int) -> MemberPlan:
    return MemberPlan(
        endpoint=f"i2p://{router.address_of_tunnel}:27150",
        listen=f"i2p://127.0.0.1:{port}",
        admin_url=f"https://127.0.0.1:{admin_port}",
        proxy=router.proxy,
        router={
            "plugin": "i2pcontrol",
            "url": router.url,
            "password_file": str(router.password_file),
            "pin": router.pin,
        },
        leaves=(b64encode(router.leaf, b"-~").decode(),),
    )


def sides_of(routers: Sequence[I2pdRouter]) -> dict[int, Side]:
    """The routers by the nodes beside them, for `check_routers`; 1 … 4."""
    found = {}
    for number, (router, port) in enumerate(zip(routers, PORTS, strict=False), 1):
        python = ("nsenter", f"--net={router.place}", sys.executable) if router.place else (sys.executable,)
        proxy = int(router.proxy.rpartition(":")[2])
        found[number] = Side(f"{router.address_of_tunnel}:27150", port, proxy, python)
    return found


class Unreached(Exception):
    """Two routers do not get through to each other, as of i2pd 2.45.1 in one of some ten starts: streams
    arrive, and no answer comes back. Nothing that is done beside a router was seen to mend it."""


async def check_routers(sides: Mapping[int, Side]) -> None:
    """Nodes did not reach each other. Raises `Unreached` where that is their routers' fault."""
    pairs = await trio.to_thread.run_sync(silent, sides)
    if pairs:
        raise Unreached(", ".join(f"router {one} hears nothing from {other}" for one, other in pairs))


async def in_time(what: str, sides: Mapping[int, Side], come_about: Callable[[], Awaitable[T]]) -> T:
    """What comes about where routers get through to each other, once more so much later than they do.
    Raises `Unreached`."""
    for _ in range(2):
        with trio.move_on_after(REACHED_S):
            return await come_about()
        await check_routers(sides)
    raise AssertionError(f"{what} does not come about, though every router gets through to every other one")


class Report:
    """Says what came about and how long it took."""

    def __init__(self) -> None:
        self._since = trio.current_time()

    def tell(self, what: str, **more: Any) -> None:
        now = trio.current_time()
        print(json.dumps({"what": what, "took_s": round(now - self._since, 1), **more}), flush=True)
        self._since = now


async def status(node: NodeProcess, farm: str) -> dict[str, Any]:
    async with node.client() as client:
        found: dict[str, Any] = await client.status(farm)
    return found


async def leader_of(farm: ProcessFarm, but: int = 0) -> tuple[int, int]:
    """The leader that all nodes that run name, and its term, once that is not ``but``."""
    while True:
        running = [node for node in farm.nodes.values() if node.process is not None]
        views = set()
        for node in running:
            try:
                told = await status(node, farm.name)
            except GarlicFarmError:
                views.add((None, 0))
            else:
                views.add((told["leader"], told["term"]))
        if len(views) == 1:
            leader, term = views.pop()
            if leader not in (None, but) and farm.nodes[leader].process is not None:
                return leader, term
        await trio.sleep(0.5)


async def all_reached(farm: ProcessFarm) -> None:
    """Every node reaches every other one."""
    while True:
        told = [await status(node, farm.name) for node in farm.nodes.values()]
        if all(each["role"] != "unreachable" for one in told for each in one["members"]):
            return
        await trio.sleep(0.5)


async def post(farm: ProcessFarm, node_id: int, number: int) -> int:
    """Post a note at one node; its index, after its commit."""
    note = {"cluster": farm.name, "date": number, "id": 0, "sequence": number, "config": {"by": "local"}}
    async with farm.nodes[node_id].client() as client:
        index, _ = await client.post(farm.name, json.dumps(note).encode())
    return index


async def applied(farm: ProcessFarm, index: int) -> None:
    """Every node that runs has applied up to ``index``."""
    for node in farm.nodes.values():
        if node.process is not None:
            while (await status(node, farm.name))["applied"] < index:  # noqa: ASYNC110 - of another process
                await trio.sleep(0.2)


async def entries(node: NodeProcess, farm: str, up_to: int) -> list[tuple[int, int, bytes]]:
    found: list[tuple[int, int, bytes]] = []
    async with node.client() as client:
        while not found or found[-1][0] < up_to:
            page, after = await client.page(farm, found[-1][0] if found else 0)
            found += [(entry.index, entry.term, entry.value) for entry in page.entries]
            if after >= up_to:
                break
    return [each for each in found if each[0] <= up_to]


async def ranked(farm: ProcessFarm, rank: RankProcess, beyond: int) -> dict[str, Any]:
    """What Spark ranks at an index after ``beyond`` once every node that runs tells its own ranking of that
    index: they are the same in every word."""
    running = [node for node in farm.nodes.values() if node.process is not None]
    while True:
        told = []
        for node in running:
            async with node.client() as client:
                told.append(await client.ranking(farm.name))
        newest = rank.newest
        if newest and newest["index"] > beyond and {each["index"] for each in told} == {newest["index"]}:
            assert all(each == newest for each in told), (newest, told)
            scores = {member["id"]: member["score"] for member in newest["members"]}
            return {"index": newest["index"], "publisher": newest["publisher"], "scores": scores}
        await trio.sleep(0.2)


async def join(farm: ProcessFarm, directory: Path, router: I2pdRouter, sides: Mapping[int, Side]) -> None:
    """A fourth node, as its administrator would do it: a token made at a member, and `node join`; once more
    where the leader had not got through to it. Raises `Unreached`."""
    token = directory / "token"
    member = farm.nodes[1]
    config = str(member.directory / "garlicfarm.toml")
    await trio.run_process(
        [*COMMAND, "member", "token", "--config", config, "--id", str(JOINING), "--out", str(token)],
        capture_stderr=True,
    )
    endpoint = f"i2p://{router.address_of_tunnel}:27150"
    joined = directory / "joined"
    admin_url = f"https://127.0.0.1:{ADMIN_PORTS[3]}"
    options = ["--listen", f"i2p://127.0.0.1:{PORTS[3]}", "--admin-url", admin_url]
    for _ in range(2):
        done = await trio.run_process(
            [
                *COMMAND,
                "node",
                "join",
                str(joined),
                "--token-file",
                str(token),
                "--endpoint",
                endpoint,
                *options,
            ],
            env={**os.environ, "GARLICFARM_TRANSPORT__I2P__PROXY": router.proxy},
            capture_stderr=True,
            check=False,
        )
        if done.returncode != Exit.UNREACHABLE:
            break
        with stand_in(PORTS[3]):
            await check_routers(sides)
    if done.returncode:
        raise AssertionError(f"node join ended with {done.returncode}: {done.stderr.decode()}")
    with (joined / "garlicfarm.toml").open("a") as file:
        file.write(f'\n[transport.i2p]\nproxy = "{router.proxy}"\n')
    farm.nodes[JOINING] = NodeProcess(JOINING, joined)
    await farm.start(JOINING)


async def main(told: Options) -> None:
    directory, report = told.directory, Report()
    master = directory / "master.key"
    plan = FarmPlan(preset="i2p", master=encode(create_keys(master).destination), master_key_file=master)
    plans = [behind_tunnel(port, told.servers) for port in PORTS]
    plans += [RouterPlan(has_leaf=False)] * (0 if told.servers is RouterPlan else 3)
    with trio.fail_after(DEADLINE_S):
        async with i2pd_network(directory / "routers", plans) as routers:
            report.tell("routers", count=len(routers))
            members = {i + 1: plan_of(routers[i], PORTS[i], ADMIN_PORTS[i]) for i in range(3)}
            async with process_farm(directory / "farm", members, plan) as farm:
                spark = rank_process(directory / "rank", farm) if told.rank else nullcontext()
                async with spark as rank:
                    await live(farm, directory, routers, report, rank)


async def live(
    farm: ProcessFarm,
    directory: Path,
    routers: Sequence[I2pdRouter],
    report: Report,
    rank: RankProcess | None,
) -> None:
    sides = sides_of(routers[: len(PORTS)])
    three = {number: sides[number] for number in farm.nodes}
    leader, term = await in_time("a leader of all", three, partial(leader_of, farm))
    report.tell("election", leader=leader, term=term)
    await in_time("that each reaches each", three, partial(all_reached, farm))

    for number in range(1, 11):
        index = await post(farm, number % 3 + 1, number)
    await applied(farm, index)
    report.tell("replication", index=index)

    publishers: set[int | None] = {None}
    while len(publishers) != 1 or None in publishers:
        await trio.sleep(1)
        publishers = {(await status(node, farm.name))["publisher"] for node in farm.nodes.values()}
    (publisher,) = publishers
    report.tell("publisher", publisher=publisher)
    if rank is not None:
        report.tell("ranking", term=term, **await ranked(farm, rank, index))

    await join(farm, directory, routers[3], sides)
    told = await status(farm.nodes[1], farm.name)
    assert [each["id"] for each in told["members"]] == [1, 2, 3, JOINING], told
    assert {each["transport"] for each in told["members"]} == {"i2p"}, told
    report.tell("join", members=len(told["members"]))
    await in_time("that each reaches each", sides, partial(all_reached, farm))

    leader, term = await leader_of(farm)
    victim = next(node_id for node_id in (1, 2, 3) if node_id != leader)
    await farm.kill(victim)
    for number in range(11, 16):
        index = await post(farm, leader, number)
    await farm.start(victim)
    await applied(farm, index)
    assert await leader_of(farm) == (leader, term), "a follower's death changed the leader"
    report.tell("restart", node=victim)

    async with farm.nodes[leader].client() as client:
        await client.step_down(farm.name)
    second, second_term = await leader_of(farm, but=leader)
    report.tell("hand-over", leader=second, term=second_term)

    await farm.kill(second)
    third, third_term = await leader_of(farm, but=second)
    await farm.start(second)
    index = await post(farm, third, 16)
    await applied(farm, index)
    logs = [await entries(node, farm.name, index) for node in farm.nodes.values()]
    assert all(log == logs[0] for log in logs), [len(log) for log in logs]
    notes = [json.loads(value) for _, _, value in logs[0]]
    assert [note["sequence"] for note in notes if note["id"] == 0] == list(range(1, 17))
    report.tell("leader-change", leader=third, term=third_term, entries=len(logs[0]))
    if rank is not None:
        report.tell("ranking", term=third_term, **await ranked(farm, rank, index))


if __name__ == "__main__":
    unreached = False
    try:
        trio.run(main, options())
    except* Unreached as group:
        unreached = True
        print(repr(group), file=sys.stderr)
    if unreached:
        sys.exit(NETWORK_FAILED)
