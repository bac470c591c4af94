"""Router plugin ``i2pcontrol``: the figures of a real i2pd or Java I2P, read over I2PControl.

Both report uptime, participating tunnels, bandwidth limit and current bandwidth; Java I2P also its job
lag; i2pd how many streams each SAM session has, for which it is asked only without ``sam``. They report
neither exploratory tunnels nor other figures of destinations; these stay absent (D13). Remote destinations
are measured through the router's SAM, where the configuration names it.

Never expose I2PControl: i2pd 2.45.1 issues tokens but does not check them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
import trio

from garlicfarm.credentials.private_files import read_password
from garlicfarm.credentials.router_login import read_login
from garlicfarm.errors import ConfigError, NotSupported
from garlicfarm.i2p.destination import signing_key, split_destination
from garlicfarm.i2p.encoding import b32_address, encode
from garlicfarm.i2p.signing import SIGNATURE_BYTES
from garlicfarm.net.sam import sam_endpoint
from garlicfarm.plugin_settings import Hops, Settings, collect_problems, setting
from garlicfarm.regular_files import reading
from garlicfarm.router import Bandwidth, DestinationStatus, OwnLookUp, RemoteStatus, Router, RouterStatus
from garlicfarm_plugin_i2pcontrol.answering import answer_tests
from garlicfarm_plugin_i2pcontrol.client import WHERE_PASSWORD, I2PControlClient, Question
from garlicfarm_plugin_i2pcontrol.measurement import measure, measure_own

DEFAULT_PORTS = {"https": 7650, "http": 7657}  # i2pd; Java I2P's console, which contains I2PControl
MAX_PASSWORD_CHARACTERS = 256  # i2pd reads requests into a buffer of 1024 bytes
SAM_STREAM = "2"  # type of a socket in i2pd's sessions: their other sockets carry commands
MAX_ROUTER_INFO_BYTES = 8192
BYTES_PER_UNIT = 1024
"""Limits are in KB/s; the routers' own code multiplies by 1024 to compare them with bytes."""


class I2PControlConfig(Settings, frozen=True, kw_only=True):
    """``[farm.router]`` with ``plugin = "i2pcontrol"``.

    ``url`` of i2pd: ``https://127.0.0.1:7650``; of Java I2P: ``http://127.0.0.1:7657/jsonrpc/``. Plain
    http is for loopback addresses only.
    ``password_file`` (mode 0600) holds the password on its first line. ``pin`` is ``sha256-`` and the
    unpadded base64url SHA-256 of the router's certificate (``i2pcontrol.crt.pem`` in i2pd's data
    directory). Only a router at a loopback address needs no pin: a program that could intercept the
    connection there could also read the data directory.
    ``router_info``: the file router.info in i2pd's data directory, to report it. ``sam``: HOST:PORT of the
    router's SAM on loopback, to measure what others publish and to answer when they measure, through tunnels
    of ``hops`` hops. ``sam_user`` and ``sam_password_file``: where SAM asks for a name and a password.
    """

    url: Annotated[
        str,
        setting(
            "The router's I2PControl: https://HOST:PORT, or http:// on loopback (Java I2P: http://127.0.0.1:7657/jsonrpc/)."
        ),
    ] = "https://127.0.0.1:7650"
    password_file: Annotated[str, setting("File (mode 0600) with its password on the first line.")]
    pin: Annotated[
        str, setting("Pin of the router's certificate, sha256-BASE64URL; needed beyond loopback.")
    ] = ""
    router_info: Annotated[str, setting("The file router.info of i2pd's data directory, to report it.")] = ""
    sam: Annotated[
        str, setting("The router's SAM, HOST:PORT on loopback, to measure what other members publish.")
    ] = ""
    sam_user: Annotated[str, setting("Name for a SAM that asks for one (Java I2P); none by default.")] = ""
    sam_password_file: Annotated[str, setting("File (mode 0600) with its password on the first line.")] = ""
    hops: Annotated[Hops, setting("Hops of the tunnels of such a measurement.")] = 3


