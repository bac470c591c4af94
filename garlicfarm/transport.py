"""The transport contract: bytes and addresses, nothing else.

A transport plugin is a class found through the entry point group ``garlicfarm.transports``; its name is
the scheme of the endpoints that it serves (D1), the table ``[transport.<scheme>]`` is checked by its
``Config``. Handshake, Digest and framing stay in the core, once. Check your plugin with
`garlicfarm.testing.transport_suite.TransportSuite`.
"""

from __future__ import annotations

import ipaddress
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn
from urllib.parse import quote, unquote

import msgspec

from garlicfarm.errors import ConfigError, TransportError

if TYPE_CHECKING:  # listing plugins must not cost the import of Trio
    import trio

__all__ = ["Endpoint", "Peer", "Place", "Stage", "Transport", "listener_problems", "network_of"]

_ENDPOINT = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://"
    r"(?:\[(?P<six>[^\]]*)\]|(?P<name>[^\s/?#@\[\]:%\\]+))"
    r":(?P<port>[0-9]{1,5})"
    r"(?:\?(?P<query>[^#]*))?"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a member is dialled, or a listener bound: ``scheme://host:port?name=value&…``.

    ``host`` is a name or an address, IPv6 without its brackets; ``port`` is 0 … 65535, 0 only for a
    listener that takes any free port. ``params`` belong to the transport (``pin``: D11), but for ``proxied``.
    ``Endpoint.parse(str(endpoint)) == endpoint``.
    """

    scheme: str
    host: str
    port: int
    params: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, text: str, default_scheme: str = "ssl") -> Endpoint:
        """Read an endpoint; ``tcp://`` means ``default_scheme`` (D1).

        Raises `ConfigError`, naming ``text``: it is no endpoint.
        """
        match = _ENDPOINT.fullmatch(text)
        if match is None or not text.isprintable():
            raise _nonsense(text, "not of the form scheme://host:port?name=value")
        scheme, host, port = match["scheme"].lower(), match["name"], int(match["port"])
        if host is None:
            host = match["six"]
            try:
                ipaddress.IPv6Address(host)
            except ValueError as exc:
                raise _nonsense(text, f"[{host}] is no IPv6 address") from exc
        if port > 65535:
            raise _nonsense(text, f"the port {port} is larger than 65535")
        params: dict[str, str] = {}
        for part in match["query"].split("&") if match["query"] is not None else ():
            name, equals, value = part.partition("=")
            try:
                name, value = unquote(name, errors="strict"), unquote(value, errors="strict")
            except UnicodeDecodeError as exc:
                raise _nonsense(text, "an escaped parameter is not UTF-8") from exc
            if not name or not equals or name in params:
                raise _nonsense(text, f"parameter {part!r} is not name=value, or comes twice")
            params[name] = value
        if params.get("proxied", "1") != "1":
            raise _nonsense(text, "a proxy before the member is told by proxied=1, and no proxy by nothing")
        return cls(default_scheme if scheme == "tcp" else scheme, host, port, params)

    @property
    def is_loopback(self) -> bool:
        """Whether ``host`` is an address of this machine that no other can reach, or ``localhost``."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def proxied(self) -> bool:
        """Whether a proxy stands before the member that passes a WebSocket's handshake alone (D4)."""
        return "proxied" in self.params

    @property
    def authority(self) -> str:
        """``host:port``, IPv6 in brackets (RFC 3986 §3.2)."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        query = "&".join(
            f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in self.params.items()
        )
        return f"{self.scheme}://{self.authority}" + (f"?{query}" if query else "")


def _nonsense(text: str, why: str) -> ConfigError:
    return ConfigError([f"endpoint {text!r}: {why}; an example: ssl://a.example:27150"])


class Stage(IntEnum):
    """How far a connection has come that is not logged in. The least advanced one is cut first."""

    CLOSING = 0
    """It is refused: what is left is the answer, and the peer's end."""
    OPEN = 1
    """It has sent nothing."""
    HANDSHAKE = 2
    """Its transport's own handshake is under way."""
    STREAM = 3
    """The handler has it, and has read nothing yet."""
    REQUEST = 4
    """A part of its request was read."""


