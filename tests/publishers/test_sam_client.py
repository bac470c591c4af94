from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.errors import ConfigError, LocalProtocolError, RemoteProtocolError, UnreachableError
from garlicfarm.i2p.encoding import encode
from garlicfarm.lab.destinations import simulated_destination
from garlicfarm.net import sam
from garlicfarm.net.sam import SamRefused, SamSession, open_sam, parse_reply, sam_endpoint
from tests.publishers.sam_router import SamRouter

KEY = "k" * 1000
DESTINATION = simulated_destination(1)


def test_reply_with_quoted_values_is_parsed() -> None:
    topic, pairs = parse_reply(r'SESSION STATUS  RESULT=I2P_ERROR MESSAGE="a \"b\" = \\ c" FLAG EMPTY= ')
    assert topic == "SESSION STATUS"
    assert pairs == {"RESULT": "I2P_ERROR", "MESSAGE": 'a "b" = \\ c', "FLAG": "", "EMPTY": ""}


@pytest.mark.parametrize(
    "line",
    [
        *("", "HTTP/1.1 400 Bad Request", "STREAM", "STREAM STATUSRESULT=OK", "stream status RESULT=OK"),
        *('STREAM STATUS MESSAGE="open', 'STREAM STATUS MESSAGE="a"b', "STREAM STATUS A=1 A=2"),
        "STREAM STATUS =1",
    ],
)
def test_line_that_is_no_reply_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a SAM reply"):
        parse_reply(line)


@given(st.dictionaries(st.from_regex("[A-Z_.]{1,9}", fullmatch=True), st.text(max_size=20), max_size=5))
def test_pairs_survive_quoting(pairs: dict[str, str]) -> None:
    pairs = {key: value.replace("\n", " ") for key, value in pairs.items()}
    quoted = {key: value.replace("\\", "\\\\").replace('"', '\\"') for key, value in pairs.items()}
    line = "STREAM STATUS" + "".join(f' {key}="{value}"' for key, value in quoted.items())
    assert parse_reply(line) == ("STREAM STATUS", pairs)


@given(st.text())
def test_any_text_is_a_reply_or_refused(text: str) -> None:
    with suppress(ValueError):
        topic, _ = parse_reply("NAMING REPLY " + text)
        assert topic == "NAMING REPLY"


@pytest.mark.parametrize(
    "text", ["", "router", "127.0.0.1", "127.0.0.1:0", "192.0.2.1:7656", "[::1]:7656?a=b"]
)
def test_address_that_is_no_port_of_loopback_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        sam_endpoint(text)


async def test_lookup_gives_the_destination_or_none(router: SamRouter) -> None:
    async with open_sam(router.endpoint) as connection:
        assert await connection.lookup("a.i2p") is None
        router.replies["NAMING LOOKUP"] = "NAMING REPLY RESULT=INVALID_KEY NAME=a.i2p"
        assert await connection.lookup("a.i2p") is None
        router.replies["NAMING LOOKUP"] = f"NAMING REPLY RESULT=OK NAME=a.i2p VALUE={encode(DESTINATION)}"
        assert await connection.lookup("a.i2p") == DESTINATION
    assert router.commands[1:] == ["NAMING LOOKUP NAME=a.i2p"] * 3


async def test_stream_keeps_every_byte_that_follows_the_reply(router: SamRouter) -> None:
    router.greeting = b"220 hello\r\n" * 1000
    async with SamSession(router.endpoint) as session:
        await session.wait_ready()
        async with session.connect("a.i2p") as stream:
            received = b""
            while len(received) < len(router.greeting):
                received += await stream.receive_some()
            assert received == router.greeting


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_session_outlives_its_streams(router, nursery, is_cancelled):
    """i2pd may crash otherwise."""
    router.closing = trio.Event()
    scope = trio.CancelScope()

    async def use() -> None:
        with scope:
            async with SamSession(router.endpoint) as session:
                await session.wait_ready()
                async with session.connect("a.i2p"):
                    if is_cancelled:
                        scope.cancel()

    nursery.start_soon(use)
    while not router.eofs:
        await router.changed.wait()
    await trio.testing.wait_all_tasks_blocked()
    assert router.sessions
    assert router.eofs == 1
    router.closing.set()
    while router.sessions:
        await router.changed.wait()


async def test_router_that_does_not_end_a_stream_is_waited_for_only_so_long(router, monkeypatch):
    monkeypatch.setattr(sam, "END_TIMEOUT_S", 0.01)
    router.closing = trio.Event()
    async with SamSession(router.endpoint) as session:
        await session.wait_ready()
        async with session.connect("a.i2p"):
            pass


