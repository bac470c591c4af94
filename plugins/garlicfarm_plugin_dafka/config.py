"""Where a node or a tower listens and connects, and its keys: checked before anything is opened.

Without keys everything is in the clear, and for this machine only: any address but a loopback one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec

from garlicfarm.errors import ConfigError
from garlicfarm.plugin_settings import Settings, setting
from garlicfarm.transport import Endpoint
from garlicfarm_plugin_dafka.codec import is_host
from garlicfarm_plugin_dafka.keys import KeyPair, KnownPeer, PeerRole, read_key, read_known_peers

_MAX_PORT: Final = 65_535


class _KeyConfig(Settings, frozen=True, kw_only=True):
    key_file: Annotated[
        str, setting("File (mode 0600) with this node's secret CURVE key; needed beyond loopback.")
    ] = ""
    peers_file: Annotated[
        str, setting("File with the public keys of all nodes and towers; belongs to key_file.")
    ] = ""


class MeshConfig(_KeyConfig, frozen=True, kw_only=True):
    """A node's place among the others; its fields say more.

    Nodes send their beacons to the port of a tower, and receive those of the others from ``out`` (default:
    the next port). ``peer`` is the name of the tower in ``peers_file``; needed with keys. Port 0 of
    ``advertise``: the one that the node listens at. Without ``advertise``, others reach it where it listens;
    if that is a wildcard address, at the address that the tower sees the node at. ``key_file`` and
    ``peers_file``: both or neither; without them, all addresses are loopback addresses.
    """

    towers: Annotated[
        tuple[str, ...], setting("Where to find the other nodes, each tcp://HOST:PORT?out=PORT&peer=NAME.")
    ] = ("tcp://127.0.0.1:5556",)
    listen: Annotated[
        str, setting("Where other nodes subscribe to this one, tcp://HOST:PORT; port 0: any free one.")
    ] = "tcp://127.0.0.1:0"
    advertise: Annotated[
        str, setting("Where other nodes reach this one, tcp://HOST:PORT, if not at listen.")
    ] = ""
    high_water_mark: Annotated[
        int, setting("Messages queued for each peer, in each direction.", ge=1, le=10_000_000)
    ] = 10_000

    def check(self, base_dir: Path) -> MeshPlan:
        """The configuration, parsed, with the files that it names (relative to ``base_dir``).

        :raises ConfigError: with every problem found.
        """
        problems: list[str] = []
        keys = _keys(self, base_dir, problems)
        listen = _endpoint("listen", self.listen, problems)
        host, port = ("", 0) if listen is None or not is_host(listen.host) else (listen.host, 0)
        if self.advertise and (advertise := _endpoint("advertise", self.advertise, problems)) is not None:
            host, port = advertise.host, advertise.port
            if not is_host(host):
                problems.append(f"advertise: {host} is not the address of one machine")
        towers = [
            _tower(endpoint, keys, problems)
            for text in self.towers
            if (endpoint := _endpoint("towers", text, problems, {"out", "peer"})) is not None
        ]
        if not self.towers:
            problems.append("towers: name at least one; `garlicfarm dafka tower` runs one")
        if keys is None:
            for name, each in [("listen", listen.host if listen else ""), ("advertise", host)] + [
                ("towers", tower.host) for tower in towers
            ]:
                _refuse_plain(name, each, problems)
        if problems or listen is None:
            raise ConfigError(problems)
        return MeshPlan(tuple(towers), listen, host, port, keys, self.high_water_mark)


class TowerConfig(_KeyConfig, frozen=True, kw_only=True):
    """A tower.

    ``listen``: ``tcp://HOST:PORT?out=PORT``. Nodes send their beacons to the first port, and receive those of
    the others from the second one (default: the next port). ``key_file``, ``peers_file``: as in `MeshConfig`.
    """

    listen: str = "tcp://127.0.0.1:5556"

    def check(self, base_dir: Path) -> TowerPlan:
        """The configuration, parsed, with the files that it names (relative to ``base_dir``).

        :raises ConfigError: with every problem found.
        """
        problems: list[str] = []
        keys = _keys(self, base_dir, problems)
        listen = _endpoint("listen", self.listen, problems, {"out"})
        if listen is None:
            raise ConfigError(problems)
        out = _out_port("listen", listen, problems)
        if keys is None:
            _refuse_plain("listen", listen.host, problems)
        if problems:
            raise ConfigError(problems)
        return TowerPlan(listen.host, listen.port, out, keys)


class Keys(msgspec.Struct, frozen=True):
    """One's own key pair, and the known peers by their public keys."""

    own: KeyPair
    known: Mapping[str, KnownPeer]


