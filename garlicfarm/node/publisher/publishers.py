"""Makes the publishers of a farm, and reads the keys of its master destination."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from garlicfarm.config import Config, FarmSection
from garlicfarm.credentials.watched_keys import WatchedKeys
from garlicfarm.errors import ConfigError, PluginError
from garlicfarm.i2p.destination import decode_destination
from garlicfarm.i2p.encoding import b32_address
from garlicfarm.i2p.router_kind import RouterKind
from garlicfarm.node.publisher.backend_check import BackendChecks
from garlicfarm.plugins import make_publisher
from garlicfarm.publisher import Publisher, PublisherSite


class _MasterSession:
    """See `garlicfarm.publisher.MasterSession`."""

    def __init__(self, master: WatchedKeys) -> None:
        self._master = master

    @property
    def destination(self) -> bytes:
        return self._master.keys.destination

    def session_configuration(
        self, options: Mapping[str, str], now_ms: int, *, kind: RouterKind = "i2pd"
    ) -> bytes:
        return self._master.keys.session_configuration(options, now_ms, kind=kind)


def read_master_keys(section: FarmSection, node_id: int) -> WatchedKeys | None:
    """The keys in ``meta.key_file``, if it is set, for ``meta.destination``; raises as `WatchedKeys`."""
    meta = section.meta
    if meta.key_file is None or not meta.destination:
        return None
    destination = decode_destination(meta.destination)
    return WatchedKeys(meta.key_file, node_id=node_id, destination=destination)


def make_publishers(
    section: FarmSection, node_id: int, base_dir: Path, data_dir: Path, keys: WatchedKeys | None
) -> list[Publisher]:
    """The publishers of ``[[farm.publisher]]``, in that order.

    Raises `PluginError`, and `ConfigError`: a table is not usable, or two publish the same destination.
    """
    made: list[Publisher] = []
    for number, table in enumerate(section.publisher):
        site = PublisherSite(
            farm=section.name,
            node_id=node_id,
            directory=publisher_directory(data_dir, section.name) / f"{number}-{table.plugin}",
            master=None if keys is None else _MasterSession(keys),
        )
        plugin = make_publisher(table.plugin, table.options, base_dir, site)
        BackendChecks(table, plugin.targets)
        made.append(plugin)
    destinations = [plugin.destination for plugin in made if plugin.destination is not None]
    if len({*destinations}) < len(destinations):
        raise ConfigError([f"farm {section.name}: two publishers publish the same destination"])
    return made


def check_publishers(section: FarmSection, config: Config) -> None:
    """Check the master keys and the publishers of a farm of this node.

    Raises as `read_master_keys` and `make_publishers` do, and `ConfigError`: another farm of this node
    publishes the same destination. i2pd may crash when a destination is opened twice.
    """
    own = _destinations(section, config)
    for other in config.farm:
        theirs: frozenset[bytes] = frozenset()
        if other.name != section.name:
            with suppress(ConfigError, PluginError):  # they are that farm's
                theirs = _destinations(other, config)
        for destination in own & theirs:
            raise ConfigError(
                [f"farms {section.name} and {other.name} both publish {b32_address(destination)}"]
            )


def _destinations(section: FarmSection, config: Config) -> frozenset[bytes]:
    node = config.node
    keys = read_master_keys(section, node.id)
    made = make_publishers(section, node.id, config.base_dir, node.data_dir, keys)
    return frozenset(plugin.destination for plugin in made if plugin.destination is not None)


def publisher_directory(data_dir: Path, farm: str) -> Path:
    """Where the application `publisher` keeps its files about a farm."""
    return data_dir / "publisher" / farm
