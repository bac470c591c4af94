"""The leaves of a status: figures of the router and of publishers, none invented."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import trio

from garlicfarm.application import ApplicationContext
from garlicfarm.errors import NotSupported, RouterError
from garlicfarm.i2p.encoding import encode
from garlicfarm.node.publisher.leaf_figures import LeafFigures
from garlicfarm.publishing.documents import DestinationStatus, Tunnels
from tests.publishing.scripted_log import destination

LISTED, SERVED = destination(2), destination(3)


class Served:
    def __init__(self, *leaves: DestinationStatus, down: Sequence[str] = ()) -> None:
        self._leaves = leaves
        self._down = down

    def leaves(self) -> Sequence[DestinationStatus]:
        return self._leaves

    def is_backend_up(self, destination: bytes) -> bool:
        return encode(destination) not in self._down


class FakeRouter:
    """Knows the figures of ``statuses`` by destination; anything else is not supported."""

    def __init__(self, *statuses: DestinationStatus) -> None:
        self.statuses = {status.destination: status for status in statuses}
        self.trouble: RouterError | None = None

    async def get_local_leaf_status(self, leaf: bytes) -> DestinationStatus:
        await trio.lowlevel.checkpoint()
        if self.trouble:
            raise self.trouble
        if encode(leaf) not in self.statuses:
            raise NotSupported("no figures of it")
        return self.statuses[encode(leaf)]


def made(router: FakeRouter | None, served: Served, *listed: str) -> tuple[LeafFigures, list[str]]:
    """The figures, and what is logged."""
    notes: list[str] = []
    context = SimpleNamespace(
        router=router,
        section=SimpleNamespace(
            leaf=[SimpleNamespace(destination=text) for text in listed],
            router={"plugin": "fake"},
        ),
        log=SimpleNamespace(
            warning=lambda event, **fields: notes.append(f"{event} {sorted(fields.items())}")
        ),
        metrics=SimpleNamespace(count_router_request=lambda plugin, outcome: None),
    )
    return LeafFigures(cast(ApplicationContext, context), served), notes


async def collect(figures: LeafFigures) -> list[DestinationStatus]:
    await figures.collect(trio.current_time() + 5)
    return figures.newest()


async def test_leaves_are_those_listed_and_those_that_publishers_serve_each_once() -> None:
    served = Served(DestinationStatus(destination=LISTED, uptime=7), DestinationStatus(destination=SERVED))
    figures, _ = made(None, served, LISTED)
    assert await collect(figures) == [
        DestinationStatus(destination=LISTED, uptime=7),
        DestinationStatus(destination=SERVED),
    ]


async def test_figures_of_a_publisher_fill_what_the_router_does_not_report() -> None:
    router = FakeRouter(DestinationStatus(destination=SERVED, uptime=1, current_connections=4))
    of_session = DestinationStatus(
        destination=SERVED, uptime=9, configured_tunnels=Tunnels(in_=3, out=3), lease_set_expires=10**12
    )
    figures, _ = made(router, Served(of_session))
    assert await collect(figures) == [
        DestinationStatus(
            destination=SERVED,
            uptime=1,
            current_connections=4,
            configured_tunnels=Tunnels(in_=3, out=3),
            lease_set_expires=10**12,
        )
    ]


async def test_router_that_cannot_tell_leaves_the_figures_of_the_publisher() -> None:
    of_session = DestinationStatus(destination=SERVED, uptime=9)
    router = FakeRouter()
    figures, notes = made(router, Served(of_session), LISTED)
    assert await collect(figures) == [DestinationStatus(destination=LISTED), of_session]
    assert notes == []
    router.trouble = RouterError("down")
    assert await collect(figures) == [DestinationStatus(destination=LISTED), of_session]
    assert notes == ["router-silent [('cause', 'down')]"] * 2


async def test_leaf_whose_service_is_down_is_left_out_and_no_figure_is_invented() -> None:
    served = Served(DestinationStatus(destination=SERVED), down=[SERVED])
    figures, _ = made(FakeRouter(DestinationStatus(destination=SERVED, uptime=1)), served, LISTED)
    assert await collect(figures) == [DestinationStatus(destination=LISTED)]


async def test_leaves_are_known_before_the_router_was_asked_and_while_it_is_silent() -> None:
    router = FakeRouter(DestinationStatus(destination=SERVED, uptime=1))
    figures, _ = made(router, Served(DestinationStatus(destination=SERVED, uptime=9)), LISTED)
    listed = DestinationStatus(destination=LISTED)
    assert figures.newest() == [listed, DestinationStatus(destination=SERVED, uptime=9)]
    measured = await collect(figures)
    assert measured == [listed, DestinationStatus(destination=SERVED, uptime=1)]
    assert figures.newest() == measured
