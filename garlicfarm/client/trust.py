"""How a client reaches nodes, and identifies one by an authority, or by the pin of its certificate (D11: the
SHA-256 of its DER)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from garlicfarm.errors import ConfigError
from garlicfarm.regular_files import check_regular

_PIN = re.compile(r"sha256(?::([0-9A-Fa-f]{64})|-([A-Za-z0-9_-]{43}))")


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """Nodes, the user who logs in there, and the check of their certificates. Hashable, and free of secrets.

    ``urls``: ``https://host:port``, tried in turn; each may carry the pin of its own certificate,
    ``?pin=sha256-…``, like an endpoint. ``pin``: for URLs without one; ``ca``: authorities instead of a pin.
    """

    urls: tuple[str, ...]
    user: str
    password_file: Path
    pin: str | None = None
    ca: Path | None = None


def node_address(text: str) -> tuple[str, str | None]:
    """The admin URL of a node, ``https://host:port``, and the pin of its certificate, if ``text`` ends
    with one as endpoints do: ``https://host:port?pin=sha256-…``.

    Raises `ConfigError` for anything else.
    """
    try:
        parts = urlsplit(text)
        named = parts.scheme == "https" and parts.hostname and parts.port != 0
    except ValueError:  # a wrong port, or wrong brackets
        named = False
    head, _, pin = text.partition("?pin=")
    if not named or "@" in parts.netloc or head.rstrip("/") != f"https://{parts.netloc}":
        raise ConfigError([f"{text!r} is not https://host:port, with or without ?pin=sha256-… at its end"])
    if pin or head != text:
        pin_digest(pin)
    return f"https://{parts.netloc}", pin or None


def pin_digest(pin: str) -> bytes:
    """The SHA-256 that a pin names: ``sha256:HEX``, or ``sha256-BASE64URL`` as in endpoints."""
    match = _PIN.fullmatch(pin)
    if match is None:
        raise ConfigError([f"the pin {pin!r} is neither sha256:HEX nor sha256-BASE64URL"])
    try:
        return bytes.fromhex(match[1]) if match[1] else base64.urlsafe_b64decode(match[2] + "=")
    except (ValueError, binascii.Error) as error:
        raise ConfigError([f"the pin {pin!r} is damaged"]) from error


def client_tls(*, pin: str | None, ca: Path | None) -> ssl.SSLContext:
    """TLS 1.3 that trusts the one certificate that ``pin`` names, else the authorities in ``ca``, else
    those of the system.

    A pinned certificate is checked inside the handshake, before any byte of a request is sent; its
    name, issuer and dates are then ignored.
    """
    if pin is None:
        try:
            if ca is not None:
                check_regular(ca)
            context = ssl.create_default_context(cafile=ca)
        except ssl.SSLError as error:
            raise ConfigError([f"{ca} holds no certificate in PEM form"]) from error
        except OSError as error:
            raise ConfigError([f"{ca} cannot be read: {error.strerror}"]) from error
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.sslobject_class, context.sslsocket_class = _pinned(pin_digest(pin))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _pinned(digest: bytes) -> tuple[type[ssl.SSLObject], type[ssl.SSLSocket]]:
    """TLS over bytes, as Trio does it, and over a socket, as blocking clients do."""

    def check(certificate: bytes | None) -> None:
        if not hmac.compare_digest(hashlib.sha256(certificate or b"").digest(), digest):
            raise ssl.SSLCertVerificationError(1, "the certificate is not the pinned one")

    class PinnedObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            check(self.getpeercert(binary_form=True))

    class PinnedSocket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            check(self.getpeercert(binary_form=True))

    return PinnedObject, PinnedSocket