class Place:
    """The place of one incoming connection among those that are not logged in. This one has no limits."""

    def begin(self) -> bool:
        """Whether what costs CPU, a TLS handshake, may begin; False: its address did that too often."""
        return True

    def advance(self, stage: Stage) -> None:
        """The connection has come to ``stage``; the core says so, from the handler on."""

    def leave(self) -> None:
        """The peer has logged in: the connection counts no longer. The core says so."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who opened a stream, as far as the transport can tell.

    ``address`` is without a port. ``address_is_peer`` False (i2p: everybody comes from the tunnel)
    switches limits per address off. ``certificate_sha256`` is the digest of the DER of the certificate
    that the peer proved to own, ``None`` if it showed none. ``place`` is the one that `Transport.admit`
    gave, None where the transport did not ask for one.
    """

    address: str
    address_is_peer: bool
    certificate_sha256: bytes | None
    place: Place | None = field(default=None, compare=False, repr=False)


class Transport(ABC):
    """Opens and accepts byte streams for one scheme.

    ``on_drop(peer, reason)`` is called for every incoming connection that ended before it reached a
    handler, with a fixed word as reason; the default does nothing, the node counts. It must not raise.

    ``admit(peer)`` is a context manager that gives a `Place`; the default has no limits, the node's cancels
    the context of a connection whose place another one needs. A transport that listens enters it for each
    incoming connection before it reads from it, leaves it when the socket is closed, and passes the place on
    in `Peer.place`. It asks `Place.begin` before a handshake that costs CPU, once the peer has sent
    something; where that is False, it closes the connection. A transport that never enters it works too:
    its connections count from the handler on.
    """

    scheme: ClassVar[str]
    api_version: ClassVar[int] = 1
    Config: ClassVar[type[msgspec.Struct]]
    handshake: ClassVar[bool] = True
    """False: a raw stream without a handshake; the core then allows loopback and one farm per listener."""

    def __init__(self, config: Any, base_dir: Path) -> None:
        """``config`` is an instance of ``Config``; relative paths in it are relative to ``base_dir``.

        Raises `ConfigError`: files that it names are missing or unusable.
        """
        self.config = config
        self.base_dir = base_dir
        self.on_drop: Callable[[Peer, str], None] = lambda peer, reason: None
        self.admit: Callable[[Peer], AbstractContextManager[Place]] = lambda peer: nullcontext(Place())

    @abstractmethod
    async def open_stream(self, endpoint: Endpoint) -> trio.abc.Stream:
        """Open a stream to ``endpoint``, ready to use and with its peer checked.

        Raises `UnreachableError`: nobody answers there; `TransportError`: somebody did, and it is not
        the peer wanted, or ``endpoint`` says too little. The deadline is the caller's. Cancelled, it
        leaves nothing open.
        """

    def check_url(self, url: Endpoint) -> None:  # noqa: B027 - most refuse nothing
        """Refuse a ``url`` that `serve` can never listen at; the default refuses none. Binds nothing.

        Raises `TransportError`: what is wrong with it, and what to do.
        """

    @abstractmethod
    async def serve(
        self,
        url: Endpoint,
        handler: Callable[[trio.abc.Stream, Peer], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[Endpoint],
    ) -> NoReturn:
        """Listen at ``url`` until cancelled, and call ``handler`` once per stream, each in its own task.

        ``started()`` reports the bound address; what a peer must know to dial it (a pin) is in its
        params. A connection that fails before there is a stream costs itself alone. ``handler`` has its
        own error boundary: whatever escapes it ends ``serve``. When it returns, its stream is closed,
        gracefully under a deadline. Cancelled, ``serve`` closes everything.

        Raises `TransportError`: ``url`` cannot be listened on.
        """


def listener_problems(transport: Transport, url: Endpoint, farms: Sequence[str]) -> list[str]:
    """Why no listener for ``farms`` may be at ``url``; empty where one may."""
    problems = []
    if not transport.handshake:  # nobody shows who he is, nor which farm he wants
        if not url.is_loopback:
            problems.append(f"{url}: {url.scheme} has no handshake; it may listen on loopback only")
        if len(farms) != 1:
            problems.append(f"{url}: {url.scheme} has no handshake; name the one farm of this listener")
    try:
        transport.check_url(url)
    except TransportError as error:
        problems.append(str(error))
    return problems


def network_of(address: str) -> str:
    """The unit that limits count by: one IPv4 address, or one IPv6 /64, since a host may have a whole /64."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is None:
            return str(ip) if ip.is_loopback else str(int(ip) >> 64)
        ip = ip.ipv4_mapped
    return str(ip)
