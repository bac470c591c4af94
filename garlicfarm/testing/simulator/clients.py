"""The users of a simulated cluster: clients that post entries, members that propose their own, readers, and
administrators that change the members. Each repeats a request until it knows the outcome."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from garlicfarm.raft import Change, ConfChange, LogPosition
from garlicfarm.refusals import Refusal
from garlicfarm.testing.simulator.cluster import SimulatedCluster
from garlicfarm.testing.simulator.member import SimulatedMember
from garlicfarm.testing.simulator.network import CLIENT, Connection
from garlicfarm.wire.messages import (
    NO_LEADER,
    ClusterServer,
    LogEntry,
    MessageType,
    Request,
    Response,
    ValueType,
)

MAX_MEMBERS = 7
MAX_REFUSALS = 12


class Client:
    """Posts entries and repeats each until it is acknowledged: ``acknowledged(index, term, entry)``. Ids are
    negative."""

    def __init__(
        self, cluster: SimulatedCluster, client_id: int, acknowledged: Callable[[int, int, bytes], None]
    ) -> None:
        self.id = client_id
        self._cluster = cluster
        self._acknowledged = acknowledged
        self._target = 1
        self._connection: Connection | None = None
        self.todo: deque[bytes] = deque()
        cluster.clients[client_id] = self

    def __str__(self) -> str:
        return f"client {-self.id}"

    def send(self) -> None:
        """Send waiting entries, as far as the window allows."""
        cluster = self._cluster
        if self._connection is None:
            if cluster.members[self._target].node is None:
                self._go_elsewhere()
                return
            self._connection = cluster.network.connect(self.id, self._target, cluster.client_timeout_ms)
        while self.todo and len(self._connection.outstanding) < 4:
            value = self.todo.popleft()
            entry = LogEntry(0, ValueType.APPLICATION, value)
            request = Request(MessageType.CLIENT_REQUEST, 0, self._target, entries=(entry,))
            cluster.network.send(self._connection, value, request)

    def on_answer(self, connection: Connection, tag: Any, response: Response) -> None:
        if response.accepted:
            self._acknowledged(response.next_index - 1, response.term, tag)
            return
        self.todo.append(tag)
        if response.destination != connection.server:  # redirected: not appended (D8)
            self._cluster.network.sever(connection)
            self._cluster.network.lose(connection, CLIENT)
            if response.destination != NO_LEADER:
                self._target = response.destination

    def on_failure(self, connection: Connection, tags: list[Any]) -> None:
        self.todo.extendleft(reversed(tags))
        self._connection = None
        self._go_elsewhere()

    def _go_elsewhere(self) -> None:
        self._target = self._cluster.rng.choice(self._cluster.newest.servers).id


class Proposer:
    """Proposes a member's own entries, two at once."""

    def __init__(self, cluster: SimulatedCluster, acknowledged: Callable[[int, int, bytes], None]) -> None:
        self._cluster = cluster
        self._acknowledged = acknowledged
        self._made = 0

    def act(self) -> None:
        cluster = self._cluster
        cluster.scheduler.at(cluster.scheduler.around(cluster.faults.entries_every_ms * 2) + 1, self.act)
        member = cluster.members[cluster.rng.randint(1, len(cluster.members))]
        if member.node is None or cluster.is_paused(member.id):
            return
        self._made += 1
        entries = (b"", f"{member} entry {self._made}".encode())
        offer = -self._made
        cluster.observer.refused.on_offered(offer, entries)

        def then(outcome: Any) -> None:
            if outcome is not None:
                self._acknowledged(outcome.index, outcome.term, entries[1])

        if cluster.call(member, member.node.propose, entries, then=then):
            cluster.observer.refused.on_refused(offer)


