"""The lab's web site inside I2P: which node serves it, as a client sees it, and how long none did."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from garlicfarm.lab.i2pd import I2pdRouter
from garlicfarm.lab.service import Service
from garlicfarm.lab.site import Client, Fetch

LATE_S = 3.0


class SiteWatch:
    """A client of a site, which fetches it each second; made by `site_watch`."""

    def __init__(self, service: Service, client: Client) -> None:
        self.service = service
        self._client = client
        self._since_s = trio.current_time()

    def text(self) -> str:
        """For people who watch: the site's address, and what the client sees."""
        return f"site    http://{self.service.host}\nclient  {self._seen()}"

    def routers(self) -> list[I2pdRouter]:
        """The routers of the nodes that have not been killed."""
        return [each for each in self.service.servers if self.service.network.is_running(each.id)]

    async def wait_served(self) -> int:
        """The node that serves the client, once one does."""
        return self.service.router_of(await self._client.wait_answered())

    async def wait_moved(self, before: int) -> int:
        """The node that serves the client, once another one than ``before`` does."""
        return self.service.router_of(await self._client.wait_answered(but=f"node {before}"))

    def _seen(self) -> str:
        answered = sorted(
            (each for each in self._client.fetches if each.text is not None), key=lambda each: each.ended_s
        )
        now = trio.current_time()
        if not answered:
            return f"has no answer yet, after {now - self._since_s:.0f} s"
        newest = answered[-1]
        silent_s = now - newest.ended_s
        if silent_s >= LATE_S:
            return f"has no answer for {silent_s:.0f} s; {newest.text} served it"
        return f"served by {newest.text}{_moved(answered)}"


def _moved(answered: list[Fetch]) -> str:
    """How long it took when another node came to serve, the last time; "" if none did yet."""
    newest = answered[-1]
    for first, before in zip(reversed(answered), reversed(answered[:-1]), strict=False):
        if before.text != newest.text:
            return f", {first.ended_s - before.ended_s:.1f} s after the last answer of {before.text}"
    return ""


@asynccontextmanager
async def site_watch(service: Service) -> AsyncIterator[SiteWatch]:
    """Watch the site of a service with one client beside the block."""
    client = Client(service.clients[0].proxy, service.host)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        yield SiteWatch(service, client)
        nursery.cancel_scope.cancel()
