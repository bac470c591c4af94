"""Members that keep little of their log: what is gone was in a snapshot, which those that lag are sent."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from garlicfarm.client import AdminClient
from garlicfarm.credentials.certificates import pin_of_file
from garlicfarm.credentials.private_files import read_private_file
from garlicfarm.credentials.users import LOCAL_USER
from garlicfarm.errors import Compacted, StorageError
from garlicfarm.log_application import LogApplication
from garlicfarm.node import retention as retention_module
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.storage.snapshots import Snapshot, list_snapshots, read_snapshot, write_snapshot
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import ValueType
from tests.node.support.cluster import Cluster, cluster
from tests.running import led, told, wait_until

HANG_GUARD_S = 120.0
KEEP = {"snapshot_every_entries": 50, "keep_entries": 20, "keep_bytes": 1 << 20}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_module, "CHECK_S", 0.1)


def admin(nodes: Cluster, node_id: int) -> AdminClient:
    data = nodes.data(node_id)
    return AdminClient(
        [nodes.node(node_id).admin_url],
        user=LOCAL_USER,
        password=read_private_file(data / "local.password").strip(),
        pin=pin_of_file(data / "tls" / "node.crt"),
    )


def snapshots(nodes: Cluster, node_id: int = 1) -> list[str]:
    directory = nodes.data(node_id) / "farms" / nodes.plan.name / "snapshots"
    return [path.name for path in list_snapshots(directory)]


def first_index(nodes: Cluster, node_id: int) -> int:
    return nodes.replica(node_id).store.first_index()


async def post(nodes: Cluster, count: int, name: bytes) -> int:
    async with nodes.client() as client:
        index = 0
        for number in range(0, count, 10):
            index, _ = await client.post([b"%s %d" % (name, number + i) for i in range(10)])
    return index


async def applied(nodes: Cluster, index: int) -> list[bytes]:
    """The states of all that run, which have applied ``index``."""
    for node_id in nodes.running:
        with trio.fail_after(HANG_GUARD_S):
            await nodes.replica(node_id).wait_applied(index - 1)
    return [nodes.replica(node_id).application.snapshot() for node_id in nodes.running]


def is_shortened(nodes: Cluster, node_id: int, below: int) -> bool:
    return first_index(nodes, node_id) > below


def is_settled(nodes: Cluster, node_id: int, index: int) -> bool:
    """No snapshot is due at ``index``, and all but the newest two are deleted."""
    newest = nodes.replica(node_id).store.snapshot().index
    return newest > index - KEEP["snapshot_every_entries"] and len(snapshots(nodes, node_id)) == 2


async def test_members_shorten_their_logs_and_all_restart_from_snapshots(tmp_path: Path) -> None:
    async with led(cluster(tmp_path, 3, retention=KEEP)) as (nodes, leader):
        index = await post(nodes, 300, b"first")
        states = await applied(nodes, index)
        assert len(set(states)) == 1
        for node_id in nodes.running:
            await wait_until(partial(is_shortened, nodes, node_id, index - 100))
            await wait_until(partial(is_settled, nodes, node_id, index))

        # A reader that comes too late starts from the state, and has the same chain.
        async with admin(nodes, leader) as client:
            with pytest.raises(Compacted) as caught:
                await client.page(nodes.plan.name, 0)
            first = caught.value.first_index
            assert 200 < first <= index - 19
            at, state = await client.state(nodes.plan.name)
            later = await post(nodes, 10, b"later")  # fewer than are kept, if a snapshot falls due with them
            folded = set(await applied(nodes, later))  # another one may lead by now, and this one follow
            await wait_until(partial(is_settled, nodes, leader, later))
            early, oldest = await client.state(nodes.plan.name, oldest=True)
            assert first - 1 <= early <= later
            for after, begins in ((at, state), (early, oldest)):
                mine = LogApplication()
                mine.restore(begins)
                async for entry in client.log(nodes.plan.name, after):
                    mine.apply(entry.index, entry.term, entry.value)
                assert {mine.snapshot()} == folded
            with pytest.raises(Compacted):
                await client.page(nodes.plan.name, first - 2)
            held = [entry async for entry in client.log(nodes.plan.name, later - 20, all_types=True)]
            assert [entry.index for entry in held] == list(range(later - 19, later + 1))

        boundaries = {node_id: first_index(nodes, node_id) for node_id in nodes.running}
        await nodes.stop(*nodes.directories)
        await nodes.start()
        new = await nodes.leader()
        for node_id in nodes.running:  # each took its snapshots when it came to it
            assert nodes.replica(node_id).store.snapshot().index >= boundaries[node_id] - 1 > 200
            assert nodes.replica(node_id).membership.all_members.keys() == {1, 2, 3}
        assert first_index(nodes, leader) >= first
        index = await post(nodes, 100, b"restarted")
        assert len(set(await applied(nodes, index))) == 1
        await wait_until(lambda: first_index(nodes, new) > first)


async def test_member_that_was_down_is_sent_the_snapshot_and_goes_on_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: set[tuple[Path, int]] = set()

    def write(directory: Path, snapshot: Snapshot) -> None:
        taken.add((directory, snapshot.index))
        write_snapshot(directory, snapshot)

    monkeypatch.setattr(retention_module, "write_snapshot", write)
    async with cluster(tmp_path, 3, start=False, retention=KEEP) as nodes:
        nodes.favour(1)
        await nodes.start(1, 2)
        assert await nodes.leader() == 1
        index = await post(nodes, 200, b"without 3")
        await wait_until(lambda: first_index(nodes, 1) > index - 100)
        # All of Trio's own threads are busy, as with names that no resolver answers for.
        threads, busy = trio.to_thread.current_default_thread_limiter(), []
        while threads.available_tokens:
            busy.append(object())
            threads.acquire_on_behalf_of_nowait(busy[-1])
        await nodes.start(3)
        assert len(set(await applied(nodes, index))) == 1
        for each in busy:
            threads.release_on_behalf_of(each)
        assert first_index(nodes, 3) > 1
        received = nodes.replica(3).store.snapshot().index
        assert {nodes.replica(node_id).core.applied.application_entries for node_id in (1, 2, 3)} == {200}
        assert nodes.replica(3).membership.all_members.keys() == {1, 2, 3}
        index = await post(nodes, 100, b"with 3")
        assert len(set(await applied(nodes, index))) == 1
        own = {at for directory, at in taken if directory.is_relative_to(nodes.data(3))}
        assert received not in own  # it has that one
        await nodes.stop(3)
        await nodes.start(3)
        assert len(set(await applied(nodes, index))) == 1
        assert {nodes.replica(node_id).core.applied.application_entries for node_id in (1, 2, 3)} == {300}


async def test_snapshot_that_cannot_be_written_is_tried_again_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []
    write = vars(retention_module)["write_snapshot"]

    def full(directory: Path, snapshot: Any) -> None:
        attempts.append(snapshot.index)
        if len(attempts) < 3:
            raise StorageError("no space left on device")
        write(directory, snapshot)

    monkeypatch.setattr(retention_module, "write_snapshot", full)
    async with cluster(tmp_path, retention=KEEP) as nodes:
        await nodes.leader()
        index = 0
        while len(attempts) < 3:
            index = await post(nodes, 10, b"x")
            await applied(nodes, index)
        assert all(b - a >= 50 for a, b in pairwise(attempts))
        assert told(caplog, "snapshot-failed")[0]["index"] == attempts[0]
        await wait_until(lambda: first_index(nodes, 1) > 1)
        counted = nodes.node().metrics.registry.get_sample_value
        counts = [
            counted("garlicfarm_storage_snapshots_total", {"farm": nodes.plan.name, "outcome": outcome})
            for outcome in ("ok", "failed")
        ]
        assert counts == [1, 2]


async def post_until_no_snapshot_is_due(nodes: Cluster, count: int) -> int:
    """Post so many entries; the index of the last one."""
    index = await post(nodes, count, b"x")
    await wait_until(lambda: nodes.replica().store.snapshot().index > index - KEEP["snapshot_every_entries"])
    return index


async def test_damaged_snapshot_is_told_and_the_one_before_it_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, retention={**KEEP, "keep_entries": 200}) as nodes:
        await nodes.leader()
        for _ in range(2):  # at least one snapshot each time, however many entries are applied at once
            index = await post_until_no_snapshot_is_due(nodes, 150)
        await wait_until(lambda: len(snapshots(nodes)) == 2 and first_index(nodes, 1) > 1)
        (state,) = await applied(nodes, index)
        await nodes.stop(1)
        newest, older = list_snapshots(nodes.data(1) / "farms" / nodes.plan.name / "snapshots")
        data = bytearray(newest.read_bytes())
        data[-1] ^= 1
        newest.write_bytes(data)
        file = nodes.directories[1] / "garlicfarm.toml"
        often = f"snapshot_every_entries = {KEEP['snapshot_every_entries']}"
        assert often in file.read_text()
        # No newer one is made before the test looks.
        file.write_text(file.read_text().replace(often, "snapshot_every_entries = 9999"))
        await nodes.start(1)
        (event,) = told(caplog, "snapshot-unusable")
        assert newest.name in event["cause"]
        assert nodes.replica().store.snapshot().index == int(older.name.partition("-")[0])
        assert await applied(nodes, index) == [state]


async def test_farm_of_statuses_is_shortened_by_every_member(tmp_path: Path) -> None:
    keep = {**KEEP, "snapshot_every_entries": 8, "keep_entries": 4}
    async with cluster(tmp_path, 3, application="publisher", retention=keep) as nodes:
        await nodes.leader()
        async with admin(nodes, 1) as client:
            await client.administer(nodes.plan.name, "interval", {"ms": 1000})
        await wait_until(lambda: all(first_index(nodes, node_id) > 8 for node_id in nodes.running))
        boundaries = {node_id: first_index(nodes, node_id) for node_id in nodes.running}
        for node_id in nodes.running:
            farm = nodes.replica(node_id)
            for other in nodes.running:
                assert nodes.replica(other).store.last_index() >= boundaries[node_id] - 1
            assert farm.core.applied.configuration.servers
        await nodes.stop(*nodes.directories)
        directories = [path / "data" / "farms" / nodes.plan.name for path in nodes.directories.values()]
        starts = [read_snapshot(list_snapshots(directory / "snapshots")[0]) for directory in directories]
        for path in nodes.directories.values():  # no further snapshot: the entries since these ones stay
            file = path / "garlicfarm.toml"
            text = file.read_text()
            assert "snapshot_every_entries = 8\n" in text
            file.write_text(text.replace("snapshot_every_entries = 8\n", "snapshot_every_entries = 1000\n"))
        await nodes.start()
        await nodes.leader()
        index = nodes.replica(1).applied_index + 6
        await applied(nodes, index)
        # The same index everywhere, from different snapshots on: the same bytes.
        states = set()
        for node_id, start in zip(nodes.directories, starts, strict=True):
            store = nodes.replica(node_id).store
            assert store.snapshot().index == start.index
            fold = PublisherFold(nodes.plan.name)
            fold.restore(start.state)
            for entry in store.entries(start.index + 1, index + 1, 1 << 30):
                if entry.value_type is ValueType.CONFIGURATION:
                    fold.configure(entry.index, decode_configuration(entry.value))
                else:
                    fold.apply(entry.index, entry.term, entry.value)
            states.add(fold.snapshot())
        assert len(states) == 1
