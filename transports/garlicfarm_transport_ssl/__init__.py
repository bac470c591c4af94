"""The transport ``ssl``: TLS 1.3 on clearnet. There is no plain-text path.

The pin in its endpoint identifies a peer: the SHA-256 of its certificate (D11). Otherwise a CA does; an
endpoint with neither is never dialled. Dates and names of a pinned certificate are ignored: the pin is
the identity.
"""

from __future__ import annotations

import hashlib
import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import trio

from garlicfarm.credentials.certificates import pin_of, pin_of_file
from garlicfarm.errors import ConfigError, NotListening, TransportError, UnreachableError, first_error
from garlicfarm.net.tcp import serve_tcp
from garlicfarm.net.tls_stream import TlsStream
from garlicfarm.plugin_settings import setting
from garlicfarm.regular_files import check_regular
from garlicfarm.transport import Endpoint, Peer, Transport

HANDSHAKE_TIMEOUT_S = 10.0

_Handler = Callable[[trio.abc.Stream, Peer], Awaitable[None]]
_logger = logging.getLogger("garlicfarm.transport.ssl")


class SslConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The table ``[transport.ssl]``."""

    certificate: Annotated[
        str, setting("File with the node's certificate (PEM). Without it the node can dial but not listen.")
    ] = ""
    private_key: Annotated[
        str, setting("File with the key of the certificate (PEM, not encrypted, mode 0600).")
    ] = ""
    ca: Annotated[
        str, setting("File with authorities for certificates. Without it: the pin in each endpoint.")
    ] = ""
    require_client_certificate: Annotated[
        bool, setting("Peers that connect must present a certificate from ca.")
    ] = False


class SslTransport(Transport):
    """TLS 1.3 over TCP. `serve` drops connections with reason ``tls``, ``timeout``, ``too-often`` or
    ``gone``."""

    scheme = "ssl"
    Config = SslConfig
    config: SslConfig

    def __init__(self, config: SslConfig, base_dir: Path) -> None:
        super().__init__(config, base_dir)
        self._pin = ""
        self._client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for context in (self._client, self._server):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        # No resumption: tickets that a client never reads would turn its close into a reset.
        self._server.num_tickets = 0
        if bool(config.certificate) != bool(config.private_key):
            raise ConfigError(["transport ssl: certificate and private_key need each other"])
        if config.certificate:
            self._load_certificate(base_dir / config.certificate, base_dir / config.private_key)
        if config.ca:
            self._load_ca(base_dir / config.ca)
        else:
            self._client.check_hostname = False
            self._client.verify_mode = ssl.CERT_NONE  # open_stream checks the pin instead
        if config.require_client_certificate:
            if not config.ca:
                raise ConfigError(["transport ssl: require_client_certificate needs a ca"])
            self._server.verify_mode = ssl.CERT_REQUIRED

    def _load_certificate(self, certificate: Path, private_key: Path) -> None:
        self._pin = pin_of_file(certificate)
        try:
            check_regular(private_key)
            if private_key.stat().st_mode & 0o077:
                raise ConfigError([f"{private_key} can be read by others; chmod 600 {private_key}"])
            for context in (self._client, self._server):
                # An empty password: an encrypted key raises an error instead of prompting for a password.
                context.load_cert_chain(certificate, private_key, password="")
        except ssl.SSLError as exc:
            what = f"{private_key} is not the unencrypted key of {certificate}"
            raise ConfigError([f"transport ssl: {what} ({_text(exc)})"]) from exc
        except OSError as exc:
            raise ConfigError([f"{private_key}: {exc.strerror}"]) from exc

    def _load_ca(self, ca: Path) -> None:
        try:
            check_regular(ca)
            for context in (self._client, self._server):
                context.load_verify_locations(ca)
        except ssl.SSLError as exc:
            raise ConfigError([f"{ca}: no certificate in PEM form in it"]) from exc
        except OSError as exc:
            raise ConfigError([f"{ca}: {exc.strerror}"]) from exc

    async def open_stream(self, endpoint: Endpoint) -> TlsStream:
        """See `Transport.open_stream`. In TLS 1.3 a server refuses *our* certificate only after this
        returned: then the stream is broken."""
        pin = endpoint.params.get("pin", "")
        if not pin and not self.config.ca:
            hint = "add ?pin=sha256-… to the endpoint, or set ca in [transport.ssl]"
            raise TransportError(f"nothing identifies {endpoint}", hint)
        try:
            tcp = await trio.open_tcp_stream(endpoint.host, endpoint.port)
        except (OSError, UnicodeError) as exc:
            slot = Endpoint(endpoint.scheme, endpoint.host, endpoint.port)
            kind = NotListening if _is_refused(exc) else UnreachableError
            raise kind(f"{slot}: {_text(exc)}", "is the node up, and the port open?") from exc
        # A pinned peer needs no name, so none is sent in plain text.
        name = endpoint.host if self.config.ca else None
        stream = TlsStream(tcp, self._client, server_hostname=name)
        try:
            await stream.do_handshake()
            self._check_pin(stream, endpoint, pin)
        except trio.BrokenResourceError as exc:
            await trio.aclose_forcefully(stream)
            raise TransportError(f"{endpoint}: TLS failed: {_text(exc)}", _hint(exc)) from exc
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream

    def peer_address(self, stream: trio.abc.Stream) -> str | None:
        """See `Transport.peer_address`."""
        if not isinstance(stream, TlsStream):
            return None
        try:
            return str(stream.transport_stream.socket.getpeername()[0])
        except OSError:  # the peer has left again
            return None

    def _check_pin(self, stream: TlsStream, endpoint: Endpoint, pin: str) -> None:
        shown = pin_of(stream.getpeercert(binary_form=True) or b"")
        if pin and shown != pin:
            hint = "nothing was sent; if that node has a new certificate, change its endpoint"
            raise TransportError(f"{endpoint} shows another certificate, {shown}", hint)

    def check_url(self, url: Endpoint) -> None:
        """See `Transport.check_url`."""
        if not self._pin:
            raise TransportError(f"cannot listen on {url} without a certificate", "set it in [transport.ssl]")

    async def serve(
        self, url: Endpoint, handler: _Handler, *, task_status: trio.TaskStatus[Endpoint]
    ) -> NoReturn:
        """See `Transport.serve`. With port 0 a name with several addresses is bound to the first only."""

        async def connection(tcp: trio.SocketStream, peer: Peer) -> None:
            stream = await self._accept(tcp, peer)
            if stream is None:
                await trio.aclose_forcefully(tcp)
                return
            certificate = stream.getpeercert(binary_form=True)
            digest = certificate and hashlib.sha256(certificate).digest()
            await handler(stream, replace(peer, certificate_sha256=digest))
            stream.send_close_notify()

        params = {"pin": self._pin}
        await serve_tcp(self, url, connection, every_address=True, params=params, task_status=task_status)

    async def _accept(self, tcp: trio.SocketStream, peer: Peer) -> TlsStream | None:
        """The TLS handshake of one incoming connection; ``None`` if it failed."""
        try:
            with trio.fail_after(HANDSHAKE_TIMEOUT_S):
                await trio.lowlevel.wait_readable(tcp.socket)  # a silent client costs no TLS
                if peer.slot is not None and not peer.slot.begin():
                    self._drop(peer, "too-often", "too many handshakes from this address")
                    return None
                stream = TlsStream(tcp, self._server, server_side=True)
                await stream.do_handshake()
                return stream
        except trio.TooSlowError:
            self._drop(peer, "timeout", "the handshake took too long")
        except trio.BrokenResourceError as exc:
            self._drop(peer, "tls", _text(exc))
        return None

    def _drop(self, peer: Peer, reason: str, detail: str) -> None:
        _logger.debug("event=dropped peer=%s reason=%s detail=%r", peer.address, reason, detail)
        self.on_drop(peer, reason)


def _text(exc: BaseException) -> str:
    """A short description of the innermost cause."""
    exc = first_error(exc)
    while exc.__cause__ is not None:
        exc = first_error(exc.__cause__)
    if isinstance(exc, ssl.SSLEOFError):
        return "the connection was closed"
    if isinstance(exc, ssl.SSLCertVerificationError):
        return exc.verify_message
    if isinstance(exc, ssl.SSLError):
        return (exc.reason or str(exc)).lower().replace("_", " ")
    if isinstance(exc, OSError) and (exc.errno or 0) > 0:
        return os.strerror(exc.errno or 0)  # Trio's text contains the address as a Python tuple
    return (exc.strerror if isinstance(exc, OSError) else "") or str(exc) or type(exc).__name__


def _is_refused(exc: OSError | UnicodeError) -> bool:
    """Whether each address that was tried refused the connection."""
    group = exc.__cause__
    tried = group.exceptions if isinstance(group, BaseExceptionGroup) else (exc,)
    return all(isinstance(each, ConnectionRefusedError) for each in tried)


def _hint(exc: trio.BrokenResourceError) -> str:
    if isinstance(exc.__cause__, ssl.SSLCertVerificationError):
        return "its certificate must come from the ca in [transport.ssl] and name its host"
    return "is that a node's farm port, with TLS 1.3?"
