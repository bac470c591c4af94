"""Whole clusters in one process, from one seed: a network, disks and clients that fail as real ones do.

    python -m garlicfarm.testing.simulate --seeds 1000 [--first N] [--nodes 3]

Each seed draws its own mix of faults (swarm testing): connections that break, with half a message or
with answers still on their way; delays; partitions, also one-way; crashes that lose what was not yet
durable, all or part of it; slow disks; processes that stop for a while. All messages go through the
real codec. The invariants (`garlicfarm.testing.invariants`) are checked after every event. Then all
faults end, and the cluster has to agree on one more entry.

The same seed gives the same run, event by event: ``digest`` is a hash over all of it. So a violation
that is printed comes back with ``--first SEED --seeds 1``.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from garlicfarm.errors import ProposalDropped, RemoteProtocolError
from garlicfarm.raft import Persist, RaftConfig, RawNode, Ready, Role
from garlicfarm.testing.invariants import Observer, Violation
from garlicfarm.testing.memory_storage import UnsyncedStorage
from garlicfarm.testing.simulated_network import CLIENT, SERVER, Connection, Network, Weather, World
from garlicfarm.wire.messages import (
    NO_LEADER,
    ClusterServer,
    Configuration,
    LogEntry,
    MessageType,
    Request,
    ValueType,
)

__all__ = ["Faults", "Outcome", "Simulation"]

CHAOS_MS = 4_000
HEALING_MS = 20_000
RPC_TIMEOUT_MS = 400
CLIENT_TIMEOUT_MS = 1_000
FRESH = b"fresh"
KINDS = ("crash", "crash_leader", "partition", "one_way", "isolate_leader", "heal", "pause", "slow_disk")


class Faults(msgspec.Struct, frozen=True):
    """What one seed does to its cluster. ``disk_ms``, ``entries_every_ms`` and ``every_ms`` are means;
    ``kinds`` are what happens every so often, each as likely as the others; ``config`` goes into
    `RaftConfig`."""

    weather: Weather
    disk_ms: float
    entries_every_ms: float
    every_ms: float
    kinds: tuple[str, ...]
    new_leader_crashes: float
    config: dict[str, int]

    @classmethod
    def draw(cls, rng: random.Random) -> Faults:
        """The mix of one seed."""
        return cls(
            weather=Weather(
                delay_ms=rng.choice((1, 3, 10, 30)),
                reset=rng.choice((0, 0, 0.002, 0.02)),
                split=rng.choice((0, 0.1, 0.5)),
            ),
            disk_ms=rng.choice((0.5, 3, 10, 40)),
            entries_every_ms=rng.choice((5, 15, 60)),
            every_ms=rng.choice((100, 250, 700)),
            kinds=tuple(kind for kind in KINDS if rng.random() < 0.5),
            new_leader_crashes=rng.choice((0, 0, 0.3)),
            config={
                "batch_bytes": rng.choice((1, 40, 1 << 20)),
                "max_inflight_messages": rng.choice((1, 2, 64)),
                "max_inflight_bytes": rng.choice((20, 8 << 20)),
                "max_uncommitted_bytes": rng.choice((60, 64 << 20)),
                "priority": rng.choice((1, 1, 4)),
            },
        )


CALM = Faults(Weather(2, 0, 0), 1, 20, 1000, (), 0, {})


class Outcome(msgspec.Struct, frozen=True):
    """What a run did."""

    seed: int
    digest: str
    events: int
    term: int
    committed: int
    acknowledged: int
    crashes: int
    cut_messages: int


class _Member:
    """One member's process and disk; ``node`` is None while it is down."""

    def __init__(self, member_id: int, genesis: Configuration) -> None:
        self.id = member_id
        self.disk = UnsyncedStorage(genesis)
        self.node: RawNode | None = None
        self.generation = 0
        self.applied = 0
        self.tick_at: int | None = None
        self.written_at = 0
        self.disk_factor = 1
        self.paused_until = 0
        self.answers: dict[int, tuple[Connection, list[Any]]] = {}  # by token of `step`
        self.proposals: dict[int, bytes] = {}  # by token of `propose`
        self.links: dict[int, Connection] = {}
        self.retry_at: dict[int, int] = {}

    def __str__(self) -> str:
        return f"member {self.id}"


class _Client:
    """Somebody who wants entries in the log and repeats each until it is acknowledged. Ids are negative."""

    def __init__(self, client_id: int) -> None:
        self.id = client_id
        self.target = 1
        self.made = 0
        self.todo: deque[bytes] = deque()
        self.connection: Connection | None = None

    def __str__(self) -> str:
        return f"client {-self.id}"


