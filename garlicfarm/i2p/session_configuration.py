"""The I2CP SessionConfig: what a client shows to a router to open a session for a destination.

::

    configuration = destination | Mapping | date u64 (ms) | signature 64 of that
    Mapping       = length u16 of what follows | pairs of string '=' string ';', sorted by key
    string        = length u8 | bytes

i2pd accepts only the signature of the long-term key here, also where an offline signature stands in the
LeaseSet, and does not look at the date. Java I2P refuses a date more than 3 minutes from its clock, and takes
the signature of a transient key that the options name (`offline_options`).

Source: I2CP specification, "Session Config", "Offline signatures"; common structures, "Mapping".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from garlicfarm.i2p.destination import signing_key, split_destination
from garlicfarm.i2p.encoding import encode
from garlicfarm.i2p.offline_signature import OfflineSignature
from garlicfarm.i2p.signing import ED25519, SIGNATURE_BYTES

_DATE_BYTES = 8


class SessionConfiguration(msgspec.Struct, frozen=True):
    """``destination``: binary. ``options``: I2CP's, ASCII. ``date_ms``: ms since 1970."""

    destination: bytes
    options: Mapping[str, str]
    date_ms: int


def encode_session_configuration(
    destination: bytes, options: Mapping[str, str], now_ms: int, sign: Callable[[bytes], bytes]
) -> bytes:
    """The signed configuration. ``now_ms``: its date, ms since 1970. ``sign`` returns the 64-byte signature
    of its argument by the key that the router expects. Raises `ValueError`: an option or the date cannot be
    written."""
    if not 0 <= now_ms < 2**64:
        raise ValueError("the date is outside of 64 bits")
    body = destination + encode_mapping(options) + now_ms.to_bytes(_DATE_BYTES, "big")
    return body + sign(body)


def decode_session_configuration(data: bytes) -> SessionConfiguration:
    """Read a configuration; its signature is not checked. Raises `ValueError`:
    `encode_session_configuration` does not write such bytes."""
    destination, rest = split_destination(data)
    signing_key(destination)
    length = int.from_bytes(rest[:2], "big")
    mapping, rest = rest[2 : 2 + length], rest[2 + length :]
    if len(mapping) != length or len(rest) != _DATE_BYTES + SIGNATURE_BYTES:
        raise ValueError("the configuration has another length")
    options = _decode_mapping(mapping)
    return SessionConfiguration(destination, options, int.from_bytes(rest[:_DATE_BYTES], "big"))


def verify_session_configuration(data: bytes) -> SessionConfiguration:
    """Read a configuration and check its signature. Raises `ValueError`: malformed, or the long-term key did
    not sign it."""
    configuration = decode_session_configuration(data)
    signing_key(configuration.destination).check(data[-SIGNATURE_BYTES:], data[:-SIGNATURE_BYTES])
    return configuration


def offline_options(offline: OfflineSignature) -> dict[str, str]:
    """The options that let a transient key sign a configuration, for Java I2P."""
    return {
        "i2cp.leaseSetOfflineExpiration": str(offline.expires_s),
        "i2cp.leaseSetTransientPublicKey": f"{ED25519}:{encode(offline.transient)}",
        "i2cp.leaseSetOfflineSignature": encode(offline.signature),
    }


def encode_mapping(options: Mapping[str, str]) -> bytes:
    """A Mapping. Raises `ValueError`: an option cannot be written."""
    pairs = b"".join(
        _encode_string(key) + b"=" + _encode_string(value) + b";" for key, value in sorted(options.items())
    )
    if len(pairs) >= 2**16:
        raise ValueError("the options are longer than 65535 bytes")
    return len(pairs).to_bytes(2, "big") + pairs


def _encode_string(text: str) -> bytes:
    data = text.encode("ascii")
    if len(data) > 255:
        raise ValueError("an option is longer than 255 bytes")
    return bytes([len(data)]) + data


def _decode_mapping(data: bytes) -> dict[str, str]:
    options: dict[str, str] = {}
    last, at = "", 0
    while at < len(data):
        key, at = _decode_string(data, at, b"=")
        value, at = _decode_string(data, at, b";")
        if options and key <= last:
            raise ValueError("the options are not sorted")
        options[key] = value
        last = key
    return options


def _decode_string(data: bytes, at: int, end: bytes) -> tuple[str, int]:
    """The string at ``at``, and the place after it and ``end``."""
    stop = at + 1 + (data[at] if at < len(data) else 0)
    if data[stop : stop + 1] != end:
        raise ValueError("the options are malformed")
    return data[at + 1 : stop].decode("ascii"), stop + 1
