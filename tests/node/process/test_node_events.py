"""Live events of a farm of processes, which are killed while entries are posted and watched."""

from __future__ import annotations

import math
from itertools import count, pairwise
from pathlib import Path

import pytest
import trio

from garlicfarm.client import AdminClient, EntryEvent, LeaderEvent
from garlicfarm.credentials.certificates import pin_of_file
from garlicfarm.credentials.users import UserStore
from garlicfarm.errors import DiskHangs, NoQuorum, OutcomeUnknown, ProposalDropped, UnreachableError
from garlicfarm.feed.events import Event
from garlicfarm.lab.processes import FAST, ProcessFarm, free_ports, process_farm
from garlicfarm.raft.types import Entry
from garlicfarm.setup.provision import FarmPlan, MemberPlan
from garlicfarm.wire.messages import ValueType
from tests.running import background, wait_until

USER, PASSWORD = "wanda", "wanda's word"
KILLS = 4
POSTED_BETWEEN = 20


@pytest.mark.slow
async def test_watcher_of_a_farm_whose_nodes_are_killed_gets_every_entry_once_and_every_leader(
    tmp_path: Path,
) -> None:
    ports = free_ports(6)
    members = {
        node_id: MemberPlan(
            endpoint=f"ssl://127.0.0.1:{ports[node_id]}", admin_url=f"https://127.0.0.1:{ports[node_id - 1]}"
        )
        for node_id in (1, 3, 5)
    }
    plan = FarmPlan(application="log", raft=FAST)
    async with process_farm(tmp_path / "farm", members, plan, start=False) as farm:
        for node in farm.nodes.values():
            UserStore(node.directory / "data" / "users").add(USER, "writer", PASSWORD)
            await farm.start(node.id)
        posted, got = list[int](), list[Event]()
        async with client(farm) as watcher, client(farm) as writer, trio.open_nursery() as nursery:
            nursery.start_soon(watch, watcher, farm.name, got)
            await wait_until(lambda: any(isinstance(event, LeaderEvent) and event.leader for event in got))
            async with background(lambda: post(writer, farm.name, posted)):
                for number in range(KILLS):
                    node_id = [*farm.nodes][number % 3] if number % 2 else await leader(farm)
                    await farm.kill(node_id)
                    await until_posted(posted, POSTED_BETWEEN * (number + 1))
                    await farm.start(node_id)
            await wait_until(lambda: any(event.index >= posted[-1] for event in got))
            nursery.cancel_scope.cancel()
        entries = [event.entry for event in got if isinstance(event, EntryEvent)]
        log: list[Entry] = []
        async with client(farm) as reader:
            with trio.fail_after(120):
                while not log or log[-1].index < entries[-1].index:  # a node that was killed last may lag
                    log = [entry async for entry in reader.log(farm.name, all_types=True)]
    assert entries == log[: len(entries)], "each once, in order, as the log has them"
    values = [int(entry.value) for entry in entries if entry.value_type is ValueType.APPLICATION]
    assert set(posted) <= {entry.index for entry in entries}
    assert len(values) >= KILLS * POSTED_BETWEEN
    leaders = [event for event in got if isinstance(event, LeaderEvent)]
    assert [event.term for event in leaders] == sorted(event.term for event in leaders)
    assert len({event.term for event in leaders if event.leader}) >= 2
    told = [(event.leader, event.term) for event in leaders]
    assert all(before != after for before, after in pairwise(told)), "each once"


def client(farm: ProcessFarm) -> AdminClient:
    """As a user that all nodes know."""
    urls = [
        f"{node.url}?pin={pin_of_file(node.directory / 'data' / 'tls' / 'node.crt')}"
        for node in farm.nodes.values()
    ]
    return AdminClient(urls, user=USER, password=PASSWORD)


async def watch(watcher: AdminClient, farm: str, got: list[Event]) -> None:
    async with watcher.events(farm, after=0, patience_s=math.inf) as events:
        async for event in events:
            got.append(event)


async def post(writer: AdminClient, farm: str, posted: list[int]) -> None:
    for number in count():
        try:
            posted.append((await writer.post(farm, b"%d" % number))[0])
        except (DiskHangs, NoQuorum, OutcomeUnknown, ProposalDropped, UnreachableError):
            await trio.sleep(0.05)


async def until_posted(posted: list[int], number: int) -> None:
    await wait_until(lambda: len(posted) >= number)


async def leader(farm: ProcessFarm) -> int:
    async with client(farm) as asked:

        async def known() -> object:
            return (await asked.status(farm.name))["leader"]

        return int(await wait_until(known))
