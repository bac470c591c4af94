"""One phase of the crash test: a farm of three processes, a client, what befalls them, the final checks."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import crash_client
import msgspec
import powerloss
import trio
from crash_checks import Attempts, Violation, check_attempts, check_logs, fold, read_journal, read_log
from crash_client import PASSWORD, Spec

from garlicfarm.errors import (
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    ProposalDropped,
    RemoteProtocolError,
    UnreachableError,
)
from garlicfarm.farm.documents import StatusDocument
from garlicfarm.farm.log import LogApplication
from garlicfarm.farm.state import FarmApplication
from garlicfarm.farm.status import encode_status
from garlicfarm.provision import LOCAL_USER, FarmPlan
from garlicfarm.testing.processes import NodeProcess, ProcessFarm, process_farm
from garlicfarm.users import UserStore

__all__ = ["Rounds", "run_rounds"]

RAFT = {
    "election_timeout_min_s": 0.6,
    "election_timeout_max_s": 1.2,
    "heartbeat_s": 0.2,
    "rpc_timeout_s": 1.0,
}
PATIENCE_S = 45.0
ASK_S = 3.0
POSTERS = {"log": 64, "farm": 8}
PAUSE_S = {"log": 0.03, "farm": 0.05}
VICTIMS = {"leader": 14, "leader and follower": 2, "follower": 2, "both followers": 2}

T = TypeVar("T")


class Rounds(NamedTuple):
    """What is to befall the farm: in the phases ``log`` and ``farm`` ``kills`` kills of the leader, in
    ``power`` as many power cuts; at least ``acks`` acknowledged entries. ``node`` runs a node."""

    phase: str
    kills: int
    acks: int
    seed: int
    node: tuple[str, ...]

    @property
    def application(self) -> str:
        return "farm" if self.phase == "farm" else "log"


async def run_rounds(rounds: Rounds, directory: Path) -> str:
    """Run one phase in ``directory``, which is empty; returns what happened, in a line.

    Raises `Violation` (in groups).
    """
    # A power cut would take the nodes' own accounts with it.
    NodeProcess.log_file = property(lambda node: directory / f"node-{node.id}.log")
    # Nodes restart from snapshots, and the checks still read every entry.
    retention = {"snapshot_every_entries": 500, "keep_entries": 10**9, "keep_bytes": 2**40}
    plan = FarmPlan(application=rounds.application, raft=RAFT, retention=retention)
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


class _Run:
    def __init__(
        self, rounds: Rounds, directory: Path, farm: ProcessFarm, storage: powerloss.Storage | None
    ) -> None:
        self._rounds = rounds
        self._farm = farm
        self._directory = directory
        self._storage = storage
        self._random = random.Random(rounds.seed)
        self._journal = directory / "journal"
        self._journal.touch()
        self._journal_read = 0
        self._acks = 0
        self._kills: Counter[str] = Counter()
        self._syncs = 0
        self._unsynced = 0

    async def run(self) -> str:
        spec = Spec(
            application=self._rounds.application,
            journal=str(self._journal),
            directories={node.id: str(node.directory) for node in self._farm.nodes.values()},
            endpoints=self._farm.endpoints,
            farm_id=self._farm.farm_id.hex(),
            posters=POSTERS[self._rounds.application],
            pause_s=PAUSE_S[self._rounds.application],
        )
        for node in self._farm.nodes.values():
            users = UserStore(node.directory / "data" / "users")
            for user in spec.users():
                users.add(user, "poster", PASSWORD)
        await self._start(self._farm.nodes)
        async with self._client(spec):
            befall = self._cut_power if self._storage else self._kill
            while self._kills["leader"] < self._rounds.kills:
                # Mostly under load; after the first time also before there is a leader again.
                if not self._kills or self._random.random() < 0.8:
                    await self._until("nothing was committed", self._progress)
                await trio.sleep(self._random.uniform(0, 1))
                await befall()
            await self._until("too little was committed", self._enough)
        return await self._check()

    @asynccontextmanager
    async def _client(self, spec: Spec) -> AsyncIterator[None]:
        path = self._directory / "client.json"
        path.write_bytes(msgspec.json.encode(spec))
        command = [sys.executable, crash_client.__file__, str(path)]
        async with trio.open_nursery() as nursery:
            process = await nursery.start(partial(trio.run_process, command, stdin=subprocess.PIPE))
            yield
            await process.stdin.aclose()
            with trio.move_on_after(PATIENCE_S):
                await process.wait()
                return
            raise Violation(f"posts were neither answered nor given up within {PATIENCE_S:g} s")

    # What befalls the farm

    async def _kill(self) -> None:
        leader = await self._until("there was no leader", self._leader)
        followers = [id_ for id_ in self._farm.nodes if id_ != leader]
        self._random.shuffle(followers)
        [who] = self._random.choices(list(VICTIMS), list(VICTIMS.values()))
        victims = ([leader] if "leader" in who else []) + {"leader": [], "both followers": followers}.get(
            who, followers[:1]
        )
        for victim in victims:
            self._syncs += await self._synced(victim)
        await self._all(self._farm.kill, victims)
        for victim in victims:
            self._kills["leader" if victim == leader else "follower"] += 1
        await trio.sleep(self._random.uniform(0, 1))
        await self._start(victims)

    async def _cut_power(self) -> None:
        assert self._storage is not None
        await self._all(self._farm.kill, self._farm.nodes)
        # At first all that is unsynced goes, then half of it: a disk may write in any order.
        keep = 0.5 if self._kills["leader"] % 2 else 0.0
        self._unsynced += await self._storage.lose(keep, self._random.getrandbits(32))
        self._kills["leader"] += 1
        await self._start(self._farm.nodes)

    async def _start(self, victims: Iterable[int]) -> None:
        try:
            await self._all(self._farm.start, victims)
        except* UnreachableError as group:
            raise Violation(f"{group.exceptions[0]}") from group
        await self._progress()  # what was acknowledged up to now is none

    async def _all(self, do: Callable[[int], Awaitable[Any]], nodes: Iterable[int]) -> None:
        async with trio.open_nursery() as nursery:
            for node_id in nodes:
                nursery.start_soon(do, node_id)

    # What is seen of it

    async def _until(self, otherwise: str, ask: Callable[[], Awaitable[T | None]]) -> T:
        with trio.move_on_after(PATIENCE_S):
            while True:
                for node in self._farm.nodes.values():
                    if node.process is not None and node.process.returncode is not None:
                        tail = node.log_file.read_text(errors="replace")[-2000:]
                        raise Violation(f"node {node.id} ended with {node.process.returncode}: {tail}")
                answer = await ask()
                if answer is not None:
                    return answer
                await trio.sleep(0.05)
        raise Violation(f"{otherwise} for {PATIENCE_S:g} s")

    async def _progress(self) -> bool | None:
        """True if the client was acknowledged an entry since the last call that said so."""
        with self._journal.open("rb") as file:
            file.seek(self._journal_read)
            data = file.read()
        self._journal_read += data.rfind(b"\n") + 1
        acks = len(re.findall(rb"^ack .*\n", data, re.MULTILINE))
        self._acks += acks
        return acks > 0 or None

    async def _enough(self) -> bool | None:
        await self._progress()
        return self._acks >= self._rounds.acks or None

    async def _leader(self) -> int | None:
        leaders = []
        for node in self._farm.nodes.values():
            status = await self._ask(node, lambda client: client.status("farm"))
            if status is not None and status["role"] == "leader":
                leaders.append((status["term"], node.id))
        return max(leaders)[1] if leaders else None

    async def _ask(self, node: NodeProcess, ask: Callable[[Any], Awaitable[T]]) -> T | None:
        with trio.move_on_after(ASK_S):
            async with node.client() as client:
                return await ask(client)
        return None

    async def _synced(self, node_id: int) -> int:
        """How many batches a node has synced since it started."""
        text = await self._ask(self._farm.nodes[node_id], lambda client: client.metrics())
        count = re.search(r"^garlicfarm_storage_fsync_seconds_count\{.*?\} (\S+)", text or "", re.MULTILINE)
        return int(float(count[1])) if count else 0

    # The end

    async def _check(self) -> str:
        attempts = await trio.to_thread.run_sync(read_journal, self._journal)
        fresh = await self._until("no fresh entry was committed", partial(self._post_fresh, attempts))
        index, states = await self._until(
            f"not all nodes had applied the fresh entry {fresh}", partial(self._states, fresh)
        )
        if self._storage:
            self._syncs = await self._storage.syncs()
        else:
            for node_id in self._farm.nodes:
                self._syncs += await self._synced(node_id)
        await self._all(self._stop, self._farm.nodes)
        return await trio.to_thread.run_sync(self._check_stores, attempts, index, states)

    async def _post_fresh(self, attempts: Attempts) -> int | None:
        """Post an entry that the client did not; its index once it is committed."""
        node = self._random.choice(list(self._farm.nodes.values()))
        number = attempts.unknown.total() + attempts.refused.total() + 1
        label = f"{LOCAL_USER}-{number}"
        value = label.encode()
        if self._rounds.application == "farm":
            config: dict[str, object] = {"by": LOCAL_USER}
            value = encode_status(StatusDocument("farm", 1, 0, sequence=number, config=config))
        try:
            async with node.client() as client:
                index, _ = await client.post("farm", value)
        except OutcomeUnknown:
            attempts.unknown[label] += 1
        except (NoQuorum, NotLeader, ProposalDropped, UnreachableError, RemoteProtocolError):
            attempts.refused[label] += 1
        else:
            attempts.acknowledged.append((label, index, attempts.acknowledged[-1][2]))
            return index
        return None

    async def _states(self, at_least: int) -> tuple[int, dict[int, bytes]] | None:
        """The state of all nodes at one index; None while they are at different ones, or before it."""
        states, indexes = {}, set()
        for node in self._farm.nodes.values():
            answer = await self._ask(node, lambda client: client.state("farm"))
            if answer is None:
                return None
            indexes.add(answer[0])
            states[node.id] = answer[1]
        [index, *others] = indexes
        return None if others or index < at_least else (index, states)

    async def _stop(self, node_id: int) -> None:
        code = await self._farm.stop(node_id)
        if code:
            raise Violation(f"node {node_id} was to end and ended with {code}")

    def _check_stores(self, attempts: Attempts, index: int, states: dict[int, bytes]) -> str:
        logs = {node.id: read_log(node.directory) for node in self._farm.nodes.values()}
        log = logs[min(logs)]
        application = FarmApplication("farm") if self._rounds.application == "farm" else LogApplication()
        appeared = check_attempts(attempts, log, application)
        applied = fold(log, application, index)
        check_logs(logs, states, application, index)
        acknowledged = {label for label, _, _ in attempts.acknowledged}
        never = [label for label in acknowledged if applied[label] != 1]
        if never:
            raise Violation(f"{min(never)} was acknowledged and never applied")
        moments = sorted(at for _, _, at in attempts.acknowledged)
        longest = max(b - a for a, b in pairwise(moments))
        wrote = [node.log_file.read_text(errors="replace") for node in self._farm.nodes.values()]
        figures = {
            "acknowledged": len(attempts.acknowledged),
            "unknown": attempts.unknown.total(),
            "of these in the log": appeared,
            "refused": attempts.refused.total(),
            "entries": len(log.entries),
            "elections": sum(text.count("event=became-leader") for text in wrote),
            "term": log.hard_state.term,
            "s at most without a commit": round(longest, 2),
            "fsyncs": self._syncs,
        }
        if self._storage:
            figures |= {"power cuts": self._kills["leader"], "unsynced changes": self._unsynced}
        else:
            figures |= {f"kills of a {who}": times for who, times in self._kills.items()}
        if isinstance(application, FarmApplication):
            figures |= {"repeated, skipped": application.skipped.get("repeated", 0)}
        return ", ".join(f"{number} {what}" for what, number in figures.items())