class Simulation:
    """One seed's run; without ``faults`` the seed draws them. ``world.story()`` are its last events."""

    def __init__(self, seed: int, nodes: int = 3, faults: Faults | None = None) -> None:
        self.seed = seed
        self.world = World(seed)
        self.rng = self.world.rng
        self.faults = faults or Faults.draw(self.rng)
        ids = range(1, nodes + 1)
        genesis = Configuration(0, 0, tuple(ClusterServer(i, f"tcp://member{i}:9001") for i in ids))
        self.members = {i: _Member(i, genesis) for i in ids}
        self.clients = {-i: _Client(-i) for i in (1, 2)}
        self.observer = Observer(ids)
        self.network = Network(self.world, self._serve, self._take_answers, self._failed, self._is_paused)
        self.network.weather = self.faults.weather
        self._config = self.faults.config
        self._next_token = 0
        self._acknowledged = self._crashes = 0
        self._fresh_index: int | None = None

    def run(self) -> Outcome:
        """Chaos, then healing. Raises `Violation`."""
        world = self.world
        for member in self.members.values():
            self._start(member)
        for client in self.clients.values():
            world.at(self.rng.randint(0, 500), self._post, client)
        world.at(self.rng.randint(0, 500), self._propose)
        world.at(world.around(self.faults.every_ms), self._misfortune)
        world.at(CHAOS_MS, self._heal_all)
        while self._fresh_index is None or not all(
            member.applied >= self._fresh_index for member in self.members.values()
        ):
            if world.now > CHAOS_MS + HEALING_MS:
                raise Violation("liveness", f"no agreement {HEALING_MS} ms after the last fault")
            world.next_event()
        return Outcome(
            self.seed,
            world.digest.hexdigest(),
            world.events,
            max(member.node.term for member in self.members.values() if member.node is not None),
            len(self.observer.history.chain.entries),
            self._acknowledged,
            self._crashes,
            self.network.cut_messages,
        )

    # ------------------------------------------------------------------ members

    def _start(self, member: _Member) -> None:
        if member.node is None:
            config = RaftConfig(
                id=member.id,
                election_timeout_min_ms=150,
                election_timeout_max_ms=300,
                heartbeat_ms=50,
                **self._config,
            )
            member.node = RawNode(config, member.disk, self.rng.randint)
            member.applied = 0
            member.tick_at = None
            member.written_at = self.world.now
            self._turn(member, member.node.tick, self.world.now)

    def _turn(self, member: _Member, function: Callable[..., None], *arguments: Any) -> None:
        """One input to a member, and what it wants done."""
        node = member.node
        assert node is not None
        was_leader = node.role is Role.LEADER
        try:
            function(*arguments)
        except RemoteProtocolError as error:
            raise Violation("nobody breaks the protocol", f"{member}: {error}") from error
        node.tick(self.world.now)
        while True:
            self._carry_out(member, node, node.ready())
            if not node.more_committed:
                break
        deadline = node.deadline_ms
        if deadline is not None and (member.tick_at is None or deadline < member.tick_at):
            member.tick_at = max(deadline, self.world.now)
            self.world.at(member.tick_at, self._tick, member, member.generation)
        if node.role is Role.LEADER and not was_leader and self.world.chance(self.faults.new_leader_crashes):
            self.world.at(self.world.around(20), self._crash, member)

    def _carry_out(self, member: _Member, node: RawNode, ready: Ready) -> None:
        if ready.persist is not None:
            member.disk.submit(ready.persist)
            mean = self.faults.disk_ms * member.disk_factor
            member.written_at = max(member.written_at, self.world.around(mean))
            self.world.at(member.written_at, self._written, member, member.generation)
        self.observer.turn(member.id, node, ready)
        if ready.committed:
            member.applied = ready.committed[-1].index
            node.applied(member.applied)
        self.world.digest.update(b"%d %d %d " % (member.id, node.term, member.applied))
        for peer, seq, request in ready.requests:
            self._request(member, peer, seq, request)
        for token, response in ready.responses:
            connection, slot = member.answers.pop(token)
            slot[0] = response
            self.network.answer(connection)
        for token, outcome in ready.outcomes:
            value = member.proposals.pop(token)
            if isinstance(outcome, tuple):
                self._acknowledge(*outcome, value)

    def _tick(self, member: _Member, generation: int) -> None:
        if member.node is None or member.generation != generation:
            return
        if member.paused_until > self.world.now:
            self.world.at(member.paused_until, self._tick, member, generation)
            return
        member.tick_at = None
        self._turn(member, member.node.tick, self.world.now)

    def _written(self, member: _Member, generation: int) -> None:
        """The disk is done with a step, sometimes with all of them at once; the process hears it."""
        if member.node is None or member.generation != generation or not member.disk.pending:
            return
        if member.paused_until > self.world.now:
            self.world.at(member.paused_until, self._written, member, generation)
            return
        steps = len(member.disk.pending) if self.world.chance(0.3) else 1
        token = [self._sync(member) for _ in range(steps)][-1]
        self._turn(member, member.node.persisted, token)

    def _sync(self, member: _Member) -> int:
        persist = member.disk.sync()
        assert isinstance(persist, Persist)
        self.observer.durable(member.id, persist)
        return persist.token

    # ------------------------------------------------------------------ messages

    def _is_paused(self, receiver: int) -> bool:
        return receiver > 0 and self.members[receiver].paused_until > self.world.now

    def _request(self, member: _Member, peer: int, seq: int, request: Request) -> None:
        """Send on the connection to ``peer``; if there is none, try to make one, but not all the time."""
        connection = member.links.get(peer)
        if connection is None or connection.closed[CLIENT]:
            now, ways = self.world.now, {(member.id, peer), (peer, member.id)}
            if now >= member.retry_at.get(peer, 0) and (
                self.members[peer].node is None or ways & self.network.blocked
            ):
                member.retry_at[peer] = self.world.around(30) + 1
            if now < member.retry_at.get(peer, 0):
                self.world.at(now, self._unreachable, member, member.generation, peer, seq)
                return
            connection = member.links[peer] = self.network.connect(member.id, peer, RPC_TIMEOUT_MS)
        self.network.send(connection, seq, request)

    def _failed(self, connection: Connection, tags: list[Any]) -> None:
        if connection.client < 0:
            client = self.clients[connection.client]
            client.todo.extendleft(reversed(tags))
            client.connection = None
            client.target = self.rng.randint(1, len(self.members))
            return
        member = self.members[connection.client]
        for seq in tags:
            self._unreachable(member, member.generation, connection.server, seq)

    def _unreachable(self, member: _Member, generation: int, peer: int, seq: int) -> None:
        if member.node is not None and member.generation == generation:
            self._turn(member, member.node.report_unreachable, peer, seq)

    def _serve(self, connection: Connection) -> None:
        member = self.members[connection.server]
        while not connection.closed[SERVER] and (request := connection.requests.next_message()) is not None:
            assert member.node is not None
            self.world.trace.append((self.world.now, f"{member} takes", request))
            slot: list[Any] = [False]
            connection.slots.append(slot)
            self._next_token += 1
            member.answers[self._next_token] = (connection, slot)
            self._turn(member, member.node.step, request, self._next_token)

    def _take_answers(self, connection: Connection) -> None:
        while not connection.closed[CLIENT] and (response := connection.responses.next_message()) is not None:
            tag, _ = connection.outstanding.popleft()
            self.world.trace.append((self.world.now, f"{connection} answered", response))
            if connection.client > 0:
                member = self.members[connection.client]
                assert member.node is not None
                self._turn(member, member.node.answered, tag, response)
            elif response.accepted:
                self._acknowledge(response.next_index - 1, response.term, tag)
            else:
                client = self.clients[connection.client]
                client.todo.append(tag)
                if response.destination != connection.server:  # redirected (D8)
                    self.network.sever(connection)
                    self.network.lose(connection, CLIENT)
                    if response.destination != NO_LEADER:
                        client.target = response.destination

    # ------------------------------------------------------------------ clients

    def _post(self, client: _Client) -> None:
        """A new entry every now and then, while not too many wait; and repeat what is not known."""
        self.world.at(self.world.around(self.faults.entries_every_ms) + 1, self._post, client)
        if len(client.todo) < 3:
            client.made += 1
            client.todo.append(f"{client} entry {client.made}".encode())
        if client.connection is None:
            if self.members[client.target].node is None:
                client.target = self.rng.randint(1, len(self.members))
                return
            client.connection = self.network.connect(client.id, client.target, CLIENT_TIMEOUT_MS)
        while client.todo and len(client.connection.outstanding) < 4:
            value = client.todo.popleft()
            entry = LogEntry(0, ValueType.APPLICATION, value)
            request = Request(MessageType.CLIENT_REQUEST, 0, client.target, entries=(entry,))
            self.network.send(client.connection, value, request)

    def _propose(self) -> None:
        """A member's own entries, two at once."""
        self.world.at(self.world.around(self.faults.entries_every_ms * 2) + 1, self._propose)
        member = self.members[self.rng.randint(1, len(self.members))]
        if member.node is not None and not self._is_paused(member.id):
            self._next_token += 1
            token = self._next_token
            member.proposals[token] = value = f"{member} entry {token}".encode()
            try:
                self._turn(member, member.node.propose, (b"", value), token)
            except ProposalDropped:
                del member.proposals[token]

    def _acknowledge(self, index: int, term: int, value: bytes) -> None:
        self._acknowledged += 1
        self.observer.acknowledged(index, term, value)
        if value == FRESH:
            self._fresh_index = index

    # ------------------------------------------------------------------ misfortune

    def _misfortune(self) -> None:
        if not self.faults.kinds:
            return
        self.world.at(self.world.around(self.faults.every_ms) + 1, self._misfortune)
        kind = self.rng.choice(self.faults.kinds)
        member = self.rng.choice(list(self.members.values()))
        if kind.endswith("leader"):
            leading = [m for m in self.members.values() if m.node and m.node.role is Role.LEADER]
            member = self.rng.choice(leading or [member])
        self.world.trace.append((self.world.now, kind, member))
        others = self.members.keys() - {member.id}
        if kind.startswith("crash"):
            self._crash(member)
        elif kind == "partition":
            side = {m for m in self.members if self.rng.random() < 0.5}
            self._separate(side, self.members.keys() - side)
        elif kind == "isolate_leader":
            self._separate({member.id}, others)
        elif kind == "one_way":
            self.network.blocked |= {(member.id, self.rng.choice(sorted(others)))} if others else set()
        elif kind == "heal":
            self.network.blocked.clear()
            self.network.drain_all()
        elif kind == "pause":  # as by SIGSTOP: then it finds all that came meanwhile
            member.paused_until = self.world.around(200)
            self.world.at(member.paused_until, self.network.drain_all)
        elif kind == "slow_disk":
            member.disk_factor = 21 - member.disk_factor

    def _separate(self, side: set[int], rest: set[int]) -> None:
        self.network.blocked |= {(a, b) for a in side for b in rest} | {(b, a) for a in side for b in rest}

    def _crash(self, member: _Member) -> None:
        """The process dies; of the writes on their way a random number made it to the disk."""
        if member.node is None:
            return
        self._crashes += 1
        for _ in range(self.rng.randint(0, len(member.disk.pending))):
            self._sync(member)
        member.disk.pending.clear()
        self.observer.crashed(member.id)
        member.node = None
        member.generation += 1
        member.answers.clear()
        member.proposals.clear()
        member.links.clear()
        for connection in self.network.of(member.id):
            self.network.sever(connection)
            self.network.lose(connection, CLIENT if connection.client == member.id else SERVER)
        self.world.at(self.world.around(300) + 1, self._start, member)

    def _heal_all(self) -> None:
        self.faults = CALM
        self.network.weather = CALM.weather
        self.network.blocked.clear()
        for member in self.members.values():
            member.paused_until = 0
            member.disk_factor = 1
            self._start(member)
        self.network.drain_all()
        self.clients[-1].todo.appendleft(FRESH)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m garlicfarm.testing.simulate", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=3)
    options = parser.parse_args(arguments)
    begun = time.process_time()
    outcomes = []
    for seed in range(options.first, options.first + options.seeds):
        simulation = Simulation(seed, options.nodes)
        try:
            outcomes.append(simulation.run())
        except Exception as error:
            print(simulation.world.story())
            print(f"seed {seed} of {options.nodes} nodes: {error}")
            if isinstance(error, Violation):
                return 1
            raise
    seconds = time.process_time() - begun
    events = sum(outcome.events for outcome in outcomes)
    print(
        f"{options.seeds} seeds of {options.nodes} nodes, no violation: {events} events, "
        f"{sum(o.committed for o in outcomes)} entries committed, "
        f"{sum(o.acknowledged for o in outcomes)} acknowledged, {sum(o.crashes for o in outcomes)} crashes; "
        f"{options.seeds / seconds:.1f} seeds and {events / seconds:.0f} events a CPU second"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
