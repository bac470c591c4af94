"""Whoever misbehaves at the farm listener costs its own connection, one counted log line, and no more."""

from __future__ import annotations

import logging
import math
import os
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from garlicfarm.credentials.login_attempts import LoginAttempts
from garlicfarm.errors import AuthError, RemoteProtocolError, TransportError
from garlicfarm.http.digest import Refused, Verified
from garlicfarm.http.upgrade import farm_target
from garlicfarm.logs import TextFormatter
from garlicfarm.wire import encode_request
from garlicfarm.wire.messages import LogEntry, MessageType, Request, ValueType
from tests.node.support.cluster import ALONE_AND_QUICK, Cluster, client_request, cluster
from tests.running import wait_until

EVIL = "127.0.0.66"
CONTENTS = b"ENTRY-CONTENTS"
HEADER = struct.Struct(">BIIQQQQI")
STEP_S = 0.2
"""How far the clock goes on each time an honest client was answered. Until then it stands still, and with it
all deadlines: an attacker that holds up others holds them up for ever."""

Attack = Callable[[Cluster], Awaitable[None]]


class Log(logging.Handler):
    """What the nodes log: (fields, the line)."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[dict[str, object], str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "garlicfarm_fields", {})
        self.lines.append((fields, TextFormatter().format(record)))

    def of(self, *events: str) -> list[dict[str, object]]:
        return [fields for fields, _ in self.lines if fields.get("event") in events]


@pytest.fixture
def log() -> Iterator[Log]:
    handler = Log()
    root = logging.getLogger()
    ours = logging.getLogger("garlicfarm")
    root.addHandler(handler)
    ours.setLevel(logging.INFO)
    yield handler
    root.removeHandler(handler)
    ours.setLevel(logging.NOTSET)


async def ends(stream: trio.abc.Stream) -> bytes:
    """What a server sends until it closes."""
    received = b""
    with suppress(trio.BrokenResourceError):
        while data := await stream.receive_some(65536):
            received += data
    return received


async def sends(stream: trio.abc.Stream, data: bytes) -> bytes:
    with suppress(trio.BrokenResourceError):  # cut before the last byte: that is as good
        await stream.send_all(data)
    return await ends(stream)


async def tcp(farm: Cluster) -> trio.SocketStream:
    endpoint = farm.endpoint()
    return await trio.open_tcp_stream(endpoint.host, endpoint.port, local_address=EVIL)


async def tls(farm: Cluster) -> trio.abc.Stream:
    return await farm.connect(source=EVIL)()


# Before and during the handshake


async def plain_text(farm: Cluster) -> None:
    async with await tcp(farm) as stream:
        assert b"HTTP" not in await sends(stream, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")


async def noise_instead_of_tls(farm: Cluster) -> None:
    async with await tcp(farm) as stream:
        await sends(stream, os.urandom(1000))


async def silence_instead_of_tls(farm: Cluster) -> None:
    async with await tcp(farm) as stream:
        assert await ends(stream) == b""


async def silence_after_tls(farm: Cluster) -> None:
    async with await tls(farm) as stream:
        assert await ends(stream) == b""


async def noise_after_tls(farm: Cluster) -> None:
    async with await tls(farm) as stream:
        assert (await sends(stream, b"\x01\x02" * 500)).startswith(b"HTTP/1.1 400 ")


async def byte_by_byte(farm: Cluster) -> None:
    async with await tls(farm) as stream:
        with suppress(trio.BrokenResourceError):
            for byte in b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n":
                await stream.send_all(bytes([byte]))
                await trio.sleep(5 * STEP_S)
        assert await ends(stream) == b""


async def endless_headers(farm: Cluster) -> None:
    async with await tls(farm) as stream:
        reply = await sends(stream, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000)
        assert reply.startswith(b"HTTP/1.1 431 ")


async def basic_auth(farm: Cluster) -> None:
    head = f"GET {farm_target('farm')} HTTP/1.1\r\nHost: a\r\nAuthorization: Basic YWxpY2U6YWxpY2U=\r\n\r\n"
    async with await tls(farm) as stream:
        assert (await sends(stream, head.encode())).startswith(b"HTTP/1.1 401 ")


def is_refused(user: str, password: str) -> Attack:
    async def attack(farm: Cluster) -> None:
        with pytest.raises(AuthError):
            await farm.login(
                user, farm.password(int(password)) if password.isdigit() else password, source=EVIL
            )

    return attack


async def unknown_farm(farm: Cluster) -> None:
    with pytest.raises(RemoteProtocolError, match="no farm at"):
        await farm.login(farm="another", source=EVIL)


class Overheard(trio.abc.Stream):
    def __init__(self, sent: list[bytes], stream: trio.abc.Stream) -> None:
        self._sent = sent
        self._stream = stream

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._sent.append(bytes(data))
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()


async def replayed_login(farm: Cluster) -> None:
    sent: list[bytes] = []

    wire = await farm.login(source=EVIL, wrap=partial(Overheard, sent))
    assert b"Authorization: Digest" in sent[-1]
    async with await tls(farm) as stream:
        reply = await sends(stream, sent[-1])
    assert reply.startswith(b"HTTP/1.1 401 ")
    assert b"stale=true" in reply
    assert (await wire.ask(client_request())) is not None  # who was copied goes on


# After it


def closes(data: bytes, user: str = "alice") -> Attack:
    """The server closes without an answer."""

    async def attack(farm: Cluster) -> None:
        wire = await farm.login(user, source=EVIL)
        assert await sends(wire.stream, data) == b""

    return attack


async def end_inside_a_message(farm: Cluster) -> None:
    wire = await farm.login(source=EVIL)
    await wire.stream.send_all(encode_request(client_request(CONTENTS))[:-1])
    await wire.stream.aclose()


def vote(source: int, destination: int = 1, term: int = 0) -> Request:
    return Request(MessageType.REQUEST_VOTE_REQUEST, source, destination, term)


def append(term: int, *entries: LogEntry, source: int = 2) -> Request:
    return Request(MessageType.APPEND_ENTRIES_REQUEST, source, 1, term, entries=entries)


async def member_is_a_second_leader(farm: Cluster) -> None:
    await closes(encode_request(append(farm.replica().raw.term)), "2")(farm)


GOOD = encode_request(client_request(CONTENTS))
NEWCOMER = LogEntry(0, ValueType.CLUSTER_SERVER, b"\0\0\0\x09\0\0\0\x01x")
OVERSIZED = LogEntry(1, ValueType.APPLICATION, CONTENTS * (1 << 17))

AT_THE_DOOR = {
    each.__name__: each
    for each in (
        plain_text,
        noise_instead_of_tls,
        silence_instead_of_tls,
        silence_after_tls,
        noise_after_tls,
        byte_by_byte,
        endless_headers,
        basic_auth,
        unknown_farm,
        replayed_login,
    )
} | {
    "wrong_password": is_refused("alice", "guess"),
    "unknown_user": is_refused("mallory", "guess"),
    "number_that_is_no_id": is_refused("02", "2"),
    "password_of_another_member": is_refused("2", "3"),
}
INSIDE = {
    "noise": closes(b"\xff" * 200),
    "lying_size": closes(
        GOOD[: HEADER.size - 4] + struct.pack(">I", len(GOOD) - HEADER.size - 1) + GOOD[HEADER.size :]
    ),
    "oversized_entry": closes(encode_request(append(1, OVERSIZED)), "2"),  # a client's is told the reason
    "silence_inside_a_message": closes(GOOD[:-1]),
    "end_inside_a_message": end_inside_a_message,
    "client_asks_for_a_vote": closes(encode_request(vote(0, term=99))),
    "client_asks_for_an_index": closes(encode_request(Request(MessageType.READ_INDEX_REQUEST, 0, 1))),
    "client_appends": closes(encode_request(append(99, source=0))),
    "client_speaks_as_member": closes(encode_request(vote(2, term=99))),
    "client_adds_a_server": closes(
        encode_request(Request(MessageType.ADD_SERVER_REQUEST, 0, 1, entries=(NEWCOMER,)))
    ),
    "member_posts_as_another": closes(encode_request(client_request(CONTENTS, source=3, destination=1)), "2"),
    "member_is_a_second_leader": member_is_a_second_leader,
}
HARMLESS = {"silence_instead_of_tls", "silence_after_tls", "byte_by_byte", "replayed_login"}
"""Who says nothing may look for open ports; with an old nonce members come after a restart of ours."""
UNCOUNTED = {"basic_auth"}  # a challenge is the ordinary first half of a login
SECRETS = ("the word of", "ENTRY-CONTENTS", "Digest ", "Basic ", "guess", "Traceback")


@pytest.mark.parametrize("attack", [*AT_THE_DOOR, *INSIDE])
async def test_hostile_client_costs_its_own_connection_and_one_log_line(
    attack: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mock_clock: trio.testing.MockClock,
    log: Log,
) -> None:
    monkeypatch.setattr("garlicfarm.node.turns.STALL_S", math.inf)  # it is the clock that jumps
    mock_clock.rate = 1.0
    async with cluster(tmp_path) as farm:
        await farm.leader()
        honest = await farm.login()
        member = await farm.login("9")
        before = await honest.ask(client_request(b"before"))
        assert before.accepted
        term, index, made = farm.replica().raw.term, before.next_index, 0
        finished = trio.Event()

        async def attacking() -> None:
            await (AT_THE_DOOR | INSIDE)[attack](farm)
            finished.set()

        mock_clock.rate = 0.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(attacking)
            while not finished.is_set() or not made:
                answer = await honest.ask(client_request(b"during"))
                made += 1
                assert (answer.accepted, answer.next_index) == (True, index + made)
                mock_clock.jump(STEP_S)
        mock_clock.rate = 1.0
        after = await honest.ask(client_request(b"after"))
        assert (after.accepted, after.next_index, after.term) == (True, index + made + 1, term)
        assert (await member.ask(client_request(source=9))) is not None
        await wait_until(lambda: log.of("rejected", "connection-lost") or attack in UNCOUNTED)
    told = log.of("rejected", "connection-lost", "connection-defect")
    assert len(told) == (attack not in UNCOUNTED)
    assert all(fields["address"] == EVIL for fields in told)
    assert all((" WARNING " in line) != (attack in HARMLESS) for fields, line in log.lines if fields in told)
    everything = "\n".join(line for _, line in log.lines)
    assert not [secret for secret in SECRETS if secret in everything]


async def test_member_with_a_wrong_secret_hears_so_each_time_before_it_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer is held longer than the last, but never longer than half of what a member waits for it."""
    delays_s: list[float] = []
    judge = LoginAttempts.judge

    def recorded(self: LoginAttempts, *how: Any) -> tuple[Verified | Refused | None, float]:
        verdict, delay_s = judge(self, *how)
        if isinstance(verdict, Refused) and verdict.failed:
            delays_s.append(delay_s)
        return verdict, delay_s

    monkeypatch.setattr(LoginAttempts, "judge", recorded)
    raft = ALONE_AND_QUICK
    async with cluster(tmp_path, raft=raft) as farm:
        for _ in range(6):
            with trio.fail_after(240), pytest.raises(AuthError, match="password is wrong"):
                await farm.login("2", "of another secret", source=EVIL)
    assert delays_s == [0.25, *[0.5] * 5]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