async def test_session_has_its_key_options_and_forwarding(router: SamRouter) -> None:
    async with SamSession(router.endpoint, KEY, {"inbound.length": "1"}) as session:
        await session.forward(8080)
        await session.wait_ready()
        (created,) = router.told("SESSION CREATE")
        assert created == {"STYLE": "STREAM", "ID": created["ID"], "DESTINATION": KEY, "inbound.length": "1"}
        assert router.forwards == {created["ID"]: "8080"}
        assert KEY not in repr(session)
        await session.aclose()
        assert router.forwards == router.sessions == {}


async def test_two_sessions_have_two_ids(router: SamRouter) -> None:
    async with SamSession(router.endpoint) as first, SamSession(router.endpoint) as second:
        await first.wait_ready()
        await second.wait_ready()
        assert len(router.sessions) == 2


async def test_end_of_a_session_is_seen(router: SamRouter) -> None:
    async with SamSession(router.endpoint) as session:
        await session.wait_ready()
        router.cut()
        with pytest.raises(UnreachableError, match="closed the SAM connection"):
            await session.wait_ended()


async def test_closing_a_session_waits_for_the_router(router: SamRouter) -> None:
    router.closing = trio.Event()
    async with SamSession(router.endpoint) as session:
        await session.wait_ready()
        with trio.move_on_after(0.01) as scope:
            await session.aclose()
        assert scope.cancelled_caught


async def test_nothing_at_the_address_is_unreachable(router: SamRouter) -> None:
    router.kill()
    with pytest.raises(UnreachableError, match=f"nothing listens at the SAM address {router.address}"):
        async with open_sam(router.endpoint):
            pytest.fail("connected")


@pytest.mark.parametrize(
    "reply",
    [
        *(b"SSH-2.0-OpenSSH_9.2\r\n", b"\x00\xff\xfe\n", b"STREAM STATUS RESULT=OK\n", b"HELLO REPLY\n"),
        *(b"x" * 9000, b"HELLO REPLY RESULT=OK " + b"A" * 9000 + b"\n", b"HELLO REPLY RESULT=<b>\n"),
    ],
)
async def test_garbage_is_not_sam(router: SamRouter, reply: bytes) -> None:
    router.replies["HELLO VERSION"] = reply
    with pytest.raises(RemoteProtocolError, match="is that the router's SAM port"):
        async with open_sam(router.endpoint):
            pytest.fail("connected")


async def test_connection_closed_without_an_answer_is_unreachable(router: SamRouter) -> None:
    router.replies["HELLO VERSION"] = ""
    with pytest.raises(UnreachableError, match="closed the SAM connection"):
        async with open_sam(router.endpoint):
            pytest.fail("connected")


@pytest.mark.parametrize("result", ["NOVERSION", "I2P_ERROR"])
async def test_router_of_another_version_is_refused(router: SamRouter, result: str) -> None:
    router.replies["HELLO VERSION"] = f"HELLO REPLY RESULT={result}"
    with pytest.raises(SamRefused, match=f"refused HELLO: {result}") as caught:
        async with open_sam(router.endpoint):
            pytest.fail("connected")
    assert caught.value.result == result


@pytest.mark.parametrize(
    "reply",
    [
        f"SESSION STATUS RESULT=INVALID_KEY MESSAGE={KEY}",
        f'SESSION STATUS RESULT=I2P_ERROR MESSAGE="cannot use {KEY} here"',
        f"SESSION STATUS RESULT={KEY}",
        f"DESTINATION={KEY}",
        f"SESSION STATUS RESULT=OK DESTINATION={KEY * 9}",
    ],
)
async def test_refusal_never_quotes_the_key(router: SamRouter, reply: str) -> None:
    router.replies["SESSION CREATE"] = reply
    async with SamSession(router.endpoint, KEY) as session:
        with pytest.raises(RemoteProtocolError) as caught:
            await session.wait_ready()
    error: Any = caught.value
    while error is not None:
        assert "kkkk" not in f"{error} {vars(error)}"
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("value", ["two words", "a\nSESSION REMOVE", 'a"b', "", "é"])
async def test_value_that_would_break_the_line_is_refused(router: SamRouter, value: str) -> None:
    async with open_sam(router.endpoint) as connection:
        with pytest.raises(LocalProtocolError, match="NAME contains characters"):
            await connection.lookup(value)
    assert len(router.commands) == 1
