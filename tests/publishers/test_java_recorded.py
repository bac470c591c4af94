"""What a real Java I2P has answered, as tests/data/java/README.md describes it: it is understood, and the
Java I2P of the tests answers the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from garlicfarm.i2p.i2cp import (
    SESSION_CREATED,
    SESSION_UPDATED,
    BandwidthLimits,
    Disconnect,
    Message,
    MessageDecoder,
    MessagePayload,
    RequestLeaseSet,
    SessionStatus,
    SetDate,
)
from garlicfarm.i2p.router_kind import KindMemory
from garlicfarm.net.sam import NOT_FOUND, NOT_READY, parse_reply
from garlicfarm_plugin_i2cp.streaming.payload import decode_payload
from tests.publishers.java_router import JavaRouter

RECORDINGS = Path(__file__).parents[1] / "data" / "java"
Line = dict[str, Any]
CREATED, UPDATED = SessionStatus(0, SESSION_CREATED), SessionStatus(0, SESSION_UPDATED)


def read(name: str) -> list[Line]:
    return [json.loads(line) for line in (RECORDINGS / f"{name}.jsonl").read_text().splitlines()]


def answers(lines: list[Line], connection: int = 0) -> list[Message]:
    decoder = MessageDecoder()
    for line in lines:
        if (line["connection"], line["from"]) == (connection, "java"):
            decoder.receive_data(bytes.fromhex(line["data"]))
    found = []
    while (message := decoder.next_message()) is not None:
        found.append(message)
    decoder.receive_eof()
    return found


def kinds(messages: list[Message]) -> list[Any]:
    """Each message without what differs each time."""

    def kind(message: Message) -> Any:
        match message:
            case SessionStatus():
                return SessionStatus(0, message.status)
            case Disconnect():
                return message.reason.split("?")[0]
            case _:
                return type(message)

    return [kind(each) for each in messages]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "i2cp-session",
            [SetDate, CREATED, RequestLeaseSet, SetDate, BandwidthLimits, UPDATED, SetDate],
        ),
        (
            "i2cp-key-mismatch",
            [
                *(SetDate, CREATED, RequestLeaseSet, SetDate),
                "Private/public crypto key mismatch in LS for key: 0",
            ],
        ),
        ("i2cp-old-date", [SetDate, "Create session message client clock skew"]),
        ("i2cp-meta", [SetDate, CREATED, RequestLeaseSet, SetDate, SetDate]),
        (
            "i2cp-meta-with-count",
            [
                *(SetDate, CREATED, RequestLeaseSet),
                "net.i2p.data.i2cp.I2CPMessageException: Invalid message length specified",
            ],
        ),
    ],
)
async def test_java_of_the_tests_answers_as_the_real_one_did(
    nursery: trio.Nursery, name: str, expected: list[Any]
) -> None:
    lines = read(name)
    assert kinds(answers(lines)) == expected
    dates = [message for message in answers(lines) if isinstance(message, SetDate)]
    now_ms = dates[0].date_ms
    router = JavaRouter(lambda: now_ms)
    ours, theirs = memory_stream_pair()
    nursery.start_soon(router.serve, theirs)
    for line in lines:
        if line["from"] == "us":
            with suppress(trio.BrokenResourceError):  # it has closed, as the real one
                await ours.send_all(bytes.fromhex(line["data"]))
            await wait_all_tasks_blocked()
            now_ms = dates[0].date_ms + line["ms"]
    decoder = MessageDecoder()
    with suppress(trio.BrokenResourceError):
        await ours.send_eof()
    async for data in ours:
        decoder.receive_data(bytes(data))
    found = []
    while (message := decoder.next_message()) is not None:
        found.append(message)
    assert kinds(found) == expected


def test_limits_show_that_it_is_java() -> None:
    (limits,) = [each for each in answers(read("i2cp-session")) if isinstance(each, BandwidthLimits)]
    assert KindMemory().kind(limits, "0.9.64") == "java"


def test_second_session_of_a_destination_is_refused_in_a_sentence() -> None:
    assert answers(read("i2cp-same-destination"), 1)[-1] == Disconnect("duplicate destination")


def test_packet_of_a_client_at_the_same_router_reaches_a_session_on_standby() -> None:
    (payload,) = [each for each in answers(read("i2cp-local-delivery")) if isinstance(each, MessagePayload)]
    assert decode_payload(payload.payload).data == b"a packet of a client"


def replies(is_to: Callable[[str], bool]) -> list[dict[str, str]]:
    """What was replied to each SAM command of this kind."""
    found, lines = [], read("sam-service")
    for number, line in enumerate(lines):
        command = bytes.fromhex(line["data"]).decode()
        if line["from"] == "us" and is_to(command):
            later = [each for each in lines[number + 1 :] if each["connection"] == line["connection"]]
            topic, pairs = parse_reply(bytes.fromhex(later[0]["data"]).decode().rstrip("\n"))
            assert topic.split()[0] == command.split()[0]
            found.append(pairs)
    return found


def test_sam_refuses_to_forward_for_a_session_that_it_creates() -> None:
    results = [each["RESULT"] for each in replies(lambda command: command.startswith("STREAM FORWARD"))]
    assert results == ["INVALID_ID", "I2P_ERROR", "OK"]
    assert set(results[:2]) == NOT_READY


def test_sam_finds_an_unknown_address_to_be_no_key_and_its_own_by_itself() -> None:
    unknown, own = replies(lambda command: command.startswith("STREAM CONNECT"))
    assert unknown["RESULT"] == "INVALID_KEY"
    assert unknown["RESULT"] in NOT_FOUND
    assert own["RESULT"] == "OK"


def test_sam_refuses_a_second_session_of_a_destination_with_a_reason() -> None:
    refused = replies(lambda command: " ID=again " in command)
    assert [each["RESULT"] for each in refused] == ["I2P_ERROR"]
    assert "duplicate destination" in refused[0]["MESSAGE"]
