"""`GET …/snapshot`: whole or not at all, one at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
import trio

from garlicfarm.client import AdminClient
from garlicfarm.errors import StorageError, UnreachableError
from tests.admin.fake_node import FakeNode, client_of
from tests.admin.test_admin_endpoints import problem
from tests.running import wait_until

PARTS = (b"head", b"state" * 200_000)


@pytest.fixture
async def admin(node: FakeNode, url: str) -> AsyncIterator[AdminClient]:
    async with client_of({url: node}, "anna") as client:
        yield client


async def test_snapshot_asked_for_comes_whole_in_pieces(node: FakeNode, admin: AdminClient) -> None:
    node.farm.saved = PARTS
    got: list[bytes] = []
    await admin.snapshot("farm", got.append, linearizable=True)
    assert b"".join(got) == b"".join(PARTS)
    assert node.farm.confirmed == 1
    assert node.largest_piece == 256 << 10


async def test_second_snapshot_at_once_is_refused_until_the_first_client_leaves(
    node: FakeNode, http: httpx.AsyncClient, admin: AdminClient
) -> None:
    node.farm.saved = (b"s" * (64 << 20),)  # more than sockets hold
    async with http.stream("GET", "/v1/farms/farm/snapshot") as slow:
        assert slow.status_code == 200
        refused = await http.get("/v1/farms/farm/snapshot")
        assert problem(refused, 503, "busy")["next"] == "Try again when that has ended, or ask another node."
    await wait_until(lambda: node.running_requests == 0)
    node.farm.saved = PARTS
    got: list[bytes] = []
    await admin.snapshot("farm", got.append)
    assert b"".join(got) == b"".join(PARTS)


async def test_snapshot_that_is_too_large_is_a_sentence_and_blocks_no_later_one(
    node: FakeNode, http: httpx.AsyncClient
) -> None:
    node.farm.saved_error = StorageError("a state of 5 bytes is too large")
    assert problem(await http.get("/v1/farms/farm/snapshot"), 507, "too-large")
    node.farm.saved_error = None
    assert (await http.get("/v1/farms/farm/snapshot")).content == b"".join(node.farm.saved)


async def test_node_that_ends_in_the_middle_of_a_snapshot_is_unreachable(
    node: FakeNode, admin: AdminClient, shutdown: trio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("garlicfarm.admin.server.GRACE_S", 0.1)
    node.farm.saved = (b"s" * (64 << 20),)
    with pytest.raises(UnreachableError, match="snapshot"):
        await admin.snapshot("farm", lambda data: shutdown.set())
