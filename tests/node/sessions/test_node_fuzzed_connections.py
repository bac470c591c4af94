"""Bytes that were messages once, with faults in them, to a node over real sockets: whoever sends them loses
his connection at most. He is a member, or says so: what the node believes of well-formed words may change
what it holds, but it lives, serves others, and its store opens."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from garlicfarm.errors import Removed, first_error
from garlicfarm.storage import LogStore
from garlicfarm.wire import (
    encode_cluster_server,
    encode_configuration,
    encode_grant,
    encode_log_pack,
    encode_request,
    encode_response,
    encode_snapshot_sync_request,
)
from garlicfarm.wire.messages import (
    ClusterServer,
    Configuration,
    Grant,
    LogEntry,
    MessageType,
    Request,
    Response,
    SnapshotSyncRequest,
    ValueType,
)
from tests.node.support.cluster import ALONE, Wire, client_request
from tests.node.support.jraft_peer import Heard, Play, played, request
from tests.running import background

pytestmark = pytest.mark.slow

T, V = MessageType, ValueType
HEARD_S = 0.3
"""For how long members answer: dozens of heartbeats."""

QUICK = {
    "election_timeout_min_s": 0.1,
    "election_timeout_max_s": 0.2,
    "heartbeat_s": 0.01,
    "rpc_timeout_s": 0.2,
}

PATIENCE_S = 0.1
"""How long a connection is waited for that the node does not close: it lacks bytes of a message."""


def mostly(common: st.SearchStrategy[Any], rare: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 9).flatmap(lambda number: rare if number == 9 else common)


NUMBERS = st.sampled_from((0, 1, 2, 3, 7, 150, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1))
SMALL = st.integers(0, 4)
IDS = st.sampled_from((2, 2, 2, 3, 9, 1))
SERVERS = st.builds(
    ClusterServer,
    st.sampled_from((1, 2, 3, 9, 2**31, 2**32 - 1)),
    st.sampled_from(
        ("", "jraft://127.0.0.1:9", "ssl://127.0.0.1:9?pin=x", "nonsense", "x://[::1:1", "\x1b[2J")
    ),
)
CONFIGURATIONS = st.builds(
    Configuration,
    NUMBERS,
    NUMBERS,
    st.lists(SERVERS, max_size=3, unique_by=lambda server: server.id).map(tuple),
)
APPLICATION = st.builds(LogEntry, SMALL, st.just(V.APPLICATION), st.binary(max_size=20))
LOGGED = APPLICATION | st.builds(
    lambda term, value: LogEntry(term, V.CONFIGURATION, encode_configuration(value)), SMALL, CONFIGURATIONS
)
PIECES = st.builds(
    SnapshotSyncRequest,
    NUMBERS,
    SMALL,
    CONFIGURATIONS,
    mostly(st.just(0), NUMBERS),
    st.binary(max_size=40),
    st.booleans(),
)
GRANTS = st.builds(
    Grant, term=NUMBERS, number=NUMBERS, answered=SMALL, age_ms=NUMBERS, lasts_ms=NUMBERS, index=NUMBERS
)
ENTRIES: dict[MessageType, st.SearchStrategy[tuple[LogEntry, ...]]] = {
    T.APPEND_ENTRIES_REQUEST: st.lists(LOGGED, max_size=4).map(tuple),
    T.CLIENT_REQUEST: st.lists(APPLICATION, max_size=4).map(tuple),
    T.ADD_SERVER_REQUEST: SERVERS.map(lambda s: (LogEntry(0, V.CLUSTER_SERVER, encode_cluster_server(s)),)),
    T.REMOVE_SERVER_REQUEST: SERVERS.map(
        lambda s: (LogEntry(0, V.CLUSTER_SERVER, encode_cluster_server(s, id_only=True)),)
    ),
    T.JOIN_CLUSTER_REQUEST: CONFIGURATIONS.map(
        lambda c: (LogEntry(1, V.CONFIGURATION, encode_configuration(c)),)
    ),
    T.SYNC_LOG_REQUEST: st.lists(LOGGED, max_size=4).map(
        lambda entries: (LogEntry(1, V.LOG_PACK, encode_log_pack(0, entries)),)
    ),
    T.INSTALL_SNAPSHOT_REQUEST: PIECES.map(
        lambda p: (LogEntry(1, V.SNAPSHOT_SYNC_REQUEST, encode_snapshot_sync_request(p)),)
    ),
    T.LEASE_REQUEST: GRANTS.map(lambda grant: (LogEntry(0, V.GRANT, encode_grant(grant)),)),
}
REQUESTS = st.sampled_from([kind for kind in T if kind.name.endswith("REQUEST")]).flatmap(
    lambda kind: st.builds(
        Request,
        st.just(kind),
        mostly(IDS, st.just(0)),
        mostly(st.just(1), st.sampled_from((0, 2))),
        mostly(SMALL, NUMBERS),
        SMALL | NUMBERS,
        SMALL | NUMBERS,
        SMALL | NUMBERS,
        ENTRIES.get(kind, st.just(())),
    )
)
RESPONSES = st.builds(Response, st.sampled_from([T.REQUEST_VOTE_RESPONSE]), IDS, IDS, NUMBERS, NUMBERS)
MESSAGES = mostly(REQUESTS.map(encode_request), RESPONSES.map(encode_response))


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Some messages, one after another; in some streams bytes are overwritten, gone, or there twice."""
    data = bytearray(b"".join(draw(st.lists(MESSAGES, min_size=1, max_size=4))))
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 3)))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(("set", "fill", "cut", "drop", "twice", "insert"))):
            case "set":
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "fill":
                data[at : at + 4] = b"\xff" * 4
            case "cut":
                del data[at:]
            case "drop":
                del data[at : at + draw(st.integers(1, 8))]
            case "twice":
                data[at:at] = data[at : at + 60]
            case _:
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
    return bytes(data)


