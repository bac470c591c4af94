"""The figures of this member's leaves: what its router and its publishers know of them.

A leaf is a destination that the configuration lists (``[[farm.leaf]]``), or one that a publisher of this node
serves. A figure that neither reports is absent (D13). A leaf whose service is down is left out of the status:
so it is usable for no member, and no figure has to be invented to say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import trio

from garlicfarm.application import ApplicationContext
from garlicfarm.errors import NotSupported, RouterError
from garlicfarm.i2p.destination import decode_destination
from garlicfarm.publishing.documents import DestinationStatus


class ServedLeaves(Protocol):
    """What publishers of this node know of the leaves that they serve."""

    def leaves(self) -> Sequence[DestinationStatus]:
        """Each such leaf, with the figures that the publisher's own sessions give."""
        ...

    def is_backend_up(self, destination: bytes) -> bool:
        """Whether the service behind a leaf answers; True where nothing checks it."""
        ...


class LeafFigures:
    """``served``: by this node's publishers. `newest`: what `collect` has found last."""

    def __init__(self, context: ApplicationContext, served: ServedLeaves) -> None:
        self._context = context
        self._served = served
        self._found: dict[bytes, DestinationStatus] = {}

    async def collect(self, deadline: float) -> None:
        """Ask for the figures of each leaf whose service is up. The router has until ``deadline`` (Trio's
        clock) for all. Cancelled, it keeps what it has found."""
        for destination, own in self._own().items():
            if self._served.is_backend_up(destination):
                self._found[destination] = _filled(await self._ask_router(destination, deadline), own)

    def newest(self) -> list[DestinationStatus]:
        """The leaves whose services are up, each once; a leaf that the router was not asked about yet with
        the publisher's figures."""
        return [
            self._found.get(destination, own)
            for destination, own in self._own().items()
            if self._served.is_backend_up(destination)
        ]

    def _own(self) -> dict[bytes, DestinationStatus]:
        """All leaves of this member, with the figures of its publishers."""
        listed = [DestinationStatus(destination=leaf.destination) for leaf in self._context.section.leaf]
        return {decode_destination(leaf.destination): leaf for leaf in (*listed, *self._served.leaves())}

    async def _ask_router(self, destination: bytes, deadline: float) -> DestinationStatus | None:
        router = self._context.router
        if router is None:
            return None
        try:
            with trio.fail_at(deadline):
                return await router.get_local_leaf_status(destination)
        except NotSupported:
            self._count("not-supported")
        except (RouterError, trio.TooSlowError) as error:
            self._on_failure(error)
        return None

    def _on_failure(self, error: Exception) -> None:
        self._count("error")
        self._context.log.warning("router-silent", cause=str(error) or "no answer in time")

    def _count(self, outcome: str) -> None:
        plugin = str(self._context.section.router.get("plugin", ""))
        self._context.metrics.count_router_request(plugin, outcome)


def _filled(of_router: DestinationStatus | None, of_publisher: DestinationStatus) -> DestinationStatus:
    """The router's figures; where it reports none, those of the publisher."""
    if of_router is None:
        return of_publisher
    absent = [name for name in of_router.__struct_fields__ if getattr(of_router, name) is None]
    return msgspec.structs.replace(of_router, **{name: getattr(of_publisher, name) for name in absent})
