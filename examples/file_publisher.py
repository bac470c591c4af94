"""A publisher plugin: a file with the signed Meta LeaseSet, for a program that gives it to a router."""

import msgspec
import trio

from garlicfarm.errors import PublisherError
from garlicfarm.publisher import Published, Publisher, PublisherStatus, PublishOrder


class FilePublisherConfig(msgspec.Struct, forbid_unknown_fields=True):
    path: str


class FilePublisher(Publisher):
    Config = FilePublisherConfig
    is_publishing = False

    @property
    def path(self) -> trio.Path:  # its methods work in threads
        return trio.Path(self.base_dir / self.config.path)

    async def standby(self) -> None:
        await self.retire(None)  # an earlier process may have left the file

    async def publish(self, order: PublishOrder) -> Published:
        if order.lease_set is None:
            raise PublisherError(
                "there is no Meta LeaseSet: no leaf is usable, or the node has no master key"
            )
        new = self.path.with_suffix(".new")
        try:
            await new.write_bytes(order.lease_set)
            await new.replace(self.path)  # a reader sees the old one or the new one
        except OSError as error:
            raise PublisherError(f"{self.path} cannot be written: {error.strerror}") from error
        self.is_publishing = True
        return Published(published_ms=order.published_ms, lease_set=order.lease_set)

    async def retire(self, successor: bytes | None) -> None:
        try:
            await self.path.unlink(missing_ok=True)
        except OSError as error:
            raise PublisherError(f"{self.path} cannot be removed: {error.strerror}") from error
        self.is_publishing = False

    async def status(self) -> PublisherStatus:
        return PublisherStatus(is_publishing=self.is_publishing)  # from memory: it must not wait
