"""Tests of other members, answered at a destination that a scripted SAM makes."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

import pytest
import trio

from garlicfarm.errors import NotSupported, RouterError
from garlicfarm.i2p.destination import destination_hash
from garlicfarm_plugin_i2pcontrol import answering
from tests.publishers.sam_router import SamRouter
from tests.publishing.scripted_log import destination
from tests.running import wait_until

OWN = destination(5)


@pytest.fixture
async def sam() -> AsyncIterator[SamRouter]:
    async with SamRouter() as made:
        made.replies["NAMING LOOKUP"] = f"NAMING REPLY RESULT=OK NAME=ME VALUE={OWN}"
        yield made


async def test_stream_that_asks_is_answered_until_the_router_plugin_is_told_to_end(
    sam: SamRouter, make
) -> None:
    router = make(sam=sam.address, hops=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(router.answer_tests)
        await wait_until(lambda: router.control is not None)
        assert router.control == destination_hash(OWN)
        (created,), (forwarded,) = sam.told("SESSION CREATE"), sam.told("STREAM FORWARD")
        assert (created["DESTINATION"], created["inbound.length"], created["inbound.quantity"]) == (
            "TRANSIENT",
            "1",
            "1",
        )
        for _ in range(answering.MAX_STREAMS + 1):  # streams that end make room
            stream = await trio.open_tcp_stream("127.0.0.1", int(forwarded["PORT"]))
            async with stream:
                await stream.send_all(b"HEAD / HTTP/1.1\r\n\r\n")
                assert await stream.receive_some() == answering.ANSWER
        nursery.cancel_scope.cancel()
    assert router.control is None
    await wait_until(lambda: not sam.sessions)


async def test_stream_beyond_the_most_is_closed_at_once(sam: SamRouter, make, monkeypatch) -> None:
    monkeypatch.setattr(answering, "STREAM_TIMEOUT_S", math.inf)  # it waits for none of the others
    router = make(sam=sam.address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(router.answer_tests)
        await wait_until(lambda: router.control is not None)
        port = int(sam.told("STREAM FORWARD")[0]["PORT"])
        held = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(answering.MAX_STREAMS)]
        for stream in held:
            await stream.send_all(b"HEAD / HTTP/1.1\r\n\r\n")
            assert await stream.receive_some() == answering.ANSWER
        async with await trio.open_tcp_stream("127.0.0.1", port) as beyond:
            assert await beyond.receive_some() == b""
        for stream in held:
            await stream.aclose()
        nursery.cancel_scope.cancel()


async def test_session_that_ends_or_is_refused_ends_it_with_the_cause(sam: SamRouter, make) -> None:
    router = make(sam=sam.address)

    async def cut() -> None:
        await wait_until(lambda: router.control is not None)
        sam.cut()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cut)
        with pytest.raises(RouterError, match="closed the SAM connection"):
            await router.answer_tests()
    assert router.control is None
    sam.replies["SESSION CREATE"] = "SESSION STATUS RESULT=I2P_ERROR MESSAGE=busy"
    with pytest.raises(RouterError, match="refused SESSION CREATE: I2P_ERROR: busy"):
        await router.answer_tests()
    sam.replies = {}
    with pytest.raises(RouterError, match="own session"):
        await router.answer_tests()


async def test_router_without_sam_answers_nothing(make) -> None:
    with pytest.raises(NotSupported, match=r"router\.sam"):
        await make().answer_tests()


@pytest.mark.parametrize(
    ("url", "measures"),
    [("https://127.0.0.1:7650", True), ("http://127.0.0.1:7657/jsonrpc/", False)],
)
async def test_only_i2pd_measures_what_it_serves_itself(
    make, sam: SamRouter, url: str, measures: bool
) -> None:
    assert make(url=url, sam=sam.address).measures_served is measures
    assert make(url=url).measures_served is False
