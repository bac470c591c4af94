"""A snapshot of 20 MB on its way between real processes, and kill -9 of either side: what is held is gone on
with, and until all of it is there the old state is what it was."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio

from garlicfarm.errors import NoQuorum, NotLeader, OutcomeUnknown, ProposalDropped
from garlicfarm.lab.processes import FAST, NodeProcess, ProcessFarm, free_ports, process_farm
from garlicfarm.raft.types import Entry
from garlicfarm.setup.provision import FarmPlan, MemberPlan
from garlicfarm.storage.segments import read_entries, read_log
from tests.own_application import install_key_value

MIB = 1 << 20
ENTRIES, ENTRY_BYTES = 25, 800_000
WHOLE = 1 << 40
TIMEOUT_S = 240


class Valve:
    """Stands before a member, and lets so many more bytes through to it."""

    def __init__(self, port: int, target: int) -> None:
        self._port = port
        self._target = target
        self._left = math.inf
        self._more = trio.Event()

    def allow(self, size: float) -> None:
        self._left = size
        self._more.set()  # all who wait
        self._more = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[object]) -> None:
        serve = partial(trio.serve_tcp, self._serve, self._port, host="127.0.0.1")
        await serve(task_status=task_status)

    async def _serve(self, dialler: trio.SocketStream) -> None:
        with suppress(OSError):
            member = await trio.open_tcp_stream("127.0.0.1", self._target)
            async with member, trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, member, dialler, nursery.cancel_scope, False)
                nursery.start_soon(self._pump, dialler, member, nursery.cancel_scope, True)

    async def _pump(
        self, source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope, valved: bool
    ) -> None:
        with suppress(trio.BrokenResourceError):
            while data := await source.receive_some(65536):
                while valved and self._left <= 0:
                    await self._more.wait()
                self._left -= len(data) * valved
                await sink.send_all(data)
        scope.cancel()


async def post(farm: ProcessFarm, node_id: int, entry: bytes) -> int:
    """Its index, once there is a leader."""
    with trio.fail_after(TIMEOUT_S):
        while True:
            try:
                async with farm.nodes[node_id].client() as client:
                    return (await client.post(farm.name, entry))[0]
            except (NotLeader, NoQuorum, ProposalDropped, OutcomeUnknown):
                await trio.sleep(0.1)


async def until(farm: ProcessFarm, node_id: int, key: str, beyond: int) -> None:
    """Wait until a figure of the node's status is larger."""
    with trio.fail_after(TIMEOUT_S):
        while True:
            async with farm.nodes[node_id].client() as client:
                if (await client.status(farm.name))[key] > beyond:
                    return
            await trio.sleep(0.05)


def directory(farm: ProcessFarm, node_id: int) -> Path:
    return farm.nodes[node_id].directory / "data" / "farms" / farm.name


def part(farm: ProcessFarm, node_id: int) -> tuple[str, int]:
    """The snapshot that is being received, and how much of it is held."""
    snapshots = directory(farm, node_id) / "snapshots"
    for path in snapshots.glob("*.part"):
        try:
            return path.stem, path.stat().st_size
        except FileNotFoundError:
            pass  # whole just now
    return "", WHOLE if any(snapshots.glob("*.snap")) else 0


async def received(farm: ProcessFarm, node_id: int, least: int, held: tuple[str, int]) -> tuple[str, int]:
    """Wait until so many bytes are held, never less than ``held`` of the same snapshot meanwhile."""
    with trio.fail_after(TIMEOUT_S):
        while True:
            name, size = part(farm, node_id)
            assert name != held[0] or size >= held[1], "it began anew"
            if size >= least:
                return name, size
            await trio.sleep(0.01)


def stored(farm: ProcessFarm, node_id: int, copy: Path) -> Sequence[Entry]:
    """The log that the node left behind; the store itself is not touched."""
    shutil.copytree(directory(farm, node_id), copy)
    index = read_log(copy / "log").index
    return read_entries(copy / "log", index.first, index.find(index.first, index.last + 1, 1 << 40))


async def state(node: NodeProcess, farm: str) -> dict[str, str]:
    async with node.client() as client:
        found: dict[str, str] = json.loads((await client.state(farm))[1])
        return found


@pytest.mark.slow
async def test_snapshot_is_gone_on_with_after_kill_9_of_the_receiver_and_of_the_sender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_key_value(tmp_path, monkeypatch)
    retention = {"snapshot_every_entries": 10, "keep_entries": 1}
    plan = FarmPlan(application="key-value", raft=FAST, retention=retention)
    ports = free_ports(6)
    valves = {member: Valve(ports[member - 1], ports[member + 2]) for member in (1, 2, 3)}
    members = {
        member: MemberPlan(
            endpoint=f"ssl://127.0.0.1:{ports[member - 1]}",
            listen=f"ssl://127.0.0.1:{ports[member + 2]}",
            admin_url="https://127.0.0.1:0",
        )
        for member in valves
    }
    async with (
        trio.open_nursery() as nursery,
        process_farm(tmp_path / "farm", members, plan, start=False) as farm,
    ):
        for member, valve in valves.items():
            await nursery.start(valve.run)
            await farm.start(member)
        index = await post(farm, 1, b"old=state")
        for node_id in farm.nodes:
            await until(farm, node_id, "applied", index - 1)
        async with farm.nodes[1].client() as client:
            sender = (await client.status(farm.name))["leader"]
        receiver, other = sorted(set(farm.nodes) - {sender})
        await farm.kill(receiver)
        before = stored(farm, receiver, tmp_path / "before")
        expected = {"old": "state"} | {str(n): chr(97 + n) * ENTRY_BYTES for n in range(ENTRIES)}
        for n in range(ENTRIES):
            last = await post(farm, sender, f"{n}={expected[str(n)]}".encode())
        for node_id in (sender, other):
            await until(farm, node_id, "first_index", index)

        valves[receiver].allow(8 * MIB)
        await farm.start(receiver)
        held = await received(farm, receiver, 2 * MIB, ("", 0))
        await farm.kill(receiver)
        name, size = part(farm, receiver)
        assert (name, size >= held[1]) == (held[0], True)
        assert stored(farm, receiver, tmp_path / "after") == before, "the old state is what it was"

        valves[receiver].allow(8 * MIB)
        await farm.start(receiver)
        held = await received(farm, receiver, size + 2 * MIB, (name, size))
        await farm.kill(sender)
        valves[receiver].allow(math.inf)
        await received(farm, receiver, WHOLE, held)
        await until(farm, receiver, "applied", last - 1)
        assert await state(farm.nodes[receiver], farm.name) == expected
        assert await state(farm.nodes[other], farm.name) == expected
        nursery.cancel_scope.cancel()
