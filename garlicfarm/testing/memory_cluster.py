"""`cluster`: a whole farm in one process, for tests of your own application.

    from garlicfarm.testing.memory_cluster import Cluster, cluster

    @pytest.fixture
    async def farm() -> AsyncIterator[Cluster]:
        async with cluster(3, application=MyApplication) as running:
            yield running

    async def test_my_application_survives_its_leader(farm: Cluster, autojump_clock: MockClock) -> None:
        index, term = await farm.post(b"an entry")
        await farm.kill(await farm.leader())
        await farm.applied(index)

Each node is the real one (`garlicfarm.node.replica`: sessions, links, handshake, the consensus core) over a
network and stores in memory. With pytest-trio's ``autojump_clock``, which each test has to name itself,
waiting takes no time.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec
import trio

from garlicfarm.application import Application
from garlicfarm.config import FarmSection, MetaSection, RaftSection, RetentionSection
from garlicfarm.config.model import PRESETS
from garlicfarm.credentials.member_credentials import member_lookup, member_password
from garlicfarm.errors import OutcomeUnknown, Removed, first_error
from garlicfarm.extensions import EXTENSIONS
from garlicfarm.http.digest import REALM, ChallengeCache, DigestVerifier
from garlicfarm.http.upgrade import FarmCredentials
from garlicfarm.levels import FIRST_ALGORITHM
from garlicfarm.log_application import LogApplication
from garlicfarm.logs import EventLogger
from garlicfarm.metrics import NodeMetrics
from garlicfarm.net.handshake import (
    DialCredentials,
    Established,
    HandshakeLimiter,
    dial,
    respond,
)
from garlicfarm.net.link import CONNECTION_ERRORS
from garlicfarm.node.replica import Replica, ReplicaHost
from garlicfarm.node.session import Principal
from garlicfarm.raft import Persist, SnapshotMeta
from garlicfarm.storage import Genesis, Snapshot
from garlicfarm.testing.memory_network import MemoryNetwork
from garlicfarm.testing.memory_storage import Stored, UnsyncedStorage
from garlicfarm.transport import Endpoint, Peer
from garlicfarm.wire.messages import ClusterServer, Configuration, SnapshotSyncRequest

FARM = "farm"
PORT = 27150
PATIENCE_S = 300.0
FSYNC_S = 0.002


class MemoryStore(UnsyncedStorage):
    """A `garlicfarm.node.store.Store`; loses unsynced data when its node is killed."""

    def __init__(self, genesis: Genesis) -> None:
        assert genesis.configuration is not None
        super().__init__(genesis.configuration)
        self.genesis = genesis

    def size_bytes(self) -> int:
        return sum(len(entry.value) for entry in self.contents)

    def read_state(self, meta: SnapshotMeta) -> Snapshot:
        born = (self.genesis.farm_id, self.genesis.application, self.genesis.algorithm)
        servers, state = meta.configuration.servers, self.state(meta.index)
        return Snapshot(
            *born, meta.index, meta.term, meta.configuration, servers, meta.application_entries, state
        )

    def origin(self) -> int:
        return 0

    def oldest_state(self) -> Snapshot | None:
        return self.read_state(self.snapshot()) if self.snapshot().index else None


class MemoryStoreWriter:
    """A `garlicfarm.node.store.StoreWriter`: everything queued becomes durable at once."""

    def __init__(
        self,
        disk: MemoryStore,
        on_durable: Callable[[int], None],
        on_batch: Callable[[int, float], None],
        on_chunk: Callable[[int, int, SnapshotMeta | None], None],
        on_problem: Callable[[str], None],
    ) -> None:
        self._disk = disk
        self._on_durable = on_durable
        self._on_batch = on_batch
        self._on_chunk = on_chunk
        self._work = trio.Event()

    def submit(self, persist: Persist) -> None:
        self._disk.submit(persist)
        self._work.set()

    def submit_chunk(self, token: int, request: SnapshotSyncRequest, source: int) -> None:
        self._disk.submit_chunk(token, request)
        self._work.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        task_status.started()
        while True:
            await self._work.wait()
            self._work = trio.Event()
            steps = len(self._disk.pending)
            await trio.sleep(FSYNC_S)
            for _ in range(steps):
                done = self._disk.sync()
                if isinstance(done, Stored):
                    self._on_chunk(done.token, done.held, done.meta)
                else:
                    self._on_batch(len(done.entries), FSYNC_S)
                    self._on_durable(done.token)


class _Node:
    """A running node."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.scope = trio.CancelScope()
        self.ended = trio.Event()


