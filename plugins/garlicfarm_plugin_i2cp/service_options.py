"""Where the service listens, and what its streams carry, by the table of the plugin."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from garlicfarm.credentials.private_files import read_password
from garlicfarm.errors import ConfigError
from garlicfarm.plugin_settings import collect_problems
from garlicfarm.service_keys import parse_target
from garlicfarm.transport import Endpoint
from garlicfarm_plugin_i2cp.config import I2cpConfig
from garlicfarm_plugin_i2cp.streaming.http_requests import HttpRules, PostLimits
from garlicfarm_plugin_i2cp.streaming.targets import Targets

MAX_PORT = 65_535
MAX_PASSWORD_CHARACTERS = 256
_CLIENTS = ipaddress.ip_network("127.0.0.0/8")


class ServiceOptions:
    """``endpoints``: all addresses. ``targets``, ``ports``, ``http``: see `StreamServer`. The constructor
    raises `ConfigError` with every problem."""

    def __init__(self, config: I2cpConfig, base_dir: Path) -> None:
        self._config = config
        problems: list[str] = []
        self.endpoints: list[Endpoint] = []
        password = ""
        with collect_problems(problems, "publisher i2cp"):
            if config.webirc_password_file:
                password = _webirc_password(base_dir / config.webirc_password_file)
        self.targets: Targets | None = None
        with collect_problems(problems, "publisher i2cp"):
            if own := config.own_targets:
                self.targets = self._targets(own, password, config.check_path)
        self.ports: dict[int, Targets] = {}
        for port, targets in config.ports.items():
            with collect_problems(problems, f"publisher i2cp: ports.{port}"):
                if int(port) > MAX_PORT:
                    raise ConfigError([f"an I2CP port is at most {MAX_PORT}"])
                self.ports[int(port)] = self._targets(targets)
        if config.host_override and not _is_host(config.host_override):
            problems.append("publisher i2cp: host_override must be a host, with a port if need be")
        if problems:
            raise ConfigError(problems)
        self.http: HttpRules | None = None
        if config.filters_http:
            posts = PostLimits(
                config.max_posts, config.max_total_posts, config.post_check_s, config.post_ban_s
            )
            self.http = HttpRules(
                has_client_headers=config.client_headers,
                host=config.host_override,
                rejects_in_proxies=config.reject_inproxies,
                posts=posts,
            )

    def _targets(self, texts: Sequence[str], webirc_password: str = "", check_path: str = "") -> Targets:
        """Raises `ConfigError`."""
        endpoints = [parse_target(text) for text in texts]
        has_client_addresses = self._config.client_addresses
        for endpoint in endpoints:
            if has_client_addresses and not _is_reached_from_clients(endpoint.host):
                raise ConfigError(
                    [f"target {endpoint.authority} must be at 127.0.0.1, since client_addresses are there"]
                )
        self.endpoints += endpoints
        return Targets(
            endpoints,
            check_path=check_path,
            balance=self._config.balance,
            has_client_addresses=has_client_addresses,
            webirc_password=webirc_password,
        )


def _is_reached_from_clients(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host) in _CLIENTS
    return False


def _is_host(text: str) -> bool:
    return text.isascii() and text.isprintable() and not set(text) & set(" /?#@,")


def _webirc_password(path: Path) -> str:
    """The first line of a file: one word of IRC's. Raises `ConfigError`."""
    password = read_password(path)
    is_word = password.isprintable() and " " not in password and not password.startswith(":")
    if not (is_word and 1 <= len(password) <= MAX_PASSWORD_CHARACTERS):
        raise ConfigError(
            [
                f"expected a word of 1 to {MAX_PASSWORD_CHARACTERS} characters on the first line of {path}: "
                "the password of the IRC server's WebIRC block"
            ]
        )
    return password
