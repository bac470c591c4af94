"""A cluster over slow links that keeps its connections up as nodes do, and its partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from typing import Any

from garlicfarm.log_application import LogApplication
from garlicfarm.net.link import Backoff
from garlicfarm.raft import RawNode
from garlicfarm.testing.simulator.cluster import SimulatedCluster
from garlicfarm.testing.simulator.faults import Faults
from garlicfarm.testing.simulator.member import SimulatedMember
from garlicfarm.testing.simulator.network import Connection
from garlicfarm.testing.simulator.slow_links import Path, SimulatedLink, SlowNetwork
from garlicfarm.wire.messages import Request

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
    """``preset``: a row of `garlicfarm.config.model.PRESETS`. No member crashes. ``connected_since``: since
    when there is a fully connected majority; None: there is none."""

    def __init__(
        self, seed: int, nodes: int, faults: Faults, path: Path, preset: Mapping[str, float]
    ) -> None:
        timing = {f"{name.removesuffix('_s')}_ms": round(1000 * preset[name]) for name in preset}
        timeout_ms = timing.pop("rpc_timeout_ms")
        super().__init__(seed, nodes, lambda rng: faults, LogApplication, timing)
        self._slow = self.network = SlowNetwork(
            self.scheduler,
            self._serve,
            self._take_answers,
            self._failed,
            self.is_paused,
            lambda member_id: True,
        )
        self._slow.path = path
        self._links: dict[tuple[int, int], SimulatedLink] = {}
        self.quorum = nodes // 2 + 1
        self.connected_since: int | None = 0
        backoff = Backoff(self.rng.random, longest_s=preset["heartbeat_s"])
        for ends in permutations(self.members, 2):
            self._links[ends] = SimulatedLink(
                self.scheduler, self._slow, ends, timeout_ms, backoff, self._up, self._down
            )
            self._links[ends].dial()

    # ------------------------------------------------------------------ connections

    def _request(self, member: SimulatedMember, node: RawNode, peer: int, seq: int, request: Request) -> None:
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
