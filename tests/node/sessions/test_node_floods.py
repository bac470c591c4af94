"""Floods from an address that honest clients share: those are let in all the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from garlicfarm.errors import GarlicFarmError
from garlicfarm.lab.processes import free_ports
from garlicfarm.net.admission import Admission
from garlicfarm.setup.provision import MemberPlan
from garlicfarm.transport import Peer
from tests.node.support.cluster import Cluster, cluster

SHARED = "127.0.0.66"
LOGINS = 21


async def half_open_tcp(farm: Cluster) -> trio.abc.Stream:
    endpoint = farm.endpoint()
    return await trio.open_tcp_stream(endpoint.host, endpoint.port, local_address=SHARED)


async def silent_tls(farm: Cluster) -> trio.abc.Stream:
    stream: trio.abc.Stream = await farm.connect(source=SHARED)()
    return stream


async def half_a_request(farm: Cluster) -> trio.abc.Stream:
    stream = await silent_tls(farm)
    await stream.send_all(b"GET ")
    return stream


@pytest.mark.parametrize(
    ("attack", "count"),
    [(silent_tls, 20), (half_open_tcp, 70), (silent_tls, 80), (half_a_request, 80)],
    ids=["20 silent TLS", "70 half-open TCP", "80 silent TLS", "80 half requests"],
)
async def test_flood_from_a_shared_address_keeps_nobody_behind_it_out(
    attack: Callable[[Cluster], Awaitable[trio.abc.Stream]], count: int, tmp_path: Path
) -> None:
    async with cluster(tmp_path) as farm, AsyncExitStack() as flood:
        for _ in range(count):
            await flood.enter_async_context(await attack(farm))
        logged_in = 0
        for number in range(LOGINS):
            try:
                await farm.login("alice" if number % 2 else "bob", source=SHARED)
                logged_in += 1
            except (GarlicFarmError, trio.BrokenResourceError):
                pass
        assert logged_in == LOGINS


class NotedAdmission(Admission):
    """One whose other known addresses can be asked for."""

    def __init__(self, *, named: Callable[[], Container[str]], **limits: Any) -> None:
        super().__init__(named=named, **limits)
        self.named = named


@pytest.fixture
def admissions(monkeypatch: pytest.MonkeyPatch) -> list[NotedAdmission]:
    """Of the nodes that have started, in order."""
    made: list[NotedAdmission] = []

    def make(**limits: Any) -> NotedAdmission:
        made.append(NotedAdmission(**limits))
        return made[-1]

    monkeypatch.setattr("garlicfarm.node.transports.Admission", make)
    return made


async def test_addresses_of_the_configuration_and_of_members_that_logged_in_have_a_share(
    tmp_path: Path, admissions: list[NotedAdmission]
) -> None:
    async with cluster(tmp_path) as farm:
        (admission,) = admissions

        def known(address: str) -> bool:
            with admission.admit(Peer(address, True, None)) as slot:
                return slot.known

        assert [known(f"127.0.0.{last}") for last in (1, 66, 67)] == [True, False, False]
        await farm.login("2", source="127.0.0.66")
        await farm.login("alice", source="127.0.0.67")
        assert [known(f"127.0.0.{last}") for last in (1, 66, 67)] == [True, True, False]


async def test_address_behind_a_name_has_a_share_once_it_was_dialled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, admissions: list[NotedAdmission]
) -> None:
    names = {
        node_id: MemberPlan(endpoint=f"ssl://localhost:{port}", admin_url="https://127.0.0.1:0")
        for node_id, port in enumerate(free_ports(2), 1)
    }
    dialled, came = trio.open_memory_channel[str](1000)

    def note(self: Admission, peer: Peer) -> None:
        if peer.slot is None:  # one that logged in here has a place
            dialled.send_nowait(peer.address)

    monkeypatch.setattr(Admission, "welcome", note)
    async with cluster(tmp_path, 2, members=names) as farm:
        await farm.leader()
        assert [each.named() for each in admissions] == [{"localhost"}] * 2
        with trio.fail_after(240):
            assert await came.receive() in ("127.0.0.1", "::1")
