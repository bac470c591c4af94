"""A cluster over slow links that keeps its connections up, and has its time-outs follow its round trips, as
nodes do; and its partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from typing import Any

from garlicfarm.leases import LeaseGranter
from garlicfarm.levels import LEASES
from garlicfarm.net.link import Backoff
from garlicfarm.publishing import granting
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.raft import RawNode
from garlicfarm.round_trips import RoundTrips, Timeouts
from garlicfarm.testing.simulator.cluster import SimulatedCluster
from garlicfarm.testing.simulator.faults import Faults
from garlicfarm.testing.simulator.member import SimulatedMember
from garlicfarm.testing.simulator.network import Connection
from garlicfarm.testing.simulator.slow_links import Path, SimulatedLink, SlowNetwork
from garlicfarm.wire.messages import Request, Response

FARM = "slow"
PARTITIONS = {
    "halves": "two parts, with nothing between them",
    "halves_one_way": "two parts, and nothing gets from one to the other",
    "pair": "nothing gets from one member to one other",
    "leader": "the leader is cut off",
    "leader_deaf": "nothing gets to the leader",
    "leader_mute": "nothing gets from the leader",
    "router": "a router restarts: its member is cut off, and its old connections lose all bytes silently, "
    "even afterwards",
    "all": "no member reaches another",
}


class SlowCluster(SimulatedCluster):
    """``preset``: a row of `garlicfarm.config.model.PRESETS`; ``least_s``: down to which its upper election
    time-out follows round trips. No member crashes. ``connected_since``: since when there is a fully
    connected majority; None: there is none."""

    genesis_level = LEASES

    def __init__(
        self, seed: int, nodes: int, faults: Faults, path: Path, preset: Mapping[str, float], least_s: float
    ) -> None:
        timing = {f"{name.removesuffix('_s')}_ms": round(1000 * preset[name]) for name in preset}
        timeout_ms = timing.pop("rpc_timeout_ms")
        longest_ms = timing["election_timeout_max_ms"]
        self._timeouts = Timeouts(timing["election_timeout_min_ms"], longest_ms, timeout_ms)
        self._least_ms = round(1000 * least_s)
        self._measured: dict[int, tuple[LeaseGranter, RoundTrips]] = {}  # by the leader
        self._links: dict[tuple[int, int], SimulatedLink] = {}
        super().__init__(seed, nodes, lambda rng: faults, lambda: PublisherFold(FARM), timing)
        self._slow = self.network = SlowNetwork(
            self.scheduler,
            self._serve,
            self._take_answers,
            self._failed,
            self.is_paused,
            lambda member_id: True,
        )
        self._slow.path = path
        self.quorum = nodes // 2 + 1
        self.connected_since: int | None = 0
        backoff = Backoff(self.rng.random, longest_s=preset["heartbeat_s"])
        for ends in permutations(self.members, 2):
            self._links[ends] = SimulatedLink(
                self.scheduler, self._slow, ends, timeout_ms, backoff, self._up, self._down
            )
            self._links[ends].dial()
        for member in self.members.values():
            self.scheduler.at(0, self._lead, member, timing["heartbeat_ms"])

    # ------------------------------------------------------------------ connections

    def _request(self, member: SimulatedMember, node: RawNode, peer: int, seq: int, request: Request) -> None:
        if (measured := self._leading(member)) is not None:
            measured[1].on_sent(peer, seq, member.clock_ms(self.scheduler.now))
        self._links[member.id, peer].send(seq, request)

    def _failed(self, connection: Connection, tags: list[Any]) -> None:
        self._links[connection.client, connection.server].on_lost(tags)

    def _up(self, member_id: int, peer: int) -> None:
        member = self.members[member_id]
        assert member.node is not None
        shared = member.extensions & self.members[peer].extensions
        self.drive(member, member.node.set_extensions, peer, shared)

    def _down(self, member_id: int, peer: int, seq: int) -> None:
        member = self.members[member_id]
        self._unreachable(member, member.generation, peer, seq)

    def _serve(self, connection: Connection) -> None:
        self._links[connection.server, connection.client].poke()
        super()._serve(connection)

    def _take_answers(self, connection: Connection) -> None:
        self._links[connection.client, connection.server].on_answer()
        super()._take_answers(connection)

    # ------------------------------------------------------------------ time-outs that follow round trips

    def _leading(self, member: SimulatedMember) -> tuple[LeaseGranter, RoundTrips] | None:
        node, measured = member.node, self._measured.get(member.id)
        if node is None or not member.is_leader:
            return None
        if measured is None or measured[0].term != node.term:
            now_ms = member.clock_ms(self.scheduler.now)
            trips = RoundTrips(self._least_ms, self._timeouts.election_max_ms, now_ms)
            measured = self._measured[member.id] = LeaseGranter(member.id, node.term, now_ms), trips
        return measured

    def on_answered(self, member: SimulatedMember, peer: int, tag: Any, response: Response) -> None:
        if (measured := self._leading(member)) is not None:
            measured[1].on_answered(peer, tag, member.clock_ms(self.scheduler.now))

    def _lead(self, member: SimulatedMember, every_ms: int) -> None:
        self.scheduler.at(self.scheduler.now + every_ms, self._lead, member, every_ms)
        measured, now_ms = self._leading(member), member.clock_ms(self.scheduler.now)
        if measured is None or member.position.term != measured[0].term:
            return
        found = granting.findings(
            *measured, self.farm(member), member.id, now_ms, lambda election_ms: 2 * election_ms
        )
        for entry, done in found:
            if self.propose(member, entry):
                done()

    def farm(self, member: SimulatedMember) -> PublisherFold:
        """What it has applied."""
        assert isinstance(member.application, PublisherFold)
        return member.application

    def on_applied(self, member: SimulatedMember) -> None:
        timeouts = self._timeouts.shortened(self.farm(member).election_timeout_ms, self._least_ms)
        if member.node is not None:
            member.node.set_election_timeout(timeouts.election_min_ms, timeouts.election_max_ms)
        for (client, _), link in self._links.items():
            if client == member.id:
                link.set_answer_timeout(timeouts.rpc_ms)

    # ------------------------------------------------------------------ partitions

    def toggle(self) -> None:
        """Begin a partition, each kind of `PARTITIONS` with the same probability, or end the present one."""
        if self.network.blocked:
            self.network.blocked.clear()
            self.network.drain_all()
        else:
            self.part(self.rng.choice(list(PARTITIONS)))
        if not any(self.are_connected(some) for some in combinations(self.members, self.quorum)):
            self.connected_since = None
        elif self.connected_since is None:
            self.connected_since = self.scheduler.now

    def are_connected(self, some: Sequence[int]) -> bool:
        """Whether each of these can talk to each other one."""
        return not self.network.blocked & set(permutations(some, 2))

    def reaches_majority(self, member_id: int) -> bool:
        """Whether it and the members that it can talk to are a majority."""
        return sum(self.are_connected((member_id, other)) for other in self.members) >= self.quorum

    def heal(self) -> None:
        """From now on all messages arrive."""
        self._slow.path = self._slow.path._replace(loss=0)
        self.network.blocked.clear()
        self.network.drain_all()

    def part(self, kind: str) -> None:
        """A partition of this kind begins."""
        self.scheduler.trace.append((self.scheduler.now, kind))
        self.counts[kind] += 1
        ids = list(self.members)
        side = self.rng.sample(ids, self.rng.randint(1, len(ids) - 1))
        if kind == "pair":
            self.cut(*self.rng.sample(ids, 2))
            return
        if kind == "all":
            self.network.blocked |= set(permutations(ids, 2))
            return
        if kind.startswith("leader"):
            side = [self.rng.choice(self.leading() or list(self.members.values())).id]
        elif kind == "router":
            side = side[:1]
            for connection in self.network.of(side[0]):
                self._slow.drop_silently(connection)
        rest = [other for other in ids if other not in side]
        if kind == "leader_deaf":
            side, rest = rest, side
        if kind in ("halves_one_way", "leader_deaf", "leader_mute"):
            for a in side:
                for b in rest:
                    self.cut(a, b)
        else:
            self.separate(side, rest)
