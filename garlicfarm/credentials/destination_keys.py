"""The files with the keys of a destination, mode 0600: the long-term key, or the bundle of one node.

A long-term key is one line of I2P base64 of the bytes of a private key file (`garlicfarm.i2p.keys`); the
binary files of i2pd and Java I2P are read, too. A bundle is one JSON document::

    {"schema": "garlicfarm.bundle/1", "node": 1, "destination": "…", "offline": "…", "seed": "…",
     "configurations": {"meta": "…", "standby": "…", "active": "…"}}        all I2P base64

Source: docs/reference/protocol.md, D21; docs/howto/keys.md.
"""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path
from typing import Any

import msgspec

from garlicfarm.credentials.private_files import read_private_bytes, write_private_file
from garlicfarm.errors import ConfigError
from garlicfarm.i2p.destination import FILLER_BYTES, make_destination
from garlicfarm.i2p.encoding import b32_address, decode, encode
from garlicfarm.i2p.keys import DestinationKeys, decode_private_key
from garlicfarm.i2p.offline_signature import OfflineSignature
from garlicfarm.i2p.session_options import PURPOSES, Purpose
from garlicfarm.i2p.signing import ED25519, PRIVATE_BYTES, public_key

_SCHEMA = "garlicfarm.bundle/1"


class _Bundle(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    node: int
    destination: str
    offline: str
    seed: str
    configurations: dict[Purpose, str]


def make_keys() -> DestinationKeys:
    """The long-term key of a new destination, in memory."""
    seed = secrets.token_bytes(PRIVATE_BYTES)
    destination = make_destination(public_key(ED25519, seed), secrets.token_bytes(FILLER_BYTES))
    return DestinationKeys(destination=destination, seed=seed)


def create_keys(path: Path) -> DestinationKeys:
    """Make a new destination and write its long-term key to ``path``.

    Raises `ConfigError`: ``path`` exists or cannot be written.
    """
    keys = make_keys()
    write_private_file(path, f"{keys.sam_private_key()}\n".encode())
    return keys


def read_keys(
    path: Path,
    *,
    node_id: int | None = None,
    destination: bytes | None = None,
    allow_expired: bool = False,
) -> DestinationKeys:
    """Read a long-term key or a bundle.

    :param node_id: the node that a bundle must be for; None: any
    :param destination: the binary destination whose keys they must be; None: any
    :param allow_expired: whether they may have expired, for a node that goes on without publishing
    :raises ConfigError: missing, readable by others, truncated, no keys, parts that do not belong together,
        expired, or those of another node or destination (the operator's fault)
    """
    keys = _read(path)
    if destination not in (None, keys.destination):
        raise ConfigError(
            [
                f"{path} does not hold the key of {b32_address(destination)}, "
                f"but that of {b32_address(keys.destination)}"
            ]
        )
    if keys.node is not None and node_id not in (None, keys.node):
        raise ConfigError(
            [f"{path} is the bundle of node {keys.node}, and this is node {node_id}: copy its own here"]
        )
    if keys.expires_ms is not None and keys.expires_ms <= time.time() * 1000 and not allow_expired:
        day = time.strftime("%Y-%m-%d", time.gmtime(keys.expires_ms / 1000))
        raise ConfigError(
            [f"{path} expired on {day}: make new bundles with `garlicfarm keys offline` and copy this node's"]
        )
    return keys


def write_bundle(path: Path, bundle: DestinationKeys) -> None:
    """Write a bundle of `garlicfarm.i2p.keys.make_bundle` to a new file.

    Raises `ConfigError`: ``path`` exists or cannot be written.
    """
    assert bundle.offline is not None, "a bundle has a transient key"
    document = {
        "schema": _SCHEMA,
        "node": bundle.node,
        "destination": encode(bundle.destination),
        "offline": encode(bundle.offline.encode()),
        "seed": encode(bundle.seed),
        "configurations": {purpose: encode(data) for purpose, data in bundle.configurations.items()},
    }
    write_private_file(path, f"{json.dumps(document, indent=2)}\n".encode())


def _read(path: Path) -> DestinationKeys:
    data = read_private_bytes(path)
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        return _private_key(path, data)
    if text.startswith("{"):
        return _bundle(path, text)
    try:
        key = decode(text)
    except ValueError:
        # Not chained here and below: these errors, or their frames, carry secrets.
        raise ConfigError([f"{path} does not hold a private key in I2P base64, nor a bundle"]) from None
    return _private_key(path, key)


def _private_key(path: Path, data: bytes) -> DestinationKeys:
    try:
        return decode_private_key(data)
    except ValueError as error:
        raise ConfigError(
            [f"{path} does not hold the private key of a destination that can be served: {error}"]
        ) from None


def _bundle(path: Path, text: str) -> DestinationKeys:
    broken = f"{path} is not a complete bundle of `garlicfarm keys offline`; copy it again"
    try:
        raw: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError([broken]) from None
    schema = raw.get("schema")
    if schema != _SCHEMA:
        raise ConfigError([f"{path} has the schema {schema!r}; this version reads {_SCHEMA!r}"])
    try:
        document = msgspec.convert(raw, _Bundle)
        keys = DestinationKeys(
            destination=decode(document.destination),
            seed=decode(document.seed),
            offline=OfflineSignature.decode(decode(document.offline)),
            configurations={purpose: decode(data) for purpose, data in document.configurations.items()},
            node=document.node,
        )
    except (msgspec.ValidationError, ValueError):
        raise ConfigError([broken]) from None
    if keys.configurations.keys() != set(PURPOSES):
        raise ConfigError([broken])
    return keys
