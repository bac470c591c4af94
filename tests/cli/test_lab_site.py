"""What the lab tells of its site, from a client that was answered as written here."""

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
        leaf=b"",
        proxy=f"http://127.0.0.1:{4443 + router_id}",
        sam="",
        i2cp="",
        console="",
        address_of_tunnel="",
        place="",
    )


@pytest.fixture
def service() -> Service:
    return Service(I2pdNetwork([router(number) for number in range(1, 10)], []), "site.b32.i2p", (4, 5))


async def test_client_is_served_then_silent_then_served_by_another_node(service, autojump_clock):
    client = Client("http://127.0.0.1:1", service.host)
    watch = SiteWatch(service, client)
    await trio.sleep(7)
    assert watch.text() == "site    http://site.b32.i2p\nclient  has no answer yet, after 7 s"

    def answered(text: str | None, ago_s: float = 0.0) -> None:
        now = trio.current_time()
        client.fetches.append(Fetch(now - ago_s - 0.5, now - ago_s, text))

    def client_line() -> str:
        return watch.text().splitlines()[1]

    answered("node 2")
    answered(None)
    assert client_line() == "client  served by node 2"
    await trio.sleep(4)
    assert client_line() == "client  has no answer for 4 s; node 2 served it"
    answered("node 3")
    answered("node 3", ago_s=0.9)  # answers come in any order
    assert client_line() == "client  served by node 3, 3.1 s after the last answer of node 2"
    await trio.sleep(4)
    answered("node 3")
    assert client_line() == "client  served by node 3, 3.1 s after the last answer of node 2"


async def test_site_has_moved_once_another_node_answers(service, nursery, autojump_clock):
    client = Client("http://127.0.0.1:1", service.host)
    watch = SiteWatch(service, client)

    async def answer() -> None:
        for text in ("node 1", None, "node 1", "node 3"):
            await trio.sleep(5)
            client.fetches.append(Fetch(trio.current_time() - 1, trio.current_time(), text))

    nursery.start_soon(answer)
    assert await watch.wait_served() == 1
    assert await watch.wait_moved(1) == 3
    assert trio.current_time() == pytest.approx(20, abs=0.2)


def test_routers_of_a_service_are_told_apart(service: Service) -> None:
    assert [each.id for each in service.servers] == [1, 2, 3]
    assert [each.id for each in service.clients] == [4, 5]
    assert [each.id for each in service.floodfills] == [6, 7, 8, 9]
    assert service.router_of(Fetch(0.0, 1.0, "node 3")) == 3
