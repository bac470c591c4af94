"""What an i2pd router of the lab has in its data directory: its configuration and tunnels, its keys, and the
other routers that it knows.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, NamedTuple

from garlicfarm.credentials.certificates import make_certificate
from garlicfarm.credentials.private_files import write_private_file
from garlicfarm.i2p.destination import split_destination
from garlicfarm.i2p.encoding import encode
from garlicfarm.setup.i2p_tunnel import Tunnel

CONTROL_PORT = 7650
CONSOLE_PORT, I2CP_PORT, SAM_PORT = 7070, 7654, 7656
PORTS_APART = 10
"""Routers may share one loopback: those of the second router are so much higher, and so on."""
CERTIFICATE = "i2pcontrol.crt.pem"
PRIVATE_KEY = "i2pcontrol.key.pem"
PASSWORD = "i2pcontrol.password"

# reservedrange works in the file only; no reseed URLs, no address book, no UPnP, no NTP: silence.
CONFIGURATION = """\
log = file
logfile = {data_dir}/i2pd.log
loglevel = {log_level}
daemon = false
host = {address}
address4 = {address}
port = 12345
ipv4 = true
ipv6 = false
nat = false
netid = 99
reservedrange = false
floodfill = {floodfill}
bandwidth = {bandwidth_kb}
share = 100
notransit = {notransit}
[ntcp2]
enabled = true
published = true
[ssu2]
enabled = {ssu2}
published = {ssu2}
[i2pcontrol]
enabled = true
address = {address}
port = {control_port}
password = {password}
[http]
enabled = {console}
address = 127.0.0.1
port = {console_port}
[httpproxy]
enabled = {proxy}
address = {proxy_address}
port = {proxy_port}
inbound.length = {hops}
outbound.length = {hops}
inbound.quantity = 2
outbound.quantity = 2
[socksproxy]
enabled = false
[sam]
enabled = {sam}
address = 127.0.0.1
port = {sam_port}
[i2cp]
enabled = {i2cp}
address = 127.0.0.1
port = {i2cp_port}
[upnp]
enabled = false
[nettime]
enabled = false
[addressbook]
enabled = false
[reseed]
threshold = 0
urls =
yggurls =
[exploratory]
inbound.length = {hops}
outbound.length = {hops}
inbound.quantity = 2
outbound.quantity = 2
[persist]
profiles = false
"""
# The leaf that a farm lists. Its tunnels are built even if nothing listens behind it.
TUNNEL = """\
[leaf]
type = server
host = {address}
port = 9000
keys = leaf.dat
inbound.quantity = 3
outbound.quantity = 3
"""
LENGTHS = """\
inbound.length = {hops}
outbound.length = {hops}
"""


class ClientTunnel(NamedTuple):
    """From ``port`` of loopback to a destination, by its b32 address. ``keys``: a file of the router's, of
    the client's own destination. ``keep_alive_s``: how often it is pinged, 0: never. ``to_port``: the I2CP
    port that it asks for, 0: none."""

    destination: str
    port: int
    keys: str
    keep_alive_s: int = 0
    to_port: int = 0

    def i2pd(self) -> str:
        """Its section in i2pd's ``tunnels.conf``."""
        keep_alive = f"keepaliveinterval = {self.keep_alive_s}\n" if self.keep_alive_s else ""
        return (
            f"[{self.keys}]\ntype = client\naddress = 127.0.0.1\nport = {self.port}\nkeys = {self.keys}\n"
            f"destination = {self.destination}\ndestinationport = {self.to_port}\n{keep_alive}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterPlan:
    """What one router of a network does."""

    is_floodfill: bool = True
    """It stores other routers' LeaseSets. A network needs at least one such router."""
    carries_tunnels: bool = True
    """It carries others' tunnels."""
    has_leaf: bool = True
    """It has the server tunnel ``leaf``, to port 9000 of its address. A client's router has none."""
    has_proxy: bool = False
    """It has an HTTP proxy on its loopback."""
    shares_proxy: bool = False
    """Its HTTP proxy is at its address, where other hosts reach it."""
    has_sam: bool = False
    """It has SAM on its loopback."""
    has_i2cp: bool = False
    """It has I2CP on its loopback."""
    has_console: bool = False
    """It has a web console on its loopback, which shows the LeaseSets that it stores."""
    tunnels: Sequence[Tunnel | ClientTunnel] = ()
    """More tunnels."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What its data directory contains before its first start, by name, as the keys of a tunnel."""
    log_level: str = "info"
    """i2pd's, in ``i2pd.log``. A floodfill with ``info`` writes ``LeaseSet2 updated: `` and the b32 name of
    the destination whenever it stores a newer LeaseSet; below that, no router tells that it takes another for
    unreachable."""

    start_timeout_s: ClassVar[float] = 60.0
    """How long a start may take."""
    control_path: ClassVar[str] = ""
    """Of the URL of its I2PControl."""

    def configure(self, data_dir: Path, address: str, i: int, hops: int, ssu2: bool) -> None:
        """Make the data directory. ``i``: the router's place in the network, from 0."""
        data_dir.mkdir(mode=0o700, parents=True)
        password = secrets.token_hex(16)
        write_private_file(data_dir / PASSWORD, f"{password}\n".encode())
        write_private_file(
            data_dir / "i2pd.conf",
            CONFIGURATION.format(
                data_dir=data_dir,
                log_level=self.log_level,
                address=address,
                floodfill=_word(self.is_floodfill),
                ssu2=_word(ssu2),
                notransit=_word(not self.carries_tunnels),
                bandwidth_kb=4096 + 512 * i,
                control_port=CONTROL_PORT,
                password=password,
                proxy=_word(self.has_proxy),
                proxy_address=address if self.shares_proxy else "127.0.0.1",
                proxy_port=proxy_port(i),
                sam=_word(self.has_sam),
                sam_port=sam_port(i),
                i2cp=_word(self.has_i2cp),
                i2cp_port=i2cp_port(i),
                console=_word(self.has_console),
                console_port=console_port(i),
                hops=hops,
            ).encode(),
        )
        leaf = [TUNNEL.format(address=address)] if self.has_leaf else []
        tunnels = [*leaf, *(tunnel.i2pd() for tunnel in self.tunnels)]
        lengths = LENGTHS.format(hops=hops)
        (data_dir / "tunnels.conf").write_text("".join(tunnel + lengths for tunnel in tunnels))
        for name, content in self.files.items():
            write_private_file(data_dir / name, content)
        for folder in ("tunnels.d", "certs"):
            (data_dir / folder).mkdir()

    def command(self, data_dir: Path) -> list[str]:
        """What runs the router; asked for before each start. The first one is for its keys only, and has no
        I2PControl, SAM or I2CP."""
        options = () if (data_dir / "router.info").exists() else ("i2pcontrol", "sam", "i2cp")
        return [
            i2pd_program(),
            f"--datadir={data_dir}",
            f"--conf={data_dir / 'i2pd.conf'}",
            f"--tunconf={data_dir / 'tunnels.conf'}",
            f"--tunnelsdir={data_dir / 'tunnels.d'}",
            f"--certsdir={data_dir / 'certs'}",
            *(f"--{each}.enabled=0" for each in options),
        ]

    def has_keys(self, data_dir: Path) -> bool:
        """Whether the first start has made all keys that the router needs, and the RouterInfo that others are
        to know: i2pd first writes one that is no floodfill's, and Java I2P goes by that for a long time."""
        names = ["router.info", *(tunnel.keys for tunnel in self.tunnels), *["leaf.dat"] * self.has_leaf]
        files = [data_dir / name for name in names]
        if not all(file.exists() and file.stat().st_size > 0 for file in files):  # i2pd writes each at once
            return False
        return says_floodfill(files[0].read_bytes()) == self.is_floodfill

    def certify(self, data_dir: Path) -> None:
        """Put the certificate of its I2PControl into `CERTIFICATE`, after the first start."""
        # Without one, i2pd makes an RSA key of 4096 bits, which takes a minute on a busy machine.
        make_certificate(data_dir / CERTIFICATE, data_dir / PRIVATE_KEY, "127.0.0.1")


def i2pd_program() -> str:
    """The program that runs as a router: the environment variable ``I2PD``, or ``i2pd`` in ``PATH``."""
    return os.environ.get("I2PD") or "i2pd"


def proxy_port(i: int) -> int:
    """The port of a router's HTTP proxy, by the router's place in the network, from 0."""
    return 4444 + i


def sam_port(i: int) -> int:
    """The port of its SAM."""
    return SAM_PORT + PORTS_APART * i


def i2cp_port(i: int) -> int:
    """The port of its I2CP."""
    return I2CP_PORT + PORTS_APART * i


def console_port(i: int) -> int:
    """The port of its web console."""
    return CONSOLE_PORT + PORTS_APART * i


def _word(value: bool) -> str:
    return str(value).lower()


def says_floodfill(router_info: bytes) -> bool:
    """Whether the capabilities of a router name one. Its addresses, which come first, have others."""
    _, _, told = router_info.rpartition(b"\4caps=")
    return b"f" in told[1 : 1 + told[0]] if told else False


def introduce(data_dir: Path, router_info: bytes) -> None:
    """Put a RouterInfo where i2pd looks for it: named by the hash of the identity it begins with."""
    identity, _ = split_destination(router_info)
    name = encode(sha256(identity).digest())
    folder = data_dir / "netDb" / f"r{name[0]}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"routerInfo-{name}.dat").write_bytes(router_info)


def leaf_of(data_dir: Path) -> bytes:
    """The destination of a router's tunnel ``leaf``, in binary form."""
    destination, _ = split_destination((data_dir / "leaf.dat").read_bytes())
    return destination
