"""HTTP Digest access authentication, both sides: RFC 7616 and RFC 2617 with qop=auth, MD5 and SHA-256.

The server side (`DigestVerifier`) stores nothing about nonces that were never used correctly: a nonce
is ``time.random.mac``, so a challenge costs no memory. To refuse replays it stores the used nonce counts,
from the first *valid* digest over a nonce on, in a table of fixed size. Evicting the oldest row raises a
floor: nonces as old as that row or older are stale from then on, so eviction never allows a replay.

Order of checks: the password first, the nonce second. So a client whose cached challenge is older than
our process gets ``stale=true`` and retries at once, and never counts as a failed password.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from garlicfarm.errors import LocalProtocolError, RemoteProtocolError

REALM = "restricted"
"""The realm of every farm and node. Stored HA1s depend on it, and it reveals nothing to strangers (D3)."""

ALGORITHMS: Final = ("MD5", "SHA-256")
"""Known algorithms, weakest first. Offered in this order, so that every common client can log in (D2)."""

NONCE_LIFETIME_S = 7200.0
"""How long a nonce is valid: longer than the hour for which initiators cache a challenge."""

MAX_WINDOWS = 4096
"""How many nonces have their used counts stored at one time."""

WINDOW = 128
"""How far a nonce count may lag behind the highest one seen on the same nonce."""

MAX_CACHED = 1024
"""How many challenges an initiator stores."""

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_ITEM = re.compile(rf'[\s,]*(?:({_TOKEN})\s+)?({_TOKEN})\s*=\s*(?:"([^"\\]*)"|({_TOKEN}))\s*(?=,|\Z)')
_NONCE = re.compile(r"([0-9a-f]{1,16})\.([0-9a-f]{1,64})\.([0-9a-f]{32})")
_NC = re.compile(r"[0-9A-Fa-f]{8}")
_QUOTABLE = re.compile(r'[^"\\\x00-\x1f\x7f]*')


def _hash(algorithm: str, text: str) -> str:
    name = "md5" if algorithm == "MD5" else "sha256"
    return hashlib.new(name, text.encode(), usedforsecurity=False).hexdigest()


def ha1(algorithm: str, user: str, realm: str, password: str) -> str:
    """The hash that a server stores instead of a password: H(user:realm:password), in hex.

    :param algorithm: one of `ALGORITHMS`.
    :returns: 32 (MD5) or 64 (SHA-256) lower-case hex digits.

    Source: RFC 7616 §3.4.2.
    """
    return _hash(algorithm, f"{user}:{realm}:{password}")


def digest_response(
    algorithm: str, ha1: str, *, nonce: str, nc: str, cnonce: str, method: str, uri: str
) -> str:
    """The ``response`` of a client for qop=auth; with an empty ``method`` the server's ``rspauth``.

    Source: RFC 7616 §3.4.1 and §3.5.
    """
    a2 = _hash(algorithm, f"{method}:{uri}")
    return _hash(algorithm, f"{ha1}:{nonce}:{nc}:{cnonce}:auth:{a2}")


def parse_header(value: str) -> list[tuple[str, dict[str, str]]]:
    """Split an Authorization, WWW-Authenticate or Authentication-Info value into (scheme, parameters).

    Schemes and parameter names come out in lower case, values without their quotes; a value without
    a scheme (Authentication-Info) has the scheme "". Several challenges in one line are several items.

    :returns: one item per scheme; an empty list if the value is not a list of parameters (Basic, a
        duplicate parameter, a backslash in a quoted value).

    Source: RFC 7235 §2.1, RFC 7616 §3.3 to §3.5.
    """
    items: list[tuple[str, dict[str, str]]] = []
    position = 0
    while position < len(value):
        match = _ITEM.match(value, position)
        if match is None:
            return []
        scheme, name, quoted, token = match.groups()
        if scheme is not None or not items:
            items.append(((scheme or "").lower(), {}))
        parameters = items[-1][1]
        if name.lower() in parameters:
            return []
        parameters[name.lower()] = token if quoted is None else quoted
        position = match.end()
    return items


def _quoted(name: str, value: str) -> str:
    if _QUOTABLE.fullmatch(value) is None:
        raise LocalProtocolError(
            f"{name} cannot be sent in a Digest header: it has quotes or control characters"
        )
    return f'{name}="{value}"'


@dataclass(frozen=True, slots=True)
class Verified:
    """Valid credentials. ``authentication_info`` is the header value that proves that we know them too."""

    user: str
    authentication_info: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Refused credentials. ``stale``: the password was correct, only a new nonce is needed.

    ``failed``: the password was wrong (or the user unknown); callers count these.
    """

    stale: bool = False
    failed: bool = False