class TowerAddress(msgspec.Struct, frozen=True):
    """A tower as its nodes reach it: they send beacons to ``in_port``. ``key``: its public key, or ""."""

    host: str
    in_port: int
    out_port: int
    key: str


class MeshPlan(msgspec.Struct, frozen=True):
    """A checked `MeshConfig`. What a node advertises: host "": as the tower sees it; port 0: its own."""

    towers: tuple[TowerAddress, ...]
    listen: Endpoint
    advertise_host: str
    advertise_port: int
    keys: Keys | None
    high_water_mark: int


class TowerPlan(msgspec.Struct, frozen=True):
    """A checked `TowerConfig`."""

    host: str
    in_port: int
    out_port: int
    keys: Keys | None


def _keys(config: _KeyConfig, base_dir: Path, problems: list[str]) -> Keys | None:
    if not config.key_file and not config.peers_file:
        return None
    if not config.key_file or not config.peers_file:
        problems.append("key_file and peers_file belong together: set both or neither")
        return None
    try:
        return Keys(read_key(base_dir / config.key_file), read_known_peers(base_dir / config.peers_file))
    except ConfigError as error:
        problems += error.problems
        return None


def _endpoint(
    name: str, text: str, problems: list[str], params: frozenset[str] | set[str] = frozenset()
) -> Endpoint | None:
    try:
        endpoint = Endpoint.parse(text, "tcp")
    except ConfigError as error:
        problems += [f"{name}: {problem}" for problem in error.problems]
        return None
    if endpoint.scheme != "tcp" or not endpoint.params.keys() <= params:
        options = "".join(f"&{each}=…" for each in sorted(params)).replace("&", "?", 1)
        problems.append(f"{name}: {text!r} is not of the form tcp://HOST:PORT{options}")
        return None
    return endpoint


def _out_port(name: str, endpoint: Endpoint, problems: list[str]) -> int:
    """The second port of a tower; 0 where the first one is, which is any free one."""
    text = endpoint.params.get("out", str(endpoint.port + 1 if endpoint.port else 0))
    if not (text.isascii() and text.isdecimal()) or int(text) > _MAX_PORT:
        problems.append(f"{name}: {text} is not a port")
        return 0
    return int(text)


def _tower(endpoint: Endpoint, keys: Keys | None, problems: list[str]) -> TowerAddress:
    out = _out_port("towers", endpoint, problems)
    if not is_host(endpoint.host) or not endpoint.port or not out:
        problems.append(f"towers: {endpoint} is not an address that a node could connect to")
    peer, key = endpoint.params.get("peer", ""), ""
    if keys is None:
        if peer:
            problems.append(f"towers: {endpoint} names a peer; that needs key_file and peers_file")
        return TowerAddress(endpoint.host, endpoint.port, out, key)
    for known in keys.known.values():
        if known.name == peer and PeerRole.TOWER in known.roles:
            key = known.key
    if not key:
        problems.append(
            f"towers: {endpoint} does not name a known peer with the role tower: add peer=NAME, "
            "the name of its table in peers_file"
        )
    return TowerAddress(endpoint.host, endpoint.port, out, key)


def _refuse_plain(name: str, host: str, problems: list[str]) -> None:
    if host and not Endpoint("tcp", host, 0).is_loopback:
        problems.append(
            f"{name}: without keys, only loopback addresses such as 127.0.0.1 are allowed, not {host}; "
            "make keys with `garlicfarm dafka keys create`, and set key_file and peers_file"
        )
