"""Publishes the farm's Meta LeaseSet (LS2 type 7) through a router's I2CP.

The member that the farm has named opens a session with the master destination. The router builds tunnels for
it, and asks for a LeaseSet; it is given the Meta LeaseSet that the node has signed, and stores it at the
floodfills. A newer one replaces it. When the session ends, the floodfills keep what they have until it
expires: I2P has no way to take a Meta LeaseSet back.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Self

from garlicfarm.credentials.router_login import read_login
from garlicfarm.errors import ConfigError, PublisherError
from garlicfarm.i2p.lease_set import verify_meta_lease_set
from garlicfarm.i2p.router_kind import RouterKind
from garlicfarm.i2p.session_options import session_options
from garlicfarm.publisher import (
    MasterSession,
    Published,
    Publisher,
    PublisherSite,
    PublisherStatus,
    PublishOrder,
)
from garlicfarm_plugin_i2cp.background import Background
from garlicfarm_plugin_i2cp.config import I2cpConfig
from garlicfarm_plugin_i2cp.connection import parse_address
from garlicfarm_plugin_i2cp.meta_keeper import MetaKeeper


class MetaPublisher(Publisher):
    """See the module. The constructor raises `ConfigError`: a wrong address, or no keys of the master
    destination that can open a session."""

    Config = I2cpConfig
    config: I2cpConfig

    def __init__(self, config: I2cpConfig, base_dir: Path, site: PublisherSite) -> None:
        super().__init__(config, base_dir, site)
        login = read_login(config.user, config.password_file, base_dir)
        router = parse_address(config.address, login, config.kind)
        if site.master is None:
            raise ConfigError(
                [
                    "publisher i2cp: it publishes for the farm's master destination; set destination and "
                    "key_file in [farm.meta]"
                ]
            )
        self._master: MasterSession = site.master
        self._options = session_options("meta", config.hops, config.quantity)
        self._configuration(_now_ms(), "i2pd")
        self._keeper = MetaKeeper(router, configuration=self._configuration, now_ms=_now_ms)
        self._background = Background()

    @property
    def destination(self) -> bytes:
        return self._master.destination

    async def __aenter__(self) -> Self:
        await self._background.begin(self._keeper.run)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Ends the session, as `retire` does."""
        await self._background.end()

    async def standby(self) -> None:
        """End a session, and check that the router speaks I2CP and that its clock agrees with this node's."""
        await self._keeper.retire()
        await self._keeper.check()

    async def publish(self, order: PublishOrder) -> Published:
        """See `Publisher.publish`.

        "A router has taken it": the router has a session with tunnels, since it has asked for a LeaseSet in
        it; it has read this one; and it has answered afterwards. A router reports nothing more: it gives the
        LeaseSet to the floodfills by itself, repeats that until one confirms, and ends the session some 10 s
        later if it finds the LeaseSet invalid, which `status` then shows.

        i2pd publishes at most once in 20 s, so an order that follows another sooner waits. It stands, and is
        tried again whenever the session ends, until it expires, `retire`, or another order. A
        `PublisherError` does not end that either; one comes after 25 s if the router is still building
        tunnels, which may take minutes after its start.
        """
        if order.lease_set is None:
            raise PublisherError(
                "there is no Meta LeaseSet to publish: no leaf is usable, or this node has no keys of the "
                "master destination"
            )
        try:
            meta = verify_meta_lease_set(order.lease_set, _now_ms() // 1000)
        except ValueError as error:
            raise PublisherError(f"no floodfill would take this Meta LeaseSet: {error}") from None
        if meta.destination != self.destination:
            raise PublisherError("this Meta LeaseSet belongs to another destination than the farm's")
        await self._keeper.publish(order)
        return Published(published_ms=order.published_ms, lease_set=order.lease_set)

    async def retire(self, successor: bytes | None) -> None:
        """End the session, so that the router publishes nothing more. The floodfills keep what they have
        until it expires or the successor's replaces it."""
        await self._keeper.retire()

    async def status(self) -> PublisherStatus:
        return self._keeper.status()

    def _configuration(self, now_ms: int, kind: RouterKind) -> bytes:
        return self._master.session_configuration(self._options, now_ms, kind=kind)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