@dataclass(slots=True)
class _Window:
    """The used counts of one nonce: the highest, and a bitmap of those just below it."""

    highest: int = 0
    seen: int = 0

    def use(self, count: int) -> bool:
        """Mark ``count`` as used; False if it was used before, or is too old to know."""
        if count > self.highest:
            # The shift is limited: counts may jump by 2**32, and the bitmap would grow with them.
            shift = min(count - self.highest, WINDOW)
            self.seen = ((self.seen << shift) | 1) & ((1 << WINDOW) - 1)
            self.highest = count
            return True
        behind = self.highest - count
        if behind >= WINDOW or self.seen >> behind & 1:
            return False
        self.seen |= 1 << behind
        return True


class DigestVerifier:
    """Checks Digest credentials and makes challenges, for one realm.

    :param realm: the realm of the stored HA1s; always `REALM`, except in tests.
    :param algorithms: offered and accepted, in the order of offering; a subset of `ALGORITHMS`.
    :param key: 32 random bytes of this process; a new key makes all nonces stale.
    :param lookup: user name -> HA1s by algorithm, empty for an unknown user. Several per algorithm
        are tried, so that a farm can rotate its secret.

    ``now_s`` is any monotonic clock in seconds (not the wall clock).
    """

    def __init__(
        self,
        realm: str,
        algorithms: Sequence[str],
        key: bytes,
        lookup: Callable[[str], Mapping[str, Sequence[str]]],
    ) -> None:
        if not algorithms or not set(algorithms) <= set(ALGORITHMS):
            raise LocalProtocolError(f"Digest algorithms must be some of {', '.join(ALGORITHMS)}")
        self._realm = realm
        self._algorithms = tuple(algorithms)
        self._key = key
        self._lookup = lookup
        self._dummy = hmac.digest(key, b"nobody", "sha256").hex()
        self._windows: dict[tuple[int, str], _Window] = {}
        self._by_age: list[tuple[int, str]] = []  # their keys, as a heap: the oldest one first
        self._floor_ms = -1

    def challenges(self, now_s: float, random: bytes, *, stale: bool = False) -> list[str]:
        """One WWW-Authenticate value per algorithm, all with the same new nonce.

        :param random: 8 to 32 fresh random bytes.
        :param stale: tells the client that only its nonce was refused.

        Source: RFC 7616 §3.3.
        """
        stem = f"{int(now_s * 1000):x}.{random.hex()}"
        tail = ", stale=true" if stale else ""
        return [
            f'Digest realm="{self._realm}", qop="auth", nonce="{stem}.{self._mac(stem)}", '
            f"algorithm={algorithm}{tail}"
            for algorithm in self._algorithms
        ]

    def verify(self, method: str, target: str, authorization: str | None, now_s: float) -> Verified | Refused:
        """Check the value of an Authorization header (None: no header). Its contents never raise.

        Unknown users and wrong passwords cost the same work and get the same response.

        Source: RFC 7616 §3.4 and §3.5.
        """
        given = self._parse(target, authorization)
        if given is None:
            return Refused()
        algorithm = given.get("algorithm", "MD5").upper()
        known = self._lookup(given["username"]).get(algorithm, ())
        nobody = ha1(algorithm, "", self._realm, self._dummy)
        candidates = [*known, *[nobody] * (2 - len(known))]
        proof = {"nonce": given["nonce"], "nc": given["nc"], "cnonce": given["cnonce"], "uri": target}
        matched = None
        for position, candidate in enumerate(candidates):
            expected = digest_response(algorithm, candidate, method=method, **proof)
            same = hmac.compare_digest(expected.encode(), given["response"].encode())
            if same and position < len(known):
                matched = candidate
        if matched is None:
            return Refused(failed=True)
        if not self._use(given["nonce"], int(given["nc"], 16), now_s):
            return Refused(stale=True)
        rspauth = digest_response(algorithm, matched, method="", **proof)
        info = f'rspauth="{rspauth}", qop=auth, cnonce="{given["cnonce"]}", nc={given["nc"]}'
        return Verified(given["username"], info)

    def _parse(self, target: str, authorization: str | None) -> dict[str, str] | None:
        """The parameters of well-formed credentials for this realm and target, or None."""
        items = parse_header(authorization or "")
        if len(items) != 1 or items[0][0] != "digest":
            return None
        given = items[0][1]
        usable = (
            {"username", "nonce", "nc", "cnonce", "response"} <= given.keys()
            and given.get("qop") == "auth"
            and given.get("realm") == self._realm
            and given.get("uri") == target
            and given.get("algorithm", "MD5").upper() in self._algorithms
            and _NC.fullmatch(given["nc"])
        )
        return given if usable else None

    def _mac(self, stem: str) -> str:
        return hmac.digest(self._key, stem.encode(), "sha256").hex()[:32]

    def _use(self, nonce: str, count: int, now_s: float) -> bool:
        """Use a nonce once with this count; False if it is not ours, too old, or the count was used."""
        match = _NONCE.fullmatch(nonce)
        if match is None:
            return False
        stem, _, mac = nonce.rpartition(".")
        issued_ms = int(match[1], 16)
        age_ms = int(now_s * 1000) - issued_ms
        fresh = 0 <= age_ms <= NONCE_LIFETIME_S * 1000 and issued_ms > self._floor_ms
        if count < 1 or not fresh or not hmac.compare_digest(self._mac(stem), mac):
            return False
        key = (issued_ms, nonce)
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window()
            heappush(self._by_age, key)
        if not window.use(count):
            return False
        if len(self._windows) > MAX_WINDOWS:
            oldest = heappop(self._by_age)
            del self._windows[oldest]
            self._floor_ms = oldest[0]
        return True


