"""The lab's web site inside I2P: which node serves it, as two clients see it.

One client fetches it from the beginning. i2pd asks for a new LeaseSet only when the one that it knows has
nearly run out, so after a router has died that client can be without an answer for minutes. The other one is
a newcomer: its router is started again whenever another node publishes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NoReturn

import trio

from garlicfarm.lab.i2pd import I2pdRouter
from garlicfarm.lab.service import Service
from garlicfarm.lab.site import Client

__all__ = ["CLIENTS", "SiteWatch", "site_watch"]

CLIENTS = 2
POLL_S = 0.5
NEWCOMER_S = 60.0
"""So long a newcomer has for its first answer. One that asked too early, when the LeaseSet of the dead
router was still the newest, starts again."""
LATE_S = 3.0


class SiteWatch:
    """Two clients of a site; made by `site_watch`. ``publisher``: the node that published last.
    ``served_by``: the node that serves the newest newcomer, None until it has an answer."""

    def __init__(self, service: Service, ask: Callable[[], Awaitable[int | None]]) -> None:
        self.service = service
        self.publisher: int | None = None
        self.served_by: int | None = None
        self._ask = ask
        self._regular = self._client(0)
        self._newcomer: Client | None = None
        self._since_s = self._newcomer_since_s = trio.current_time()

    def text(self) -> str:
        """For people who watch: the site's address, and what the clients see."""
        lines = [
            f"site      http://{self.service.host}",
            f"regular   {_seen(self._regular, self._since_s)}",
        ]
        if self._newcomer is not None:
            lines.append(f"newcomer  {_seen(self._newcomer, self._newcomer_since_s)}")
        return "\n".join(lines)

    def routers(self) -> list[I2pdRouter]:
        """The routers of the nodes that have not been killed."""
        return [each for each in self.service.servers if self.service.network.is_running(each.id)]

    async def wait_served(self) -> int:
        """The node that serves the regular client, once one does."""
        return self.service.router_of(await self._regular.wait_answered())

    async def wait_moved(self, before: int) -> int:
        """The node that serves a newcomer, once another one than ``before`` does."""
        while self.served_by in (None, before):  # noqa: ASYNC110 - of another process
            await trio.sleep(POLL_S)
        assert self.served_by is not None
        return self.served_by

    async def run(self) -> NoReturn:
        """Fetch the site and follow the farm, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._regular.run)
            nursery.start_soon(self._welcome)
            while True:
                self.publisher = await self._ask() or self.publisher
                await trio.sleep(POLL_S)

    async def _welcome(self) -> NoReturn:
        """Keep a newcomer that has come after the newest change of the publisher."""
        router_id = self.service.client_ids[1]
        while True:
            while self.publisher is None:  # noqa: ASYNC110 - of other processes
                await trio.sleep(POLL_S)
            publisher, self.served_by = self.publisher, None
            if self._newcomer is not None:
                self.service.network.kill(router_id)
                await self.service.network.start(router_id)
            client, self._newcomer_since_s = self._client(1), trio.current_time()
            self._newcomer = client
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.run)
                with trio.move_on_after(NEWCOMER_S):
                    await client.wait_answered(f"node {publisher}")
                    self.served_by = publisher
                while self.served_by and self.publisher == publisher:  # noqa: ASYNC110
                    await trio.sleep(POLL_S)
                nursery.cancel_scope.cancel()

    def _client(self, number: int) -> Client:
        return Client(self.service.clients[number].proxy, self.service.host)


def _seen(client: Client, since_s: float) -> str:
    newest, now = client.newest, trio.current_time()
    if newest is None:
        return f"has no answer yet, after {now - since_s:.0f} s"
    silent_s = now - newest.ended_s
    if silent_s < LATE_S:
        return f"served by {newest.text}"
    return f"has no answer for {silent_s:.0f} s; {newest.text} served it"


@asynccontextmanager
async def site_watch(service: Service, ask: Callable[[], Awaitable[int | None]]) -> AsyncIterator[SiteWatch]:
    """Watch the site of a service beside the block. ``ask``: which node publishes now."""
    watch = SiteWatch(service, ask)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        yield watch
        nursery.cancel_scope.cancel()
