"""The leader's process is stopped (SIGSTOP): its connections stay open, and nothing is answered any more."""

from __future__ import annotations

import math
import signal

import pytest
import trio

from garlicfarm.client import AdminClient, EntryEvent, EventStream, events, https
from garlicfarm.credentials.certificates import pin_of_file
from garlicfarm.errors import DiskHangs, NoQuorum, NotLeader, OutcomeUnknown, ProposalDropped
from garlicfarm.lab.processes import FAST, ProcessFarm, process_farm
from garlicfarm.setup.provision import FarmPlan
from garlicfarm.wire.messages import ValueType
from tests.node.support.cluster import let_post, password_of, posting
from tests.process_farms import leader_of

LONG_S = 60.0
NOT_APPENDED = (DiskHangs, NoQuorum, NotLeader, ProposalDropped)


def admin_client(farm: ProcessFarm, first: int) -> AdminClient:
    """Alice's, which asks ``first`` first."""
    urls = [
        f"{node.url}?pin={pin_of_file(node.directory / 'data' / 'tls' / 'node.crt')}"
        for node in sorted(farm.nodes.values(), key=lambda node: node.id != first)
    ]
    return AdminClient(urls, user="alice", password=password_of("alice"))


async def next_value(stream: EventStream) -> bytes:
    """Of an entry that was posted."""
    while True:
        event = await anext(stream)
        if isinstance(event, EntryEvent) and event.entry.value_type is ValueType.APPLICATION:
            return event.entry.value


@pytest.mark.slow
async def test_clients_of_a_leader_that_is_stopped_go_on_with_the_next(tmp_path, monkeypatch):
    for module, name in ((https, "ANSWER_TIMEOUT_S"), (events, "PING_S"), (events, "PONG_S")):
        monkeypatch.setattr(module, name, math.inf)
    with trio.fail_after(240):
        async with process_farm(tmp_path / "farm", 3, FarmPlan(application="log", raft=FAST)) as farm:
            let_post(farm)
            leader = await leader_of(farm)
            async with (
                posting(farm, timeout_s=LONG_S) as client,
                admin_client(farm, leader) as admin,
                admin.events(farm.name, after=0, kinds=["entry"]) as stream,
            ):
                _, term = await client.post([b"before"])
                await admin.post(farm.name, b"before, too")
                assert await next_value(stream) == b"before"
                process = farm.nodes[leader].process
                assert process is not None
                process.send_signal(signal.SIGSTOP)
                try:
                    async with trio.open_nursery() as nursery:

                        async def post() -> None:
                            with pytest.raises(OutcomeUnknown, match=f"member {leader} is silent, and"):
                                await client.post([b"lost"])

                        nursery.start_soon(post)
                        with pytest.raises(OutcomeUnknown, match="did not answer"):
                            await admin.post(farm.name, b"lost, too")
                    _, later = await client.post([b"after"])
                    assert later > term
                    while True:
                        try:
                            await admin.post(farm.name, b"after, too")
                        except NOT_APPENDED:  # the node that it asks now does not know the leader yet
                            await trio.sleep(0.1)
                        else:
                            break
                    values = [await next_value(stream) for _ in range(3)]
                    assert values == [b"before, too", b"after", b"after, too"]
                finally:
                    process.send_signal(signal.SIGCONT)
