"""A node whose process is stopped: `AdminClient` leaves it for another, and keeps one that is only slow."""

from __future__ import annotations

import gc
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from garlicfarm.admin import server
from garlicfarm.client import AdminClient, EntryEvent, events, https
from garlicfarm.client.answers import Answer
from garlicfarm.client.trust import client_tls
from garlicfarm.errors import OutcomeUnknown
from garlicfarm.feed.binary_format import encode_records
from garlicfarm.raft.types import Entry
from garlicfarm.wire.messages import ValueType
from tests.admin.fake_node import PASSWORDS, FakeNode, client_of
from tests.admin.test_admin_client_events import NOBODY, Cable, entries
from tests.running import background, wait_until


@pytest.fixture
def other(tmp_path: Path) -> FakeNode:
    """Another node, with a log of its own."""
    return FakeNode(tmp_path / "other")


@pytest.fixture(autouse=True)
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but silence makes the client leave a node."""
    for module, names in (
        (https, ("ANSWER_TIMEOUT_S", "CONNECT_TIMEOUT_S")),
        (events, ("PING_S", "PONG_S", "CONNECT_S")),
        (server, ("HANDSHAKE_S", "HEADER_S", "IDLE_S")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, math.inf)


@asynccontextmanager
async def two(node: FakeNode, other: FakeNode) -> AsyncIterator[tuple[AdminClient, Cable]]:
    """A client of both nodes, which asks the first one first, and the cable to that one."""
    with trio.fail_after(240):
        async with node.running() as first, other.running() as second, trio.open_nursery() as nursery:
            cable = Cable(first)
            through = await nursery.start(cable.run)
            async with client_of({through: node, second: other}, "paul") as client:
                yield client, cable
            nursery.cancel_scope.cancel()


async def test_question_to_a_node_that_falls_silent_is_asked_elsewhere(node, other):
    node.farm.commit(b"here")
    other.farm.commit(b"there")
    async with two(node, other) as (client, cable):
        page, _ = await client.page("farm", 0)
        assert [entry.value for entry in page.entries] == [b"here"]
        cable.is_silent = True
        for _ in range(2):
            page, _ = await client.page("farm", 0)
            assert [entry.value for entry in page.entries] == [b"there"]
            made = cable.made
        assert cable.made == made, "it is not asked again"


async def test_post_to_a_node_that_falls_silent_is_unknown_and_the_next_goes_elsewhere(node, other):
    async with two(node, other) as (client, cable):
        await client.post("farm", b"before")
        cable.is_silent = True
        with pytest.raises(OutcomeUnknown, match="read the log before"):
            await client.post("farm", b"lost")
        assert other.farm.commit_index == 0
        made = cable.made
        assert await client.post("farm", b"after") == (1, 3)
        assert cable.made == made, "the silent one is not asked again"
    assert node.farm.commit_index == 1


async def test_post_whose_connection_to_a_silent_node_is_not_up_goes_elsewhere_at_once(node, other):
    """That one has certainly taken nothing."""
    async with two(node, other) as (client, cable):
        cable.is_silent = True
        assert await client.post("farm", b"entry") == (1, 3)
    assert (node.farm.commit_index, other.farm.commit_index) == (0, 1)


async def test_post_that_is_asked_to_log_in_and_not_heard_goes_elsewhere(node, other, nursery):
    """The node has the entry, and without a login does nothing with it."""

    async def mute(stream: trio.SSLStream[trio.SocketStream]) -> None:
        while await stream.receive_some():
            pass

    async with other.running() as second:
        first = await node.impersonated(mute, nursery)
        async with client_of({first: node, second: other}, "paul") as client:
            assert await client.post("farm", b"entry") == (1, 3)
    nursery.cancel_scope.cancel()


async def test_node_whose_commit_takes_long_is_waited_for(node, other, monkeypatch):
    commit = trio.Event()
    post = node.farm.post

    async def slow(entry: bytes, user: str) -> tuple[int, int]:
        await commit.wait()
        return await post(entry, user)

    async with two(node, other) as (client, _):
        await client.node()
        monkeypatch.setattr(node.farm, "post", slow)
        places = []

        async def take() -> None:
            places.append(await client.post("farm", b"entry"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            asked = node.requests
            await wait_until(lambda: node.requests >= asked + 3)  # the post, and two questions
            commit.set()
        assert places == [(1, 3)]
    assert other.requests == 0


async def test_long_poll_of_a_node_that_has_nothing_new_is_waited_for_until_the_node_is_stopped(node, other):
    other.farm.commit(b"there")
    async with two(node, other) as (client, cable):
        got = []

        async def follow() -> None:
            async for entry in client.log("farm", wait_s=30):
                got.append(entry.value)

        async with background(follow):
            await wait_until(lambda: node.requests >= 4)  # a challenge, the question, two more
            assert got == []
            node.farm.commit(b"here")
            await wait_until(lambda: got)
            other.farm.commit(b"what follows")
            cable.is_silent = True
            await wait_until(lambda: len(got) == 2)
        assert got == [b"here", b"what follows"]


async def test_page_whose_node_is_stopped_amid_it_goes_on_at_another(node, other, monkeypatch):
    for number in range(400):
        node.farm.commit(b"%d " % number + b"x" * 20_000)
    other.farm.log = list(node.farm.log)
    async with two(node, other) as (client, cable):
        read = node.farm.read

        async def stop_amid(after: int, upto: int, max_bytes: int):
            cable.is_silent = cable.is_silent or after > 100
            return await read(after, upto, max_bytes)

        monkeypatch.setattr(node.farm, "read", stop_amid)
        got = [int(entry.value.split()[0]) async for entry in client.log("farm")]
        assert cable.is_silent
        assert cable.made == 2, "for the page and for a question"
    assert got == list(range(400))


async def test_node_all_of_whose_connections_are_in_use_is_no_silent_one(node, other):
    async with two(node, other) as (client, _):
        await client.node()
        pages = []

        async def wait() -> None:
            pages.append((await client.page("farm", 0, wait_s=30))[0])

        async with trio.open_nursery() as nursery:
            for _ in range(https.MAX_CONNECTIONS):
                nursery.start_soon(wait)
            await wait_until(lambda: node.farm.waiting == https.MAX_CONNECTIONS)
            asked = node.requests
            await wait_until(lambda: node.requests >= asked + 2 or other.requests)
            node.farm.commit(b"here")
        assert [page.entries[0].value for page in pages] == [b"here"] * https.MAX_CONNECTIONS
    assert other.requests == 0


async def test_page_that_comes_slowly_is_read_to_its_end(node, monkeypatch, autojump_clock):
    """Questions beside it are not heard on a narrow path."""
    value = bytes(100)

    class Slow(https.StreamedAnswer):
        @asynccontextmanager
        async def pieces(self) -> AsyncIterator[AsyncIterator[bytes]]:
            async def each() -> AsyncIterator[bytes]:
                for index in range(1, 9):
                    await trio.sleep(1.5 * https.SILENT_S)
                    yield encode_records([Entry(index, 1, ValueType.APPLICATION, value)])

            yield each()

    async def request(client: https.HttpsClient, method: str, target: str, **options: Any) -> Answer:
        client.hear()
        numbers = {"garlic-farm-next-after": "8", "garlic-farm-commit-index": "8"}
        return Slow(200, numbers, b"", client.authority, None, client)

    async def ask(client: https.HttpsClient) -> None:
        if client.authority.endswith("1"):
            await trio.sleep_forever()

    monkeypatch.setattr(https.HttpsClient, "request", request)
    monkeypatch.setattr(https.HttpsClient, "ask", ask)
    async with client_of({"https://127.0.0.1:1": node, "https://127.0.0.1:2": node}) as client:
        page, _ = await client.page("farm", 0)
    assert [entry.index for entry in page.entries] == list(range(1, 9))


async def test_node_that_answers_from_afar_is_given_more_time(node, autojump_clock):
    tls = client_tls(pin=node.pin, ca=None)
    client = https.HttpsClient(NOBODY, user="rita", password="x", tls=tls)
    patience: list[float] = [client.patience_s]
    for took_s in (3.0, 2.0, 9.0, 0.01):
        sent = trio.current_time()
        await trio.sleep(took_s)
        client.hear(sent)
        assert client.heard == trio.current_time()
        patience.append(client.patience_s)
    assert patience == [0.5, 24.0, 16.0, 16.0, 0.5]
    await client.aclose()


async def test_request_given_up_while_it_is_written_leaves_nothing_to_the_garbage_collector(node, nursery):
    async with node.running() as url:
        cable = Cable(url)
        through_cable = await nursery.start(cable.run)
        tls = client_tls(pin=node.pin, ca=None)
        client = https.HttpsClient(through_cable, user="rita", password=PASSWORDS["rita"][1], tls=tls)
        assert (await client.request("GET", "/v1/node", headers={})).status == 200
        cable.is_silent = True
        with trio.CancelScope() as scope:
            sent = partial(setattr, scope, "deadline", trio.current_time() + 0.1)
            await client.request("POST", "/", headers={}, content=bytes(64 * 2**20), on_sent=sent)
        assert scope.cancelled_caught
        gc.collect()  # whatever warns there fails the test
        await client.aclose()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_down", [True, False])
async def test_while_no_other_node_answers_the_silent_one_is_waited_for(
    is_down, node, other, nursery, monkeypatch
):
    monkeypatch.setattr(https, "ANSWER_TIMEOUT_S", 3.0)
    async with node.running() as url, other.running() as other_url:
        cables = Cable(url), Cable(other_url)
        first, second = [await nursery.start(cable.run) for cable in cables]
        urls = {first: node, NOBODY if is_down else second: other}
        async with client_of(urls, "paul") as client:
            await client.node()
            for cable in cables:
                cable.is_silent = True
            with pytest.raises(OutcomeUnknown):
                await client.post("farm", b"entry")
        nursery.cancel_scope.cancel()


async def test_events_of_a_node_that_falls_silent_go_on_at_another(node, other):
    other.farm.log = node.farm.log
    async with two(node, other) as (client, cable):
        async with client.events("farm", after=0, kinds=["entry"]) as stream:
            node.farm.commit(b"0")
            assert await entries(stream, 1) == [b"0"]
            cable.is_silent = True
            other.farm.commit(b"1")
            assert await entries(stream, 1) == [b"1"]
            made = cable.made
            other.farm.commit(b"2")
            assert isinstance(event := await anext(stream), EntryEvent)
            assert event.index == 3
        assert cable.made == made


async def test_events_begin_at_another_node_where_the_first_one_is_silent(node, other):
    other.farm.commit(b"there")
    async with two(node, other) as (client, cable):
        cable.is_silent = True
        async with client.events("farm", after=0, kinds=["entry"]) as stream:
            assert await entries(stream, 1) == [b"there"]
