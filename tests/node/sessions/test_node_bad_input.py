"""Bad input on the wire, on real sockets: the connection is closed, the reason counted, the state untouched,
the node alive. Each case as a JRaft peer (``jraft``) and as a member that logged in (``ssl``)."""

from __future__ import annotations

import gzip
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from garlicfarm.extensions import EXTENSIONS
from garlicfarm.raft import Role
from garlicfarm.wire import (
    encode_configuration,
    encode_log_pack,
    encode_request,
    encode_snapshot_sync_request,
)
from garlicfarm.wire.messages import (
    ClusterServer,
    Configuration,
    LogEntry,
    MessageType,
    Response,
    SnapshotSyncRequest,
    ValueType,
)
from tests.node.support.cluster import Cluster, Wire, cluster
from tests.node.support.jraft_peer import HASTY, PATIENT, Heard, Play, played, request
from tests.running import background, wait_until

T = MessageType
MEMBERS = Configuration(9, 1, (ClusterServer(1, "jraft://127.0.0.1:1"), ClusterServer(2, "jraft://b:1")))


class Place:
    """A node under test, and how to reach it as member 2."""

    def __init__(self, nodes: Cluster, connect: Callable[[], Awaitable[Wire]]) -> None:
        self.nodes = nodes
        self.connect = connect

    def refused(self) -> dict[str, float]:
        families = self.nodes.node().metrics.registry.collect()
        (refused,) = [family for family in families if family.name == "garlicfarm_raft_refused"]
        return {s.labels["reason"]: s.value for s in refused.samples if s.name.endswith("_total")}

    @property
    def picture(self) -> tuple[object, ...]:
        """All that a message could change: the core, the application, what is in the store."""
        farm = self.nodes.replica()
        status, path = farm.raw.status(), self.nodes.data(1) / "farms" / "farm" / "log"
        votes = (status.role, status.term, status.vote, status.leader)
        log = (status.commit, status.applied, status.first_index, status.last_index)
        stored = sorted((file.name, file.read_bytes()) for file in path.iterdir())
        snapshots = sorted(file.name for file in path.parent.glob("snapshots/*.snap"))
        return (*votes, *log, status.configuration, farm.application.snapshot(), stored, snapshots)


@asynccontextmanager
async def jraft(directory: Path) -> AsyncIterator[Place]:
    async with played(directory) as plays:
        yield Place(plays.nodes, plays.dial)


@asynccontextmanager
async def secured(directory: Path) -> AsyncIterator[Place]:
    async with cluster(directory, 3, raft=PATIENT, start=False) as nodes:
        await nodes.start(1)
        yield Place(nodes, lambda: nodes.login("2", extensions=EXTENSIONS))


MakePlace = Callable[[Path], AbstractAsyncContextManager[Place]]
PLACES = [pytest.param(jraft, id="jraft"), pytest.param(secured, id="ssl")]


class Bad(NamedTuple):
    name: str
    reason: str
    data: bytes


def entry(kind: ValueType, value: bytes, term: int = 3) -> LogEntry:
    return LogEntry(term, kind, value)


def header(kind: int, term: int = 3, *, source: int = 2, destination: int = 1, size: int = 0) -> bytes:
    return struct.pack(">BIIQQQQI", kind, source, destination, term, 0, 0, 0, size)


def with_entry(kind: int, value_type: int, value: bytes, *, claimed: int | None = None) -> bytes:
    size = len(value) if claimed is None else claimed
    return header(kind, size=13 + size & 0xFFFFFFFF) + struct.pack(">QBI", 3, value_type, size) + value


def synced(pack: bytes) -> bytes:
    return encode_request(request(T.SYNC_LOG_REQUEST, 3, entry(ValueType.LOG_PACK, pack)))


def piece_of(index: int, term: int, configuration: Configuration, **claimed: int) -> bytes:
    """An InstallSnapshotRequest that is the whole snapshot; sizes are what they are, or ``claimed``."""
    value, data = encode_configuration(configuration), bytes(64)
    config_length, data_length = claimed.get("config", len(value)), claimed.get("data", len(data))
    head = struct.pack(">QQI", index, term, config_length)
    return with_entry(
        T.INSTALL_SNAPSHOT_REQUEST, 5, head + value + struct.pack(">QI", 0, data_length) + data + b"\1"
    )


