"""A node of ours among JRaft's, in memory: the real farm, sessions, links and core; a store whose snapshots
are on the wire what the application's state is, as JRaft's are."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio
import trio.testing

from garlicfarm.application import Application, Origin
from garlicfarm.config import FarmSection, MetaSection, RaftSection, RetentionSection
from garlicfarm.errors import EntryRefused, OutcomeUnknown
from garlicfarm.logs import EventLogger
from garlicfarm.metrics import NodeMetrics
from garlicfarm.net.handshake import Established, without_handshake
from garlicfarm.net.link import CONNECTION_ERRORS
from garlicfarm.node.replica import Replica, ReplicaHost
from garlicfarm.node.session import Principal, Session
from garlicfarm.raft import Entry, HardState, Persist, SnapshotMeta
from garlicfarm.storage import Genesis
from garlicfarm.testing.memory_cluster import MemoryStore, MemoryStoreWriter
from garlicfarm.wire import ResponseDecoder
from garlicfarm.wire.messages import ClusterServer, Configuration, Response, SnapshotSyncRequest

ENDPOINTS = {member: f"tcp://127.0.0.1:{9200 + member}" for member in range(1, 6)}
FIRST = Configuration(0, 0, tuple(ClusterServer(i, ENDPOINTS[i]) for i in (1, 2, 3)))
NOBODY = Configuration(0, 0)


class MessagePrinter(Application):
    """An `Application` whose snapshots are JRaft's: bytes in, bytes out, and the entries behind them."""

    def __init__(self) -> None:
        self.restored: list[bytes] = []
        self.applied: list[bytes] = []
        self.configurations: list[Configuration] = []

    def check(self, entry: bytes, origin: Origin) -> None:
        if not entry:
            raise EntryRefused("", "empty")

    def apply(self, index: int, term: int, entry: bytes) -> None:
        self.applied.append(entry)

    def configure(self, index: int, members: Configuration) -> None:
        self.configurations.append(members)

    def snapshot(self) -> bytes:
        return b"".join([*self.restored[-1:], *(entry + b"\n" for entry in self.applied)])

    def restore(self, data: bytes) -> None:
        self.restored.append(data)
        self.applied.clear()


class Disk(MemoryStore):
    """Pieces of snapshots as JRaft sends them: no header, no checksum; the last one says that it is."""

    def store_chunk(self, request: SnapshotSyncRequest) -> tuple[int, SnapshotMeta | None]:
        key = (request.last_log_index, request.last_log_term)
        received, held = self.receiving if request.offset else (key, b"")
        if received != key or request.offset != len(held):
            return len(held) if received == key else 0, None
        held += request.data
        self.receiving = (key, held)
        if not request.done:
            return len(held), None
        self._files[request.last_log_index] = bytes(32) + held  # where the checksum would be
        return len(held), SnapshotMeta(*key, request.configuration)

    receiving: tuple[tuple[int, int], bytes] = ((0, 0), b"")


class Wire:
    """A connection to the node."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._decoder = ResponseDecoder()

    async def ask(self, data: bytes) -> Response | None:
        """Send a request's bytes; the answer, None: the node closed the connection."""
        await self.stream.send_all(data)
        while (response := self._decoder.next_message()) is None:
            received = await self.stream.receive_some()
            if not received:
                return None
            self._decoder.receive_data(received)
        return response


class Member:
    """The node, and the connections that it opened, in order: (id dialled, stream)."""

    def __init__(
        self,
        nursery: trio.Nursery,
        member: int,
        disk: Disk,
        raft: RaftSection,
        opened: trio.MemorySendChannel,
    ) -> None:
        self.application = MessagePrinter()
        self.metrics = NodeMetrics()
        self._nursery = nursery
        section = FarmSection(
            name="farm",
            endpoint=ENDPOINTS[member],
            application="log",
            default_transport="jraft",
            secret_file=Path("unused"),
            raft=raft,
            retention=RetentionSection(),
            meta=MetaSection(),
        )

        async def dial(peer: int, endpoint: str) -> Established:
            assert endpoint == ENDPOINTS[peer]
            ours, theirs = trio.testing.memory_stream_pair()
            await opened.send((peer, theirs))
            return without_handshake(ours, "farm")

        log = EventLogger(logging.getLogger("tests.interop"), farm="farm", node=member)
        paths = Path("unused"), Path("unused")
        host = ReplicaHost(member, *paths, dial, self.metrics.farm("farm"), log)
        self.farm = Replica(section, disk, partial(MemoryStoreWriter, disk), self.application, host)

    def connect(self) -> Wire:
        """A JRaft peer's connection to the node."""
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._serve, theirs)
        return Wire(ours)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        principal = Principal("a JRaft peer", 0, True, is_jraft=True)
        try:
            await Session(self.farm.requests, stream, principal, b"", 30.0).run()
        except* (*CONNECTION_ERRORS, OutcomeUnknown):
            pass
        finally:
            await trio.aclose_forcefully(stream)


@asynccontextmanager
async def running(
    member: int,
    log: Sequence[Entry] = (),
    *,
    hard_state: HardState | None = None,
    genesis: Configuration = FIRST,
    election_s: tuple[float, float] = (3.0, 3600.0),
) -> AsyncIterator[tuple[Member, trio.MemoryReceiveChannel]]:
    """Run node ``member`` with this log; the channel brings the connections that it opens."""
    disk = Disk(Genesis("farm", bytes(16), "log", 2, genesis))
    disk.write(Persist(0, hard_state or HardState(), None, tuple(log)))
    low, high = election_s
    raft = RaftSection(
        election_timeout_min_s=low, election_timeout_max_s=high, heartbeat_s=1.5, rpc_timeout_s=3.0
    )
    send, receive = trio.open_memory_channel[tuple[int, trio.abc.Stream]](100)
    async with trio.open_nursery() as nursery:
        node = Member(nursery, member, disk, raft, send)
        await nursery.start(node.farm.run)
        yield node, receive
        nursery.cancel_scope.cancel()
