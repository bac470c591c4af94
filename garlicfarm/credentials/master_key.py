"""The private key of a master destination, in a file of mode 0600.

One line of I2P base64 of the bytes that I2P's own private key files hold::

    destination 391 | private encryption key 256 (unused, zero) | Ed25519 seed 32

Source: I2P common structures, "Destination", "KeyCertificate"; i2pd and Java I2P private key files.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from garlicfarm.credentials.private_files import read_private_file, write_private_file
from garlicfarm.errors import ConfigError
from garlicfarm.i2p.destination import decode_destination
from garlicfarm.i2p.encoding import decode, encode

__all__ = ["check_master_key", "mint_master_key"]

_CERTIFICATE = bytes.fromhex("05000400070000")  # key certificate: signing type 7 (Ed25519), crypto type 0


def mint_master_key(path: Path) -> str:
    """Make a new master destination and write its key to ``path``; returns the destination in I2P base64.

    Raises `ConfigError`: ``path`` exists or cannot be written.
    """
    seed = secrets.token_bytes(32)
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    destination = secrets.token_bytes(256 + 96) + public + _CERTIFICATE
    write_private_file(path, f"{encode(destination + bytes(256) + seed)}\n".encode())
    return encode(destination)


def check_master_key(path: Path, destination: str) -> None:
    """Check that ``path`` holds the private key of the master destination ``destination`` (I2P base64).

    Raises `ConfigError`: missing, readable by others, no key file, or the key of another destination.
    """
    text = read_private_file(path).strip()
    try:
        key = decode(text)
        binary = decode_destination(destination)
    except ValueError as error:
        raise ConfigError([f"{path} does not hold a private key in I2P base64"]) from error
    if not key.startswith(binary) or len(key) != len(binary) + 256 + 32:
        raise ConfigError([f"{path} does not hold the key of meta.destination"])