def raw_pack(offsets: list[int], log: bytes) -> bytes:
    index = struct.pack(f">{len(offsets)}Q", *offsets)
    return gzip.compress(struct.pack(">II", len(index), len(log)) + index + log)


PACKED = struct.pack(">QB", 3, 1) + b"a" + struct.pack(">QB", 3, 1) + b"b"
ONE = entry(ValueType.APPLICATION, b"x")

HEAD = struct.pack(">6sHQ32s", b"GFSNAP", 1, 1000, bytes(32)) + bytes(16)
"""The beginning of a snapshot's file of more than a thousand bytes."""

BAD = [
    *(
        Bad(f"{kind.name.lower()}-as-a-request", "malformed", header(kind))
        for kind in MessageType
        if kind.name.endswith("RESPONSE")
    ),
    *(Bad(f"unknown-type-{kind}", "malformed", header(kind)) for kind in (0, 18, 0x47, 255)),
    *(
        Bad(
            f"entry-of-kind-{kind}-in-type-{message.value}", "malformed", with_entry(message, kind, b"x" * 40)
        )
        for message, kind in [
            (T.REQUEST_VOTE_REQUEST, 1),
            (T.APPEND_ENTRIES_REQUEST, 3),
            (T.APPEND_ENTRIES_REQUEST, 4),
            (T.APPEND_ENTRIES_REQUEST, 5),
            (T.APPEND_ENTRIES_REQUEST, 9),
            (T.CLIENT_REQUEST, 2),
            (T.JOIN_CLUSTER_REQUEST, 4),
            (T.SYNC_LOG_REQUEST, 2),
            (T.LEAVE_CLUSTER_REQUEST, 2),
            (T.INSTALL_SNAPSHOT_REQUEST, 1),
            (T.READ_INDEX_REQUEST, 1),
        ]
    ),
    Bad("all-entries-of-0xffffffff-bytes", "malformed", header(T.APPEND_ENTRIES_REQUEST, size=0xFFFFFFFF)),
    Bad(
        "entry-of-0xffffffff-bytes",
        "malformed",
        header(T.APPEND_ENTRIES_REQUEST, size=20) + struct.pack(">QBI", 3, 1, 0xFFFFFFFF) + b"x" * 7,
    ),
    Bad("no-entry-where-one-must-be", "malformed", header(T.JOIN_CLUSTER_REQUEST)),
    *(
        Bad(
            f"configuration-cut-to-{cut}-bytes",
            "protocol",
            with_entry(3, 2, encode_configuration(MEMBERS)[:cut]),
        )
        for cut in (0, 15, 20, 30, 57)
    ),
    Bad("configuration-of-nobody", "protocol", with_entry(3, 2, encode_configuration(Configuration(1, 0)))),
    Bad("pack-that-is-no-gzip", "protocol", synced(b"no gzip at all")),
    Bad("pack-that-is-a-bomb", "protocol", synced(gzip.compress(bytes(200 << 20), 9))),
    Bad("pack-cut-short", "protocol", synced(raw_pack([0, 10], PACKED)[:-9])),
    Bad("pack-whose-offsets-overlap", "protocol", synced(raw_pack([0, 5], PACKED))),
    Bad("pack-whose-offsets-run-backwards", "protocol", synced(raw_pack([10, 0], PACKED))),
    Bad("pack-whose-offsets-run-past-the-end", "protocol", synced(raw_pack([0, 99], PACKED))),
    Bad("pack-whose-index-is-0xffffffff-bytes", "protocol", synced(gzip.compress(b"\xff" * 8 + PACKED))),
    Bad(
        "pack-whose-log-is-0xffffffff-bytes",
        "protocol",
        synced(gzip.compress(struct.pack(">II", 0, 2**32 - 1) + PACKED)),
    ),
    Bad("pack-for-a-member", "protocol", synced(encode_log_pack(0, (ONE,)))),
    Bad("snapshot-piece-that-is-none", "protocol", with_entry(T.INSTALL_SNAPSHOT_REQUEST, 5, bytes(40))),
    Bad(
        "snapshot-whose-configuration-is-0xffffffff-bytes",
        "protocol",
        piece_of(9, 3, MEMBERS, config=2**32 - 1),
    ),
    Bad("snapshot-whose-piece-is-0xffffffff-bytes", "protocol", piece_of(9, 3, MEMBERS, data=2**32 - 1)),
    Bad("snapshot-of-an-index-that-no-store-holds", "protocol", piece_of(2**64 - 1, 3, MEMBERS)),
    Bad("snapshot-that-leaves-no-room-for-entries", "protocol", piece_of(2**63 - 1, 3, MEMBERS)),
    Bad("snapshot-of-a-later-term", "protocol", piece_of(9, 4, MEMBERS)),
    Bad("snapshot-of-a-term-that-no-store-holds", "protocol", piece_of(9, 2**64 - 1, MEMBERS)),
    Bad("snapshot-of-nobody", "protocol", piece_of(9, 3, Configuration(1, 0))),
    Bad(
        "server-whose-endpoint-is-0xffffffff-bytes", "malformed", with_entry(6, 3, b"\0\0\0\2" + b"\xff" * 4)
    ),
    Bad("server-to-remove-that-is-more-than-an-id", "malformed", with_entry(8, 3, bytes(8))),
    Bad("source-of-another", "source", header(T.REQUEST_VOTE_REQUEST, source=3)),
    Bad("source-of-the-node-itself", "source", header(T.REQUEST_VOTE_REQUEST, source=1)),
    Bad("destination-of-another", "destination", header(T.REQUEST_VOTE_REQUEST, destination=3)),
    Bad("destination-of-nobody", "destination", header(T.APPEND_ENTRIES_REQUEST, destination=0)),
    *(
        Bad(f"{kind.name.lower()}-without-its-extension", "not-served", header(kind))
        for kind in (T.PRE_VOTE_REQUEST, T.TIMEOUT_NOW_REQUEST, T.READ_INDEX_REQUEST)
    ),
    Bad("vote-asked-for-by-nobody", "not-served", header(T.REQUEST_VOTE_REQUEST, source=0)),
    Bad("term-beyond-all", "term", header(T.APPEND_ENTRIES_REQUEST, 2**64 - 1)),
    Bad("entry-of-a-later-term", "protocol", encode_request(request(T.APPEND_ENTRIES_REQUEST, 2, ONE))),
]


