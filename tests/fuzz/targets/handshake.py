"""The upgrade handshake and Digest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from garlicfarm.errors import AuthError, RemoteProtocolError
from garlicfarm.http.digest import (
    ALGORITHMS,
    REALM,
    ChallengeCache,
    DigestVerifier,
    Verified,
    digest_response,
    ha1,
    parse_header,
)
from garlicfarm.http.upgrade import (
    Accepted,
    FarmCredentials,
    Initiator,
    NewStream,
    Rejected,
    Responder,
    farm_target,
)
from tests.fuzz.targets.base import FARM, GENESIS, KEY, Target, choice, pieces

NOW_S = 1000.0
RANDOM = b"r" * 16
USER, PASSWORD = "7", "the password"
TARGET = farm_target(FARM)
EXTENSIONS = {"pre-vote": "1", "leader-hint": "1"}


def _lookup(user: str) -> Mapping[str, Sequence[str]]:
    return {each: [ha1(each, USER, REALM, PASSWORD)] for each in ALGORITHMS} if user == USER else {}


def _verifier() -> DigestVerifier:
    return DigestVerifier(REALM, ALGORITHMS, KEY, _lookup)


def _responder() -> Responder:
    leader = (2, "ssl://host2.example:27150")
    return Responder({FARM: FarmCredentials(FARM, GENESIS.farm_id, _verifier(), EXTENSIONS, lambda: leader)})


def _initiator(*, challenged: bool) -> Initiator:
    host, cache = "host1.example:27150", ChallengeCache()
    if challenged:
        cache.learn((host, FARM, USER), _verifier().challenges(NOW_S, RANDOM))
    return Initiator(
        host=host,
        farm=FARM,
        user=USER,
        password=PASSWORD,
        cache=cache,
        farm_id=GENESIS.farm_id,
        extensions=EXTENSIONS,
    )


def _respond(data: bytes, size: int) -> Accepted | Rejected:
    responder = _responder()
    for piece in pieces(data, size):
        verdict = responder.receive(piece, NOW_S, RANDOM)
        if verdict is not None:
            return verdict
    verdict = responder.receive(b"", NOW_S, RANDOM)
    assert verdict is not None
    return verdict


def _initiate(data: bytes, size: int, *, challenged: bool) -> str:
    initiator = _initiator(challenged=challenged)
    initiator.request("cafe")
    try:
        for piece in pieces(data, size):
            verdict = initiator.receive(piece)
            if isinstance(verdict, NewStream):
                outcome = _respond(initiator.request("cafe"), 0)
                assert isinstance(outcome, Rejected | Accepted)
                assert not isinstance(outcome, Rejected) or outcome.reason in {
                    "password",
                    "stale",
                    "challenge",
                }
                return "new stream"
            if verdict is not None:
                return f"{verdict.user} {verdict.extensions}"
        initiator.receive(b"")
    except (AuthError, RemoteProtocolError) as error:
        return type(error).__name__
    raise AssertionError("no verdict on a stream that ended")


def upgrade(data: bytes) -> None:
    """Both sides of the handshake, whole and in pieces."""
    side, size, rest = data[0] % 3 if data else 0, data[1] if len(data) > 1 else 0, data[2:]
    if side == 0:
        whole, cut = _respond(rest, 0), _respond(rest, size)
        assert type(whole) is type(cut)
        if isinstance(whole, Accepted) and isinstance(cut, Accepted):
            assert (whole.reply, whole.user, whole.extensions) == (cut.reply, cut.user, cut.extensions)
            assert whole.leftover.startswith(cut.leftover)
    else:
        challenged = side == 2
        assert _initiate(rest, size, challenged=challenged) == _initiate(rest, 0, challenged=challenged)


def _upgrade_seeds() -> list[bytes]:
    first, second = (_initiator(challenged=challenged).request("cafe") for challenged in (False, True))
    keyed = second.replace(b"Upgrade: websocket", b"Upgrade: websocket\r\nSec-WebSocket-Key: AAAA")
    replies = [
        _respond(request, 0).reply for request in (first, second, keyed, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    ]
    asked = [first, second, keyed, second + b"raft", b"HEAD / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x02\x00"]
    seeds = [b"\x00" + size + request for request in asked for size in (b"\x00", b"\x11")]
    return seeds + [side + b"\x07" + reply for reply in replies for side in (b"\x01", b"\x02")]


def _digest_credentials(text: str) -> None:
    verdict = _verifier().verify("GET", TARGET, text, NOW_S)
    if isinstance(verdict, Verified):
        assert verdict.user == USER
        assert parse_header(verdict.authentication_info)


def _digest_challenges(text: str) -> None:
    cache, key = ChallengeCache(), ("host", FARM, USER)
    try:
        challenge = cache.learn(key, text.split("\n"))
    except RemoteProtocolError:
        return
    answer = cache.authorization(key, method="GET", target=TARGET, password=PASSWORD, cnonce="cafe")
    assert answer is not None
    ((scheme, given),) = parse_header(answer.header)
    assert (scheme, given["nonce"], given["realm"]) == ("digest", challenge.nonce, challenge.realm)


def digest(data: bytes) -> None:
    """Headers of Digest authentication: lists of parameters, credentials, challenges."""
    kind, rest = choice(data, 3)
    text = rest.decode("latin-1")
    if kind == 0:
        for _, parameters in parse_header(text):
            assert parameters
    elif kind == 1:
        _digest_credentials(text)
    else:
        _digest_challenges(text)


def _digest_seeds() -> list[bytes]:
    challenges = _verifier().challenges(NOW_S, RANDOM)
    texts = [*challenges, ", ".join(challenges), "\n".join(_verifier().challenges(NOW_S, RANDOM, stale=True))]
    nonce = parse_header(challenges[0])[0][1]["nonce"]
    for algorithm in ALGORITHMS:
        secret = ha1(algorithm, USER, REALM, PASSWORD)
        proof = {"nonce": nonce, "nc": "00000001", "cnonce": "cafe", "uri": TARGET}
        response = digest_response(algorithm, secret, method="GET", **proof)
        texts.append(
            f'Digest username="{USER}", realm="{REALM}", nonce="{nonce}", uri="{TARGET}", '
            f'algorithm={algorithm}, response="{response}", qop=auth, nc=00000001, cnonce="cafe"'
        )
    texts += [
        'rspauth="abc", qop=auth',
        "Basic YTpi",
        'Digest a="b\\"c"',
        'Digest qop="auth,auth-int", opaque=x',
    ]
    return [kind + text.encode("latin-1") for text in texts for kind in (b"\x00", b"\x01", b"\x02")]


TARGETS = {"upgrade": Target(upgrade, _upgrade_seeds), "digest": Target(digest, _digest_seeds)}
