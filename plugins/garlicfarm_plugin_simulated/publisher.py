"""Publisher plugin ``simulated``: keeps its last order and tells no router, for the lab and for tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import trio

from garlicfarm.publisher import Publication, Published, Publisher, PublisherSite, PublisherStatus

__all__ = ["SimulatedPublisher", "SimulatedPublisherConfig"]


class SimulatedPublisherConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[farm.publisher]]`` with ``plugin = "simulated"``: no keys of its own."""


class SimulatedPublisher(Publisher):
    """See the module. ``order``: the order that is published now. ``successor``: what the last `retire` was
    given. ``on_call`` is awaited with the name of each method but `status` before it does anything: a test
    can let it raise or wait."""

    Config = SimulatedPublisherConfig

    def __init__(self, config: SimulatedPublisherConfig, base_dir: Path, site: PublisherSite) -> None:
        super().__init__(config, base_dir, site)
        self.order: Publication | None = None
        self.successor: bytes | None = None
        self.on_call: Callable[[str], Awaitable[None]] = _checkpoint
        self._since_ms: int | None = None

    async def __aexit__(self, *exc: object) -> None:
        self._end()

    async def standby(self) -> None:
        await self.on_call("standby")
        self._end()

    async def publish(self, order: Publication) -> Published:
        await self.on_call("publish")
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
            since_ms=self._since_ms,
            until_ms=None if self.order is None else self.order.expires_ms,
        )

    def _end(self) -> None:
        self.order = self._since_ms = None


async def _checkpoint(_call: str) -> None:
    await trio.lowlevel.checkpoint()
