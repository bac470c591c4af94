"""A farm of processes, a client that posts to it without end, what is seen of them, and the final checks.

The crash test kills such a farm's nodes, the chaos test does them anything else.
"""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import trio

from garlicfarm.client import AdminClient
from garlicfarm.credentials.users import LOCAL_USER, UserStore
from garlicfarm.errors import (
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    ProposalDropped,
    RemoteProtocolError,
    UnreachableError,
)
from garlicfarm.lab.processes import NodeProcess, ProcessFarm
from garlicfarm.publishing.fold import PublisherFold
from tests.crash.crash_checks import (
    Attempts,
    Violation,
    check_attempts,
    check_logs,
    fold,
    read_journal,
    read_log,
    state_machine,
)
from tests.crash.crash_client import PASSWORD, Spec, entry_of

RAFT = {
    "election_timeout_min_s": 0.6,
    "election_timeout_max_s": 1.2,
    "heartbeat_s": 0.2,
    "rpc_timeout_s": 1.0,
}
RETENTION = {"snapshot_every_entries": 500, "keep_entries": 10**9, "keep_bytes": 2**40}
"""Nodes restart from snapshots, and the checks still read every entry."""

T = TypeVar("T")


class WatchedFarm:
    """``farm``, not started yet; ``directory`` is for the client's files, ``drawn`` where all random choices
    come from. ``patience_s``: within that, what is waited for has to come about; ``ask_s``: within that, a
    node has to answer a question."""

    patience_s = 45.0
    ask_s = 3.0

    def __init__(self, farm: ProcessFarm, directory: Path, drawn: random.Random) -> None:
        self.farm = farm
        self.directory = directory
        self.random = drawn
        self.journal = directory / "journal"
        self.journal.touch()
        self.acks = 0
        self._journal_read = 0
        self._own = Attempts([], Counter(), Counter(), {})

    @asynccontextmanager
    async def client(self, program: str, writers: int, pause_s: float) -> AsyncIterator[None]:
        """Start the nodes, and a client, the module ``program``, that posts as long as the block lasts."""
        spec = Spec(
            application=self.farm.application,
            journal=str(self.journal),
            directories={node.id: str(node.directory) for node in self.farm.nodes.values()},
            endpoints=self.farm.endpoints,
            farm_id=self.farm.farm_id.hex(),
            writers=writers,
            pause_s=pause_s,
        )
        for node in self.farm.nodes.values():
            users = UserStore(node.directory / "data" / "users")
            for user in spec.users():
                users.add(user, "writer", PASSWORD)
        await self.start(self.farm.nodes)
        path = self.directory / "client.json"
        path.write_bytes(msgspec.json.encode(spec))
        command = [sys.executable, "-m", program, str(path)]
        async with trio.open_nursery() as nursery:
            process = await nursery.start(partial(trio.run_process, command, stdin=subprocess.PIPE))
            yield
            await process.stdin.aclose()
            with trio.move_on_after(self.patience_s):
                await process.wait()
                return
            raise Violation(f"posts were neither answered nor given up within {self.patience_s:g} s")

    async def start(self, nodes: Iterable[int]) -> None:
        """Start nodes, and forget what was acknowledged up to now."""
        try:
            await self.all(self.farm.start, nodes)
        except* UnreachableError as group:
            raise Violation(f"{group.exceptions[0]}") from group
        await self.progress()

    async def all(self, do: Callable[[int], Awaitable[Any]], nodes: Iterable[int]) -> None:
        """The same with several nodes at once."""
        async with trio.open_nursery() as nursery:
            for node_id in nodes:
                nursery.start_soon(do, node_id)

    def signal(self, number: signal.Signals, nodes: Iterable[int]) -> None:
        """Send a signal to nodes that are running."""
        for node_id in nodes:
            process = self.farm.nodes[node_id].process
            if process is not None:
                process.send_signal(number)

    # What is seen of it

    async def until(self, otherwise: str, ask: Callable[[], Awaitable[T | None]]) -> T:
        """Ask until there is an answer; without one for too long, or when a node ends, `Violation`."""
        with trio.move_on_after(self.patience_s):
            while True:
                for node in self.farm.nodes.values():
                    if node.process is not None and node.process.returncode is not None:
                        tail = node.log_file.read_text(errors="replace")[-2000:]
                        raise Violation(f"node {node.id} ended with {node.process.returncode}: {tail}")
                answer = await ask()
                if answer is not None:
                    return answer
                await trio.sleep(0.05)
        raise Violation(f"{otherwise} for {self.patience_s:g} s")

    async def progress(self) -> list[bytes] | None:
        """What the client's journal says of acknowledged entries since the last call, if anything."""
        with self.journal.open("rb") as file:
            file.seek(self._journal_read)
            data = file.read()
        self._journal_read += data.rfind(b"\n") + 1
        acks: list[bytes] = re.findall(rb"^ack .*\n", data, re.MULTILINE)
        self.acks += len(acks)
        return acks or None

    async def leader(self) -> int | None:
        """The leader of the highest term that any node knows of itself, if there is one."""
        leaders = []
        for node in self.farm.nodes.values():
            status = await self.ask(node, lambda client: client.status("farm"))
            if status is not None and status["role"] == "leader":
                leaders.append((status["term"], node.id))
        return max(leaders)[1] if leaders else None

    async def who_leads(self) -> int:
        """The leader; waits for one."""
        return await self.until("there was no leader", self.leader)

    async def ask(self, node: NodeProcess, ask: Callable[[AdminClient], Awaitable[T]]) -> T | None:
        """What a node says to a question, if it does so soon enough."""
        with trio.move_on_after(self.ask_s), suppress(UnreachableError):
            async with node.client() as client:
                return await ask(client)
        return None

    # The end

    async def settle(self) -> tuple[int, dict[int, bytes]]:
        """The client has ended: commit one more entry, and wait until all nodes are at one index; that
        index, and the state of each."""
        fresh = await self.until("no fresh entry was committed", self.post_fresh)
        return await self.until(
            f"not all nodes had applied the fresh entry {fresh}", partial(self.states, fresh)
        )

    async def post_fresh(self) -> int | None:
        """Post an entry that the client did not; its index once it is committed."""
        node = self.random.choice(list(self.farm.nodes.values()))
        own = self._own
        number = len(own.acknowledged) + own.unknown.total() + own.refused.total() + 1
        label = f"{LOCAL_USER}-{number}"
        value = entry_of(self.farm.application, LOCAL_USER, number)
        try:
            with trio.fail_after(self.ask_s):
                async with node.client() as client:
                    index, term = await client.post("farm", value)
        except (OutcomeUnknown, trio.TooSlowError):
            own.unknown[label] += 1
        except (NoQuorum, NotLeader, ProposalDropped, UnreachableError, RemoteProtocolError):
            own.refused[label] += 1
        else:
            own.acknowledged.append((label, index, time.monotonic()))
            own.terms[index] = term
            return index
        return None

    async def states(self, at_least: int) -> tuple[int, dict[int, bytes]] | None:
        """The state of all nodes at one index; None while they are at different ones, or before it."""
        states, indexes = {}, set()
        for node in self.farm.nodes.values():
            answer = await self.ask(node, lambda client: client.state("farm"))
            if answer is None:
                return None
            indexes.add(answer[0])
            states[node.id] = answer[1]
        [index, *others] = indexes
        return None if others or index < at_least else (index, states)

    async def check(self, index: int, states: dict[int, bytes]) -> dict[str, float]:
        """End all nodes, and check what they leave; what was seen, in figures. Raises `Violation`."""
        await self.all(self.stop, self.farm.nodes)
        return await trio.to_thread.run_sync(self.check_stores, index, states)

    async def stop(self, node_id: int) -> None:
        """End a node in order."""
        code = await self.farm.stop(node_id)
        if code:
            raise Violation(f"node {node_id} was to end and ended with {code}")

    def check_stores(self, index: int, states: dict[int, bytes]) -> dict[str, float]:
        attempts = read_journal(self.journal)
        attempts.acknowledged.extend(self._own.acknowledged)
        attempts.unknown.update(self._own.unknown)
        attempts.refused.update(self._own.refused)
        attempts.terms.update(self._own.terms)
        logs = {node.id: read_log(node.directory) for node in self.farm.nodes.values()}
        log = logs[min(logs)]
        application = state_machine(self.farm.application)
        appeared = check_attempts(attempts, log, application)
        applied = fold(log, application, index)
        check_logs(logs, states, application, index)
        acknowledged = {label for label, _, _ in attempts.acknowledged}
        never = [label for label in acknowledged if applied[label] != 1]
        if never:
            raise Violation(f"{min(never)} was acknowledged and never applied")
        moments = sorted(at for _, _, at in attempts.acknowledged)
        longest = max(b - a for a, b in pairwise(moments))
        wrote = [node.log_file.read_text(errors="replace") for node in self.farm.nodes.values()]
        figures: dict[str, float] = {
            "acknowledged": len(attempts.acknowledged),
            "unknown": attempts.unknown.total(),
            "of these in the log": appeared,
            "refused": attempts.refused.total(),
            "entries": len(log.entries),
            "elections": sum(text.count("event=became-leader") for text in wrote),
            "term": log.hard_state.term,
            "s at most without a commit": round(longest, 2),
        }
        if isinstance(application, PublisherFold):
            figures["repeated, skipped"] = application.skipped.get("repeated", 0)
        return figures
