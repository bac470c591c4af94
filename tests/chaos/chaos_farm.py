"""One run of the chaos test: a farm on hosts of its own, a client, fault after fault, the checks."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import trio

from garlicfarm.credentials.users import LOCAL_USER
from garlicfarm.durable_files import fsync_path
from garlicfarm.lab.processes import NodeProcess, ProcessFarm, process_farm
from garlicfarm.lab.tun_network import LinkFaults, Network, address, network
from garlicfarm.setup.provision import FarmPlan, MemberPlan
from tests.chaos import chaos_client, launch
from tests.chaos.ledger import Ledger
from tests.chaos.linearizable import Operation, Post, Read, check_linearizable
from tests.crash import powerloss
from tests.crash.crash_checks import Violation, posted, read_log
from tests.crash.watched_farm import RAFT, RETENTION, WatchedFarm

WRITERS = 12
PAUSE_S = 0.1
STORAGE_FAILED = 7
EXIT_S = 20.0
DISK_TIMEOUT_S = 2.0
STRAGGLERS_S = 0.5  # what was acknowledged before is on its way to the client's journal


class Plan(NamedTuple):
    """``networked``, ``forgetful``: whether this machine can have hosts, and disks, that fail. ``mutant``:
    what the nodes do wrong, as for `launch`."""

    nodes: int
    seed: int
    networked: bool
    forgetful: bool
    mutant: str = "-"


@asynccontextmanager
async def chaos_farm(plan: Plan, directory: Path) -> AsyncIterator[ChaosFarm]:
    """A farm in ``directory``, which is empty, and its client, for as long as the block lasts; then what
    they leave is checked, and `ChaosFarm.figures` say what was seen. Raises `Violation` (in groups)."""
    offsets = directory / "clocks"
    offsets.mkdir()
    host = address if plan.networked else "127.0.0.{}".format
    members = {
        node_id: MemberPlan(
            endpoint=f"ssl://{host(node_id)}:27150", admin_url=f"https://{host(node_id)}:27151"
        )
        for node_id in range(1, plan.nodes + 1)
    }
    raft = {**RAFT, "disk_timeout_s": DISK_TIMEOUT_S}
    farm_plan = FarmPlan(application="log", raft=raft, retention=RETENTION)
    async with AsyncExitStack() as stack:
        wires, places = None, dict[int, str]()
        if plan.networked:
            wires = await stack.enter_async_context(network(plan.nodes))
            places = {node_id: await wires.place(node_id) for node_id in members}
        command = (sys.executable, "-m", launch.__name__, str(offsets), plan.mutant, "node", "start")
        farm = await stack.enter_async_context(
            process_farm(directory / "farm", members, farm_plan, command=command, places=places, start=False)
        )
        disks = {}
        for node in farm.nodes.values() if plan.forgetful else ():
            disks[node.id] = await stack.enter_async_context(_on_its_disk(node.directory / "data"))
        clocks = {node_id: launch.Clock(offsets / f"clock-{node_id}") for node_id in members}
        chaos = ChaosFarm(farm, directory, plan.seed, wires, disks, clocks)
        try:
            async with chaos.client(chaos_client.__name__, WRITERS, PAUSE_S):
                await chaos.until("nothing was committed", chaos.progress)
                yield chaos
            index, states = await chaos.settle()
            chaos.figures = await chaos.check(index, states)
        except* Violation:
            await chaos.keep()
            raise
        finally:
            chaos.signal(signal.SIGCONT, tuple(farm.nodes))


@asynccontextmanager
async def _on_its_disk(data: Path) -> AsyncIterator[powerloss.Storage]:
    """Move a data directory to a disk that fails as it is told, for as long as the block lasts."""
    made = data.with_name("made")
    shutil.move(data, made)
    os.mkdir(data)
    async with powerloss.mounted(data) as disk:
        await trio.to_thread.run_sync(_copy, made, data)
        yield disk


def _copy(made: Path, data: Path) -> None:
    shutil.copytree(made, data, dirs_exist_ok=True)
    for path in (*data.rglob("*"), data):
        fsync_path(path)


class ChaosFarm(WatchedFarm):
    """What faults are made of. ``network`` and ``disks`` (by node) are there where they can be had."""

    def __init__(
        self,
        farm: ProcessFarm,
        directory: Path,
        seed: int,
        wires: Network | None,
        disks: dict[int, powerloss.Storage],
        clocks: dict[int, launch.Clock],
    ) -> None:
        super().__init__(farm, directory, random.Random(seed))
        self.nodes = sorted(farm.nodes)
        self.disks = disks
        self.clocks = clocks
        self.figures: dict[str, float] = {}
        self.term = 0
        self._wires = wires
        self._ledger = Ledger()
        self._unchecked: list[bytes] = []

    # What can be done to it

    async def break_links(self, faults: LinkFaults, for_s: float) -> int:
        """Let the network be like that for a while; how many packets were lost."""
        assert self._wires is not None
        await self._wires.set_faults(faults)
        await trio.sleep(for_s)
        return await self._wires.set_faults(LinkFaults())

    async def kill(self, nodes: Sequence[int]) -> None:
        """SIGKILL them all at once."""
        self.signal(signal.SIGKILL, nodes)
        await self.all(self.farm.kill, nodes)

    async def fail_disks(self, nodes: Sequence[int], what: str, for_s: float) -> None:
        """Let disks fail (as `powerloss.Storage.fail` says): their nodes have to end because of it. If they
        are a majority, the last of them may be left without anything to write, and are killed. For a while
        longer they stay down, and if they are a majority, nothing may be acknowledged; then the disks work
        again."""
        for node_id in nodes:
            await self.disks[node_id].fail(what)
        can_be_idle = len(nodes) > len(self.nodes) // 2
        await self.all(partial(self._ends_by_itself, what, can_be_idle), nodes)
        await trio.sleep(STRAGGLERS_S)
        await self.progress()
        await trio.sleep(for_s)
        acknowledged = await self.progress()
        if acknowledged and len(nodes) > len(self.nodes) // 2:
            raise Violation(f"{acknowledged[0].decode()!r} without the disks of nodes {nodes}")
        for node_id in nodes:
            await self.disks[node_id].fail("none")

    async def _ends_by_itself(self, what: str, can_be_idle: bool, node_id: int) -> None:
        node = self.farm.nodes[node_id]
        assert node.process is not None
        code = None
        with trio.move_on_after(EXIT_S):
            code = await node.process.wait()
        if code is None and can_be_idle and not await self.disks[node_id].fail(what):
            await self.farm.kill(node_id)
            return
        if code is None:
            raise Violation(f"node {node_id} was still there {EXIT_S:g} s after its disk had failed")
        tail = node.log_file.read_text(errors="replace")[-2000:]
        if code != STORAGE_FAILED:
            raise Violation(f"node {node_id} ended with {code} when its disk failed: {tail}")
        await self.farm.kill(node_id)  # which notes that it is down

    async def lose_unsynced(self, nodes: Sequence[int], keep: float, seed: int) -> int:
        """Cut the power of disks whose nodes are down; how many changes were unsynced."""
        return sum([await self.disks[node_id].lose(keep, seed) for node_id in nodes])

    async def keep(self) -> None:
        """End all nodes, and copy what their disks show to where it outlasts them, for people to look at."""
        await self.kill(self.nodes)
        for node in self.farm.nodes.values() if self.disks else ():
            await trio.to_thread.run_sync(
                shutil.copytree, node.directory / "data", node.directory / "data-then"
            )

    # What has to hold

    async def progress(self) -> list[bytes] | None:
        acks = await super().progress()
        self._unchecked += acks or []
        return acks

    async def recover(self) -> float:
        """All is well again: how long until an entry is committed, in s. Then everything that all nodes
        show is compared, and with it what was acknowledged so far."""
        healed = trio.current_time()
        fresh = await self.until("after healing, no fresh entry was committed", self.post_fresh)
        took_s = trio.current_time() - healed
        await self.progress()
        lines, self._unchecked = self._unchecked, []
        newest = max([fresh, *(int(line.split()[2]) for line in lines)])
        await self.until(
            f"after healing, not all nodes showed entry {newest}", partial(self._compare, newest)
        )
        self._ledger.acknowledged(lines)
        return took_s

    def check_stores(self, index: int, states: dict[int, bytes]) -> dict[str, float]:
        figures = super().check_stores(index, states)
        log = posted(read_log(self.farm.nodes[self.nodes[0]].directory).entries, self.farm.application)
        return figures | check_history(self.journal.with_name("history"), log)

    async def _compare(self, newest: int) -> bool | None:
        await self.all(self._look_at, self.nodes)
        return all(self._ledger.seen.get(node_id, 0) >= newest for node_id in self.nodes) or None

    async def _look_at(self, node_id: int) -> None:
        node = self.farm.nodes[node_id]
        assert node.process is not None
        after = self._ledger.seen.get(node_id, 0)
        seen = await self.ask(node, lambda client: client.page("farm", after))
        if seen is not None:
            self._ledger.page(node_id, seen[0].entries, seen[0].next_after)
        state = await self.ask(node, lambda client: client.state("farm"))
        if state is not None:
            self._ledger.state(node_id, state[1])
        await self._status(node)

    async def _status(self, node: NodeProcess) -> dict[str, object] | None:
        assert node.process is not None
        status = await self.ask(node, lambda client: client.status("farm"))
        if status is not None:
            self._ledger.status(node.id, node.process.pid, status)
            self.term = max(self.term, int(status["term"]))
        return status


def check_history(history: Path, log: Mapping[int, str]) -> dict[str, float]:
    """Raise `Violation` unless what `chaos_client` did and saw is linearizable; ``log``: the labels of what
    clients posted, by index. What was looked at, in figures."""
    lines = history.read_bytes().splitlines()
    operations: list[Operation] = [msgspec.json.decode(line, type=Post | Read) for line in lines]
    ours = [Post(label, 0.0) for label in log.values() if label.startswith(f"{LOCAL_USER}-")]
    ordered = check_linearizable([*ours, *operations], log)
    reads = sum(isinstance(operation, Read) for operation in operations)
    return {"linearizable reads": reads, "operations in a linear order": ordered}


def count(kinds: Sequence[str]) -> str:
    """How many of each, in a line."""
    return ", ".join(f"{times} {kind}" for kind, times in sorted(Counter(kinds).items()))
