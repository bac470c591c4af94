"""What the lab tells of its site, from clients that were answered as written here."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from garlicfarm.cli.lab_site import SiteWatch
from garlicfarm.lab.i2pd import I2pdNetwork, I2pdRouter
from garlicfarm.lab.service import Service
from garlicfarm.lab.site import Client, Fetch


def router(router_id: int) -> I2pdRouter:
    return I2pdRouter(
        id=router_id,
        address="198.18.0.11",
        url="",
        password_file=Path(),
        pin="",
        pid=1000 + router_id,
        data_dir=Path(),
        bandwidth_kb=0,
        leaf=b"",
        proxy=f"http://127.0.0.1:{4443 + router_id}",
        sam="",
        i2cp="",
        address_of_tunnel="",
        place="",
    )


async def nothing() -> int | None:
    return None


@pytest.fixture
def service() -> Service:
    return Service(I2pdNetwork([router(number) for number in range(1, 10)], []), "site.b32.i2p", (4, 5))


async def test_regular_client_is_served_then_silent(
    service: Service, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Client] = []
    real = Client.__init__

    def remember(self: Client, proxy: str, host: str) -> None:
        real(self, proxy, host)
        made.append(self)

    monkeypatch.setattr(Client, "__init__", remember)
    watch = SiteWatch(service, nothing)
    site = "site      http://site.b32.i2p\n"
    await trio.sleep(7)
    assert watch.text() == f"{site}regular   has no answer yet, after 7 s"

    now = trio.current_time()
    [regular] = made
    regular.fetches += [Fetch(now - 1, now, "node 2"), Fetch(now - 6, now, None)]
    assert watch.text() == f"{site}regular   served by node 2"
    await trio.sleep(40)
    assert watch.text() == f"{site}regular   has no answer for 40 s; node 2 served it"


def test_routers_of_a_service_are_told_apart(service: Service) -> None:
    assert [each.id for each in service.servers] == [1, 2, 3]
    assert [each.id for each in service.clients] == [4, 5]
    assert [each.id for each in service.floodfills] == [6, 7, 8, 9]
    assert service.router_of(Fetch(0.0, 1.0, "node 3")) == 3