class I2PControlRouter(Router):
    """See the module. The constructor raises `ConfigError` with every problem of its configuration."""

    Config = I2PControlConfig
    origins = MappingProxyType(
        {
            "router.lastPublishedRI": "the file router_info",
            "router.uptime": "RouterInfo i2p.router.uptime",
            "router.jobLag": "GetRate jobQueue.jobLag",
            "router.participatingTunnels": "RouterInfo i2p.router.net.tunnels.participating",
            "router.configuredBandwidth.in": "NetworkSetting i2p.router.net.bw.in",
            "router.configuredBandwidth.out": "NetworkSetting i2p.router.net.bw.out",
            "router.currentBandwidth.in": "RouterInfo i2p.router.net.bw.inbound.15s",
            "router.currentBandwidth.out": "RouterInfo i2p.router.net.bw.outbound.15s",
            "destinations.currentConnections": "ClientServicesInfo SAM",
        }
    )
    config: I2PControlConfig

    def __init__(self, config: I2PControlConfig, base_dir: Path) -> None:
        super().__init__(config, base_dir)
        problems: list[str] = []
        try:
            url = _checked_url(config)
        except ConfigError as error:
            problems += error.problems
        if config.pin and not re.fullmatch("sha256-[A-Za-z0-9_-]{43}", config.pin):
            problems.append("router.pin: expected sha256- and 43 characters of base64url")
        with collect_problems(problems, "router.password_file"):
            password = _control_password(base_dir / config.password_file)
        self._router_info = base_dir / config.router_info if config.router_info else None
        if self._router_info is not None:
            try:
                read_router_info(self._router_info)
            except (OSError, ValueError) as error:
                cause = error.strerror if isinstance(error, OSError) else error
                problems.append(
                    f"router.router_info: {self._router_info} cannot be used: {cause}; expected the file "
                    "router.info of i2pd's data directory, which the node's user must be able to read"
                )
        self._sam = None
        with collect_problems(problems, "router.sam"):
            self._sam = sam_endpoint(config.sam) if config.sam else None
            self._login = read_login(config.sam_user, config.sam_password_file, base_dir, "sam_")
            if self._login is not None and self._sam is None:
                raise ConfigError(["sam_user and sam_password_file are for sam: set it, too"])
        if problems:
            raise ConfigError(problems)
        self._client = I2PControlClient(url, password, config.pin)

    async def get_local_router_status(self) -> RouterStatus:
        status = router_status(
            info=await self._client.ask(Question.ROUTER_INFO),
            settings=await self._client.ask(Question.NETWORK_SETTING),
            job_lag=await self._client.ask(Question.JOB_LAG),
        )
        return msgspec.structs.replace(status, last_published_ri=await self._last_published_ri())

    async def get_local_leaf_status(self, leaf: bytes) -> DestinationStatus:
        connections = None
        if self._sam is None:
            # i2pd lists its sessions without a lock: it crashes if one of ours comes or goes meanwhile.
            services = await self._client.ask(Question.CLIENT_SERVICES)
            connections = count_streams(services, b32_address(leaf))
        return DestinationStatus(destination=encode(leaf), current_connections=connections)

    async def get_remote_measured_status(self, master_or_leaf: bytes) -> RemoteStatus | None:
        if self._sam is None:
            raise NotSupported("I2PControl measures no others; with router.sam, the router's SAM does")
        return await measure(self._sam, self._login, master_or_leaf, self.config.hops)

    async def look_up_own(self, leaf: bytes) -> OwnLookUp:
        if self._sam is None or not self.measures_served:
            raise NotSupported("only through the SAM of i2pd, with router.sam")
        return await measure_own(self._sam, self._login, leaf, self.config.hops)

    @property
    def measures_served(self) -> bool:
        """i2pd asks floodfills for each session anew. Java I2P would answer by itself; its I2PControl has a
        path."""
        return self._sam is not None and urlsplit(self.config.url).path in ("", "/")

    async def answer_tests(self) -> None:
        if self._sam is None:
            raise NotSupported("only with router.sam")
        try:
            await answer_tests(self._sam, self._login, self.config.hops, self._on_control)
        finally:
            self.control = None

    def _on_control(self, hash_: bytes) -> None:
        self.control = hash_

    async def _last_published_ri(self) -> str | None:
        if self._router_info is None:
            return None
        try:
            return encode(await trio.to_thread.run_sync(read_router_info, self._router_info))
        except (OSError, ValueError):  # i2pd is writing it
            return None