@dataclass(frozen=True, slots=True)
class Challenge:
    """A server's challenge, with the strongest algorithm that it offered."""

    realm: str
    nonce: str
    algorithm: str
    opaque: str | None
    stale: bool


@dataclass(frozen=True, slots=True)
class Authorization:
    """One use of a challenge: the header to send, and the ``rspauth`` that the server must return."""

    header: str
    rspauth: str
    challenge: Challenge


class ChallengeCache:
    """The challenges of servers, by (host, farm, user), with their nonce counts.

    A challenge is kept until a newer one replaces it, so that a reconnect needs only one connection.

    :param algorithms: the algorithms to use; challenges with others are ignored.
    """

    def __init__(self, algorithms: Sequence[str] = ALGORITHMS) -> None:
        self._algorithms = tuple(algorithms)
        self._entries: dict[tuple[str, str, str], tuple[Challenge, int]] = {}

    def learn(self, key: tuple[str, str, str], www_authenticate: Sequence[str]) -> Challenge:
        """Store the strongest challenge among the values of all WWW-Authenticate headers.

        :raises RemoteProtocolError: none of them is a Digest challenge that we can answer (the peer's fault).
        """
        best: Challenge | None = None
        offered: list[str] = []
        for scheme, given in (item for value in www_authenticate for item in parse_header(value)):
            algorithm = given.get("algorithm", "MD5").upper()
            qops = {word.strip() for word in given.get("qop", "").split(",")}
            sendable = all(_QUOTABLE.fullmatch(given.get(name, "")) for name in ("realm", "nonce", "opaque"))
            if scheme != "digest" or algorithm not in ALGORITHMS or "auth" not in qops or not sendable:
                continue
            offered.append(algorithm)
            if algorithm not in self._algorithms:
                continue
            if best is None or ALGORITHMS.index(algorithm) > ALGORITHMS.index(best.algorithm):
                stale = given.get("stale", "").lower() == "true"
                best = Challenge(
                    given.get("realm", ""), given.get("nonce", ""), algorithm, given.get("opaque"), stale
                )
        if best is None:
            taken = " or ".join(self._algorithms)
            what = f"no usable Digest challenge ({taken} with qop=auth)"
            if offered:
                what += f": it offers {offered[0]}, but this side accepts only {taken}"
            raise RemoteProtocolError(what, "WWW-Authenticate")
        self._entries.pop(key, None)
        self._entries[key] = (best, 0)
        if len(self._entries) > MAX_CACHED:
            del self._entries[next(iter(self._entries))]
        return best

    def authorization(
        self, key: tuple[str, str, str], *, method: str, target: str, password: str, cnonce: str
    ) -> Authorization | None:
        """Answer the cached challenge with the next nonce count; None if there is none.

        :param cnonce: fresh random text without quotes.
        :raises LocalProtocolError: the user name cannot be sent in a header (the caller's fault).
        """
        if key not in self._entries:
            return None
        challenge, count = self._entries[key]
        self._entries[key] = (challenge, count + 1)
        user = key[2]
        secret = ha1(challenge.algorithm, user, challenge.realm, password)
        proof = {"nonce": challenge.nonce, "nc": f"{count + 1:08x}", "cnonce": cnonce, "uri": target}
        response = digest_response(challenge.algorithm, secret, method=method, **proof)
        parts = [
            _quoted("username", user),
            _quoted("realm", challenge.realm),
            _quoted("nonce", challenge.nonce),
            _quoted("uri", target),
            f"algorithm={challenge.algorithm}",
            f'response="{response}"',
            "qop=auth",
            f"nc={proof['nc']}",
            _quoted("cnonce", cnonce),
        ]
        if challenge.opaque is not None:
            parts.append(_quoted("opaque", challenge.opaque))
        rspauth = digest_response(challenge.algorithm, secret, method="", **proof)
        return Authorization("Digest " + ", ".join(parts), rspauth, challenge)
