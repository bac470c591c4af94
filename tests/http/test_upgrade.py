"""Playbooks of the handshake, without Trio: bytes in, verdicts and bytes out."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.errors import AuthError, LocalProtocolError, RemoteProtocolError
from garlicfarm.http.digest import ALGORITHMS, REALM, ChallengeCache, DigestVerifier, ha1
from garlicfarm.http.upgrade import (
    HEADER_LIMIT,
    Accepted,
    FarmCredentials,
    Initiator,
    NewStream,
    Rejected,
    Responder,
    farm_target,
)
from garlicfarm.levels import SAYS_NOTHING, THIS, Program

FARM_ID = bytes(range(16))
NOW_S = 1000.0
RANDOM = b"r" * 16
FRESH = itertools.count()
TARGET = "/GarlicFarm/secretname/1/websocket"


def lookup(user: str) -> Mapping[str, Sequence[str]]:
    return {a: [ha1(a, "7", REALM, "right")] for a in ALGORITHMS} if user == "7" else {}


def make_credentials(
    *, key: bytes = b"k" * 32, offered: Mapping[str, str] | None = None, leader: tuple[int, str] | None = None
) -> dict[str, FarmCredentials]:
    verifier = DigestVerifier(REALM, ALGORITHMS, key, lookup)
    return {"secretname": FarmCredentials("secretname", FARM_ID, verifier, offered or {}, lambda: leader)}


def make_initiator(cache: ChallengeCache | None = None, **options: Any) -> Initiator:
    arguments: dict[str, Any] = {
        "host": "192.0.2.1:27150",
        "farm": "secretname",
        "user": "7",
        "password": "right",
        "cache": cache or ChallengeCache(),
    }
    return Initiator(**(arguments | options))


def answer(
    credentials: Mapping[str, FarmCredentials], data: bytes, random: bytes = RANDOM
) -> Accepted | Rejected:
    verdict = Responder(credentials).receive(data, NOW_S, random)
    assert verdict is not None
    return verdict


def accepted(credentials: Mapping[str, FarmCredentials], data: bytes) -> Accepted:
    verdict = answer(credentials, data)
    assert isinstance(verdict, Accepted)
    return verdict


def rejected(credentials: Mapping[str, FarmCredentials], data: bytes) -> Rejected:
    verdict = answer(credentials, data)
    assert isinstance(verdict, Rejected)
    return verdict


def play(
    initiator: Initiator, credentials: Mapping[str, FarmCredentials]
) -> tuple[list[Accepted | Rejected], Accepted]:
    """Run a whole login; the responder's verdicts, and the initiator's last."""
    verdicts = []
    while True:
        random = next(FRESH).to_bytes(16)
        verdicts.append(answer(credentials, initiator.request("cafe"), random))
        outcome = initiator.receive(verdicts[-1].reply)
        if not isinstance(outcome, NewStream):
            assert isinstance(outcome, Accepted)
            return verdicts, outcome


def cached(credentials: Mapping[str, FarmCredentials]) -> ChallengeCache:
    cache = ChallengeCache()
    play(make_initiator(cache), credentials)
    return cache


def second_request(
    credentials: Mapping[str, FarmCredentials] | None = None, *, key: str = "", **options: Any
) -> tuple[Initiator, Accepted | Rejected]:
    """One that logs in with a challenge that it knows, and what its request is answered."""
    credentials = credentials or make_credentials()
    initiator = make_initiator(cached(credentials), **options)
    return initiator, answer(credentials, initiator.request("cafe", key))


@pytest.mark.parametrize("wall_ms", [0, 1_800_000_000_123, 10**18 - 1])
def test_time_is_told_to_those_that_logged_in_and_to_no_stranger(wall_ms: int) -> None:
    credentials = {name: replace(farm, wall_ms=lambda: wall_ms) for name, farm in make_credentials().items()}
    (challenge, switched), outcome = play(make_initiator(), credentials)
    assert outcome.date_ms == wall_ms
    assert b"Garlic-Farm-Date: %d\r\n" % wall_ms in switched.reply
    assert isinstance(switched, Accepted)
    assert switched.date_ms is None  # which the initiator does not tell
    assert b"date" not in challenge.reply.lower()
    assert b"Date" not in play(make_initiator(), make_credentials())[0][1].reply


@pytest.mark.parametrize("told", [b"", b"-1", b"1.5", b"1e3", b"9" * 19, b"Fri, 27 Nov 2026", b"\xb2"])
def test_time_that_is_none_is_ignored(told: bytes) -> None:
    credentials = {name: replace(farm, wall_ms=lambda: 7) for name, farm in make_credentials().items()}
    initiator, verdict = second_request(credentials)
    outcome = initiator.receive(verdict.reply.replace(b"Garlic-Farm-Date: 7", b"Garlic-Farm-Date: " + told))
    assert isinstance(outcome, Accepted)
    assert outcome.date_ms is None


def test_host_beyond_ascii_is_sent_as_a_header_can_carry_it() -> None:
    initiator = Initiator(
        host="名.example:27150", farm="secretname", user="7", password="p", cache=ChallengeCache()
    )
    assert b"\r\nHost: %E5%90%8D.example:27150\r\n" in initiator.request("cafe")


def test_host_header_of_ipv6_has_brackets_and_no_zone() -> None:
    initiator = make_initiator(host="[fe80::1%eth0]:27150")
    assert b"\r\nHost: [fe80::1]:27150\r\n" in initiator.request("cafe")


def test_first_login_speaks_the_proposals_bytes() -> None:
    credentials = make_credentials()
    initiator = make_initiator()
    request_1 = initiator.request("cafe")
    assert request_1 == (
        b"GET /GarlicFarm/secretname/1/websocket HTTP/1.1\r\n"
        b"Host: 192.0.2.1:27150\r\n"
        b"Cache-Control: no-cache\r\n"
        b"Connection: close\r\n"
        b"\r\n"
    )
    response_1 = rejected(credentials, request_1)
    assert response_1.reason == "challenge"
    assert re.fullmatch(
        rb"HTTP/1.1 401 Unauthorized\r\n"
        rb"Content-Type: text/plain\r\n"
        rb"Content-Length: 13\r\n"
        rb'WWW-Authenticate: Digest realm="restricted", qop="auth", nonce="[0-9a-f.]+", algorithm=MD5\r\n'
        rb'WWW-Authenticate: Digest realm="restricted", qop="auth", nonce="[0-9a-f.]+", algorithm=SHA-256\r\n'
        rb"Connection: close\r\n"
        rb"\r\n"
        rb"Unauthorized\n",
        response_1.reply,
    )
    assert initiator.receive(response_1.reply) == NewStream()
    request_2 = initiator.request("cafe")
    assert re.fullmatch(
        rb"GET /GarlicFarm/secretname/1/websocket HTTP/1.1\r\n"
        rb"Host: 192.0.2.1:27150\r\n"
        rb"Cache-Control: no-cache\r\n"
        rb"Connection: keep-alive, Upgrade\r\n"
        rb"Upgrade: websocket\r\n"
        rb'Authorization: Digest username="7", realm="restricted", nonce="[0-9a-f.]+", '
        rb'uri="/GarlicFarm/secretname/1/websocket", algorithm=SHA-256, response="[0-9a-f]{64}", '
        rb'qop=auth, nc=00000001, cnonce="cafe"\r\n'
        rb"\r\n",
        request_2,
    )
    response_2 = accepted(credentials, request_2)
    assert re.fullmatch(
        rb"HTTP/1.1 101 Switching Protocols\r\n"
        rb"Connection: Upgrade\r\n"
        rb"Upgrade: websocket\r\n"
        rb'Authentication-Info: rspauth="[0-9a-f]{64}", qop=auth, cnonce="cafe", nc=00000001\r\n'
        rb"Garlic-Farm-Id: 000102030405060708090a0b0c0d0e0f\r\n"
        rb"\r\n",
        response_2.reply,
    )
    assert (response_2.farm, response_2.user, response_2.farm_id) == ("secretname", "7", None)
    outcome = initiator.receive(response_2.reply)
    assert isinstance(outcome, Accepted)
    assert (outcome.farm, outcome.user, outcome.farm_id) == ("secretname", "7", FARM_ID)
    assert outcome.extensions == response_2.extensions == frozenset()


def test_cached_challenge_goes_straight_to_request_2_with_the_next_count() -> None:
    credentials = make_credentials()
    cache = cached(credentials)
    verdicts, _ = play(make_initiator(cache), credentials)
    assert [type(verdict) for verdict in verdicts] == [Accepted]
    assert b"nc=00000003" in make_initiator(cache).request("cafe")


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_bytes_in_any_pieces_give_the_same_verdicts_and_keep_what_follows(size: int) -> None:
    credentials = make_credentials()
    initiator = make_initiator(cached(credentials))
    stream = initiator.request("cafe") + b"raft"
    responder = Responder(credentials)
    verdict = None
    fed = 0
    while verdict is None:
        verdict = responder.receive(stream[fed : fed + size], NOW_S, RANDOM)
        fed += size
    assert isinstance(verdict, Accepted)
    assert verdict.leftover + stream[fed:] == b"raft"
    stream = verdict.reply + b"answer"
    outcome = None
    fed = 0
    while outcome is None:
        outcome = initiator.receive(stream[fed : fed + size])
        fed += size
    assert isinstance(outcome, Accepted)
    assert outcome.leftover + stream[fed:] == b"answer"


# --- passwords, nonces, proof ---------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"password": "wrong"}, {"user": "8"}, {"user": "alice"}])
def test_wrong_password_or_unknown_user_raises_after_one_try(options: dict[str, Any]) -> None:
    credentials = make_credentials()
    initiator = make_initiator(**options)
    initiator.receive(answer(credentials, initiator.request("cafe")).reply)
    refusal = rejected(credentials, initiator.request("cafe"))
    assert refusal.reason == "password"
    assert refusal.reply.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
    assert b"stale" not in refusal.reply
    with pytest.raises(AuthError, match=r"192\.0\.2\.1:27150 refused user"):
        initiator.receive(refusal.reply)


def test_wrong_password_over_a_cached_challenge_is_not_tried_twice() -> None:
    credentials = make_credentials()
    cache = cached(credentials)
    initiator = make_initiator(cache, password="wrong")
    with pytest.raises(AuthError):
        initiator.receive(answer(credentials, initiator.request("cafe")).reply)


def test_restarted_server_calls_a_cached_challenge_stale_and_lets_the_second_try_in() -> None:
    cache = cached(make_credentials())
    verdicts, _ = play(make_initiator(cache), make_credentials(key=b"after the restart"))
    assert isinstance(verdicts[0], Rejected)
    assert verdicts[0].reason == "stale"
    assert verdicts[0].reply.count(b"stale=true") == 2
    assert isinstance(verdicts[1], Accepted)


@pytest.mark.parametrize("change", [(b"restricted", b"elsewhere"), (b"SHA-256", b"SHA-512-256")])
def test_changed_realm_or_algorithm_is_tried_once_more(change: tuple[bytes, bytes]) -> None:
    initiator, refusal = second_request(password="wrong")
    assert initiator.receive(refusal.reply.replace(*change)) == NewStream()
    initiator.request("cafe")
    with pytest.raises(AuthError):
        initiator.receive(refusal.reply.replace(*change))


def test_server_that_calls_its_own_new_nonce_stale_is_given_up() -> None:
    credentials = make_credentials()
    initiator = make_initiator()
    challenge = answer(credentials, initiator.request("cafe")).reply
    assert initiator.receive(challenge) == NewStream()
    initiator.request("cafe")
    with pytest.raises(RemoteProtocolError, match="stale"):
        initiator.receive(challenge.replace(b"algorithm=", b"stale=true, algorithm="))


def test_replayed_request_2_is_refused() -> None:
    credentials = make_credentials()
    request = make_initiator(cached(credentials)).request("cafe")
    assert isinstance(answer(credentials, request), Accepted)
    replay = rejected(credentials, request)
    assert replay.reason == "stale"


def test_basic_is_answered_like_no_credentials() -> None:
    plain = request_bytes("GET", TARGET)
    basic = request_bytes("GET", TARGET, "Authorization: Basic NzpyaWdodA==", "Upgrade: websocket")
    assert answer(make_credentials(), basic) == answer(make_credentials(), plain)


def test_wrong_rspauth_means_the_server_does_not_know_the_password() -> None:
    initiator, verdict = second_request()
    with pytest.raises(AuthError, match="wrong rspauth"):
        initiator.receive(re.sub(rb'rspauth="..', b'rspauth="zz', verdict.reply))


@pytest.mark.parametrize("visited", [False, True])
def test_server_that_does_not_prove_that_it_knows_the_password_is_refused(visited: bool) -> None:
    credentials = make_credentials()
    initiator = make_initiator(cached(credentials) if visited else None)
    if not visited:
        assert initiator.receive(answer(credentials, initiator.request("cafe")).reply) == NewStream()
    reply = answer(credentials, initiator.request("cafe")).reply
    with pytest.raises(AuthError, match="did not prove that it knows the password"):
        initiator.receive(re.sub(rb"Authentication-Info:.*\r\n", b"", reply))


def test_challenge_of_an_algorithm_that_this_side_does_not_take_is_not_answered() -> None:
    reply = answer(make_credentials(), make_initiator().request("cafe")).reply
    weak = re.sub(rb"WWW-Authenticate:.*SHA-256\r\n", b"", reply)
    assert b"algorithm=MD5" in weak
    cache = ChallengeCache(["SHA-256"])
    initiator = make_initiator(cache)
    initiator.request("cafe")
    with pytest.raises(RemoteProtocolError, match="it offers MD5, but this side accepts only SHA-256"):
        initiator.receive(weak)
    assert b"Authorization" not in make_initiator(cache).request("cafe")
    initiator = make_initiator(cache)
    initiator.request("cafe")
    assert initiator.receive(reply) == NewStream()
    assert b"algorithm=SHA-256" in initiator.request("cafe")


# --- farm id, extensions, websocket headers -------------------------------------------------------


def test_equal_farm_ids_are_told_to_both_sides() -> None:
    verdicts, outcome = play(make_initiator(farm_id=FARM_ID), make_credentials())
    assert isinstance(verdicts[-1], Accepted)
    assert verdicts[-1].farm_id == outcome.farm_id == FARM_ID


def test_another_farm_id_is_refused_with_both_named() -> None:
    initiator, refusal = second_request(farm_id=b"\xee" * 16)
    assert isinstance(refusal, Rejected)
    assert refusal.reason == "other-farm"
    with pytest.raises(RemoteProtocolError, match=f"farm id is {FARM_ID.hex()}, not {'ee' * 16}"):
        initiator.receive(refusal.reply)


def test_initiator_refuses_a_101_of_another_farm() -> None:
    initiator, verdict = second_request(farm_id=FARM_ID)
    with pytest.raises(RemoteProtocolError, match="it belongs to another farm"):
        initiator.receive(verdict.reply.replace(b"Id: 0001", b"Id: ff01"))


def test_farm_id_and_extensions_never_travel_in_request_1() -> None:
    initiator = make_initiator(farm_id=FARM_ID, extensions={"pre-vote": "1"}, program=THIS)
    assert b"Garlic" not in initiator.request("cafe").replace(b"/GarlicFarm/", b"")


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"),
    [
        ({}, {}, set()),
        ({"pre-vote": "1"}, {}, set()),
        ({}, {"pre-vote": "1"}, set()),
        ({"pre-vote": "1", "timeout-now": "1"}, {"timeout-now": "1", "leader-hint": "1"}, {"timeout-now"}),
        ({"pre-vote": "2"}, {"pre-vote": "1"}, set()),
        (
            {"pre-vote": "1", "timeout-now": "1"},
            {"timeout-now": "1", "pre-vote": "1"},
            {"pre-vote", "timeout-now"},
        ),
    ],
)
def test_extension_is_in_force_if_both_named_it(
    ours: dict[str, str], theirs: dict[str, str], agreed: set[str]
) -> None:
    verdicts, outcome = play(make_initiator(extensions=ours), make_credentials(offered=theirs))
    assert isinstance(verdicts[-1], Accepted)
    assert verdicts[-1].extensions == outcome.extensions == agreed
    assert (b"Garlic-Farm-Extensions" in verdicts[-1].reply) is bool(agreed)


@pytest.mark.parametrize("ours", [None, THIS])
@pytest.mark.parametrize("theirs", [None, THIS])
def test_each_side_learns_what_the_other_says_of_its_program(
    ours: Program | None, theirs: Program | None
) -> None:
    credentials = make_credentials()
    farm = replace(credentials["secretname"], program=lambda: theirs)
    verdicts, outcome = play(make_initiator(program=ours), {farm.name: farm})
    assert isinstance(verdicts[-1], Accepted)
    assert verdicts[-1].program == (ours or SAYS_NOTHING)
    assert outcome.program == (theirs or SAYS_NOTHING)


def test_program_that_makes_no_sense_costs_its_own_connection() -> None:
    credentials = make_credentials()
    data = make_initiator(cached(credentials), program=THIS).request("cafe")
    wrong = data.replace(b"levels=0-", b"levels=9-0")
    assert wrong != data
    assert rejected(credentials, wrong).reason == "bad-request"
    farm = replace(credentials["secretname"], program=lambda: THIS)
    initiator, verdict = second_request({farm.name: farm})
    with pytest.raises(RemoteProtocolError, match="Garlic-Farm-Program"):
        initiator.receive(verdict.reply.replace(b"levels=0-", b"levels=9-0"))


def test_leader_hint_travels_only_if_in_force() -> None:
    leader = (2, "ssl://b.example:27150?pin=sha256-AAAA")
    credentials = make_credentials(offered={"leader-hint": "1"}, leader=leader)
    assert play(make_initiator(extensions={"leader-hint": "1"}), credentials)[1].leader == leader
    verdicts, outcome = play(make_initiator(), credentials)
    assert outcome.leader is None
    assert b"Garlic-Farm-Leader" not in verdicts[-1].reply


@pytest.mark.parametrize("leader", [None, (2, "ssl://b\r\nX: y:1"), (2, "ssl://bü:1"), (2, "")])
def test_leader_that_cannot_be_sent_is_left_out(leader: tuple[int, str] | None) -> None:
    credentials = make_credentials(offered={"leader-hint": "1"}, leader=leader)
    assert play(make_initiator(extensions={"leader-hint": "1"}), credentials)[1].leader is None


def test_malformed_leader_hint_is_the_servers_fault() -> None:
    initiator, verdict = second_request(
        make_credentials(offered={"leader-hint": "1"}, leader=(2, "ssl://b:1")),
        extensions={"leader-hint": "1"},
    )
    with pytest.raises(RemoteProtocolError, match="Garlic-Farm-Leader"):
        initiator.receive(verdict.reply.replace(b"Leader: 2", b"Leader: two"))


KEY = "dGhlIHNhbXBsZSBub25jZQ=="  # RFC 6455 §1.3
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def test_key_for_a_proxy_travels_in_request_2_alone_and_is_checked() -> None:
    credentials = make_credentials()
    initiator = make_initiator()
    request_1 = initiator.request("cafe", KEY)
    assert b"sec-websocket" not in request_1.lower()
    assert initiator.receive(answer(credentials, request_1).reply) == NewStream()
    request_2 = initiator.request("cafe", KEY)
    assert f"\r\nSec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n".encode() in request_2
    reply = answer(credentials, request_2).reply
    assert ACCEPT in reply
    assert isinstance(initiator.receive(reply), Accepted)


@pytest.mark.parametrize("instead", [b"", b"Sec-WebSocket-Accept: " + ACCEPT.swapcase() + b"\r\n"])
def test_key_that_is_not_accepted_means_that_no_farm_answered(instead: bytes) -> None:
    initiator, verdict = second_request(key=KEY)
    with pytest.raises(RemoteProtocolError, match="Sec-WebSocket-Accept"):
        initiator.receive(re.sub(rb"Sec-WebSocket-Accept:.*\r\n", instead, verdict.reply))


def test_websocket_key_is_accepted_as_in_rfc_6455_and_the_stream_stays_raw() -> None:
    credentials = make_credentials()
    key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    request = (
        make_initiator(cached(credentials))
        .request("cafe")
        .replace(b"Upgrade: websocket\r\n", b"Upgrade: websocket\r\n" + key)
    )
    verdict = accepted(credentials, request + b"\x01raw")
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in verdict.reply
    assert verdict.leftover == b"\x01raw"


def test_right_credentials_without_upgrade_get_426() -> None:
    credentials = make_credentials()
    request = make_initiator(cached(credentials)).request("cafe").replace(b"Upgrade: websocket\r\n", b"")
    verdict = rejected(credentials, request)
    assert verdict.reason == "no-upgrade"
    assert verdict.reply.startswith(b"HTTP/1.1 426 Upgrade Required\r\n")


# --- what a stranger sees -------------------------------------------------------------------------

NOT_FOUND = (
    b"HTTP/1.1 404 Not Found\r\n"
    b"Content-Type: text/plain\r\n"
    b"Content-Length: 10\r\n"
    b"Connection: close\r\n"
    b"\r\n"
    b"Not Found\n"
)


def request_bytes(method: str, target: str, *headers: str) -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: a.example", *headers, "", ""]).encode("latin-1")


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("GET", "/", ()),
        ("GET", "/GarlicFarm/", ()),
        ("GET", "/GarlicFarm/farm/1/websocket", ()),
        ("GET", "/GarlicFarm/secretname/2/websocket", ()),
        ("GET", "/GarlicFarm/secretname/1/websocket/", ()),
        ("GET", "/GarlicFarm/secretname/1/websocket?", ()),
        ("GET", "/GarlicFarm/secretname/1/websocke%74", ()),
        ("GET", "/garlicfarm/secretname/1/websocket", ()),
        ("GET", "http://a.example" + TARGET, ()),
        ("POST", TARGET, ("Content-Length: 0",)),
        ("POST", TARGET, ("Content-Length: 9",)),
        ("GET", TARGET, ("Content-Length: 9",)),
        ("GET", TARGET, ("Transfer-Encoding: chunked",)),
        ("OPTIONS", "*", ()),
        ("CONNECT", "a.example:80", ()),
        ("PRI", "*", ()),
        ("GET", "/GarlicFarm/farm/1/websocket", ("Upgrade: websocket", "Authorization: Digest a=b")),
    ],
)
def test_every_other_request_gets_the_one_404(method: str, target: str, headers: tuple[str, ...]) -> None:
    verdict = rejected(make_credentials(), request_bytes(method, target, *headers))
    assert (verdict.reason, verdict.reply) == ("not-found", NOT_FOUND)


@pytest.mark.parametrize("target", ["/", TARGET])
def test_head_gets_the_404_without_its_body(target: str) -> None:
    assert answer(make_credentials(), request_bytes("HEAD", target)).reply + b"Not Found\n" == NOT_FOUND


@pytest.mark.parametrize(
    "data",
    [
        b"\x00",
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no Host
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    ],
)
def test_what_is_no_http_gets_400(data: bytes) -> None:
    verdict = rejected(make_credentials(), data)
    assert (verdict.reason, verdict.pending) == ("bad-request", True)
    assert verdict.reply.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert verdict.reply.endswith(b"Connection: close\r\n\r\nBad Request\n")


def test_tls_where_none_is_spoken_gets_400_and_its_own_reason() -> None:
    verdict = rejected(make_credentials(), b"\x16\x03\x01\x02\x00\x01\x00")
    assert (verdict.reason, verdict.pending) == ("tls", True)
    assert verdict.reply.startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_stream_that_ends_early_is_closed_or_a_bad_request() -> None:
    assert answer(make_credentials(), b"") == Rejected("closed")
    responder = Responder(make_credentials())
    assert responder.receive(b"GET / HT", NOW_S, RANDOM) is None
    verdict = responder.receive(b"", NOW_S, RANDOM)
    assert isinstance(verdict, Rejected)
    assert verdict.reason == "bad-request"


@pytest.mark.parametrize("target", ["/", TARGET])
@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
def test_header_block_beyond_the_limit_gets_431_complete_or_not(target: str, end: bytes) -> None:
    head = request_bytes("GET", target)[:-2] + b"X: "
    fits = head + b"x" * (HEADER_LIMIT - len(head) - len(end)) + end
    verdict = Responder(make_credentials()).receive(fits, NOW_S, RANDOM)
    assert (verdict is None) if not end else isinstance(verdict, Rejected) and verdict.reason != "too-large"
    verdict = rejected(make_credentials(), fits[: len(fits) - len(end)] + b"x" + end)
    assert verdict.reason == "too-large"
    assert verdict.reply.startswith(b"HTTP/1.1 431 ")


def test_raft_bytes_do_not_count_as_header_block() -> None:
    credentials = make_credentials()
    verdict = answer(
        credentials, make_initiator(cached(credentials)).request("cafe") + b"r" * 3 * HEADER_LIMIT
    )
    assert isinstance(verdict, Accepted)
    assert len(verdict.leftover) == 3 * HEADER_LIMIT


TARGETS = st.one_of(
    st.sampled_from(["/", "/GarlicFarm", "/GarlicFarm//1/websocket", "/GarlicFarm/farm/1/websocket", "*"]),
    st.from_regex(r"/GarlicFarm/[a-z]{0,9}/[0-9]?/(websocket)?[!-~]{0,3}", fullmatch=True),
)
HEADERS = st.sampled_from(
    [
        "Upgrade: websocket",
        "Connection: close",
        "Connection: keep-alive, Upgrade",
        "Authorization: Basic eA==",
        f'Authorization: Digest username="7", realm="{REALM}", nonce="n", uri="/", response="r"',
        "Expect: 100-continue",
        "Content-Length: 3",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: gzip",
        "Garlic-Farm-Id: 00",
        "Sec-WebSocket-Key: x",
        "broken",
        " folded",
    ]
)


@given(
    st.sampled_from(["GET", "HEAD", "POST", "get", "CONNECT", "OPTIONS", "X", ""]),
    TARGETS,
    st.lists(HEADERS, max_size=4),
    st.binary(max_size=20),
)
def test_who_does_not_know_the_name_cannot_tell_a_farm_from_none(
    method: str, target: str, headers: list[str], junk: bytes
) -> None:
    data = request_bytes(method, target, *headers) + junk
    assert answer(make_credentials(), data) == answer({}, data)


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_responder_fed_random_bytes_never_raises_and_never_accepts(chunks: list[bytes]) -> None:
    responder = Responder(make_credentials())
    for chunk in [*filter(None, chunks), b""]:
        verdict = responder.receive(chunk, NOW_S, RANDOM)
        if verdict is not None:
            break
    assert isinstance(verdict, Rejected)


@given(st.data())
def test_responder_fed_a_mutated_login_never_raises(data: st.DataObject) -> None:
    credentials = make_credentials()
    request = bytearray(make_initiator(cached(credentials)).request("cafe"))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(request) - 1))
        request[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    responder = Responder(credentials)
    verdict = responder.receive(bytes(request), NOW_S, RANDOM) if request else None
    if verdict is None:
        verdict = responder.receive(b"", NOW_S, RANDOM)
    assert isinstance(verdict, Accepted | Rejected)


@given(st.data())
def test_initiator_fed_a_mutated_answer_raises_documented_errors_only(data: st.DataObject) -> None:
    credentials = make_credentials(offered={"leader-hint": "1"}, leader=(2, "ssl://b:1"))
    options = {"extensions": {"leader-hint": "1"}, "farm_id": FARM_ID}
    cache = ChallengeCache() if data.draw(st.booleans()) else cached(credentials)
    initiator = make_initiator(cache, **options)
    reply = bytearray(answer(credentials, initiator.request("cafe")).reply)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(reply) - 1))
        reply[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        outcome = initiator.receive(bytes(reply)) if reply else None
        if outcome is None:
            initiator.receive(b"")
    except (AuthError, RemoteProtocolError):
        pass


# --- the initiator and servers that are something else --------------------------------------------


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (NOT_FOUND, "no farm at /GarlicFarm/secretname/1/websocket"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "answered 200 instead of 101"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            "not HTTP",
        ),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", "no usable Digest challenge"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * HEADER_LIMIT, "not HTTP"),
    ],
)
def test_unexpected_answer_to_request_1_raises(reply: bytes, message: str) -> None:
    initiator = make_initiator()
    initiator.request("cafe")
    with pytest.raises(RemoteProtocolError, match=message):
        initiator.receive(reply)


def test_answer_that_ends_before_it_began_raises() -> None:
    initiator = make_initiator()
    initiator.request("cafe")
    with pytest.raises(RemoteProtocolError, match="closed before it answered"):
        initiator.receive(b"")


def test_upgrade_to_something_else_raises() -> None:
    initiator, verdict = second_request()
    with pytest.raises(RemoteProtocolError, match="another protocol"):
        initiator.receive(verdict.reply.replace(b"Upgrade: websocket", b"Upgrade: h2c"))


def test_interim_responses_are_passed_over() -> None:
    credentials = make_credentials()
    initiator = make_initiator()
    reply = answer(credentials, initiator.request("cafe")).reply
    assert initiator.receive(b"HTTP/1.1 102 Processing\r\n\r\n") is None
    assert initiator.receive(b"HTTP/1.1 103 Early Hints\r\n\r\n" + reply) == NewStream()


@pytest.mark.parametrize("farm", ["", "a/b", "a b", "x" * 65, "ü", ".", "..", "farm\n"])
def test_impossible_farm_name_is_the_callers_fault(farm: str) -> None:
    with pytest.raises(LocalProtocolError):
        farm_target(farm)