async def test_flood_of_hostile_clients_makes_one_log_line_a_second_and_keeps_no_memory(
    tmp_path: Path, log: Log
) -> None:
    """Hundreds, from many addresses."""
    sent: Counter[str] = Counter()

    async def strike(farm: Cluster, kind: str, number: int) -> None:
        source = f"127.0.{1 + number % 8}.{1 + number % 50}"
        endpoint = farm.endpoint()
        with suppress(trio.BrokenResourceError, TransportError, OSError):
            if kind == "plain":
                async with await trio.open_tcp_stream(
                    endpoint.host, endpoint.port, local_address=source
                ) as stream:
                    await sends(stream, b"hello\r\n" * 100)
            elif kind == "tls":
                async with await farm.connect(source=source)() as stream:
                    await sends(stream, CONTENTS * 10 + b"\r\n\r\n")  # no deadline is waited for
            else:
                wire = await farm.login(source=source)
                await sends(wire.stream, b"\xff" * 1000)
        sent[kind] += 1

    async def flood(farm: Cluster, count: int) -> None:
        limit = trio.CapacityLimiter(40)

        async def one(kind: str, number: int) -> None:
            async with limit:
                await strike(farm, kind, number)

        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(one, ("plain", "tls", "inside")[number % 3], number)

    begun = trio.current_time()
    async with cluster(tmp_path) as farm:
        await farm.leader()
        honest = await farm.login()
        await flood(farm, 150)
        held = resident_bytes()
        await flood(farm, 300)
        answer = await honest.ask(client_request(b"after"))
        assert answer.accepted
        assert resident_bytes() - held < 16 << 20
        connections = {"transport": "ssl", "state": "open"}
        sample = partial(farm.node().metrics.registry.get_sample_value, "garlicfarm_listener_connections")
        await wait_until(lambda: sample(connections) == 1)
        while_it_ran, took_s = len(log.lines), trio.current_time() - begun
        await farm.stop()
    assert sum(sent.values()) == 450
    for event, strikes in (("rejected", sent["plain"] + sent["tls"]), ("connection-lost", sent["inside"])):
        told = [fields for fields, _ in log.lines[:while_it_ran] if fields.get("event") == event]
        assert len(told) <= 1 + took_s
        # The rest, if there is one, is told at the end.
        counted = [int(str(fields.get("suppressed", 0))) for fields in log.of(event)]
        assert len(told) + sum(counted) == strikes
    everything = "\n".join(line for _, line in log.lines)
    assert not [secret for secret in SECRETS if secret in everything]