class Reader:
    """Reads from a member that believes that it leads, or from any other."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._reads = 0

    def act(self) -> None:
        cluster = self._cluster
        if not cluster.faults.read_ms:
            return
        cluster.scheduler.at(cluster.scheduler.around(cluster.faults.read_ms) + 1, self.act)
        running = [m for m in cluster.members.values() if m.node is not None and not cluster.is_paused(m.id)]
        leading = [m for m in running if m.is_leader]
        if not running:
            return
        member = cluster.rng.choice(leading if leading and cluster.scheduler.chance(0.5) else running)
        self._reads += 1
        read, what = self._reads, "reads" if member.is_leader else "follower_reads"
        cluster.observer.reads.on_begin(read)

        def done(index: int) -> None:
            cluster.counts[what] += 1
            cluster.observer.reads.on_done(read, index, member.applied)

        def then(index: Any) -> None:
            if index is None:
                return
            if index <= member.applied:
                done(index)
            else:
                member.until_applied.append((index, lambda: done(index)))

        cluster.read_index(member, then)


class Administrator:
    """Adds servers under new ids, removes members, moves them to other endpoints and raises the level, one
    change at a time. It repeats each until it is done or was refused too often."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._change: ConfChange | None = None
        self._asked = 0
        self._refusals = 0

    def act(self) -> None:
        cluster = self._cluster
        if not cluster.faults.change_ms:
            return
        cluster.scheduler.at(cluster.scheduler.around(cluster.faults.change_ms) + 1, self.act)
        self.ask()

    def ask(self) -> None:
        """Ask a member that believes that it leads, unless an answer is pending."""
        cluster = self._cluster
        if self._asked or not cluster.faults.change_ms:
            return
        leading = [m for m in cluster.leading() if not cluster.is_paused(m.id)]
        if not leading:
            return
        change = self._change = self._change or self._draw()
        member = cluster.rng.choice(leading)
        self._asked = asked = cluster.token()
        assert member.node is not None
        refused = cluster.call(
            member, member.node.propose_conf_change, change, then=lambda outcome: self._told(asked, outcome)
        )
        if refused:
            self._asked = 0
            self._refused(refused)

    def _draw(self) -> ConfChange:
        cluster, rng = self._cluster, self._cluster.rng
        servers = cluster.newest.servers
        self._refusals = 0
        kinds = [Change.SET]
        if cluster.newest.level < cluster.highest_level:
            kinds.append(Change.RAISE)
        if len(servers) > 1:
            kinds += [Change.REMOVE] * 2
        if len(cluster.members) < MAX_MEMBERS:
            kinds += [Change.ADD] * 2
        kind = rng.choice(kinds)
        if kind is Change.ADD:
            new = cluster.join(len(cluster.members) + 1)
            return ConfChange(kind, ClusterServer(new.id, f"tcp://member{new.id}:9001"))
        if kind is Change.RAISE:
            return ConfChange(kind, level=cluster.newest.level + 1)
        server = ClusterServer(cluster.pick([server.id for server in servers]).id)
        if kind is Change.REMOVE:
            return ConfChange(kind, server, force=rng.random() < 0.1)
        return ConfChange(kind, ClusterServer(server.id, f"tcp://member{server.id}:{rng.randint(1, 9999)}"))

    def _told(self, asked: int, outcome: Any) -> None:
        if asked != self._asked:
            return
        self._asked = 0
        if isinstance(outcome, LogPosition):
            self._done()
        elif isinstance(outcome, Refusal):
            self._refused(outcome)

    def _refused(self, reason: Refusal) -> None:
        self._refusals += 1
        if reason in (Refusal.A_MEMBER_ALREADY, Refusal.NO_SUCH_MEMBER):
            self._done()  # it was done, after all
        elif self._refusals == MAX_REFUSALS:
            self._change = None

    def _done(self) -> None:
        cluster, change = self._cluster, self._change
        assert change is not None
        self._change = None
        cluster.counts[change.change.name] += 1
        if change.change is Change.REMOVE and cluster.scheduler.chance(0.3):
            removed = cluster.members[change.server.id]
            cluster.scheduler.at(cluster.scheduler.around(300) + 1, self._retire, removed)

    def _retire(self, member: SimulatedMember) -> None:
        """Stop a removed server permanently, but only once the remaining members know of the removal:
        otherwise the last one could no longer learn of it."""
        cluster = self._cluster
        left = [cluster.members[server.id] for server in cluster.newest.servers]
        if any(
            other.node is None or any(s.id == member.id for s in other.disk.initial_state()[1].servers)
            for other in left
        ):
            cluster.scheduler.at(cluster.scheduler.around(300) + 1, self._retire, member)
        else:
            cluster.counts["retired"] += 1
            cluster.crash(member)
            member.retired = True
