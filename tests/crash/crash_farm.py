"""One phase of the crash test: a farm of three processes, a client, what befalls them, the final checks."""

from __future__ import annotations

import random
import re
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import trio

from garlicfarm.lab.processes import NodeProcess, ProcessFarm, process_farm
from garlicfarm.setup.provision import FarmPlan
from tests.crash import crash_client, powerloss
from tests.crash.watched_farm import RAFT, RETENTION, WatchedFarm

WRITERS = {"log": 64, "publisher": 8}
PAUSE_S = {"log": 0.03, "publisher": 0.05}
VICTIMS = {"leader": 14, "leader and follower": 2, "follower": 2, "both followers": 2}


class Rounds(NamedTuple):
    """What is to befall the farm: in the phases ``log`` and ``publisher`` ``kills`` kills of the leader, in
    ``power`` as many power cuts; at least ``acks`` acknowledged entries. ``node`` runs a node."""

    phase: str
    kills: int
    acks: int
    seed: int
    node: tuple[str, ...]

    @property
    def application(self) -> str:
        return "publisher" if self.phase == "publisher" else "log"


async def run_rounds(rounds: Rounds, directory: Path) -> str:
    """Run one phase in ``directory``, which is empty; returns what happened, in a line.

    Raises `Violation` (in groups).
    """
    # A power cut would take the nodes' own accounts with it.
    setattr(NodeProcess, "log_file", property(lambda node: directory / f"node-{node.id}.log"))  # noqa: B010
    plan = FarmPlan(application=rounds.application, raft=RAFT, retention=RETENTION)
    async with AsyncExitStack() as stack:
        place, storage = directory, None
        if rounds.phase == "power":
            place = directory / "storage"
            place.mkdir()
            storage = await stack.enter_async_context(powerloss.mounted(place))
        farm = await stack.enter_async_context(
            process_farm(place / "farm", 3, plan, command=rounds.node, start=False)
        )
        return await _Run(rounds, directory, farm, storage).run()


class _Run(WatchedFarm):
    def __init__(
        self, rounds: Rounds, directory: Path, farm: ProcessFarm, storage: powerloss.Storage | None
    ) -> None:
        super().__init__(farm, directory, random.Random(rounds.seed))
        self._rounds = rounds
        self._storage = storage
        self._kills: Counter[str] = Counter()
        self._syncs = 0
        self._unsynced = 0

    async def run(self) -> str:
        application = self._rounds.application
        async with self.client(crash_client.__name__, WRITERS[application], PAUSE_S[application]):
            befall = self._cut_power if self._storage else self._kill
            while self._kills["leader"] < self._rounds.kills:
                # Mostly under load; after the first time also before there is a leader again.
                if not self._kills or self.random.random() < 0.8:
                    await self.until("nothing was committed", self.progress)
                await trio.sleep(self.random.uniform(0, 1))
                await befall()
            await self.until("too little was committed", self._enough)
        index, states = await self.settle()
        if self._storage:
            self._syncs = await self._storage.syncs()
        else:
            for node_id in self.farm.nodes:
                self._syncs += await self._synced(node_id)
        figures = await self.check(index, states) | {"fsyncs": self._syncs}
        if self._storage:
            figures |= {"power cuts": self._kills["leader"], "unsynced changes": self._unsynced}
        else:
            figures |= {f"kills of a {who}": times for who, times in self._kills.items()}
        return ", ".join(f"{number} {what}" for what, number in figures.items())

    async def _enough(self) -> bool | None:
        await self.progress()
        return self.acks >= self._rounds.acks or None

    async def _kill(self) -> None:
        leader = await self.until("there was no leader", self.leader)
        followers = [id_ for id_ in self.farm.nodes if id_ != leader]
        self.random.shuffle(followers)
        [who] = self.random.choices(list(VICTIMS), list(VICTIMS.values()))
        victims = ([leader] if "leader" in who else []) + {"leader": [], "both followers": followers}.get(
            who, followers[:1]
        )
        for victim in victims:
            self._syncs += await self._synced(victim)
        await self.all(self.farm.kill, victims)
        for victim in victims:
            self._kills["leader" if victim == leader else "follower"] += 1
        await trio.sleep(self.random.uniform(0, 1))
        await self.start(victims)

    async def _cut_power(self) -> None:
        assert self._storage is not None
        await self.all(self.farm.kill, self.farm.nodes)
        # At first all that is unsynced goes, then half of it: a disk may write in any order.
        keep = 0.5 if self._kills["leader"] % 2 else 0.0
        self._unsynced += await self._storage.lose(keep, self.random.getrandbits(32))
        self._kills["leader"] += 1
        await self.start(self.farm.nodes)

    async def _synced(self, node_id: int) -> int:
        """How many batches a node has synced since it started."""
        text = await self.ask(self.farm.nodes[node_id], lambda client: client.metrics())
        count = re.search(r"^garlicfarm_storage_fsync_seconds_count\{.*?\} (\S+)", text or "", re.MULTILINE)
        return int(float(count[1])) if count else 0
