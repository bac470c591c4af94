"""Publisher plugin ``simulated``: keeps its last order and needs no router, for the lab and for tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from garlicfarm.errors import PublisherError
from garlicfarm.plugin_settings import Settings
from garlicfarm.publisher import (
    ClientRules,
    Published,
    Publisher,
    PublisherSite,
    PublisherStatus,
    PublishOrder,
)


class SimulatedPublisherConfig(Settings, frozen=True, kw_only=True):
    """``[[farm.publisher]]`` with ``plugin = "simulated"``: no keys of its own."""


class SimulatedPublisher(Publisher):
    """See the module. ``order``: the order that is published now. ``rules``: which clients it would serve.
    ``successor``: what the last `retire` was given. ``on_call`` is awaited with the name of each of
    `standby`, `publish` and `retire` before it does anything: a test can let it raise or wait. `kill_router`:
    from then on there is no router."""

    Config = SimulatedPublisherConfig

    def __init__(self, config: SimulatedPublisherConfig, base_dir: Path, site: PublisherSite) -> None:
        super().__init__(config, base_dir, site)
        self.order: PublishOrder | None = None
        self.rules = ClientRules()
        self.successor: bytes | None = None
        self.on_call: Callable[[str], Awaitable[None]] = _checkpoint
        self._since_ms: int | None = None
        self._has_router = self._is_ready = True
        self._changed = trio.Event()

    def kill_router(self) -> None:
        """As if a router had died, and what it published with it; until `start_router`."""
        self._has_router = self._is_ready = False
        self._end()
        self._changed.set()
        self._changed = trio.Event()

    def start_router(self) -> None:
        """As if the router were started again; the node notices when it calls `standby`."""
        self._has_router = True

    async def __aexit__(self, *exc: object) -> None:
        self._end()

    async def standby(self) -> None:
        await self.on_call("standby")
        self._check_router()
        self._end()
        self._is_ready = True

    async def publish(self, order: PublishOrder) -> Published:
        await self.on_call("publish")
        self._check_router()
        if self.order is None:
            self._since_ms = order.published_ms
        self.order = order
        return Published(published_ms=order.published_ms, lease_set=order.lease_set)

    async def retire(self, successor: bytes | None) -> None:
        await self.on_call("retire")
        self.successor = successor
        self._end()

    async def status(self) -> PublisherStatus:
        await trio.lowlevel.checkpoint()
        return PublisherStatus(
            is_publishing=self.order is not None,
            is_ready=self._is_ready,
            since_ms=self._since_ms,
            until_ms=None if self.order is None else self.order.expires_ms,
        )

    def restrict_clients(self, rules: ClientRules) -> bool:
        self.rules = rules
        return True

    async def wait_changed(self) -> None:
        await self._changed.wait()

    def _check_router(self) -> None:
        if not self._has_router:
            raise PublisherError("its router is gone")

    def _end(self) -> None:
        self.order = self._since_ms = None


async def _checkpoint(_call: str) -> None:
    await trio.lowlevel.checkpoint()
