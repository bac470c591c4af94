"""Router plugin ``i2pcontrol``: the figures of a real i2pd, read over I2PControl.

i2pd reports its uptime, participating tunnels, bandwidth limit and current bandwidth; job lag,
exploratory tunnels and destinations it does not, and they stay absent (D13). It can be asked neither
for leaves (``[[farm.leaf]]`` names them) nor to publish.

Never expose I2PControl: i2pd 2.45.1 hands out tokens but does not check them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec

from garlicfarm.errors import ConfigError, NotSupported
from garlicfarm.router import Bandwidth, DestinationStatus, RemoteStatus, Router, RouterStatus
from garlicfarm_plugin_i2pcontrol._client import I2PControlClient, Question

__all__ = ["I2PControlConfig", "I2PControlRouter", "router_status"]

BYTES_PER_UNIT = 1024
"""i2pd's limit is in KB/s, and its own code multiplies by 1024 where it compares it with bytes."""


class I2PControlConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[farm.router]`` with ``plugin = "i2pcontrol"``.

    ``password_file`` (mode 0600) holds the password on its first line. ``pin`` is ``sha256-`` and the
    unpadded base64url SHA-256 of the router's certificate (``i2pcontrol.crt.pem`` in i2pd's data
    directory); only a router at a loopback address may go without, since there whoever can listen in
    can also read the data directory.
    """

    url: str = "https://127.0.0.1:7650"
    password_file: str
    pin: str = ""


class I2PControlRouter(Router):
    """See the module. Raises `ConfigError` when made, with every problem of its configuration."""

    Config = I2PControlConfig
    config: I2PControlConfig

    def __init__(self, config: I2PControlConfig, base_dir: Path) -> None:
        super().__init__(config, base_dir)
        problems = _problems(config)
        try:
            self._password = _read_password(base_dir / config.password_file)
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(problems)
        self._client: I2PControlClient | None = None

    async def __aenter__(self) -> Self:
        self._client = I2PControlClient(self.config.url, self._password, self.config.pin)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def get_local_router_status(self) -> RouterStatus:
        if self._client is None:
            raise RuntimeError("enter the router (async with) before asking it")
        info = await self._client.ask(Question.ROUTER_INFO)
        return router_status(info, await self._client.ask(Question.NETWORK_SETTING))

    async def get_local_leaf_hash(self, master_hash: bytes) -> bytes | None:
        raise NotSupported("I2PControl does not name destinations; list them under [[farm.leaf]]")

    async def get_local_leaf_status(self, leaf: bytes) -> DestinationStatus:
        raise NotSupported("I2PControl has no figures of destinations")

    async def get_remote_measured_status(self, master_or_leaf: bytes) -> RemoteStatus | None:
        raise NotSupported("I2PControl measures nothing of others")

    async def publish_meta_ls(self, master_hash: bytes, contents: bytes) -> None:
        raise NotSupported("I2PControl cannot publish a Meta LeaseSet")

    async def stop_publishing_meta_ls(self, master_hash: bytes) -> None:
        raise NotSupported("I2PControl cannot publish a Meta LeaseSet")


def router_status(info: Mapping[str, Any], settings: Mapping[str, Any]) -> RouterStatus:
    """The status in the answers to RouterInfo and NetworkSetting; unusable figures are absent."""
    return RouterStatus(
        uptime=_count(info, "i2p.router.uptime"),
        participating_tunnels=_count(info, "i2p.router.net.tunnels.participating"),
        configured_bandwidth=_bandwidth(
            _count(settings, "i2p.router.net.bw.in", BYTES_PER_UNIT),
            _count(settings, "i2p.router.net.bw.out", BYTES_PER_UNIT),
        ),
        current_bandwidth=_bandwidth(
            _count(info, "i2p.router.net.bw.inbound.15s"),
            _count(info, "i2p.router.net.bw.outbound.15s"),
        ),
    )


def _bandwidth(in_: int | None, out: int | None) -> Bandwidth | None:
    return None if in_ is None or out is None else Bandwidth(in_=in_, out=out)


def _count(answer: Mapping[str, Any], key: str, factor: int = 1) -> int | None:
    """Rates come as 2456.00; i2pd before 2.41 wrote uptime as text; one that overflowed is negative."""
    value = answer.get(key)
    if isinstance(value, str) and re.fullmatch("[0-9]{1,19}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value * factor < 2**63:
        return None
    return int(value) * factor


def _problems(config: I2PControlConfig) -> list[str]:
    problems = []
    if config.pin and not re.fullmatch("sha256-[A-Za-z0-9_-]{43}", config.pin):
        problems.append("router.pin: expected sha256- and 43 characters of base64url")
    try:
        url = httpx.URL(config.url)
    except httpx.InvalidURL as error:
        return [*problems, f"router.url: {error}"]
    if url.scheme != "https" or not url.host:
        problems.append("router.url: expected https://ADDRESS:PORT; I2PControl is never spoken in plain text")
    elif not config.pin and not _is_loopback(url.host):
        problems.append(f"router.pin: needed for {url.host}, which is no loopback address such as 127.0.0.1")
    return problems


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _read_password(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise ConfigError([f"router.password_file: others may read {path}; chmod 600 it"])
            password = file.readline(1024).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"router.password_file: {error}"]) from None
    if not password:
        raise ConfigError([f"router.password_file: the first line of {path} is empty"])
    return password