@pytest.mark.parametrize("place", PLACES)
async def test_bad_message_costs_its_connection_is_counted_and_changes_nothing(
    tmp_path: Path, place: MakePlace
) -> None:
    async with place(tmp_path) as under_test:
        before = under_test.picture
        for bad in BAD:
            if place is jraft and bad.name == "source-of-another":
                continue  # it is trusted there
            if place is secured and bad.name.endswith("without-its-extension"):
                continue  # all are in force there
            reason = bad.reason
            if place is secured and bad.name == "vote-asked-for-by-nobody":
                reason = "source"
            counted = under_test.refused().get(reason, 0)
            connection = await under_test.connect()
            with suppress(trio.BrokenResourceError):  # the node may have read enough
                await connection.stream.send_all(bad.data)
            with trio.fail_after(240):
                assert await connection.receive() is None, bad.name
            assert under_test.refused().get(reason, 0) == counted + 1, (bad.name, under_test.refused())
            assert under_test.picture == before, bad.name
            await trio.aclose_forcefully(connection.stream)
        fine = await under_test.connect()
        answer = await fine.ask(request(T.REQUEST_VOTE_REQUEST, 1))
        assert answer.accepted


@pytest.mark.parametrize("place", PLACES)
async def test_join_cluster_from_another_cluster_is_refused_and_lowers_no_term(
    tmp_path: Path, place: MakePlace
) -> None:
    async with place(tmp_path) as under_test:
        wire = await under_test.connect()
        assert (await wire.ask(request(T.REQUEST_VOTE_REQUEST, 7))).accepted
        before = under_test.picture
        others = Configuration(
            5, 1, (ClusterServer(8, "jraft://127.0.0.1:8"), ClusterServer(2, "jraft://h:9"))
        )
        for term in (0, 1, 6, 7, 8):
            value = entry(ValueType.CONFIGURATION, encode_configuration(others), term)
            answer = await wire.ask(request(T.JOIN_CLUSTER_REQUEST, term, value))
            assert (answer.type, answer.term, answer.accepted) == (T.JOIN_CLUSTER_RESPONSE, 7, False)
        assert under_test.picture == before


