"""`AdminClient.events`: nothing is missed or comes twice, whatever becomes of nodes and connections."""

from __future__ import annotations

import gc
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream

from garlicfarm.admin import live_events
from garlicfarm.client import (
    AdminClient,
    EntryEvent,
    EventStream,
    HealthEvent,
    LeaderEvent,
    PositionEvent,
    PublisherEvent,
    events,
)
from garlicfarm.errors import (
    AuthError,
    Compacted,
    ConfigError,
    LocalProtocolError,
    NoQuorum,
    RemoteProtocolError,
    UnreachableError,
)
from garlicfarm.feed.events import StandingEvent, decode_entries, encode_event
from garlicfarm.wire.messages import ValueType
from tests.admin.fake_node import FakeNode, client_of
from tests.running import wait_until

NOBODY = "https://127.0.0.1:9"
NO_ENTRIES = ("leader", "members", "publisher", "health")


@pytest.fixture
def other(node: FakeNode, tmp_path: Path) -> FakeNode:
    """Another node with the same log."""
    other = FakeNode(tmp_path / "other")
    other.farm.log = node.farm.log
    return other


class Cable:
    """A relay to a node. `cut` closes all connections, `silence` passes nothing more on."""

    def __init__(self, target: str) -> None:
        self._port = int(target.rpartition(":")[2])
        self._streams: set[trio.SocketStream] = set()
        self.is_silent = False
        self.made = 0

    async def run(self, *, task_status: trio.TaskStatus[str]) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        task_status.started(f"https://127.0.0.1:{listener.socket.getsockname()[1]}")
        await trio.serve_listeners(self._carry, [listener])

    async def _carry(self, client: trio.SocketStream) -> None:
        self.made += 1
        async with client, await trio.open_tcp_stream("127.0.0.1", self._port) as server:
            self._streams |= {client, server}
            async with trio.open_nursery() as nursery:
                for source, to in ((client, server), (server, client)):
                    nursery.start_soon(self._pass, source, to, nursery.cancel_scope)

    async def _pass(self, source: trio.SocketStream, to: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            async for data in source:
                if self.is_silent:
                    await trio.sleep_forever()
                await to.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()

    def cut(self) -> None:
        for stream in self._streams:
            stream.socket.close()
        self._streams.clear()


@asynccontextmanager
async def watched(
    nodes: Mapping[str, FakeNode], kinds: Sequence[str] = ("entry",), after: int = 0
) -> AsyncIterator[EventStream]:
    """The events of several nodes, by their URLs."""
    async with client_of(nodes) as client, client.events("farm", after=after, kinds=kinds) as stream:
        yield stream


async def entries(stream: EventStream, count: int) -> list[bytes]:
    """The values of the next entries."""
    values: list[bytes] = []
    with trio.fail_after(240):
        while len(values) < count:
            event = await anext(stream)
            if isinstance(event, EntryEvent):
                values.append(event.entry.value)
    return values


async def test_events_are_how_things_stand_and_then_every_entry(node: FakeNode, url: str) -> None:
    node.farm.commit(b"one")
    node.farm.commit(b"\xff", ValueType.CONFIGURATION)
    got = []
    async with node.client(url) as client:
        with trio.fail_after(240):
            async with client.events("farm", after=0) as stream:
                async for event in stream:
                    got.append(event)
                    if event.index == 2:
                        break
    assert [type(event).__name__ for event in got[:4]] == [
        *("LeaderEvent", "MembersEvent", "HealthEvent", "PublisherEvent")
    ]
    assert got[0] == LeaderEvent(0, 1, 3)
    assert got[2] == HealthEvent(0, "degraded", 0, (3,), False)
    assert [event.entry for event in got[4:] if isinstance(event, EntryEvent)] == node.farm.log


async def test_events_from_now_on_start_at_the_commit_index(node: FakeNode, url: str) -> None:
    node.farm.commit(b"old")
    async with node.client(url) as client, client.events("farm", kinds=["entry", "leader"]) as stream:
        assert isinstance(await anext(stream), LeaderEvent)
        node.farm.commit(b"new")
        assert await entries(stream, 1) == [b"new"]


async def test_events_of_some_kinds_are_no_others(node: FakeNode, url: str) -> None:
    async with node.client(url) as client, client.events("farm", after=0, kinds=["position"]) as stream:
        for number in range(1, 4):
            node.farm.commit(b"x")
            with trio.fail_after(240):
                assert await anext(stream) == PositionEvent(number)
        with pytest.raises(LocalProtocolError, match="kinds"):
            client.events("farm", kinds=["secret"])
        with pytest.raises(LocalProtocolError, match="inside a block"):
            await anext(client.events("farm"))


async def test_connection_that_is_cut_at_any_place_costs_no_entry_and_repeats_none(
    node: FakeNode, url: str, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_events, "PIECE_BYTES", 100_000)
    cable = Cable(url)
    through = await nursery.start(cable.run)
    for number in range(120):
        node.farm.commit(b"%d " % number + b"x" * 20_000)
    got = []
    async with node.client(through) as client, client.events("farm", after=0, kinds=["entry"]) as stream:
        for number in range(12):
            got += await entries(stream, 10)
            if number % 3 == 0:
                cable.cut()
    assert [int(value.split()[0]) for value in got] == list(range(120))
    assert cable.made > 4


async def test_node_that_ends_leaves_its_watcher_to_another_that_goes_on_from_there(node, other):
    shutdown = trio.Event()
    async with trio.open_nursery() as nursery, other.running() as second:
        first = await nursery.start(node.serve, shutdown)
        async with watched({first: node, second: other}, ["entry", "leader"]) as stream:
            node.farm.commit(b"0")
            assert await entries(stream, 1) == [b"0"]
            shutdown.set()
            await wait_until(lambda: node.running_requests == 0)
            other.farm.commit(b"1")
            assert await entries(stream, 1) == [b"1"]
            other.farm.commit(b"2")
            assert isinstance(event := await anext(stream), EntryEvent), "who leads is no news"
            assert event.index == 3


async def test_what_changed_while_no_node_was_connected_is_told_and_nothing_else(node, other):
    body = other.farm.status()
    other.farm.status = lambda: body  # type: ignore[method-assign]
    body["leader"], body["term"], body["publisher"] = 2, 4, 2
    named = {"index": 2, "date_ms": 1, "text": "", "publisher": 2, "previous": 1, "because": "margin"}
    body["events"] = [named]
    shutdown = trio.Event()
    async with trio.open_nursery() as nursery, other.running() as second:
        first = await nursery.start(node.serve, shutdown)
        async with watched({first: node, second: other}, NO_ENTRIES) as stream:
            with trio.fail_after(240):
                kinds = [type(await anext(stream)).__name__ for _ in range(4)]
                assert kinds == ["LeaderEvent", "MembersEvent", "HealthEvent", "PublisherEvent"]
                shutdown.set()
                node.farm.commit(b"x")
                node.farm.commit(b"x")
                leader, publisher = await anext(stream), await anext(stream)
            assert isinstance(leader, LeaderEvent)
            assert (leader.leader, leader.term) == (2, 4)
            assert isinstance(publisher, PublisherEvent)
            assert (publisher.publisher, publisher.previous, publisher.since) == (2, 1, 2)


async def test_node_that_is_cut_off_from_the_others_is_left_for_another(node, other, monkeypatch):
    monkeypatch.setattr(events, "STRANDED_S", 0.1)
    body = node.farm.status()
    body["quorum"] = False
    node.farm.status = lambda: body  # type: ignore[method-assign]
    node.farm.log = []
    other.farm.commit(b"the majority goes on")
    async with node.running() as first, other.running() as second:
        async with watched({first: node, second: other}) as stream:
            assert await entries(stream, 1) == [b"the majority goes on"]
        async with watched({first: node}, ["health"]) as stream:
            assert isinstance(event := await anext(stream), HealthEvent)
            assert event.health == "no-quorum"
            with trio.move_on_after(0.5):
                await anext(stream)
            assert node.running_requests == 1, "there is no other one to go to"


async def test_peer_that_falls_silent_is_left_for_another(node, other, nursery, monkeypatch):
    monkeypatch.setattr(events, "PING_S", 0.1)
    monkeypatch.setattr(events, "PONG_S", 0.3)
    monkeypatch.setattr(events, "CLOSE_S", 0.1)
    async with node.running() as first, other.running() as second:
        cable = Cable(first)
        through = await nursery.start(cable.run)
        async with watched({through: node, second: other}) as stream:
            node.farm.commit(b"0")
            assert await entries(stream, 1) == [b"0"]
            cable.is_silent = True
            other.farm.commit(b"1")
            assert await entries(stream, 1) == [b"1"]
        nursery.cancel_scope.cancel()


async def test_node_that_ends_during_the_handshake_is_left_at_once(node, other, nursery, monkeypatch):
    monkeypatch.setattr(events, "CONNECT_S", math.inf)

    async def end(stream: trio.SSLStream[trio.SocketStream]) -> None:
        async with stream:
            await stream.receive_some()

    url = await node.impersonated(end, nursery)
    other.farm.commit(b"0")
    async with other.running() as second, watched({url: node, second: other}) as stream:
        assert await entries(stream, 1) == [b"0"]


async def test_program_that_takes_no_events_is_no_silent_peer(node, url, nursery, monkeypatch):
    """Pings that cannot be answered behind it are not held against the node."""
    monkeypatch.setattr(events, "PING_S", 0.05)
    monkeypatch.setattr(events, "PONG_S", 0.05)
    monkeypatch.setattr(live_events, "PIECE_BYTES", 1000)
    cable, pieces, is_held_up = Cable(url), 0, False
    made: list[int] = []  # connections, at each ping that cannot be answered

    def decode(data: bytes, after: int) -> list[EntryEvent]:
        nonlocal pieces, is_held_up
        pieces += 1
        is_held_up = pieces == 2  # nothing takes the second one
        return decode_entries(data, after)

    async def ping(web: WebSocketConnection) -> None:
        if is_held_up:  # not sent: on a slow machine the deadline might cut that off, which ends a connection
            made.append(cable.made)
            await trio.sleep_forever()

    monkeypatch.setattr(events, "decode_entries", decode)
    monkeypatch.setattr(WebSocketConnection, "ping", ping)
    through = await nursery.start(cable.run)
    for number in range(300):
        node.farm.commit(b"%d " % number + b"x" * 1000)
    async with node.client(through) as client, client.events("farm", after=0, kinds=["entry"]) as stream:
        assert await entries(stream, 1)
        await wait_until(lambda: len(made) > 3)
        is_held_up = False
        assert len(await entries(stream, 299)) == 299
        assert cable.made == made[0]


async def test_entries_that_are_gone_are_an_error_and_no_gap(node, other, tmp_path):
    for number in range(9):
        node.farm.commit(b"%d" % number)
    other.farm.log = list(node.farm.log)
    node.farm.compact(7)
    async with node.running() as first, other.running() as second:
        async with watched({first: node, second: other}, after=2) as stream:
            assert await entries(stream, 7) == [b"%d" % number for number in range(2, 9)]
        other.farm.compact(5)
        async with watched({first: node, second: other}, after=2) as stream:
            for _ in range(2):
                with pytest.raises(Compacted) as gone:
                    await anext(stream)
                assert gone.value.first_index == 5


async def test_watcher_that_falls_behind_while_it_reads_gets_the_same_error(node, url, monkeypatch):
    monkeypatch.setattr(live_events, "PIECE_BYTES", 1)
    for number in range(9):
        node.farm.commit(b"%d" % number)
    read = node.farm.read

    async def compacted_meanwhile(after: int, upto: int, max_bytes: int) -> Any:
        if after == 3:
            node.farm.compact(8)
        return await read(after, upto, max_bytes)

    monkeypatch.setattr(node.farm, "read", compacted_meanwhile)
    async with node.client(url) as client, client.events("farm", after=0, kinds=["entry"]) as stream:
        assert await entries(stream, 3) == [b"0", b"1", b"2"]
        with pytest.raises(Compacted) as gone:
            await anext(stream)
    assert gone.value.first_index == 8


async def test_farm_that_was_recovered_meanwhile_is_not_taken_for_the_same(node, other):
    shutdown = trio.Event()
    other.farm.farm_id = bytes(16)
    async with trio.open_nursery() as nursery, other.running() as second:
        first = await nursery.start(node.serve, shutdown)
        async with watched({first: node, second: other}) as stream:
            node.farm.commit(b"0")
            assert await entries(stream, 1) == [b"0"]
            shutdown.set()
            with pytest.raises(RemoteProtocolError, match="recovered"), trio.fail_after(240):
                await anext(stream)


def nobody(client: Callable[..., AdminClient], url: str) -> AdminClient:
    return client(NOBODY)


def wrong_pin(client: Callable[..., AdminClient], url: str) -> AdminClient:
    return client(url, pin="sha256:" + "00" * 32)


def wrong_password(client: Callable[..., AdminClient], url: str) -> AdminClient:
    return client(url, password="wrong")


@pytest.mark.parametrize(
    ("make", "farm", "error"),
    [
        (nobody, "farm", UnreachableError),
        (wrong_pin, "farm", AuthError),
        (wrong_password, "farm", AuthError),
        (lambda client, url: client(url), "none", ConfigError),
    ],
)
async def test_events_that_cannot_be_had_are_an_error_at_once(node, url, make, farm, error):
    async with make(node.client, url) as client, client.events(farm) as stream:
        with trio.fail_after(240), pytest.raises(error):
            await anext(stream)


async def test_node_without_a_place_for_the_watcher_says_so(node, url, monkeypatch):
    monkeypatch.setattr("garlicfarm.admin.watch.MAX_WATCHERS_OF_USER", 0)
    async with node.client(url) as client, client.events("farm") as stream:
        with pytest.raises(NoQuorum, match="watchers"):
            await anext(stream)


async def test_node_that_does_not_come_back_is_an_error_once_patience_is_over(node: FakeNode) -> None:
    shutdown = trio.Event()
    async with trio.open_nursery() as nursery:
        url = await nursery.start(node.serve, shutdown)
        async with (
            node.client(url) as client,
            client.events("farm", kinds=["leader"], patience_s=0.3) as stream,
        ):
            await anext(stream)
            shutdown.set()
            with trio.fail_after(240), pytest.raises(UnreachableError):
                await anext(stream)


async def test_taking_an_event_that_is_cancelled_loses_none(node: FakeNode, url: str) -> None:
    async with node.client(url) as client, client.events("farm", after=0, kinds=["entry"]) as stream:
        got = list[bytes]()
        for number in range(20):
            with trio.move_on_after(0.01):
                await anext(stream)
                raise AssertionError("nothing was committed")
            node.farm.commit(b"%d" % number)
            got += await entries(stream, 1)
        assert got == [b"%d" % number for number in range(20)]


async def test_block_that_is_left_leaves_nothing_behind(node: FakeNode, url: str) -> None:
    async with node.client(url) as client:
        async with client.events("farm", kinds=["leader"]) as stream:
            await anext(stream)
        await wait_until(lambda: node.running_requests == 0)
        async with client.events("farm"):
            pass
    gc.collect()  # an open socket would be an error


async def test_error_in_the_block_stays_what_it_was(node: FakeNode, url: str) -> None:
    async def fail() -> None:
        async with node.client(url) as client, client.events("farm") as stream:
            await anext(stream)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    with trio.move_on_after(0.05) as scope:
        async with node.client(url) as client, client.events("farm", kinds=["entry"]) as stream:
            await anext(stream)
    assert scope.cancelled_caught


@asynccontextmanager
async def told(
    node: FakeNode, nursery: trio.Nursery, *said: StandingEvent, after: int = 0
) -> AsyncIterator[EventStream]:
    """The events of a node that says just this, and that its last index is 99."""

    async def tell(stream: trio.SSLStream[trio.SocketStream]) -> None:
        async with trio.open_nursery() as inner:
            request = await wrap_server_stream(inner, stream)  # type: ignore[arg-type]
            web = await request.accept()
            await web.send_message(b"\n".join(map(encode_event, (*said, PositionEvent(99)))).decode())
            with suppress(ConnectionClosed):
                await web.get_message()

    url = await node.impersonated(tell, nursery)
    kinds = ["leader", "publisher", "position"]
    async with node.client(url) as client, client.events("farm", after=after, kinds=kinds) as stream:
        with trio.fail_after(240):
            yield stream


@pytest.mark.parametrize(
    "those",
    [
        [
            *((PublisherEvent(20, 1), True), (PublisherEvent(20, 1), False)),
            *((PublisherEvent(20, 2, since=10), True), (PublisherEvent(20, 2, since=10), False)),
            *((PublisherEvent(20, 1, since=7), False), (PublisherEvent(20, 2), False)),
            *((PublisherEvent(20, 1, since=12), True), (PublisherEvent(20, 1, since=14), True)),
            *((PublisherEvent(20, 1), False), (PublisherEvent(20, None), True)),
        ],
        [
            *((LeaderEvent(0, 1, 3), True), (LeaderEvent(0, 2, 4), True), (LeaderEvent(0, 1, 3), False)),
            *((LeaderEvent(0, 2, 4), False), (LeaderEvent(0, None, 4), True)),
        ],
    ],
    ids=["publisher", "leader"],
)
async def test_what_is_known_already_or_out_of_date_is_no_news(node, nursery, those):
    """Each change comes once, whichever node says so."""
    async with told(node, nursery, *[event for event, _ in those]) as stream:
        news = [await anext(stream) for _ in range(1 + sum(is_news for _, is_news in those))]
    assert news == [*[event for event, is_news in those if is_news], PositionEvent(99)]


async def test_events_out_of_order_are_refused(node: FakeNode, nursery: trio.Nursery) -> None:
    right: list[StandingEvent] = [LeaderEvent(5, 1, 1), PositionEvent(6), PositionEvent(6)]
    async with told(node, nursery, *right, after=5) as stream:
        assert [await anext(stream) for _ in right] == right
    for wrong in ([LeaderEvent(4, 1, 1)], [PositionEvent(7), PositionEvent(6)]):
        async with told(node, nursery, *wrong, after=5) as stream:
            with pytest.raises(RemoteProtocolError, match="order"):
                await anext(stream)
