"""A server tunnel of an I2P router to a farm listener: its configuration and its address."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from garlicfarm.errors import ConfigError
from garlicfarm.i2p import encoding
from garlicfarm.i2p.destination import split_destination
from garlicfarm.regular_files import read_file

# Only type=server: type=http would rewrite anything that looks like headers. Three inbound tunnels, not five:
# i2pd may list two more, and i2pd 2.45.1 (LeaseSet::PopulateLeases) can misread a LeaseSet2 of six or more
# leases as the older form. A router that does so sends into nowhere from then on.
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
option.i2p.streaming.limitsManuallySet=true
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
    """The address, ``….b32.i2p``, of the destination at the beginning of a router's key file.

    Raises `ConfigError`: it cannot be read, or holds something else; `FileNotFoundError`: it does not exist
    yet.
    """
    try:
        data = read_file(keys)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError([f"{keys} cannot be read: {error.strerror}; run this as root"]) from error
    try:
        destination, private = split_destination(data)
    except ValueError:
        destination, private = b"", b""
    if not private or len(destination) == 387:  # no certificate: an old key
        raise ConfigError([f"{keys} holds no keys of an I2P destination; name the tunnel's with --keys"])
    return encoding.b32_address(destination)