CONNECTIONS = st.lists(
    st.tuples(streams(), st.sampled_from((True, True, True, False))), min_size=8, max_size=16
)
SETTINGS = settings(
    max_examples=12,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


async def talk(connection: Wire, data: bytes, ends: bool) -> None:
    """Say it all, hear what there is to hear, and go."""
    async with trio.open_nursery() as nursery:

        async def hear() -> None:
            with suppress(trio.BrokenResourceError), trio.move_on_after(PATIENCE_S):
                while await connection.stream.receive_some(4096):
                    pass
            nursery.cancel_scope.cancel()

        nursery.start_soon(hear)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await connection.stream.send_all(data)
            if ends:
                assert isinstance(connection.stream, trio.SocketStream)
                await connection.stream.send_eof()
        await trio.sleep_forever()
    await trio.aclose_forcefully(connection.stream)


async def endure(play: Play, connections: Sequence[tuple[bytes, bool]]) -> None:
    """The node takes these connections, serves the next one, and can start from what it leaves behind."""
    running, answer = play.nodes.running[1], None
    with suppress(OSError, trio.BrokenResourceError):
        for data, ends in connections:
            await talk(await play.dial(), data, ends)
        connection = await play.dial()
        answer = await connection.ask(request(T.CLIENT_REQUEST, 0, source=0))
    if answer is not None:
        await play.nodes.stop(1)
    else:
        with trio.fail_after(240):
            await running.ended.wait()
        assert running.error is not None
        assert isinstance(first_error(running.error), Removed), "nothing but the leader's word ends it"
    with closing(LogStore.open(play.nodes.data(1) / "farms" / "farm", farm="farm")) as store:
        assert store.initial_state()[0].commit <= store.last_index()


@SETTINGS
@given(CONNECTIONS)
async def test_follower_survives_whatever_a_jraft_peer_sends(connections: list[tuple[bytes, bool]]) -> None:
    with TemporaryDirectory() as directory:
        async with played(Path(directory)) as play:
            await endure(play, connections)


@SETTINGS
@given(CONNECTIONS)
async def test_leader_survives_whatever_a_jraft_peer_sends(connections: list[tuple[bytes, bool]]) -> None:
    with TemporaryDirectory() as directory:
        async with played(Path(directory), (), raft={**ALONE, "rpc_timeout_s": 0.2}) as play:
            assert await play.nodes.leader() == 1
            await endure(play, connections)


HONEST, LIES = (
    ("honest",) * 6,
    ("number", "number", "refusal", "type", "source", "term", "twice", "garbage", "cut"),
)
ANSWERS = st.lists(
    st.tuples(st.sampled_from((*HONEST, *LIES)), NUMBERS, st.binary(min_size=1, max_size=40)),
    min_size=8,
    max_size=40,
)


def told(asked: Request, lie: str, number: int, garbage: bytes) -> bytes:
    """What a member that follows answers, but for one lie."""
    kind, last = MessageType(asked.type + 1), asked.last_log_index + len(asked.entries) + 1
    fields: dict[str, Any] = {
        "next_index": number if lie in ("number", "refusal") else last,
        "accepted": lie != "refusal",
        "term": number if lie == "term" else asked.term,
        "source": 7 if lie == "source" else asked.destination,
        "type": T.LEAVE_CLUSTER_RESPONSE if lie == "type" else kind,
    }
    data = encode_response(Response(destination=asked.source, **fields))
    return {"twice": data * 2, "garbage": garbage, "cut": data[:-1]}.get(lie, data)


@SETTINGS
@given(ANSWERS)
async def test_node_survives_whatever_its_members_answer(answers: list[tuple[str, int, bytes]]) -> None:
    lies = cycle(answers)

    async def answer(heard: Heard) -> None:
        with suppress(trio.BrokenResourceError):
            while (asked := await heard.receive()) is not None:
                await heard.stream.send_all(told(asked, *next(lies)))
            await heard.stream.aclose()

    with TemporaryDirectory() as directory:
        async with (
            played(Path(directory), (2, 3), raft=QUICK) as play,
            background(lambda: play.accept_all(answer)),
        ):
            await trio.sleep(HEARD_S)
            await endure(play, [(encode_request(client_request(b"posted")), True)])