def read_router_info(path: Path) -> bytes:
    """The router info in a file, whose signature matches. Raises `OSError`, `ValueError`."""
    with reading(path) as file:
        data = file.read(MAX_ROUTER_INFO_BYTES + 1)
    if len(data) > MAX_ROUTER_INFO_BYTES:
        raise ValueError("it is not a router info")
    identity, _ = split_destination(data)
    signing_key(identity).check(data[-SIGNATURE_BYTES:], data[:-SIGNATURE_BYTES])
    return data


def count_streams(services: Mapping[str, Any], address: str) -> int | None:
    """The open streams of the SAM session with this b32 address, from the answer to ClientServicesInfo; None:
    there is no such session."""
    sam = services.get("SAM")
    sessions = sam.get("sessions") if isinstance(sam, dict) else None
    for session in sessions.values() if isinstance(sessions, dict) else ():  # "" for none
        if isinstance(session, dict) and session.get("address") == address:
            sockets = session.get("sockets")
            types = (
                [one.get("type") for one in sockets if isinstance(one, dict)]
                if isinstance(sockets, list)
                else []
            )
            return types.count(SAM_STREAM)
    return None


def router_status(
    info: Mapping[str, Any], settings: Mapping[str, Any], job_lag: Mapping[str, Any]
) -> RouterStatus:
    """The status from the answers to RouterInfo, NetworkSetting and GetRate; unusable figures are absent."""
    return RouterStatus(
        uptime=_count(info, "i2p.router.uptime"),
        job_lag=_count(job_lag, "Result"),
        participating_tunnels=_count(info, "i2p.router.net.tunnels.participating"),
        configured_bandwidth=_bandwidth(
            _count(settings, "i2p.router.net.bw.in", BYTES_PER_UNIT),
            _count(settings, "i2p.router.net.bw.out", BYTES_PER_UNIT),
        ),
        current_bandwidth=_bandwidth(
            _count(info, "i2p.router.net.bw.inbound.15s"), _count(info, "i2p.router.net.bw.outbound.15s")
        ),
    )


def _bandwidth(in_: int | None, out: int | None) -> Bandwidth | None:
    return None if in_ is None or out is None else Bandwidth(in_=in_, out=out)


def _count(answer: Mapping[str, Any], key: str, factor: int = 1) -> int | None:
    """Rates look like 2456.00. i2pd before 2.41 wrote uptime as text, Java I2P writes settings as text. An
    overflowed uptime is negative."""
    value = answer.get(key)
    if isinstance(value, str) and re.fullmatch("[0-9]{1,19}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value * factor < 2**63:
        return None
    return int(value) * factor


def _checked_url(config: I2PControlConfig) -> str:
    """Its URL with a port and a path. Raises `ConfigError`: it is none, or needs a pin or another scheme."""
    pattern = r"(https?)://(\[[0-9A-Fa-f:]+\]|[0-9A-Za-z.-]+)(?::([0-9]{1,5}))?(/[!-~]*)?"
    match = re.fullmatch(pattern, config.url)
    port = int(match[3] or DEFAULT_PORTS[match[1]]) if match else 0
    if match is None or port > 65_535:
        raise ConfigError(
            [f"router.url: {config.url!r} is not https://ADDRESS:PORT or, on loopback, http://ADDRESS:PORT"]
        )
    scheme, host = match[1], match[2].strip("[]")
    try:
        is_loopback = ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if scheme == "http" and not is_loopback:
        problem = f"router.url: plain http is for loopback addresses such as 127.0.0.1, not {host}"
    elif scheme == "http" and config.pin:
        problem = "router.pin: http has no certificate; use https, or omit pin"
    elif not config.pin and not is_loopback:
        problem = f"router.pin: needed for {host}, which is not a loopback address such as 127.0.0.1"
    else:
        return f"{scheme}://{match[2]}:{port}{match[4] or '/'}"
    raise ConfigError([problem])


def _control_password(path: Path) -> str:
    """The first line of a file. Raises `ConfigError`."""
    try:
        password = read_password(path)
    except ConfigError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise ConfigError(
            [
                f"{path} does not exist; create it with mode 0600, and put the password of the router's "
                f"I2PControl on its first line ({WHERE_PASSWORD})"
            ]
        ) from None
    if not 1 <= len(password) <= MAX_PASSWORD_CHARACTERS:
        raise ConfigError([f"expected 1 to {MAX_PASSWORD_CHARACTERS} characters on the first line of {path}"])
    return password
