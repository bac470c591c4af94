"""`initiate` and `respond` on memory streams, with a clock that jumps: logins, limits, delays, cuts."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from garlicfarm.credentials.member_credentials import member_lookup, member_password
from garlicfarm.errors import AuthError, ConfigError, RemoteProtocolError, TransportError
from garlicfarm.http.digest import ALGORITHMS, REALM, ChallengeCache, DigestVerifier, ha1
from garlicfarm.http.upgrade import FarmCredentials
from garlicfarm.net.admission import Admission
from garlicfarm.net.handshake import (
    DialCredentials,
    Established,
    HandshakeLimiter,
    initiate,
    respond,
)
from garlicfarm.transport import Peer
from tests.running import background

SECRET = b"s" * 32
FARM_ID = b"f" * 16
PASSWORD = member_password(SECRET, FARM_ID, 7)
HERE = Peer("192.0.2.7", True, None)
TUNNEL = Peer("127.0.0.1", False, None)


def make_credentials(key: bytes = b"k" * 32) -> dict[str, FarmCredentials]:
    lookup = member_lookup([SECRET], FARM_ID, lambda user: {})
    return {"farm": FarmCredentials("farm", FARM_ID, DigestVerifier(REALM, ALGORITHMS, key, lookup))}


class Server:
    """`respond` behind memory streams, and what became of each."""

    def __init__(self, nursery: trio.Nursery, limiter: HandshakeLimiter | None = None) -> None:
        self.reasons: list[str] = []
        self.established: list[Established] = []
        self.opened = 0
        self.credentials: Mapping[str, FarmCredentials] = make_credentials()
        self.limiter = limiter or HandshakeLimiter()
        self.limiter.on_rejected = lambda peer, reason: self.reasons.append(reason)
        self._nursery = nursery

    async def open_stream(self, peer: Peer = HERE) -> trio.StapledStream:
        self.opened += 1
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._serve, theirs, peer)
        return ours

    async def _serve(self, stream: trio.abc.Stream, peer: Peer) -> None:
        established = await respond(stream, self.credentials, self.limiter, peer)
        if established is not None:
            self.established.append(established)

    async def login(
        self,
        cache: ChallengeCache | None = None,
        *,
        peer: Peer = HERE,
        farm: str = "farm",
        user: str = "7",
        password: str = PASSWORD,
        farm_id: bytes | None = FARM_ID,
    ) -> Established:
        credentials = DialCredentials(farm, user, password, cache or ChallengeCache(), farm_id)
        return await initiate(partial(self.open_stream, peer), credentials, host="a:1")


@pytest.fixture
def server(nursery: trio.Nursery) -> Server:
    return Server(nursery)


async def read_all(stream: trio.abc.Stream) -> bytes:
    return b"".join([chunk async for chunk in stream])


@asynccontextmanager
async def taking(seconds: float) -> AsyncIterator[None]:
    started = trio.current_time()
    yield
    assert trio.current_time() - started == pytest.approx(seconds)


async def test_login_takes_two_streams_then_one_and_both_carry_bytes(server: Server) -> None:
    cache = ChallengeCache()
    for streams in (2, 3):
        client = await server.login(cache)
        assert server.opened == streams
        await trio.testing.wait_all_tasks_blocked()
        other = server.established[-1]
        assert (client.user, other.user, client.farm, other.farm) == ("7", "7", "farm", "farm")
        assert client.farm_id == other.farm_id == FARM_ID
        await client.stream.send_all(b"request")
        assert other.leftover + await other.stream.receive_some() == b"request"
        await other.stream.send_all(b"response")
        assert client.leftover + await client.stream.receive_some() == b"response"
    assert server.reasons == ["challenge"]


async def test_time_that_is_told_comes_with_when_it_was_asked_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await server.login()).told is None
    times = iter([100, 250, 400])  # a cached challenge needs one request
    monkeypatch.setattr("garlicfarm.net.handshake.wall_ms", lambda: next(times))
    server.credentials = {
        name: replace(farm, wall_ms=lambda: 9_000) for name, farm in server.credentials.items()
    }
    assert (await server.login()).told == (9_000, 250, 400)
    await trio.testing.wait_all_tasks_blocked()
    assert server.established[-1].told is None


async def test_bytes_around_the_101_are_leftovers_of_both_sides(server: Server) -> None:

    class Eager(trio.abc.Stream):
        """Sends Raft bytes in one piece with its request, and gets some in one piece with the answer."""

        def __init__(self, stream: trio.StapledStream) -> None:
            self.stream = stream

        async def send_all(self, data: bytes | bytearray | memoryview) -> None:
            await self.stream.send_all(bytes(data) + b"early")

        async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
            return bytes(await self.stream.receive_some(max_bytes)) + b"more"

        async def wait_send_all_might_not_block(self) -> None:
            await self.stream.wait_send_all_might_not_block()

        async def aclose(self) -> None:
            await self.stream.aclose()

    async def open_stream() -> trio.abc.Stream:
        return Eager(await server.open_stream())

    credentials = DialCredentials("farm", "7", PASSWORD, ChallengeCache())
    client = await initiate(open_stream, credentials, host="a:1")
    await trio.testing.wait_all_tasks_blocked()
    assert server.established[0].leftover == b"early"
    assert client.leftover == b"more"


async def test_cached_challenge_serves_an_hour_and_is_stale_after_two(
    server: Server, autojump_clock: trio.testing.MockClock
) -> None:
    cache = ChallengeCache()
    await server.login(cache)
    await trio.sleep(3600)
    await server.login(cache)
    assert server.opened == 3
    await trio.sleep(3601)
    await server.login(cache)
    assert server.opened == 5
    assert server.reasons == ["challenge", "stale"]


async def test_restarted_server_lets_a_cached_login_in_at_the_second_try(server: Server) -> None:
    cache = ChallengeCache()
    await server.login(cache)
    server.credentials = make_credentials(b"n" * 32)
    await server.login(cache)
    assert (server.opened, server.reasons) == (4, ["challenge", "stale"])


async def test_parallel_logins_share_one_nonce(server: Server) -> None:
    cache = ChallengeCache()
    await server.login(cache)
    async with trio.open_nursery() as logins:
        for _ in range(12):
            logins.start_soon(server.login, cache)
    assert server.opened == 2 + 12
    assert len(server.established) == 1 + 12


async def test_wrong_farm_name_is_named_and_streams_are_closed(server: Server) -> None:
    with pytest.raises(RemoteProtocolError, match="/GarlicFarm/other/1/websocket"):
        await server.login(farm="other")
    await trio.testing.wait_all_tasks_blocked()
    assert server.reasons == ["not-found"]


async def test_another_farm_id_is_refused(server: Server) -> None:
    with pytest.raises(RemoteProtocolError, match="it belongs to another farm"):
        await server.login(farm_id=b"g" * 16)
    await trio.testing.wait_all_tasks_blocked()
    assert server.reasons == ["challenge", "other-farm"]


async def test_wrong_passwords_are_answered_later_each_time_and_forgiven_in_the_end(
    server: Server, autojump_clock: trio.testing.MockClock
) -> None:

    async def fail(seconds: float, peer: Peer = HERE) -> None:
        async with taking(seconds):
            with pytest.raises(AuthError, match="password is wrong"):
                await server.login(password="wrong", peer=peer)

    for seconds in (0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0):
        await fail(seconds)
    await fail(0.25, Peer("192.0.2.8", True, None))
    async with taking(0):
        await server.login()
    for _ in range(3):
        await fail(0.25, TUNNEL)
    await trio.sleep(901)
    await fail(0.25)
    await trio.testing.wait_all_tasks_blocked()
    assert server.reasons.count("password") == 12


async def test_replay_and_stale_are_not_delayed(
    server: Server, autojump_clock: trio.testing.MockClock
) -> None:
    cache = ChallengeCache()
    await server.login(cache)
    server.credentials = make_credentials(b"n" * 32)
    async with taking(0):
        await server.login(cache)


async def test_sockets_of_one_address_are_bounded_and_its_oldest_silent_one_makes_room(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    server = Server(nursery, HandshakeLimiter(admission=Admission(per_address=4)))
    for _ in range(10):  # established ones do not count
        await server.login()
    oldest = await server.open_stream()
    await trio.testing.wait_all_tasks_blocked()
    idle = [await server.open_stream() for _ in range(3)]
    await trio.testing.wait_all_tasks_blocked()
    server.reasons.clear()
    async with taking(0):
        await server.login()
        assert await read_all(oldest) == b""
    async with taking(10):
        assert [await read_all(stream) for stream in idle] == [b""] * 3
    await trio.testing.wait_all_tasks_blocked()
    # A login takes two streams, of which the first may be there yet when the second comes.
    assert server.reasons[:2] == ["busy", "challenge"]
    assert server.reasons[-2:] == ["timeout", "timeout"]
    assert server.limiter.admission.taken == 0


@pytest.mark.parametrize("opening", [b"", b"GET ", b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n"])
async def test_flood_that_comes_back_whenever_it_is_cut_keeps_nobody_out(
    opening: bytes, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    server = Server(nursery)

    async def attack() -> None:
        while True:
            stream = await server.open_stream()
            with suppress(trio.BrokenResourceError):
                await stream.send_all(opening)
                await read_all(stream)

    for _ in range(70):
        nursery.start_soon(attack)
    while len(server.reasons) < 200:  # they no longer come all in one turn
        await trio.lowlevel.checkpoint()
    for _ in range(7):
        # Whoever happens to be overtaken by all of them at once is cut too, and dials again, as members do.
        for again in range(3):
            try:
                await server.login()
                break
            except TransportError:
                assert again < 2, "cut three times in a row"
    assert server.limiter.admission.taken <= 64


@pytest.mark.parametrize("where", ["a tunnel", "many addresses"])
async def test_sockets_are_bounded_in_all_and_keep_nobody_out(
    where: str, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    server = Server(nursery, HandshakeLimiter(admission=Admission(per_address=2, total=8)))  # 6 for strangers
    peers = [TUNNEL if where == "a tunnel" else Peer(f"192.0.2.{n}", True, None) for n in range(100, 106)]
    oldest = await server.open_stream(peers[0])
    await trio.testing.wait_all_tasks_blocked()
    idle = [oldest, *[await server.open_stream(peer) for peer in peers[1:]]]
    await trio.testing.wait_all_tasks_blocked()
    assert server.reasons == []
    async with taking(0):
        await server.login(peer=Peer("192.0.2.8", True, None))
        assert await read_all(oldest) == b""
    more = [await server.open_stream(peer) for peer in peers[:3]]
    async with taking(10):
        assert [await read_all(stream) for stream in [*idle, *more]] == [b""] * 9
    await trio.testing.wait_all_tasks_blocked()
    # A login takes two streams, of which the first may be there yet when the second comes.
    closed = Counter(server.reasons)
    assert closed["challenge"] == 1
    assert closed["busy"] + closed["timeout"] == 9
    assert closed["timeout"] == 6
    assert server.limiter.admission.taken == 0


async def test_user_who_guesses_is_not_judged_until_the_delay_is_over_and_members_always_are(
    server: Server, autojump_clock: trio.testing.MockClock
) -> None:
    looked_up = []

    def lookup(user: str) -> dict[str, list[str]]:
        looked_up.append(user)
        return {a: [ha1(a, user, REALM, "right")] for a in ALGORITHMS}

    verifier = DigestVerifier(REALM, ALGORITHMS, b"k" * 32, member_lookup([SECRET], FARM_ID, lookup))
    server.credentials = {"farm": FarmCredentials("farm", FARM_ID, verifier)}
    cache = ChallengeCache()

    async def hang_up(user: str, password: str) -> None:
        """Try a password, and do not wait for the answer."""
        cache.learn(("a:1", "farm", user), verifier.challenges(trio.current_time(), b"r" * 16))
        with trio.move_on_after(0.001), suppress(RemoteProtocolError):
            credentials = DialCredentials("farm", user, password, cache)
            await initiate(server.open_stream, credentials, host="a:1")

    for number in range(100):
        await hang_up("alice", f"guess {number}")
    assert len(looked_up) == 1
    await trio.testing.wait_all_tasks_blocked()
    assert Counter(server.reasons) == {"password": 1, "too-soon": 99}
    with pytest.raises(RemoteProtocolError, match="429"):
        await server.login(cache, user="alice", password="right")
    await server.login(cache, user="bob", password="right")
    await server.login(cache, user="alice", password="right", peer=Peer("192.0.2.9", True, None))
    for number in range(10):
        await hang_up("7", f"guess {number}")
    await server.login(cache)
    await trio.sleep(0.25)
    await server.login(cache, user="alice", password="right")


@pytest.mark.parametrize("step_s", [1.0, 9.9])
async def test_dripping_client_is_cut_at_the_deadline(
    server: Server, autojump_clock: trio.testing.MockClock, step_s: float
) -> None:
    stream = await server.open_stream()

    async def drip() -> None:
        for byte in b"GET /GarlicFarm/farm/1/websocket HTTP/1.1\r\n":
            await stream.send_all(bytes([byte]))
            await trio.sleep(step_s)

    async with taking(10), background(drip):
        assert await stream.receive_some() == b""
    await trio.testing.wait_all_tasks_blocked()
    assert server.reasons == ["timeout"]


async def test_client_that_never_reads_is_cut_at_the_deadline(autojump_clock: trio.testing.MockClock) -> None:
    ours, theirs = trio.testing.lockstep_stream_pair()
    reasons: list[str] = []
    limiter = HandshakeLimiter(on_rejected=lambda peer, reason: reasons.append(reason))
    async with taking(10), trio.open_nursery() as nursery:
        nursery.start_soon(respond, theirs, make_credentials(), limiter, HERE)
        await ours.send_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert reasons == ["not-found"]
    assert not limiter.admission.taken


async def test_client_that_never_closes_is_closed_with_the_answer(
    server: Server, autojump_clock: trio.testing.MockClock
) -> None:
    stream = await server.open_stream()
    async with taking(0):
        await stream.send_all(b"GET /GarlicFarm/farm/1/websocket HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = await read_all(stream)
    assert answer.startswith(b"HTTP/1.1 401 Unauthorized\r\n")


async def test_client_that_sends_garbage_without_end_is_read_a_little_and_closed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, theirs = trio.testing.lockstep_stream_pair()
    sent = 0

    async def flood() -> None:
        nonlocal sent
        with suppress(trio.BrokenResourceError):
            while True:
                await ours.send_all(b"\x00" * 4096)
                sent += 4096

    async with trio.open_nursery() as nursery:
        nursery.start_soon(respond, theirs, make_credentials(), HandshakeLimiter(), HERE)
        nursery.start_soon(flood)
        assert (await ours.receive_some()).startswith(b"HTTP/1.1 400 ")
    assert sent <= 65536 + 2 * 4096


async def test_client_that_still_sends_its_body_is_read_so_that_the_answer_is_not_reset(
    server: Server, autojump_clock: trio.testing.MockClock
) -> None:
    stream = await server.open_stream()
    async with taking(0):
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked()
        await stream.send_all(b"nine here")
        await stream.send_eof()
        assert (await read_all(stream)).startswith(b"HTTP/1.1 404 Not Found\r\n")


async def test_client_that_breaks_off_is_counted_and_costs_nothing_else(server: Server) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    await ours.send_all(b"GET / HTTP/1.1\r\n")
    ours.receive_stream.close()
    await ours.send_all(b"Host: a\r\n\r\n")
    assert await respond(theirs, server.credentials, server.limiter, HERE) is None
    assert server.reasons == ["not-found"]
    assert not server.limiter.admission.taken


async def test_server_that_goes_away_raises_and_leaves_nothing_open(nursery: trio.Nursery) -> None:
    ours, theirs = trio.testing.memory_stream_pair()

    async def open_stream() -> trio.abc.Stream:
        await theirs.aclose()
        return ours

    with pytest.raises(TransportError, match="closed the connection during the handshake"):
        await initiate(open_stream, DialCredentials("farm", "7", "p", ChallengeCache()), host="a:1")
    with pytest.raises(trio.ClosedResourceError):
        await ours.send_all(b"x")


async def test_cancelled_initiator_and_responder_close_their_streams(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, theirs = trio.testing.memory_stream_pair()

    async def open_stream() -> trio.abc.Stream:
        return ours

    with trio.move_on_after(1):
        await initiate(open_stream, DialCredentials("farm", "7", "p", ChallengeCache()), host="a:1")
    assert (await read_all(theirs)).startswith(b"GET ")

    ours, theirs = trio.testing.memory_stream_pair()
    limiter = HandshakeLimiter(on_rejected=lambda peer, reason: pytest.fail(reason))
    with trio.move_on_after(1):
        await respond(theirs, make_credentials(), limiter, HERE)
    assert await read_all(ours) == b""
    assert not limiter.admission.taken


async def test_broken_users_file_reaches_the_callers_boundary_with_the_stream_closed() -> None:
    def broken(user: str) -> dict[str, list[str]]:
        raise ConfigError(["data/users, line 1: damaged"])

    verifier = DigestVerifier(REALM, ALGORITHMS, b"k" * 32, member_lookup([SECRET], FARM_ID, broken))
    credentials = {"farm": FarmCredentials("farm", FARM_ID, verifier)}
    cache = ChallengeCache()
    cache.learn(("a:1", "farm", "alice"), verifier.challenges(trio.current_time(), b"r" * 16))
    ours, theirs = trio.testing.memory_stream_pair()

    async def open_stream() -> trio.abc.Stream:
        return ours

    async def client() -> None:
        with pytest.raises(TransportError):
            await initiate(open_stream, DialCredentials("farm", "alice", "p", cache), host="a:1")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client)
        with pytest.raises(ConfigError):
            await respond(theirs, credentials, HandshakeLimiter(), HERE)


@settings(max_examples=50)
@given(st.lists(st.binary(min_size=1, max_size=300), max_size=6), st.booleans())
def test_respond_to_random_bytes_answers_closes_and_never_raises(
    chunks: list[bytes], half_close: bool
) -> None:
    reasons: list[str] = []
    limiter = HandshakeLimiter(on_rejected=lambda peer, reason: reasons.append(reason))

    async def main() -> None:
        ours, theirs = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(respond, theirs, make_credentials(), limiter, HERE)
            for chunk in chunks:
                try:
                    await ours.send_all(chunk)
                except trio.BrokenResourceError:
                    break
            if half_close:
                await ours.send_eof()
            with trio.fail_after(11):
                await read_all(ours)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(reasons) == 1
    assert reasons[0] in {"bad-request", "timeout", "closed", "not-found", "too-large", "tls"}
