"""A server tunnel of an I2P router that leads to a farm listener: its configuration, and its address."""

from __future__ import annotations

from base64 import b32encode
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from garlicfarm.errors import ConfigError

__all__ = ["Tunnel", "b32_address"]

# type=server and no other: type=http would rewrite what looks like headers. Three inbound tunnels, not i2pd's
# five: it may list two more, and where it reads a LeaseSet2 as the older form (LeaseSet::PopulateLeases in
# 2.45.1) six leases and more can pass for some: whoever looked it up then sends into nowhere, for ever.
_I2PD = """\
# Written by `garlicfarm i2p setup`.
[{name}]
type = server
host = {host}
port = {port}
inport = {inport}
keys = {keys}
i2cp.leaseSetType = 3
i2cp.leaseSetEncType = 4
inbound.quantity = 3
outbound.quantity = 3
"""

_JAVA = """\
name={name}
type=server
targetHost={host}
targetPort={port}
privKeyFile={keys}
startOnLoad=true
sharedClient=false
interface=127.0.0.1
i2cpHost=127.0.0.1
i2cpPort=7654
option.i2cp.leaseSetEncType=4
option.inbound.length=3
option.outbound.length=3
option.inbound.quantity=2
option.outbound.quantity=2
"""


class Tunnel(NamedTuple):
    """From ``inport`` of a destination, whose keys are in the router's file ``keys``, to a listener on
    loopback."""

    name: str
    host: str
    port: int
    inport: int
    keys: str

    def i2pd(self) -> str:
        """A file for i2pd's directory ``tunnels.conf.d``."""
        return _I2PD.format(**self._asdict())

    def java(self) -> str:
        """A file for Java I2P's directory ``i2ptunnel.config.d``."""
        return _JAVA.format(**self._asdict())


def b32_address(keys: Path) -> str:
    """The address, ``….b32.i2p``, of the destination that a router's file of keys begins with.

    Raises `ConfigError`: it cannot be read, or holds something else; `FileNotFoundError`: it is not there
    yet.
    """
    try:
        data = keys.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError([f"{keys} cannot be read: {error.strerror}; run this as root"]) from error
    size = 387 + int.from_bytes(data[385:387], "big")
    if len(data) <= size or size == 387:  # private keys follow, and who has none of Ed25519 is too old
        raise ConfigError([f"{keys} holds no keys of an I2P destination; name the tunnel's with --keys"])
    return b32encode(sha256(data[:size]).digest()).decode().lower().rstrip("=") + ".b32.i2p"
