"""State machines on a farm of processes: folded by a client, or by the nodes themselves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from examples.key_value import KeyValue
from garlicfarm.client import AdminClient
from garlicfarm.credentials.certificates import pin_of_file
from garlicfarm.credentials.users import UserStore
from garlicfarm.errors import EntryRefused, NoQuorum, NotLeader
from garlicfarm.lab.processes import FAST, NodeProcess, ProcessFarm, process_farm
from garlicfarm.setup.provision import FarmPlan
from garlicfarm.storage.snapshots import list_snapshots
from tests.own_application import install_key_value

USER, PASSWORD = "alice", "a password of hers"
DEADLINE_S = 240.0
NONE: Mapping[str, int] = {}


@asynccontextmanager
async def farm_of_three(
    directory: Path, retention: Mapping[str, int] = NONE, application: str = "log"
) -> AsyncIterator[ProcessFarm]:
    plan = FarmPlan(application=application, raft=FAST, retention=retention)
    async with process_farm(directory / "farm", 3, plan, start=False) as farm:
        for node in farm.nodes.values():
            UserStore(node.directory / "data" / "users").add(USER, "writer", PASSWORD)
        async with trio.open_nursery() as nursery:
            for node_id in farm.nodes:
                nursery.start_soon(farm.start, node_id)
        with trio.fail_after(DEADLINE_S):
            async with farm.nodes[1].client() as client:
                while not (await client.status(farm.name))["leader"]:  # noqa: ASYNC110 - other processes elect it
                    await trio.sleep(0.05)
            yield farm


def client_of(*nodes: NodeProcess) -> AdminClient:
    pins = [pin_of_file(node.directory / "data" / "tls" / "node.crt") for node in nodes]
    urls = [f"{node.url}?pin={pin}" for node, pin in zip(nodes, pins, strict=True)]
    return AdminClient(urls, user=USER, password=PASSWORD)


@pytest.mark.slow
async def test_key_value_stores_agree_and_survive_their_leader(tmp_path: Path) -> None:
    async with farm_of_three(tmp_path) as farm:
        one, two, three = farm.nodes.values()
        async with client_of(one, two, three) as here, client_of(three, two, one) as there:
            mine, other = KeyValue(here), KeyValue(there)
            await mine.put(b"fruit", b"fig")
            assert await other.get(b"fruit") == b"fig"
            await other.put(b"fruit", b"lemon")
            await other.put(b"root", b"garlic")
            assert await mine.get(b"fruit") == b"lemon"
            leader = (await here.status("farm"))["leader"]
            await farm.kill(leader)
            async with client_of(*(node for node in farm.nodes.values() if node.process)) as later:
                new, found = KeyValue(later), None
                while found is None:
                    with suppress(NotLeader, NoQuorum):  # until another one leads
                        found = await new.get(b"root")
                assert found == b"garlic"
                assert new.data[b"fruit"] == b"lemon"


@pytest.mark.slow
async def test_entry_that_is_repeated_is_in_the_log_twice_and_its_id_tells(tmp_path: Path) -> None:
    """A client that cannot know whether its entry was appended, and posts it again."""
    entry = b"id-1: pay 10"
    async with farm_of_three(tmp_path) as farm, client_of(*farm.nodes.values()) as client:
        with trio.move_on_after(0) as scope:
            await client.post("farm", entry)
        assert scope.cancelled_caught
        first = await client.post("farm", entry)
        second = await client.post("farm", entry)
        assert first < second
        seen: dict[bytes, int] = {}
        entries = [each async for each in client.log("farm")]
        for each in entries:
            seen.setdefault(each.value.partition(b":")[0], each.index)
        assert [each.value for each in entries].count(entry) >= 2
        assert list(seen) == [b"id-1"]


@pytest.mark.slow
async def test_nodes_with_an_application_of_their_own_judge_fold_and_restore(tmp_path, monkeypatch):
    install_key_value(tmp_path, monkeypatch)
    retention = {"snapshot_every_entries": 10, "keep_entries": 1}
    async with farm_of_three(tmp_path, retention, "key-value") as farm:
        async with client_of(*farm.nodes.values()) as client:
            for number in range(30):
                index, _ = await client.post("farm", b"%d=%d" % (number % 7, number))
            with pytest.raises(EntryRefused, match="not key=value"):
                await client.post("farm", b"no equals")
        expected = {str(number % 7): str(number) for number in range(23, 30)}
        assert await states(farm, index) == [expected] * 3
        for node_id in farm.nodes:
            snapshots = farm.nodes[node_id].directory / "data" / "farms" / "farm" / "snapshots"
            while not list_snapshots(snapshots):  # noqa: ASYNC110 - it is taken beside the answers
                await trio.sleep(0.05)
            await farm.kill(node_id)
        async with trio.open_nursery() as nursery:
            for node_id in farm.nodes:
                nursery.start_soon(farm.start, node_id)
        assert await states(farm, index) == [expected] * 3


async def states(farm: ProcessFarm, index: int) -> list[dict[str, str]]:
    """What the nodes' applications hold, once they have applied so much."""
    found = []
    for node in farm.nodes.values():
        async with client_of(node) as client:
            applied, state = 0, b""
            while applied < index:
                applied, state = await client.state("farm")
            found.append(json.loads(state))
    return found
