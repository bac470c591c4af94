"""``GET …/events`` over sockets: as a WebSocket, and as Server-Sent Events."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest
import trio
import trio.testing
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from garlicfarm.admin import live_events, watch
from garlicfarm.admin.app import create_app
from garlicfarm.client.https import HttpsClient, StreamedAnswer
from garlicfarm.client.trust import client_tls
from garlicfarm.wire.messages import ValueType
from tests.admin.fake_node import PASSWORDS, FakeNode
from tests.admin.test_admin_hostile_clients import authorization, rest, secured
from tests.running import wait_until

PATH = "/v1/farms/farm/events"


class Watching:
    """A client of a WebSocket, one event after the other."""

    def __init__(self, web: WebSocketConnection) -> None:
        self.web = web
        self._events: list[dict[str, Any]] = []

    async def next(self) -> dict[str, Any]:
        with trio.fail_after(240):
            while not self._events:
                self._events = [json.loads(line) for line in (await self.web.get_message()).splitlines()]
        return self._events.pop(0)

    async def next_of(self, kind: str) -> dict[str, Any]:
        """The next event of this kind; others are skipped."""
        while (event := await self.next())["kind"] != kind:
            pass
        return event

    async def code(self) -> int:
        """Why it is closed."""
        with trio.fail_after(240):
            while True:
                try:
                    await self.web.get_message()
                except ConnectionClosed as closed:
                    return closed.reason.code  # type: ignore[union-attr]


HANDSHAKE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


async def asked(node: FakeNode, url: str, target: str, more: bytes = b"") -> bytes:
    """The answer to a request for a WebSocket, if that is refused."""
    async with secured(node, url) as stream:
        await stream.send_all(f"GET {target} HTTP/1.1\r\nHost: x\r\n{HANDSHAKE}".encode() + more + b"\r\n")
        return await rest(stream)


@asynccontextmanager
async def watching(node: FakeNode, url: str, query: str = "", user: str = "rita") -> AsyncIterator[Watching]:
    login = authorization(await asked(node, url, PATH + query), user, "GET", PATH + query)
    name, _, value = login.strip().partition(b": ")
    # Not `open_websocket_url`: it leaves the socket open where the server has closed the WebSocket.
    async with secured(node, url) as stream, trio.open_nursery() as nursery:
        web = await wrap_client_stream(
            nursery, stream, "x", PATH + query, extra_headers=[(name, value)], max_message_size=8 << 20
        )
        yield Watching(web)
        with trio.move_on_after(5):
            await web.aclose()
        nursery.cancel_scope.cancel()


async def refusal(node: FakeNode, url: str, query: str, user: str = "rita") -> dict[str, Any]:
    """The problem with which a WebSocket is refused, and the headers as text."""
    login = authorization(await asked(node, url, PATH + query), user, "GET", PATH + query)
    head, _, body = (await asked(node, url, PATH + query, login)).partition(b"\r\n\r\n")
    return {"headers": head.decode(), **json.loads(body)}


async def test_watcher_gets_how_things_stand_then_each_entry_after_its_index(node, url):
    for number in range(4):
        node.farm.commit(b"old %d" % number)
    node.farm.commit(b"\xff", ValueType.CONFIGURATION)
    async with watching(node, url, "?after=2") as web:
        assert await web.next() == {"kind": "leader", "index": 2, "leader": 1, "term": 3}
        members = await web.next()
        assert [row["id"] for row in members.pop("members")] == [1, 2, 3]
        assert members == {"kind": "members", "index": 2}
        assert await web.next() == {
            "kind": "health",
            "index": 2,
            "health": "degraded",
            "fault_tolerance": 0,
            "unreachable": [3],
            "disk_hangs": False,
        }
        publisher = {"kind": "publisher", "index": 2, "publisher": 1, "previous": None}
        assert await web.next() == {**publisher, "because": "", "since": None}
        application = {"kind": "entry", "term": 3, "type": "application"}
        assert await web.next() == {**application, "index": 3, "value": "old 2"}
        assert await web.next() == {**application, "index": 4, "value": "old 3"}
        configuration = {**application, "type": "configuration", "value_base64": "/w=="}
        assert await web.next() == {**configuration, "index": 5}
        node.farm.commit(b"new")
        assert await web.next() == {**application, "index": 6, "value": "new"}


async def test_watcher_without_an_index_gets_what_is_committed_from_now_on(node: FakeNode, url: str) -> None:
    node.farm.commit(b"old")
    async with watching(node, url, "?kinds=entry") as web:
        headers = {name.decode(): value.decode() for name, value in web.web.handshake_headers}
        assert headers["garlic-farm-next-after"] == "1"
        assert headers["garlic-farm-id"] == node.farm.farm_id.hex()
        node.farm.commit(b"new")
        assert (await web.next())["value"] == "new"


async def test_watcher_is_told_of_changes_that_are_no_entries(node: FakeNode, url: str) -> None:
    body = node.farm.status()
    node.farm.status = lambda: body  # type: ignore[method-assign]
    async with watching(node, url, "?kinds=leader,health,members") as web:
        assert [(await web.next())["kind"] for _ in range(3)] == ["leader", "members", "health"]
        body["leader"], body["term"], body["quorum"] = None, 4, False
        node.farm.tell()
        assert await web.next() == {"kind": "leader", "index": 0, "leader": None, "term": 4}
        health = await web.next()
        assert (health["kind"], health["health"]) == ("health", "no-quorum")
        body["members"][1]["role"] = "unreachable"  # of which nothing tells
        assert (await web.next())["unreachable"] == [2, 3]


async def test_watcher_is_told_of_every_publisher_though_several_changed_at_a_time(node, url):
    def named(index: int, publisher: int, previous: int) -> dict[str, Any]:
        event = {"index": index, "date_ms": 1, "text": "", "publisher": publisher}
        return {**event, "previous": previous, "because": "margin"}

    body = node.farm.status()
    node.farm.status = lambda: body  # type: ignore[method-assign]
    body["events"] = [named(1, 3, 2), named(4, 1, 3)]
    async with watching(node, url, "?after=2&kinds=publisher") as web:
        first = await web.next()
        assert (first["since"], first["previous"], first["publisher"]) == (4, 3, 1)
        body["events"] = [*body["events"], named(7, 2, 1), named(9, 1, 2)]
        node.farm.tell()
        assert [(await web.next())["since"] for _ in range(2)] == [7, 9]
    async with watching(node, url, "?after=9&kinds=publisher") as web:
        level = await web.next()
        assert (level["publisher"], level["since"]) == (1, None), "nothing has changed since"


async def test_watcher_that_takes_no_entries_is_told_how_far_they_are(node: FakeNode, url: str) -> None:
    async with watching(node, url, "?kinds=position") as web:
        node.farm.commit(b"one")
        assert await web.next() == {"kind": "position", "index": 1}
        node.farm.commit(b"two")
        assert await web.next() == {"kind": "position", "index": 2}


async def test_watcher_without_news_is_told_its_position(node, url, monkeypatch):
    monkeypatch.setattr(live_events, "QUIET_S", 0.05)
    node.farm.commit(b"one")
    async with watching(node, url, "?kinds=entry") as web:
        for _ in range(2):
            assert await web.next() == {"kind": "position", "index": 1}


@pytest.mark.parametrize(
    ("query", "status", "kind"),
    [
        ("?after=-1", 400, "bad-query"),
        ("?after=x", 400, "bad-query"),
        ("?kinds=", 400, "bad-query"),
        ("?kinds=entry,secret", 400, "bad-query"),
        ("?after=2", 410, "compacted"),
        ("?linearizable=yes", 400, "bad-query"),
    ],
)
async def test_query_that_cannot_be_served_is_refused_before_there_is_a_websocket(
    node: FakeNode, url: str, http: httpx.AsyncClient, query: str, status: int, kind: str
) -> None:
    for _ in range(6):
        node.farm.commit(b"entry")
    node.farm.compact(4)
    problem = await refusal(node, url, query)
    assert (problem["status"], problem["type"]) == (status, f"garlicfarm:{kind}")
    assert "\r\ngarlic-farm-first-index: 4\r\n" in problem["headers"]
    response = await http.get(PATH + query)
    assert (response.status_code, response.json()["type"]) == (status, f"garlicfarm:{kind}")
    if kind == "compacted":
        assert problem["first_index"] == 4


async def test_entries_that_are_gone_do_not_matter_to_a_watcher_of_none(node: FakeNode, url: str) -> None:
    node.farm.commit(b"entry")
    node.farm.commit(b"entry")
    node.farm.compact(3)
    async with watching(node, url, "?after=0&kinds=leader") as web:
        assert (await web.next())["kind"] == "leader"


async def test_watchers_are_bounded_and_give_their_places_back(node, url, monkeypatch):
    monkeypatch.setattr(watch, "MAX_WATCHERS", 3)
    monkeypatch.setattr(watch, "MAX_WATCHERS_OF_USER", 2)
    readers = partial(node.metrics.registry.get_sample_value, "garlicfarm_feed_readers", {"farm": "farm"})
    async with watching(node, url), watching(node, url):
        assert (await refusal(node, url, ""))["type"] == "garlicfarm:too-many-watchers"
        async with watching(node, url, user="paul"):
            assert (await refusal(node, url, "", "anna"))["type"] == "garlicfarm:too-many-watchers"
            await wait_until(lambda: readers() == 3)
    await wait_until(lambda: readers() == 0)
    async with watching(node, url, user="anna") as web:
        assert (await web.next())["kind"] == "leader"


async def test_watcher_that_loses_its_login_is_cut(node, url, monkeypatch):
    monkeypatch.setattr("garlicfarm.admin.server.CHECK_S", 0.05)
    async with watching(node, url) as web:
        await web.next()
        node.users.remove("rita")
        assert await web.code() == 1006


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b"\x82\xff" + (2**62).to_bytes(8, "big") + bytes(4), bytes(1 << 16)),
        (b"\x01\x81" + bytes(4) + b"x", (b"\x00\x81" + bytes(4) + b"x") * 9000),
        (b"\x89\xff" + (2**62).to_bytes(8, "big") + bytes(4), bytes(1 << 16)),
    ],
    ids=["frame", "fragments", "ping"],
)
async def test_watchers_that_send_a_message_without_end_are_cut_and_not_read_on(node, url, first, then):
    most = 32 << 20  # more than the buffers of both sockets hold
    sent = list[int]()

    async def flood() -> None:
        login = authorization(await asked(node, url, PATH), "rita", "GET", PATH)
        async with secured(node, url) as stream:
            await stream.send_all(f"GET {PATH} HTTP/1.1\r\nHost: x\r\n{HANDSHAKE}".encode() + login + b"\r\n")
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 101")
            number = len(sent)
            sent.append(len(first))
            try:
                await stream.send_all(first)
                while sent[number] < most:
                    await stream.send_all(then)
                    sent[number] += len(then)
            except trio.BrokenResourceError:
                pass

    async with watching(node, url, "?kinds=entry") as other:
        with trio.fail_after(240):
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(flood)
        await wait_until(lambda: node.running_requests == 1)
        node.farm.commit(b"still here")
        assert (await other.next_of("entry"))["value"] == "still here"
    assert max(sent) < most


async def test_watchers_are_told_that_the_node_ends(node: FakeNode, url: str, shutdown: trio.Event) -> None:
    async with watching(node, url) as web:
        await web.next()
        shutdown.set()
        assert await web.code() == 1001


async def test_watcher_of_a_farm_that_is_no_longer_served_is_closed(node, url, monkeypatch):
    monkeypatch.setattr(live_events, "LOOK_S", 0.05)
    async with watching(node, url) as web:
        await web.next()
        del node.farms["farm"]
        assert await web.code() == 1001


async def test_watcher_that_falls_behind_the_log_is_closed_and_gets_the_reason_next_time(
    node: FakeNode, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_events, "PIECE_BYTES", 1)
    for _ in range(6):
        node.farm.commit(b"entry")
    read, read_once = node.farm.read, trio.Event()

    async def compacted_meanwhile(after: int, upto: int, max_bytes: int) -> Any:
        if after == 1:
            node.farm.compact(5)
            read_once.set()
        return await read(after, upto, max_bytes)

    node.farm.read = compacted_meanwhile  # type: ignore[method-assign]
    async with watching(node, url, "?after=0&kinds=entry") as web:
        assert (await web.next())["index"] == 1
        assert await web.code() == 1013
    assert (await refusal(node, url, "?after=1"))["first_index"] == 5


# ------------------------------------------------------------------ slow watchers


async def test_watcher_that_never_reads_holds_up_no_other_and_is_held_no_more_for(node, url, monkeypatch):
    """Judged by what came: thousands of entries reach one while the other takes none."""
    monkeypatch.setattr("garlicfarm.admin.server.SEND_S", math.inf)
    monkeypatch.setattr(live_events, "REST_S", 0.0)
    monkeypatch.setattr(live_events, "REST_PER_MESSAGE_S", 0.0)
    monkeypatch.setattr(live_events, "BYTES_PER_S", math.inf)
    read, upto_of_reads = node.farm.read, list[int]()

    async def noted(after: int, upto: int, max_bytes: int) -> Any:
        upto_of_reads.append(upto)
        return await read(after, upto, max_bytes)

    monkeypatch.setattr(node.farm, "read", noted)
    count, size = 400, 100_000  # more than the buffers of any socket
    async with watching(node, url, "?kinds=entry") as silent, watching(node, url, "?kinds=entry") as web:
        for number in range(count):
            node.farm.commit(b"%d " % number + b"x" * size)
            event = await web.next_of("entry")
            assert event["index"] == number + 1
        assert len(upto_of_reads) < 1.5 * count, "what is read is for all of them"
        upto_of_reads.clear()
        for number in range(count):
            assert (await silent.next_of("entry"))["index"] == number + 1
    assert (count - max(upto_of_reads, default=0)) * size <= live_events.HELD_BYTES, (
        "it reads the rest for itself"
    )


# ------------------------------------------------------------------ Server-Sent Events


async def read_sse(node: FakeNode, url: str, query: str, count: int, **headers: str) -> list[dict[str, Any]]:
    """The first events."""
    tls = client_tls(pin=node.pin, ca=None)
    client = HttpsClient(url, user="rita", password=PASSWORDS["rita"][1], tls=tls)
    answer = await client.request("GET", PATH + query, headers=headers, stream=True)
    assert isinstance(answer, StreamedAnswer)
    assert answer.header("Content-Type") == "text/event-stream; charset=utf-8"
    assert answer.header("Cache-Control") == "no-store"
    text = ""
    async with answer.pieces() as pieces:
        async for piece in pieces:
            text += piece.decode()
            if text.count("\n\n") >= count:
                break
    await client.aclose()
    events = []
    for block in text.split("\n\n")[:count]:
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        events.append({**fields, "id": int(fields["id"]), "data": json.loads(fields["data"])})
    return events


async def test_page_gets_events_with_their_index_and_resumes_by_it(node: FakeNode, url: str) -> None:
    for number in range(3):
        node.farm.commit(b"old %d" % number)
    accept = {"Accept": "text/event-stream"}
    first, entry = await read_sse(node, url, "?after=1&kinds=entry,leader", 2, **accept)
    assert (first["event"], first["id"], first["data"]["leader"]) == ("leader", 1, 1)
    assert (entry["event"], entry["id"], entry["data"]["value"]) == ("entry", 2, "old 1")
    resumed = {**accept, "Last-Event-ID": "2"}
    events = await read_sse(node, url, "?after=0&kinds=entry", 1, **resumed)
    assert [event["id"] for event in events] == [3]


async def test_page_is_refused_what_it_does_not_take(http: httpx.AsyncClient) -> None:
    response = await http.get(PATH, headers={"Accept": "application/json"})
    assert (response.status_code, response.json()["type"]) == (406, "garlicfarm:not-acceptable")
    response = await http.get(PATH, headers={"Last-Event-ID": "none"})
    assert (response.status_code, response.json()["type"]) == (400, "garlicfarm:bad-query")
    assert (await http.head(PATH)).status_code == 200


async def test_page_of_another_site_gets_no_events(node: FakeNode, url: str, http: httpx.AsyncClient) -> None:
    response = await http.get(PATH, headers={"Origin": "https://evil.example"})
    assert response.status_code == 403
    login = authorization(await asked(node, url, PATH), "rita", "GET", PATH)
    answer = await asked(node, url, PATH, login + b"Origin: https://evil.example\r\n")
    assert answer.startswith(b"HTTP/1.1 403")


async def test_page_counts_as_a_watcher_from_when_its_place_was_found_free(node, monkeypatch):
    """The first page's answer has not begun when the second one asks."""
    monkeypatch.setattr(watch, "MAX_WATCHERS_OF_USER", 1)
    app = create_app(node, shutdown=trio.Event())  # type: ignore[arg-type]
    first_is_held = trio.Event()

    async def holding(scope: Any, receive: Any, send: Any) -> None:
        async def hold(message: Any) -> None:
            if message.get("status") == 200:
                first_is_held.set()
                await trio.sleep_forever()
            await send(message)

        await app(scope, receive, hold)

    async def ask() -> httpx.Response:
        auth = httpx.DigestAuth("rita", PASSWORDS["rita"][1])
        transport = httpx.ASGITransport(holding)
        async with httpx.AsyncClient(transport=transport, base_url="https://node", auth=auth) as client:
            return await client.get(PATH)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        with trio.fail_after(240):
            await first_is_held.wait()
            second = await ask()
        nursery.cancel_scope.cancel()
    assert (second.status_code, second.json()["type"]) == (503, "garlicfarm:too-many-watchers")
