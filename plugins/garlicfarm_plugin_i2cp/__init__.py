"""Publisher plugin ``i2cp``: through a router's I2CP, the farm's Meta LeaseSet or a service itself.

I2CP is neither encrypted nor authenticated, so the router must be on this machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from garlicfarm.publisher import (
    ClientRules,
    KeyReport,
    Published,
    Publisher,
    PublisherSite,
    PublisherStatus,
    PublishOrder,
)
from garlicfarm_plugin_i2cp.config import I2cpConfig
from garlicfarm_plugin_i2cp.meta import MetaPublisher
from garlicfarm_plugin_i2cp.service import ServicePublisher

__all__ = ["I2cpConfig", "I2cpPublisher"]


class I2cpPublisher(Publisher):
    """The publisher of the configured mode: see there."""

    Config = I2cpConfig
    config: I2cpConfig

    def __init__(self, config: I2cpConfig, base_dir: Path, site: PublisherSite) -> None:
        """Raises `ConfigError` with every problem of the configuration and of the keys."""
        super().__init__(config, base_dir, site)
        publisher = MetaPublisher if config.mode == "meta" else ServicePublisher
        self._publisher: Publisher = publisher(config, base_dir, site)

    @property
    def destination(self) -> bytes | None:
        return self._publisher.destination

    @property
    def targets(self) -> tuple[str, ...]:
        return self._publisher.targets

    @property
    def key(self) -> KeyReport | None:
        return self._publisher.key

    async def __aenter__(self) -> Self:
        await self._publisher.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._publisher.__aexit__(*exc)

    async def standby(self) -> None:
        await self._publisher.standby()

    async def publish(self, order: PublishOrder) -> Published:
        return await self._publisher.publish(order)

    async def retire(self, successor: bytes | None) -> None:
        await self._publisher.retire(successor)

    async def status(self) -> PublisherStatus:
        return await self._publisher.status()

    def restrict_clients(self, rules: ClientRules) -> bool:
        return self._publisher.restrict_clients(rules)

    def leave_out(self, targets: frozenset[str]) -> None:
        self._publisher.leave_out(targets)

    def has_met(self, client: bytes) -> bool | None:
        return self._publisher.has_met(client)

    async def wait_changed(self) -> None:
        await self._publisher.wait_changed()
