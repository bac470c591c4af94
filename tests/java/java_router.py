"""A Java I2P router beside i2pd in a private network of the lab: `JavaPlan` is used like `RouterPlan`.

The environment variable ``JAVA_I2P`` names a directory whose ``lib`` has the jars, as `tools/java_i2p.py`
makes it from Java I2P's source. Java I2P 2.7 stores to, and builds tunnels through, routers of version 0.9.59
and later: an i2pd beside it must be 2.47 or later. It has TCP only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509 import load_pem_x509_certificate

from garlicfarm.credentials.private_files import write_private_file
from garlicfarm.lab.i2pd_files import (
    CERTIFICATE,
    CONTROL_PORT,
    PASSWORD,
    PRIVATE_KEY,
    ClientTunnel,
    RouterPlan,
    i2cp_port,
    proxy_port,
    sam_port,
)
from garlicfarm.setup.i2p_tunnel import Tunnel

KILOBYTES = 1 << 14  # per second: the most that it takes
HEAP_MB = 96

# Nothing is looked for outside: no reseeding, no time server, no news, no UPnP. The router's own tunnels have
# no hops: it starts its programs, which make keys, only once it has some; and at first it knows no peer.
ROUTER = """\
router.networkID=99
i2np.allowLocal=true
i2np.ntcp.hostname={address}
i2np.ntcp.port=12345
i2np.ntcp.autoip=false
i2np.ntcp.autoport=false
i2np.ntcp.ipv6=false
i2np.udp.enable=false
i2np.upnp.enable=false
i2np.ipv4.firewalled=false
i2np.ipv6.firewalled=true
i2np.laptopMode=false
i2np.bandwidth.inboundKBytesPerSecond={kilobytes}
i2np.bandwidth.outboundKBytesPerSecond={kilobytes}
i2np.bandwidth.inboundBurstKBytesPerSecond={kilobytes}
i2np.bandwidth.outboundBurstKBytesPerSecond={kilobytes}
i2np.bandwidth.inboundBurstKBytes={kilobytes}
i2np.bandwidth.outboundBurstKBytes={kilobytes}
router.floodfillParticipant={floodfill}
router.maxParticipatingTunnels={transit}
router.rejectStartupTime=0
router.sharePercentage=80
router.reseedDisable=true
router.blocklist.enable=false
router.sybilFrequency=0
router.sybilEnableBlocking=false
router.newsRefreshFrequency=0
router.updateDisabled=true
router.excludePeerCaps=
router.inboundPool.length=0
router.inboundPool.lengthVariance=0
router.inboundPool.allowZeroHop=true
router.outboundPool.length=0
router.outboundPool.lengthVariance=0
router.outboundPool.allowZeroHop=true
time.disabled=true
stat.full=false
i2cp.port={i2cp_port}
i2cp.tcp.host=127.0.0.1
i2cp.tcp.bindAllInterfaces=false
i2cp.disableInterface={without_i2cp}
"""
TUNNEL = """\
i2cpHost=127.0.0.1
i2cpPort={i2cp_port}
sharedClient=false
startOnLoad=true
option.inbound.length={hops}
option.inbound.lengthVariance=0
option.inbound.quantity=2
option.outbound.length={hops}
option.outbound.lengthVariance=0
option.outbound.quantity=2
option.i2cp.leaseSetEncType=4
option.i2cp.destination.sigType=7
"""
PROXY = "name=proxy\ntype=httpclient\ninterface={interface}\nlistenPort={port}\n"
CLIENT = """\
name={name}
type=client
interface=127.0.0.1
listenPort={port}
targetDestination={destination}
privKeyFile={keys}
option.persistentClientKey=true
"""
LOGGER = """\
logger.dateFormat=HH:mm:ss.SSS
logger.defaultLevel=WARN
logger.minimumOnScreenLevel=CRIT
logger.displayOnScreen=false
logger.logFileName=logs/log-router-@.txt
logger.logFileSize=60m
logger.logRotationLimit=2
logger.record.net.i2p.router.Banlist=INFO
"""
CONTROL = "plugins/I2PControl"
DEFAULT_PASSWORD = "itoopie"  # I2PControl's own; it stores a hash of any other
KEY_STORE, KEY_ALIAS = "i2pcontrol.ks", "i2pcontrol"
KEY_STORE_PASSWORD, KEY_PASSWORD = "changeit", "nut'nfancy"  # in its source, too


def why_unavailable() -> str | None:
    """Why no Java I2P router runs here; None if one does."""
    directory = os.environ.get("JAVA_I2P")
    if not directory:
        return "JAVA_I2P names no directory of Java I2P: CONTRIBUTING says how to make one"
    for jar in ("router.jar", "own-address.jar"):  # without the second, a router starts and never listens
        if not (Path(directory) / "lib" / jar).is_file():
            return f"JAVA_I2P={directory} has no lib/{jar}: CONTRIBUTING says how to make it"
    missing = [each for each in ("java", "keytool") if shutil.which(each) is None]
    return f"{' and '.join(missing)} not found: install a Java 11 or later" if missing else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaPlan(RouterPlan):
    """What a Java I2P router of a network does. It has no console, and ``log_level`` is i2pd's: of its own
    files ``logs/log-router-*.txt``, ``more_log`` adds lines to ``logger.config``."""

    more_log: str = ""

    start_timeout_s: ClassVar[float] = 300.0
    control_path: ClassVar[str] = "/jsonrpc/"

    def configure(self, data_dir: Path, address: str, i: int, hops: int, ssu2: bool) -> None:
        control = data_dir / CONTROL
        control.mkdir(mode=0o700, parents=True)
        # Without this file it takes its working directory for no installation.
        (data_dir / "hosts.txt").write_text("")
        (data_dir / "router.config").write_text(
            ROUTER.format(
                address=address,
                kilobytes=KILOBYTES,
                floodfill=_word(self.is_floodfill),
                transit=5000 if self.carries_tunnels else 0,
                i2cp_port=i2cp_port(i),
                without_i2cp=_word(not self.has_i2cp),
            )
        )
        (data_dir / "logger.config").write_text(LOGGER + self.more_log)
        (control / "I2PControl.conf").write_text(
            f"i2pcontrol.listen.address={address}\ni2pcontrol.listen.port={CONTROL_PORT}\n"
            f"i2pcontrol.allowedhosts={address}\n"
        )
        write_private_file(data_dir / PASSWORD, f"{DEFAULT_PASSWORD}\n".encode())
        tunnels = self._tunnels(address, i)
        more = TUNNEL.format(i2cp_port=i2cp_port(i), hops=hops)
        (data_dir / "i2ptunnel.config").write_text(
            "".join(
                f"tunnel.{number}.{line}\n"
                for number, tunnel in enumerate(tunnels)
                for line in (tunnel + more).splitlines()
            )
        )
        sam = f"sam.keys 127.0.0.1 {sam_port(i)} i2cp.tcp.host=127.0.0.1 i2cp.tcp.port={i2cp_port(i)}"
        clients = [
            *[("net.i2p.sam.SAMBridge", sam)] * self.has_sam,
            *[("net.i2p.i2ptunnel.TunnelControllerGroup", "i2ptunnel.config")] * bool(tunnels),
        ]
        for client in clients:
            _add_client(data_dir, *client)
        for name, content in self.files.items():
            write_private_file(data_dir / name, content)

    def _tunnels(self, address: str, i: int) -> list[str]:
        interface = address if self.shares_proxy else "127.0.0.1"
        return [
            *[PROXY.format(interface=interface, port=proxy_port(i))] * self.has_proxy,
            *[Tunnel("leaf", address, 9000, 0, "leaf.dat").java()] * self.has_leaf,
            *(
                CLIENT.format(
                    name=each.keys,
                    port=each.port,
                    destination=f"{each.destination}:{each.to_port}" if each.to_port else each.destination,
                    keys=each.keys,
                )
                if isinstance(each, ClientTunnel)
                else each.java()
                for each in self.tunnels
            ),
        ]

    def command(self, data_dir: Path) -> list[str]:
        # After kill -9 it would wait for a minute, for another process that might have the directory.
        (data_dir / "router.ping").unlink(missing_ok=True)
        address = _value(data_dir / "router.config", "i2np.ntcp.hostname")
        return [
            "java",
            f"-Xmx{HEAP_MB}m",
            "-XX:+UseSerialGC",
            "-Djava.net.preferIPv4Stack=true",
            "-Djava.awt.headless=true",
            "-DI2P_DISABLE_OUTPUT_OVERRIDE=true",
            "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
            "-Djava.nio.channels.spi.SelectorProvider=OwnAddress",
            f"-Dgarlicfarm.address={address}",
            *(
                f"-Di2p.dir.{each}={data_dir}"
                for each in ("base", "config", "router", "app", "log", "pid", "temp")
            ),
            f"-Djava.io.tmpdir={data_dir}",
            "-cp",
            f"{Path(os.environ['JAVA_I2P']).resolve()}/lib/*",
            "net.i2p.router.RouterLaunch",
        ]

    def has_keys(self, data_dir: Path) -> bool:
        names = [*(tunnel.keys for tunnel in self.tunnels), *["leaf.dat"] * self.has_leaf]
        info = data_dir / "router.info"
        address = _value(data_dir / "router.config", "i2np.ntcp.hostname")
        is_published = info.exists() and address.encode() in info.read_bytes()
        return is_published and all((data_dir / name).exists() for name in names)

    def certify(self, data_dir: Path) -> None:
        super(JavaPlan, self).certify(data_dir)  # a class with slots is made twice
        key = load_pem_private_key((data_dir / PRIVATE_KEY).read_bytes(), None)
        assert isinstance(key, EllipticCurvePrivateKey)
        certificate = load_pem_x509_certificate((data_dir / CERTIFICATE).read_bytes())
        encryption = BestAvailableEncryption(KEY_STORE_PASSWORD.encode())
        store = serialize_key_and_certificates(KEY_ALIAS.encode(), key, certificate, None, encryption)
        made = data_dir / CONTROL / "i2pcontrol.p12"  # which has one password, where it wants two
        made.write_bytes(store)
        source = ["-srckeystore", str(made), "-srcstorepass", KEY_STORE_PASSWORD, "-srcalias", KEY_ALIAS]
        target = ["-destkeystore", str(data_dir / CONTROL / KEY_STORE), "-deststoretype", "JKS"]
        target += ["-deststorepass", KEY_STORE_PASSWORD, "-destkeypass", KEY_PASSWORD]
        command = ["keytool", "-importkeystore", "-noprompt", *source, *target]
        subprocess.run(command, check=True, capture_output=True)
        _add_client(data_dir, "net.i2p.i2pcontrol.I2PControlController", "")


def _add_client(data_dir: Path, program: str, arguments: str) -> None:
    """A program that the router starts, after those before."""
    file = data_dir / "clients.config"
    before = file.read_text() if file.exists() else ""
    values = {"main": program, "name": program, "args": arguments, "delay": "-1", "startOnLoad": "true"}
    number = before.count(".main=")
    file.write_text(before + "".join(f"clientApp.{number}.{key}={value}\n" for key, value in values.items()))


def _value(file: Path, key: str) -> str:
    lines = file.read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith(f"{key}="))


def _word(value: bool) -> str:
    return str(value).lower()