@pytest.mark.parametrize("place", PLACES)
async def test_snapshot_pieces_out_of_order_or_with_holes_are_asked_for_again(
    tmp_path: Path, place: MakePlace
) -> None:
    async with place(tmp_path) as under_test:
        wire = await under_test.connect()
        assert (await wire.ask(request(T.REQUEST_VOTE_REQUEST, 3))).accepted
        leads = request(T.APPEND_ENTRIES_REQUEST, 3)
        assert (await wire.ask(leads)).accepted
        before = under_test.picture

        async def piece(offset: int, data: bytes, *, done: bool = False) -> Response:
            sync = SnapshotSyncRequest(50, 3, MEMBERS, offset, data, done)
            value = entry(ValueType.SNAPSHOT_SYNC_REQUEST, encode_snapshot_sync_request(sync))
            answer: Response = await wire.ask(request(T.INSTALL_SNAPSHOT_REQUEST, 3, value))
            return answer

        for offset, data, done, held in [
            (4096, b"late" * 16, False, 0),  # before its beginning
            (0, HEAD, False, 64),
            (128, b"a hole before it" * 4, True, 64),
            (2**63, b"far away", True, 64),
            (2**64 - 1, b"farther", False, 64),
            (0, HEAD, False, 64),  # again
        ]:
            answer = await piece(offset, data, done=done)
            assert (answer.accepted, answer.next_index) == (True, held), (offset, done)
            assert under_test.picture == before
        # Of a JRaft peer it is the application's state, which the application has to take.
        assert (await piece(64, b"no snapshot at all", done=True)).next_index == 0
        assert under_test.picture == before


@pytest.mark.parametrize("others", [(2, 3), (2,)])
async def test_entries_of_the_leaders_own_term_from_another_cost_the_connection(
    tmp_path: Path, others: tuple[int, ...]
) -> None:
    """A message with which one packet ends a leader of JRaft (S4)."""
    async with leading(tmp_path, others) as plays:
        before = plays.picture
        wire = await plays.dial()
        term = plays.nodes.replica().raw.term
        assert await wire.ask(request(T.APPEND_ENTRIES_REQUEST, term)) is None
        assert plays.refused("protocol") == 1
        assert plays.picture == before
        assert plays.nodes.replica().is_leader


@asynccontextmanager
async def leading(directory: Path, others: tuple[int, ...]) -> AsyncIterator[Play]:
    """The node leads; the others answer whatever it asks."""

    async def follow(heard: Heard) -> None:
        while (asked := await heard.receive()) is not None:
            votes = asked.type is T.REQUEST_VOTE_REQUEST
            await heard.answer(asked, 0 if votes else asked.last_log_index + len(asked.entries) + 1)

    async with (
        played(directory, others, raft=HASTY) as plays,
        background(lambda: plays.accept_all(follow)),
    ):
        assert await plays.nodes.leader() == 1
        with trio.fail_after(240):
            await plays.nodes.replica().wait_applied(0)
        yield plays


async def test_votes_of_one_server_through_two_endpoints_count_once(tmp_path: Path) -> None:
    """Members 2, 3 and 4 are one server, which answers as 2 wherever it is asked: no majority of five."""
    asked_through: set[int] = set()

    async def follow(heard: Heard) -> None:
        while (asked := await heard.receive()) is not None:
            asked_through.add(heard.to)
            if heard.to != 5:
                await heard.answer(asked, source=2)

    async with (
        played(tmp_path, (2, 3, 4, 5), raft=HASTY) as plays,
        background(lambda: plays.accept_all(follow)),
    ):
        await wait_until(lambda: {2, 3, 4} <= asked_through and plays.refused("answer") >= 4)
        status = plays.nodes.replica().raw.status()
        assert status.role is not Role.LEADER
        assert (status.commit, status.last_index) == (0, 0)


async def test_jraft_peer_that_speaks_http_is_closed_at_once(tmp_path: Path) -> None:
    async with played(tmp_path) as plays:
        wire: Wire = await plays.dial()
        await wire.send(b"GET /GarlicFarm/farm/1/websocket HTTP/1.1\r\nHost: a\r\n\r\n")
        assert await wire.receive() is None
        assert plays.refused("malformed") == 1
