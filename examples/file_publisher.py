"""A publisher plugin: a file with the signed Meta LeaseSet, for a program that gives it to a router."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import trio

from garlicfarm.errors import ConfigError, PublisherError
from garlicfarm.publisher import Published, Publisher, PublisherSite, PublisherStatus, PublishOrder


class FilePublisherConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The keys of [[farm.publisher]] that are not the node's own."""

    path: str


class FilePublisher(Publisher):
    Config = FilePublisherConfig

    def __init__(self, config: Any, base_dir: Path, site: PublisherSite) -> None:
        super().__init__(config, base_dir, site)
        self._path = base_dir / config.path
        self._order: PublishOrder | None = None  # the one that is published
        self._since_ms: int | None = None
        if not self._path.parent.is_dir():
            raise ConfigError([f"publisher file: path: {self._path.parent} is not a directory"])

    async def standby(self) -> None:
        await self._remove()  # an earlier process may have left it

    async def publish(self, order: PublishOrder) -> Published:
        lease_set = order.lease_set
        if lease_set is None:
            raise PublisherError(
                "there is no Meta LeaseSet: no leaf is usable, or the node has no master key"
            )
        await self._in_thread(lambda: self._replace(lease_set))
        self._order = order
        self._since_ms = self._since_ms or order.published_ms
        return Published(published_ms=order.published_ms, lease_set=lease_set)

    async def retire(self, successor: bytes | None) -> None:
        await self._remove()

    async def status(self) -> PublisherStatus:
        return PublisherStatus(  # from memory: it must not wait
            is_publishing=self._order is not None,
            since_ms=self._since_ms,
            until_ms=self._order.expires_ms if self._order else None,
        )

    def _replace(self, lease_set: bytes) -> None:
        new = self._path.with_name(f"{self._path.name}.new")  # a reader never sees a part
        new.write_bytes(lease_set)
        new.replace(self._path)

    async def _remove(self) -> None:
        await self._in_thread(lambda: self._path.unlink(missing_ok=True))
        self._order = self._since_ms = None

    async def _in_thread(self, write: Callable[[], None]) -> None:
        try:
            await trio.to_thread.run_sync(write)
        except OSError as error:
            raise PublisherError(f"{self._path} cannot be written: {error.strerror}") from error