class Cluster:
    """The nodes 1 … n. Made by `cluster`."""

    def __init__(
        self,
        size: int,
        application: Callable[[], Application],
        raft: RaftSection,
        nursery: trio.Nursery,
    ) -> None:
        self.network = MemoryNetwork()
        self._application = application
        self._raft = raft
        self._nursery = nursery
        self._farm_id = secrets.token_bytes(16)
        self._secret = secrets.token_bytes(32)
        servers = tuple(ClusterServer(i, f"memory://{_host(i)}:{PORT}") for i in range(1, size + 1))
        self._genesis = Genesis(FARM, self._farm_id, "log", FIRST_ALGORITHM, Configuration(0, 0, servers))
        self._disks = {server.id: MemoryStore(self._genesis) for server in servers}
        self._nodes: dict[int, _Node] = {}

    # ------------------------------------------------------------------ observation

    @property
    def running(self) -> frozenset[int]:
        """The nodes that are not killed."""
        return frozenset(self._nodes)

    def replica(self, node: int) -> Replica:
        """A running node's replica: role, term, log and all. Raises `KeyError` if it is killed."""
        return self._nodes[node].replica

    def application(self, node: int) -> Application:
        """A running node's application. Raises `KeyError` if it is killed."""
        return self.replica(node).application

    async def leader(self, among: Collection[int] | None = None) -> int:
        """The node that leads a majority, ``among`` these (all running ones).

        Raises `trio.TooSlowError` if there is none within 300 s.
        """
        with trio.fail_after(PATIENCE_S):
            while True:
                for node in sorted(among or self.running):
                    if self.replica(node).is_leader and self._followers(node) >= self._majority(node):
                        return node
                await trio.sleep(self._raft.heartbeat_s / 10)

    def _majority(self, leader: int) -> int:
        return len(self.replica(leader).configuration.servers) // 2 + 1

    def _followers(self, leader: int) -> int:
        core = self.replica(leader).raw
        cut_off = {a for a, b in self.network.blocked if b == _host(leader)}
        return sum(
            node.replica.leader_id == leader and node.replica.raw.term == core.term
            for node_id, node in self._nodes.items()
            if _host(node_id) not in cut_off
            and any(server.id == node_id for server in core.configuration.servers)
        )

    async def applied(self, index: int, nodes: Collection[int] | None = None) -> None:
        """Return once these nodes (all running ones) have applied ``index``. Raises `trio.TooSlowError`."""
        with trio.fail_after(PATIENCE_S):
            for node in nodes or self.running:
                await self.replica(node).wait_applied(index - 1)

    # ------------------------------------------------------------------ actions

    async def post(self, entry: bytes, *, via: int | None = None) -> tuple[int, int]:
        """Post an entry through a node (the leader); (index, term) once it is committed.

        Raises `EntryRefused`, `ProposalDropped`, `NoQuorum` (certainly not appended),
        `OutcomeUnknown`. Cancelled, it may or may not be appended.
        """
        node = await self.leader() if via is None else via
        return await self.replica(node).post(entry)

    async def kill(self, node: int) -> None:
        """End a node as a power failure does: it loses unsynced data."""
        running = self._nodes.pop(node)
        running.scope.cancel()
        await running.ended.wait()
        self.network.kill(_host(node))
        self._disks[node].pending.clear()

    async def restart(self, node: int) -> None:
        """Start a node from its disk; kill it first if it runs."""
        if node in self._nodes:
            await self.kill(node)
        await self._nursery.start(self._run, node)

    async def enlist(self) -> ClusterServer:
        """Start one more node, on an empty store; ``replica(leader).membership.change`` makes it a member."""
        node = max(self._disks) + 1
        genesis = msgspec.structs.replace(self._genesis, configuration=Configuration(0, 0, ()))
        self._disks[node] = MemoryStore(genesis)
        await self._nursery.start(self._run, node)
        return ClusterServer(node, f"memory://{_host(node)}:{PORT}")

    def partition(self, *sides: Collection[int]) -> None:
        """Separate the nodes: different sides do not hear each other until `heal`."""
        self.network.partition(*([_host(node) for node in side] for side in sides))

    def heal(self) -> None:
        """End all partitions."""
        self.network.heal()

    # ------------------------------------------------------------------ a node

    async def _run(self, node: int, *, task_status: trio.TaskStatus[None]) -> None:
        disk = self._disks[node]
        transport = self.network.transport(_host(node))
        section = FarmSection(
            name=FARM,
            endpoint=f"memory://{_host(node)}:{PORT}",
            application="log",
            default_transport="memory",
            secret_file=Path("unused"),
            raft=self._raft,
            retention=RetentionSection(),
            meta=MetaSection(),
        )
        password = member_password(self._secret, self._farm_id, node)
        challenges = ChallengeCache(section.algorithms)
        credentials = DialCredentials(
            FARM, str(node), password, challenges, self._farm_id, EXTENSIONS, lambda: replica.programs.own()
        )

        async def dial_member(member: int, text: str) -> Established:
            return await dial(transport, Endpoint.parse(text), credentials)

        logger = logging.getLogger("garlicfarm.testing.memory_cluster")
        log = EventLogger(logger, clock=trio.current_time, farm=FARM, node=node)  # the simulated one too
        paths = Path("unused"), Path("unused")
        host = ReplicaHost(node, *paths, dial_member, NodeMetrics().farm(FARM), log)
        replica = Replica(section, disk, partial(MemoryStoreWriter, disk), self._application(), host)
        lookup = member_lookup([self._secret], self._farm_id, lambda user: {})
        verifier = DigestVerifier(REALM, section.algorithms, secrets.token_bytes(32), lookup)
        own = replica.programs.own
        farms = {FARM: FarmCredentials(FARM, self._farm_id, verifier, EXTENSIONS, program=own)}
        limiter = HandshakeLimiter()

        async def serve(stream: trio.abc.Stream, peer: Peer) -> None:
            try:
                established = await respond(stream, farms, limiter, peer)
                if established is not None:
                    user, extensions = established.user, established.extensions
                    name, program = f"member {user}", established.program
                    principal = Principal(name, int(user), True, extensions, program=program)
                    await replica.serve(established.stream, principal, established.leftover)
            except* (*CONNECTION_ERRORS, OutcomeUnknown) as group:
                log.info("connection-lost", peer=peer.address, cause=str(first_error(group)))

        running = _Node(replica)
        try:
            with running.scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(transport.serve, Endpoint("memory", _host(node), PORT), serve)
                    await nursery.start(replica.run)
                    self._nodes[node] = running
                    task_status.started()
        except* Removed:
            self._nodes.pop(node)
        finally:
            running.ended.set()


def _host(node: int) -> str:
    return f"node{node}"


@asynccontextmanager
async def cluster(
    size: int = 3,
    *,
    application: Callable[[], Application] = LogApplication,
    raft: RaftSection | None = None,
) -> AsyncIterator[Cluster]:
    """Run a farm of ``size`` nodes, each with its own ``application()``, for the body of the context.

    ``raft``: timeouts and limits; those of the preset ``clearnet`` if None. A node that fails raises
    its error from the context.
    """
    if raft is None:
        raft = msgspec.convert(PRESETS["clearnet"], RaftSection)
    async with trio.open_nursery() as nursery:
        running = Cluster(size, application, raft, nursery)
        for node in range(1, size + 1):
            await running.restart(node)
        yield running
        nursery.cancel_scope.cancel()
