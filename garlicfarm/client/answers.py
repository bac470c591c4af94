"""Answers of the admin API, and failed connections, as errors of `garlicfarm.errors`."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from garlicfarm.client.trust import node_address
from garlicfarm.errors import (
    AuthError,
    Compacted,
    ConfigError,
    DiskHangs,
    EntryRefused,
    GarlicFarmError,
    LocalProtocolError,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    ProposalDropped,
    RankingConflict,
    RankingNotStored,
    RemoteProtocolError,
    UnreachableError,
)
from garlicfarm.refusals import Refusal
from garlicfarm.transport import Endpoint


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of HTTP. ``headers``: by their names in lower case; repeated ones are joined by commas.
    ``source`` is the URL that gave it, without its query."""

    status: int
    headers: Mapping[str, str]
    content: bytes = b""
    source: str = ""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def header(self, name: str) -> str:
        """The value of this header, "" if there is none."""
        return self.headers.get(name.lower(), "")


def certificate_error(error: BaseException | None, url: str) -> AuthError | None:
    """The error, if a connection failed because of the node's certificate; None: for another reason."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    if error is None:
        return None
    why = getattr(error, "verify_message", None)  # OpenSSL's; a pin's failure has none
    if why is None:
        return AuthError(
            f"{url} shows another certificate than the pinned one: another node answers there, or the pin is"
            " wrong; a node's is at the end of `endpoint` in its configuration"
        )
    return AuthError(
        f"{url} shows a certificate of no known authority ({why}): give its pin, as in"
        f" {url}?pin=sha256-…, or its authority"
    )


def leader_address(answer: Answer) -> tuple[str, str] | None:
    """The admin URL of the leader to which a node redirects, and the pin of its certificate."""
    url = answer.header("Garlic-Farm-Leader-Url")
    endpoint = answer.header("Garlic-Farm-Leader").partition(" ")[2]
    try:
        pin = Endpoint.parse(endpoint).params["pin"]
        return node_address(f"{url}?pin={pin}")[0], pin
    except (ConfigError, KeyError):
        return None  # without a pin any server could answer there


def failure(answer: Answer, url: str) -> GarlicFarmError | None:
    """The error that the answer reports; None for a success."""
    if answer.is_success:
        return None
    try:
        problem = msgspec.json.decode(answer.content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        problem = {}
    parts = [str(problem[key]) for key in ("detail", "next") if key in problem]
    text = " ".join(part if part.endswith((".", "?")) else f"{part}." for part in parts).removesuffix(".")
    if not text:
        text = f"status {answer.status}, not from an admin API; give the node's admin.url"
    text = f"{url}: {text}"
    match answer.status, problem.get("type"):
        case ((401 | 403), _):
            return AuthError(text)
        case 429, _:  # the password was not looked at, and may be right
            return UnreachableError(text)
        case 404, "garlicfarm:no-such-farm":
            return ConfigError([text])
        case 410, "garlicfarm:compacted" if isinstance(first_index := problem.get("first_index"), int):
            return Compacted(first_index)
        case 421, _:
            leader, _, endpoint = answer.header("Garlic-Farm-Leader").partition(" ")
            known = leader.isdecimal() and len(leader) <= 10
            return NotLeader(int(leader) if known else None, endpoint or None)
        case (409, "garlicfarm:change-refused") | (507, "garlicfarm:disk-full"):
            dropped = _dropped(problem)
            dropped.args = (text,)  # the next step depends on the reason, and is in the node's text
            return dropped
        case 409, "garlicfarm:ranking-conflict":
            return RankingConflict(text)
        case 507, "garlicfarm:ranking-not-stored":
            return RankingNotStored(text)
        case 422, "garlicfarm:entry-refused":
            return refusal(problem)
        case 413, _:
            return EntryRefused("", text)
        case 503, "garlicfarm:proposal-dropped":
            return _dropped(problem)
        case 503, "garlicfarm:disk-hangs":
            return DiskHangs(text)
        case 503, _:
            return NoQuorum(text)
        case 504, _:
            return OutcomeUnknown(text)
        case status, _ if status < 500:
            return LocalProtocolError(text)
    return RemoteProtocolError(text)


def refusal(problem: Mapping[str, Any]) -> EntryRefused:
    """The refusal of an entry, out of its problem."""
    return EntryRefused(*(str(problem.get(key, "")) for key in ("field", "reason", "hint")))


def _dropped(problem: Mapping[str, Any]) -> ProposalDropped:
    text = str(problem.get("reason", ""))
    word, _, detail = text.partition(": ")
    try:
        return ProposalDropped(Refusal(word), detail)
    except ValueError:  # a word of another version of the node
        return ProposalDropped(Refusal.REFUSED, text)
