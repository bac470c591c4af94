"""Nodes with keys, routers and commands that are of no use: one sentence each, and no secret in any."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from garlicfarm.cli import run
from garlicfarm.cli.exits import Exit
from garlicfarm.credentials.destination_keys import create_keys, write_bundle
from garlicfarm.i2p.encoding import encode
from garlicfarm.i2p.keys import DestinationKeys, make_bundle
from garlicfarm.lab.destinations import simulated_destination
from garlicfarm.lab.processes import FAST, ProcessFarm, free_ports, process_farm
from garlicfarm.setup.provision import FarmPlan, MemberPlan, create_farm
from tests.chaos.launch import Clock
from tests.node.process.test_node_process import everything_in
from tests.node.support.cluster import member
from tests.process_farms import status_when
from tests.publishers.sam_router import SamRouter

DAY_S = 86_400
QUICK = partial(FarmPlan, raft=FAST, interval_ms=1000)
HOOKS = {"plugin": "hooks", "on_publish": ["true"], "on_retire": ["true"]}
ROOT = Path(__file__).parents[3]


def bundle(
    path: Path, keys: DestinationKeys, node: int, lasts_s: int = DAY_S, seed: bytes = b""
) -> DestinationKeys:
    now_s = int(time.time())
    made = make_bundle(
        keys,
        seed or node.to_bytes(32, "big"),
        node=node,
        expires_s=now_s + lasts_s,
        now_ms=now_s * 1000,
        hops=0,
        quantity=1,
    )
    write_bundle(path, made)
    return made


def secrets_of(*keys: DestinationKeys) -> list[str]:
    """What must never be seen, as a file, SAM and a traceback would show it."""
    seeds = [one.seed for one in keys]
    return [text for seed in seeds for text in (encode(seed)[:40], seed.hex(), repr(seed)[2:-1])]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"keys": "missing"}, "missing cannot be read: No such file"),
    "no key": (
        {"keys": "garbage"},
        "garbage does not hold the private key of a destination that can be served: not a destination",
    ),
    "readable by others": ({"keys": "open"}, "chmod 600"),
    "cut": ({"keys": "cut"}, "cut is not a complete bundle of `garlicfarm keys offline`; copy it again"),
    "another node's": ({"keys": "2.bundle"}, "is the bundle of node 2, and this is node 1: copy its own"),
    "the master key": ({"keys": "master.key"}, "holds the master destination"),
    "not on loopback": ({"keys": "1.bundle", "address": "192.0.2.1:7656"}, "must be HOST:PORT on loopback"),
    "another host's": ({"keys": "1.bundle", "target": "192.0.2.1:80"}, "must be a port of 127.0.0.1"),
    "no I2CP on loopback": ({"plugin": "i2cp", "address": "192.0.2.1:7654"}, "must be HOST:PORT on loopback"),
    "no program": (
        {"plugin": "hooks", "on_publish": ["./nosuch"], "on_retire": ["true"]},
        "on_publish: './nosuch' is missing or not executable",
    ),
    "no host to check": ({"keys": "1.bundle", "check": "tcp://xn--a.example:80"}, "is not a URL: Codepoint"),
    "no such publisher": ({"plugin": "sma"}, "did you mean 'sam'?"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.usefixtures("logging_restored")
def test_node_with_a_publisher_that_cannot_work_says_why_in_one_sentence(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table, words = REFUSED[case]
    master, service = create_keys(tmp_path / "master.key"), create_keys(tmp_path / "service.key")
    own, other = (bundle(tmp_path / f"{node}.bundle", service, node) for node in (1, 2))
    for name, data in {
        "garbage": b"\xff\x00garbage",
        "open": (tmp_path / "1.bundle").read_bytes(),
        "cut": (tmp_path / "1.bundle").read_bytes()[:-9],
    }.items():
        (tmp_path / name).write_bytes(data)
        (tmp_path / name).chmod(0o644 if name == "open" else 0o600)
    table = {"plugin": "sam", **table}
    if "keys" in table:
        table["keys"] = str(tmp_path / table["keys"])
    plan = QUICK(master=encode(master.destination), master_key_file=tmp_path / "master.key")
    node = create_farm(tmp_path / "farm", {1: member()}, plan).directories[1]
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
    with (node / "garlicfarm.toml").open("a") as file:
        file.write(f"\n[[farm.publisher]]\n{lines}")
    before = everything_in(node)
    config = str(node / "garlicfarm.toml")
    assert run(["config", "check", "--config", config]) == Exit.USAGE
    checked = capfd.readouterr()
    code = run(["node", "start", "--config", config])
    said = capfd.readouterr()
    assert checked.err == said.err
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("error: ")
    assert words in line
    assert code in (Exit.USAGE, Exit.ERROR)
    assert not [secret for secret in secrets_of(master, service, own, other) if secret in line]
    assert everything_in(node) == before


def members_with(*publishers: Mapping[str, Any]) -> dict[int, MemberPlan]:
    """Members 1, 2, … on free ports, each with a leaf and with one of ``publishers``."""
    return {
        node_id: member(leaves=(encode(simulated_destination(node_id)),), publishers=(publisher,))
        for node_id, publisher in enumerate(publishers, 1)
    }


async def until_named(farm: ProcessFarm, member: int) -> dict[int, Any]:
    """Each node's status, once every one says that this member publishes."""
    found: dict[int, Any] = {}
    with trio.fail_after(120):
        while {status["publisher"] for status in found.values()} != {member} or not any(
            each["state"] == "publishing" for each in found[member]["publishers"]
        ):
            await trio.sleep(0.5)
            for node in farm.nodes.values():
                async with node.client() as client:
                    found[node.id] = await client.status(farm.name)
    return found


