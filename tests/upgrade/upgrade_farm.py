"""A farm of processes, each of which runs a program of its own: a release, this tree, or a program to come.

It has the application `publisher`, with simulated routers, and the client of the chaos test: posts and
linearizable reads without end, of which every one is judged at the end.
"""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import trio

from garlicfarm.cli.exits import Exit
from garlicfarm.client import AdminClient
from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.errors import NoQuorum, NotLeader, OutcomeUnknown, ProposalDropped, UnreachableError
from garlicfarm.i2p.encoding import encode
from garlicfarm.lab.destinations import simulated_destination
from garlicfarm.lab.processes import ProcessFarm, free_ports, process_farm
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.setup.provision import FarmPlan, MadeFarm, MemberPlan
from tests.chaos import chaos_client
from tests.chaos.chaos_farm import check_history
from tests.crash.crash_checks import FARM, Log, Violation, fold_each, posted, read_log
from tests.crash.watched_farm import RAFT, RETENTION, WatchedFarm
from tests.upgrade import make_farm
from tests.upgrade.programs import Done, Program

INTERVAL_MS = 1000
DEADLINE_S = 840.0  # ends what hangs, and with it the nodes, before pytest would
WRITERS = 8
PAUSE_S = 0.05
PASSING = ("is not connected", "another change in flight", "nothing committed yet", "not known")
"""Why a level is not raised at the moment, or whether it is; another leader is one more reason."""
STEADY = RAFT | {"election_timeout_min_s": 4.0, "election_timeout_max_s": 6.0, "rpc_timeout_s": 3.0}
"""For tests in which the leader must not change by itself, on a busy machine either."""
SNAPSHOT_EVERY = 50  # each program restarts from what the other one has written


@asynccontextmanager
async def upgrade_farm(
    directory: Path,
    nodes: int,
    program: Program,
    *,
    seed: int = 1,
    keep_entries: int = 10**9,
    raft: Mapping[str, float] = MappingProxyType(RAFT),
) -> AsyncIterator[UpgradeFarm]:
    """A farm below ``directory`` that ``program`` has made and is to run, for as long as the block lasts. No
    node is started yet. ``keep_entries``: so many stay in the logs. ``raft``: the timing."""
    key_file = directory / "master.key"
    master = encode(create_keys(key_file).destination)
    plan = FarmPlan(
        raft=dict(raft),
        retention=RETENTION | {"snapshot_every_entries": SNAPSHOT_EVERY, "keep_entries": keep_entries},
        master=master,
        master_key_file=key_file,
        interval_ms=INTERVAL_MS,
    )
    ports = free_ports(2 * nodes)
    members = {
        node_id: MemberPlan(
            endpoint=f"ssl://127.0.0.1:{ports.pop()}",
            admin_url=f"https://127.0.0.1:{ports.pop()}",  # one that stays: clients keep it
            router={"plugin": "simulated", "seed": node_id},
            leaves=(encode(simulated_destination(node_id)),),
            publishers=({"plugin": "simulated"},),
        )
        for node_id in range(1, nodes + 1)
    }
    async with process_farm(
        directory / "farm", members, plan, start=False, create=partial(_create, program)
    ) as farm:
        upgraded = UpgradeFarm(farm, directory, random.Random(seed))
        for node_id in farm.nodes:
            upgraded.choose(node_id, program)
        yield upgraded


def _create(program: Program, out: Path, members: Mapping[int, MemberPlan], plan: FarmPlan) -> MadeFarm:
    order = msgspec.json.encode({"out": out, "members": members, "farm": plan}, enc_hook=str)
    made = subprocess.run([*program.python, make_farm.__file__], input=order, capture_output=True)
    assert made.returncode == 0, made.stderr.decode()
    return msgspec.json.decode(made.stdout, type=MadeFarm, dec_hook=lambda kind, text: kind(text))


class Seen(NamedTuple):
    """The state that a node served at an index while it ran a program of that version."""

    node: int
    version: str
    at: int
    state: bytes


