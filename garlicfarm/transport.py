"""The transport contract: bytes and addresses, nothing else.

A transport plugin is a class found through the entry point group ``garlicfarm.transports``. Its name is
the scheme of its endpoints (D1); its ``Config`` checks the table ``[transport.<scheme>]``. Handshake,
Digest and framing are in the core, once. Check your plugin with
`garlicfarm.testing.TransportSuite`.
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

__all__ = ["AdmissionSlot", "Endpoint", "Peer", "Stage", "Transport"]

_ENDPOINT = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://"
    r"(?:\[(?P<six>[^\]]*)\]|(?P<name>[^\s/?#@\[\]:%\\]+))"
    r":(?P<port>[0-9]{1,9})"
    r"(?:\?(?P<query>[^#]*))?"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a member or a listener: ``scheme://host:port?name=value&…``.

    ``host`` is a name or an address, IPv6 without its brackets; ``port`` is 0 … 65535, 0 only for a
    listener that takes any free port. ``params`` belong to the transport (such as ``pin``, the hash of a
    certificate: D11), except ``proxied``, which belongs to the core.
    ``Endpoint.parse(str(endpoint)) == endpoint``.
    """

    scheme: str
    host: str
    port: int
    params: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, text: str, default_scheme: str = "ssl") -> Endpoint:
        """Parse an endpoint; ``tcp://`` means ``default_scheme`` (D1).

        Raises `ConfigError`, naming ``text``: it is not an endpoint.
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
                raise _nonsense(text, f"parameter {part!r} is not name=value, or occurs twice")
            params[name] = value
        if params.get("proxied", "1") != "1":
            raise _nonsense(text, "write proxied=1 if a proxy is before the member, else omit it")
        return cls(default_scheme if scheme == "tcp" else scheme, host, port, params)

    @property
    def is_loopback(self) -> bool:
        """Whether ``host`` is a loopback address or ``localhost``."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def proxied(self) -> bool:
        """Whether the member is behind a proxy that requires a WebSocket handshake (D4)."""
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
    """The progress of a connection that is not logged in. The least advanced stage is cut first."""

    CLOSING = 0
    """It is refused: only the response and the peer's close are pending."""
    OPEN = 1
    """It has sent nothing."""
    HANDSHAKE = 2
    """Its transport's own handshake is under way."""
    STREAM = 3
    """The handler has it, but has read nothing yet."""
    REQUEST = 4
    """A part of its request was read."""


class AdmissionSlot:
    """The slot of one incoming connection among those that are not logged in. The default has no limits."""

    def begin(self) -> bool:
        """Whether a TLS handshake, which costs CPU, may begin; False: its address began too many."""
        return True

    def advance(self, stage: Stage) -> None:
        """The connection has reached ``stage``. The core calls this, from the handler on."""

    def leave(self) -> None:
        """The peer has logged in, so the connection no longer counts. The core calls this."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The peer of a stream, as far as the transport knows.

    ``address`` is without a port. ``address_is_peer=False`` (i2p: all streams come from the tunnel)
    switches limits per address off. ``certificate_sha256`` is the digest of the DER of the certificate
    that the peer proved to own, ``None`` if it presented none. ``slot`` is the one from
    `Transport.admit`, None if the transport did not call it.
    """

    address: str
    address_is_peer: bool
    certificate_sha256: bytes | None
    slot: AdmissionSlot | None = field(default=None, compare=False, repr=False)


class Transport(ABC):
    """Opens and accepts byte streams for one scheme.

    A transport calls ``on_drop(peer, reason)`` for every incoming connection that ended before it reached a
    handler, with a fixed word as reason. The default does nothing; the node's counts. It must not raise.

    ``admit(peer)`` is a context manager that returns an `AdmissionSlot`. The default has no limits; the
    node's cancels the context of a connection whose slot another one needs. A transport that listens enters
    it for each incoming connection before it reads from it, leaves it when the socket is closed, and passes
    the slot on in `Peer.slot`. It calls `AdmissionSlot.begin` before a handshake that costs CPU, once the
    peer has sent something, and closes the connection if that returns False. A transport that never enters
    it works too: its connections count from the handler on.
    """

    scheme: ClassVar[str]
    api_version: ClassVar[int] = 1
    Config: ClassVar[type[msgspec.Struct]]
    handshake: ClassVar[bool] = True
    """False: streams without a handshake; the core then allows only loopback and one farm per listener."""

    def __init__(self, config: Any, base_dir: Path) -> None:
        """``config`` is an instance of ``Config``; relative paths in it are relative to ``base_dir``.

        Raises `ConfigError`: a file named in it is missing or unusable.
        """
        self.config = config
        self.base_dir = base_dir
        self.on_drop: Callable[[Peer, str], None] = lambda peer, reason: None
        self.admit: Callable[[Peer], AbstractContextManager[AdmissionSlot]] = lambda peer: nullcontext(
            AdmissionSlot()
        )

    @abstractmethod
    async def open_stream(self, endpoint: Endpoint) -> trio.abc.Stream:
        """Open a stream to ``endpoint``, ready to use and with its peer verified.

        Raises `UnreachableError`: nothing answers there; `NotListening`: the peer's own machine refuses,
        since no process listens there (not what a proxy or a tunnel says); `TransportError`: the wrong peer
        answered, or ``endpoint`` does not identify the peer. The caller sets the deadline. On cancellation,
        nothing stays open.
        """

    def peer_address(self, stream: trio.abc.Stream) -> str | None:
        """The address, without a port, of the member that ``stream``, one of `open_stream`'s, leads to. The
        default is None: the address says nothing about the member, or cannot be known."""
        return None

    def check_url(self, url: Endpoint) -> None:  # noqa: B027 - most refuse nothing
        """Refuse a ``url`` at which `serve` can never listen; the default refuses none. Binds nothing.

        Raises `TransportError`: the problem, and what to do.
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

        ``started()`` reports the bound address, with everything that a peer needs to dial it (a pin) in its
        params. A connection that fails before it is a stream affects no other. ``handler`` has its own
        error boundary: an exception that escapes it ends ``serve``. When it returns, its stream is closed
        gracefully, under a deadline. On cancellation ``serve`` closes everything.

        Raises `TransportError`: cannot listen at ``url``.
        """


def listener_problems(transport: Transport, url: Endpoint, farms: Sequence[str]) -> list[str]:
    """Why a listener for ``farms`` is not allowed at ``url``; empty if it is."""
    problems = []
    if not transport.handshake:  # peers show neither their identity nor the farm
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
    ip = _ip(address)
    if isinstance(ip, ipaddress.IPv6Address) and not ip.is_loopback:
        return str(int(ip) >> 64)
    return address if ip is None else str(ip)


def site_of(address: str) -> str | None:
    """The IPv6 /48 of an address, since one site may have a whole /48; None: it is not IPv6, or loopback."""
    ip = _ip(address)
    if isinstance(ip, ipaddress.IPv6Address) and not ip.is_loopback:
        return f"{int(ip) >> 80}/48"
    return None


def _ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address, IPv4 where IPv6 only wraps it; None: it is none."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return None
    return getattr(ip, "ipv4_mapped", None) or ip