async def until_all_post(farm: ProcessFarm) -> dict[str, Any]:
    """The ranking, once every member has posted a status, and the named one that it publishes. A member that
    cannot confirm that nothing of an earlier process is published posts none for as long as a lease lasts."""
    with trio.fail_after(120):
        while True:
            async with farm.nodes[3].client() as client:
                ranking = await client.ranking(farm.name, statuses=True)
            statuses = {row["id"]: row["status"] for row in ranking["members"]}
            if all(statuses.values()) and statuses[ranking["publisher"]]["meta"].get("publishing"):
                return ranking
            await trio.sleep(0.5)


def problems(status: Mapping[str, Any]) -> list[str]:
    return [problem for each in status["publishers"] for problem in each["problems"]]


@pytest.mark.slow
async def test_members_whose_keys_have_expired_or_whose_router_is_none_leave_the_role_to_another(
    tmp_path: Path,
) -> None:
    """They live, and say why in ``status``; nothing shows a secret."""
    master, service = create_keys(tmp_path / "master.key"), create_keys(tmp_path / "service.key")
    bundles = [
        bundle(tmp_path / f"{node}.bundle", service, node, lasts_s)
        for node, lasts_s in ((1, -DAY_S), (2, 90 * DAY_S))
    ]
    (garbage,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = f"127.0.0.1:{garbage.socket.getsockname()[1]}"

    async def no_router(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):  # of those that only test whether it listens
            await stream.send_all(b"220 mail.example ESMTP\r\n")
            await stream.receive_some()

    def sam(node: int) -> dict[str, Any]:
        keys = str(tmp_path / f"{node}.bundle")
        return {"plugin": "sam", "address": address, "target": address, "keys": keys}

    members = members_with(sam(1), sam(2), HOOKS)
    plan = QUICK(master=encode(master.destination), master_key_file=tmp_path / "master.key")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, no_router, [garbage])
        async with process_farm(tmp_path / "farm", members, plan) as farm:
            found = await until_named(farm, 3)
            assert problems(found[1]) == [
                f"the keys in {tmp_path}/1.bundle have expired: make new bundles with garlicfarm keys "
                "offline, and copy this node's there; it is read without a restart"
            ]
            assert problems(found[2]) == [
                f"the answer of {address} to HELLO is not SAM's: is that the router's SAM port?"
            ]
            assert problems(found[3]) == []
            ranking = await until_all_post(farm)
            assert ranking["publisher"] == 3
            assert ranking["publication"]["can_publish"] == [3]
            (problem,) = ranking["publication"]["problems"]
            assert problem.startswith("keys of member 1 have expired: make new bundles")
            seen = json.dumps([found, ranking])
            for node in farm.nodes.values():
                assert node.pid is not None
                arguments = await trio.Path(f"/proc/{node.pid}/cmdline").read_text()
                seen += arguments + node.log_file.read_text()
            assert not [secret for secret in secrets_of(master, service, *bundles) if secret in seen]
        nursery.cancel_scope.cancel()
    assert "Traceback" not in seen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("years", "problem"),
    [
        (5, "this node's clock is 1825 days ahead of the farm's: correct it"),
        (-20, "this node's clock is 7300 days behind the farm's: correct it"),
        (90, "this node's clock is 32850 days ahead of the farm's: correct it"),
    ],
)
async def test_publisher_whose_clock_jumps_by_years_gives_the_role_to_another(
    years: int, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond ten years its statuses are refused, too; after 2106 no LeaseSet could have the date."""
    monkeypatch.chdir(ROOT)
    clocks = {id_: Clock(tmp_path / f"clock-{id_}") for id_ in (1, 2, 3)}
    command = (sys.executable, "-m", "tests.chaos.launch", str(tmp_path), "-", "node", "start")
    async with process_farm(tmp_path / "farm", members_with(*[HOOKS] * 3), QUICK(), command=command) as farm:
        wrong = (await status_when(farm, 1, lambda status: status["publisher"]))["publisher"]
        await until_named(farm, wrong)
        clocks[wrong].off_s = years * (365.0 * DAY_S + 60)
        await status_when(farm, wrong, lambda status: problems(status) == [problem])
        another = await status_when(
            farm, wrong % 3 + 1, lambda status: status["publisher"] not in (None, wrong)
        )
        found = await until_named(farm, another["publisher"])
        (shown,) = found[wrong]["publishers"]
        assert shown["state"] == "standby"
        clocks[wrong].off_s = 0.0
        await status_when(farm, wrong, lambda status: not problems(status))


@pytest.mark.slow
@pytest.mark.parametrize("off_s", [190, -7 * 3600])
async def test_publisher_whose_clock_jumps_by_minutes_or_hours_gives_the_role_to_another(
    off_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those LeaseSets the network refuses; `health` of that node says so, and what to do."""
    monkeypatch.chdir(ROOT)
    clocks = {id_: Clock(tmp_path / f"clock-{id_}") for id_ in (1, 2, 3)}
    command = (sys.executable, "-m", "tests.chaos.launch", str(tmp_path), "-", "node", "start")
    async with process_farm(tmp_path / "farm", members_with(*[HOOKS] * 3), QUICK(), command=command) as farm:
        wrong = (await status_when(farm, 1, lambda status: status["publisher"]))["publisher"]
        await until_named(farm, wrong)
        clocks[wrong].off_s = off_s
        found = await status_when(farm, wrong, lambda status: status["clock"]["state"] == "off")
        assert found["clock"]["ahead_of_farm_ms"] / 1000 == pytest.approx(off_s, abs=30)
        (problem,) = problems(found)
        word = "ahead of" if off_s > 0 else "behind"
        assert problem == f"this node's clock {found['clock']['problem']}"
        assert problem.endswith(f" {word} the farm's: correct it")
        another = await status_when(
            farm, wrong % 3 + 1, lambda status: status["publisher"] not in (None, wrong)
        )
        (shown,) = (await until_named(farm, another["publisher"]))[wrong]["publishers"]
        assert shown["state"] == "standby"
        degraded = await status_when(farm, wrong, lambda status: status["problems"])
        (told,) = degraded["problems"]
        assert ", so it does not offer itself to publish: correct it" in told
        clocks[wrong].off_s = 0.0
        await status_when(farm, wrong, lambda status: not problems(status))


@pytest.mark.slow
async def test_members_without_sam_or_i2cp_or_with_a_key_of_another_leave_the_role(tmp_path: Path) -> None:
    """Two bundles of one transient key: of both members the one with the lower id may publish."""
    master, service = create_keys(tmp_path / "master.key"), create_keys(tmp_path / "service.key")
    for node, seed in ((1, b"1" * 32), (3, b"2" * 32), (4, b"2" * 32)):
        bundle(tmp_path / f"{node}.bundle", service, node, 90 * DAY_S, seed)
    closed = [f"127.0.0.1:{port}" for port in free_ports(2)]
    async with SamRouter() as router_3, SamRouter() as router_4:

        def sam(node: int, address: str) -> dict[str, Any]:
            keys = str(tmp_path / f"{node}.bundle")
            table = {"plugin": "sam", "address": address, "target": address, "keys": keys}
            return table | {"check": ""}

        publishers = [
            sam(1, closed[0]),
            {"plugin": "i2cp", "address": closed[1]},
            sam(3, router_3.address),
            sam(4, router_4.address),
        ]
        plan = QUICK(master=encode(master.destination), master_key_file=tmp_path / "master.key")
        async with process_farm(tmp_path / "farm", members_with(*publishers), plan) as farm:
            found = await until_named(farm, 3)
            ranking = await until_all_post(farm)
            assert ranking["publication"]["can_publish"] == [3]
            words = (
                "is the router running, and its SAM enabled (in i2pd.conf: enabled = true of [sam]; in Java "
                "I2P's clients.config: startOnLoad=true of net.i2p.sam.SAMBridge)?"
            )
            assert problems(found[1]) == [f"nothing listens at the SAM address {closed[0]}; {words}"]
            words = (
                "is the router running, with I2CP enabled (in i2pd.conf: enabled = true of [i2cp]; in Java "
                "I2P's router.config: no i2cp.disableInterface = true)?"
            )
            assert problems(found[2]) == [
                f"I2CP at {closed[1]} cannot be reached: Connection refused; {words}"
            ]
            assert problems(found[3]) == []
            assert ranking["publication"]["problems"] == [
                "member 4 has a transient key of another member, and must not publish with it"
            ]
            assert (len(router_3.sessions), router_4.sessions) == (1, {})