class UpgradeFarm(WatchedFarm):
    """``programs``: what each node runs, or is to run when it is started."""

    patience_s = 240.0  # of a busy machine; this ends what hangs
    ask_s = 20.0

    def __init__(self, farm: ProcessFarm, directory: Path, drawn: random.Random) -> None:
        super().__init__(farm, directory, drawn)
        self.programs: dict[int, Program] = {}
        self.figures: dict[str, float] = {}
        self._seen: list[Seen] = []

    def choose(self, node_id: int, program: Program) -> None:
        """What a node runs from its next start on."""
        self.programs[node_id] = program
        self.farm.commands[node_id] = (*program.command, "node", "start")

    @asynccontextmanager
    async def judged(self) -> AsyncIterator[None]:
        """Start the nodes, and post and read for as long as the block lasts; then end the nodes and judge all
        that was said and is left (`figures`). Raises `Violation` (in groups)."""
        async with self.client(chaos_client.__name__, WRITERS, PAUSE_S):
            await self.until("nothing was committed", self.progress)
            await self.until("no member published", self.published)
            yield
        self.figures = await self.check(*await self.settle())

    async def published(self, but: int | None = None) -> int | None:
        """The member that is named and publishes by its own word, unless it is ``but``."""
        for node in self.farm.nodes.values():
            ranking = await self.ask(node, lambda client: client.ranking(FARM))
            if ranking is not None and ranking["publication"]["publishing"] and ranking["publisher"] != but:
                return int(ranking["publisher"])
        return None

    async def move_publisher(self) -> None:
        """Order the publisher not to publish until another member does."""
        publisher = await self.until("no member published", self.published)
        for mode in ("off", None):
            order = {"member": publisher, "mode": mode}
            await self.until(f"{order} was not accepted", partial(self.order, "override", order))
            await self.until(f"no member but {publisher} published", partial(self.published, publisher))

    async def order(self, action: str, args: Mapping[str, object]) -> tuple[int, int] | None:
        """Have the leader append an order; None: it is not known to be committed."""
        node = self.farm.nodes[await self.who_leads()]
        with suppress(NoQuorum, NotLeader, OutcomeUnknown, ProposalDropped):
            return await self.ask(node, lambda client: client.administer(FARM, action, args))
        return None

    async def roll(self, program: Program) -> None:
        """Exchange the program of one node after the other, the leader's last. Twice another member is killed
        meanwhile, and starts with its own program again. After each an entry has to be committed, and the
        exchanged node has to have it. Half way another member is made the publisher."""
        waiting = set(self.farm.nodes)
        beside = self.random.sample(range(len(waiting)), 2)
        for step in range(len(waiting)):
            leader = await self.who_leads()
            node_id = self.random.choice(sorted(waiting - {leader}) or [leader])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.exchange, node_id, program)
                if step in beside:
                    victim = self.random.choice([each for each in self.farm.nodes if each != node_id])
                    nursery.start_soon(self.kill, victim)
            waiting.remove(node_id)
            fresh = await self.until(
                f"after node {node_id} was exchanged, nothing was committed", self.post_fresh
            )
            if step == len(self.farm.nodes) // 2:
                await self.move_publisher()
            await self.until(
                f"node {node_id} did not apply entry {fresh}", partial(self._applied, node_id, fresh)
            )
        await self.until("no member published", self.published)

    async def exchange(self, node_id: int, program: Program) -> None:
        """End a node, most often in order, and start it with another program."""
        await (self.farm.kill if self.random.random() < 0.3 else self.stop)(node_id)
        self.choose(node_id, program)
        await self.start([node_id])
        found = await self.until(f"node {node_id} did not answer", partial(self._version, node_id))
        if found != program.version:
            raise Violation(f"node {node_id} runs {found}, not {program.version}")

    async def kill(self, node_id: int) -> None:
        """Kill a node, and start it again."""
        await self.farm.kill(node_id)
        await trio.sleep(self.random.uniform(0, 1))
        await self.start([node_id])

    async def begin(self, program: Program) -> None:
        """Start all nodes with a program, without a client; wait until an entry is committed."""
        for node_id in self.farm.nodes:
            self.choose(node_id, program)
        await self.start(self.farm.nodes)
        await self.until("nothing was committed", self.post_fresh)

    async def command(self, node_id: int, *arguments: object) -> Done:
        """What a command of a node's own program does, and writes, on the node's machine."""
        config = self.farm.nodes[node_id].directory / "garlicfarm.toml"
        return await self.programs[node_id].run(*arguments, "--config", config)

    async def lead(self, node_id: int) -> None:
        """Have a node take over the leadership, if it does not lead."""

        async def ask() -> bool | None:
            leader = await self.who_leads()
            if leader != node_id:
                with suppress(NoQuorum, NotLeader, OutcomeUnknown, ProposalDropped):
                    step = partial(AdminClient.step_down, farm=FARM, to=node_id)
                    await self.ask(self.farm.nodes[leader], step)
            return leader == node_id or None

        await self.until(f"node {node_id} did not lead", ask)

    async def ask_to_raise(self, level: int, before: Callable[[], None]) -> bool:
        """Ask the leader to raise the level, and call ``before`` just before that. Whether it has done so."""
        async with self.farm.nodes[await self.who_leads()].client() as client:
            await client.status(FARM)  # so that the connection is there
            before()
            try:
                await client.raise_level(FARM, level)
            except (NoQuorum, NotLeader, OutcomeUnknown, ProposalDropped, UnreachableError):
                return False
        return True

    async def raise_without(self, level: int, node_id: int) -> None:
        """Raise the level while a member stands still that is connected, and kill it before it knows."""

        async def ask() -> bool | None:
            try:
                raised = await self.ask_to_raise(level, partial(self.signal, signal.SIGSTOP, [node_id]))
                if raised:
                    await self.farm.kill(node_id)
            finally:
                self.signal(signal.SIGCONT, [node_id])
            return raised or None

        await self.until(f"the level was not raised to {level}", ask)

    async def logged(self, node_id: int, text: str) -> bool | None:
        """Whether a node's newest process has logged that."""
        return text in "\n".join(self.farm.nodes[node_id].log_lines()) or None

    async def raise_level(self) -> None:
        """Raise the level as far as the leader can, once nothing that passes by itself is in the way."""

        async def ask() -> bool | None:
            done = await self.command(await self.who_leads(), "farm", "level", "raise", "--yes")
            is_passing = done.code == Exit.NO_QUORUM or any(word in done.err for word in PASSING)
            if done.code and not is_passing:
                raise Violation(f"the level was not raised: {done.err}")
            return done.code == 0 or None

        await self.until("the members were not connected", ask)

    async def when(
        self, node_id: int, otherwise: str, condition: Callable[[dict[str, Any]], object]
    ) -> dict[str, Any]:
        """What a node says of its farm, once that fulfils the condition."""

        async def ask() -> dict[str, Any] | None:
            status = await self.ask(self.farm.nodes[node_id], lambda client: client.status(FARM))
            return status if status is not None and condition(status) else None

        return await self.until(otherwise, ask)

    async def continues(self, node_id: int, program: Program) -> None:
        """Start a node that is down with a program; it has to apply an entry that is posted then."""
        self.choose(node_id, program)
        await self.start([node_id])
        fresh = await self.until("nothing was committed", self.post_fresh)
        await self.until(
            f"node {node_id} did not apply entry {fresh}", partial(self._applied, node_id, fresh)
        )

    async def refusal(self, node_id: int, program: Program) -> str | None:
        """Start a node that is down with a program. Its error, if it refuses the store, which it must not
        change then; None: it runs."""
        node = self.farm.nodes[node_id]
        self.choose(node_id, program)
        (node.directory / "data" / "admin.url").unlink(missing_ok=True)  # as every start does
        before = contents(node.directory / "data")
        try:
            await self.farm.start(node_id)
        except UnreachableError as error:
            lines = node.log_lines()
            code = await self.farm.stop(node_id)  # which notes that it is down
            if code != Exit.STORAGE:
                raise Violation(f"node {node_id} ended with {code}: {lines}") from error
        else:
            return None
        changed = contents(node.directory / "data").items() ^ before.items()
        if changed:
            raise Violation(f"node {node_id} refused its store, and changed {sorted(changed)[0][0]}")
        [said] = [line for line in lines if line.startswith("error: ")]
        return said

    async def _version(self, node_id: int) -> str | None:
        answer = await self.ask(self.farm.nodes[node_id], lambda client: client.node())
        return None if answer is None else str(answer["version"])

    async def _applied(self, node_id: int, index: int) -> bool | None:
        """Whether a node has applied an index; notes what it serves."""
        answer = await self.ask(self.farm.nodes[node_id], lambda client: client.state(FARM))
        if answer is None or answer[0] < index:
            return None
        self._seen.append(Seen(node_id, self.programs[node_id].version, *answer))
        return True

    def check_stores(self, index: int, states: dict[int, bytes]) -> dict[str, float]:
        figures = super().check_stores(index, states)
        log = read_log(self.farm.nodes[min(self.farm.nodes)].directory)
        figures["publishers"] = check_fold(log, index, self._seen)
        return figures | check_history(self.journal.with_name("history"), posted(log.entries, "publisher"))


def row(status: Mapping[str, Any], member: int) -> dict[str, Any]:
    """What a status says of a member."""
    [found] = [each for each in status["members"] if each["id"] == member]
    return dict(found)


def contents(directory: Path) -> dict[str, bytes]:
    """All files below a directory, with what is in them."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def check_fold(log: Log, index: int, seen: list[Seen]) -> int:
    """Raise `Violation` unless a publisher was named throughout, once there was one, and each program served
    what this one makes of the log. Returns how many times a publisher was named."""
    fold, named, publisher = PublisherFold(FARM), 0, None
    by_index: dict[int, list[Seen]] = {}
    for one in seen:
        by_index.setdefault(one.at, []).append(one)
    for at, _ in fold_each(log, fold, index):
        if fold.publisher != publisher:
            if fold.publisher is None:
                raise Violation(f"no publisher was named from index {at} on, and {publisher} was before")
            named, publisher = named + 1, fold.publisher
        for one in by_index.pop(at, ()):
            if one.state != fold.snapshot():
                raise Violation(f"node {one.node} with {one.version} served another state at index {at}")
    if by_index or not named:
        raise Violation(f"the log has no publisher, or ends before the indexes {sorted(by_index)}")
    return named
