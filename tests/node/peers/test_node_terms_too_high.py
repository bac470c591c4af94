"""Messages and members whose terms no election made: counted, logged once, and told to whom asks."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from garlicfarm.feed.pages import PageReader
from garlicfarm.node.admin_view import FarmAdminView
from garlicfarm.node.replica import Replica
from garlicfarm.node.session import Principal
from garlicfarm.raft import HardState, Persist
from garlicfarm.raft.state import MAX_TERM
from garlicfarm.testing.memory_cluster import cluster
from garlicfarm.wire import encode_request
from garlicfarm.wire.messages import MessageType, Request
from tests.running import led

STRANGER = 9


def view(farm: Replica) -> FarmAdminView:
    return FarmAdminView(farm, cast(PageReader, None), Path("/dev/null"))  # nobody reads the log here


def refused(farm: Replica) -> float:
    labels = {"farm": "farm", "reason": "term"}
    return farm.metrics.registry.get_sample_value("garlicfarm_raft_refused_total", labels) or 0.0


async def send(farm: Replica, request: Request) -> None:
    """As a stranger who knows the farm's secret, on a connection of its own."""
    ours, theirs = memory_stream_pair()
    principal = Principal(f"member {STRANGER}", STRANGER, True)
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            with suppress(Exception):
                await farm.serve(theirs, principal)
            await theirs.aclose()

        nursery.start_soon(serve)
        await ours.send_all(encode_request(request))
        await ours.receive_some(100)  # the answer; none if the node ends the connection
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "kind", [MessageType.APPEND_ENTRIES_REQUEST, MessageType.REQUEST_VOTE_REQUEST], ids=lambda kind: kind.name
)
async def test_term_of_a_stranger_is_refused_counted_and_logged_once(
    autojump_clock: MockClock, kind: MessageType, caplog: pytest.LogCaptureFixture
) -> None:
    async with led(cluster(3)) as (nodes, leader):
        index, term = await nodes.post(b"before")
        for member in (1, 2, 3):
            for _ in range(3):
                await send(nodes.replica(member), Request(kind, STRANGER, member, MAX_TERM))
            assert refused(nodes.replica(member)) == 3
        assert await nodes.post(b"after") == (index + 1, term)
        assert await nodes.leader() == leader
        assert len([line for line in caplog.messages if "term-refused" in line]) <= 3


async def test_member_in_a_term_too_high_deposes_nobody_and_is_told(autojump_clock: MockClock) -> None:
    async with led(cluster(3)) as (nodes, leader):
        _, term = await nodes.post(b"before")
        stuck = max({1, 2, 3} - {leader})
        disk: Any = nodes.replica(stuck).store
        await nodes.kill(stuck)
        held = msgspec.structs.replace(disk.initial_state()[0], term=MAX_TERM, vote=0)
        disk.write(Persist(0, HardState(held.term, 0, held.commit)))
        await nodes.restart(stuck)
        await trio.sleep(30)
        assert await nodes.leader() == leader
        assert (await nodes.post(b"after"))[1] == term
        farm = nodes.replica(leader)
        status = view(farm).status()
        (row,) = (row for row in status["members"] if row["id"] == stuck)
        assert f"garlicfarm member remove {stuck}" in row["trouble"]
        assert row["error"] == row["trouble"]
        assert (status["quorum"], status["fault_tolerance"]) == (True, 0), "it cannot be counted on"
        assert "garlicfarm recover" in view(nodes.replica(stuck)).status()["members"][stuck - 1]["trouble"]
        assert refused(farm) > 0


async def test_messages_that_bring_members_apart_end_no_farm(autojump_clock: MockClock) -> None:
    async with cluster(3) as nodes:
        await nodes.post(b"before")
        for member, terms in {1: (2**33, 2**34), 2: (2**40, 2**45, 2**50), 3: (2**55,)}.items():
            for term in terms:
                request = Request(MessageType.APPEND_ENTRIES_REQUEST, STRANGER, member, term)
                await send(nodes.replica(member), request)
        index, _ = await nodes.post(b"after")
        await nodes.applied(index)
        assert all(view(nodes.replica(each)).status()["fault_tolerance"] == 1 for each in (1, 2, 3))
