"""A member whose disk changes bits while it runs: it finds that, serves nothing of it, and replaces it."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from garlicfarm.admin.health import judge
from garlicfarm.errors import Compacted, OutcomeUnknown, StorageDamaged
from garlicfarm.feed.pages import PageReader
from garlicfarm.node import retention, scrub
from garlicfarm.storage import LogReader, LogStore, appender, list_segments, segment_name
from garlicfarm.wire.messages import ValueType
from tests.node.support.cluster import Cluster, cluster
from tests.running import background, told, wait_until

HEAD_BYTES = FRAME_BYTES = 20
"""What comes before the header of a segment, and before the records of a frame."""
KEEP = {"snapshot_every_entries": 60, "keep_entries": 100_000, "keep_bytes": 1 << 30}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "CHECK_S", 0.1)
    monkeypatch.setattr(scrub, "REPAIR_S", 0.1)
    monkeypatch.setattr(appender, "SEGMENT_BYTES", 4096)


@asynccontextmanager
async def farm(
    directory: Path, count: int = 3, *, goes_on: bool = True
) -> AsyncIterator[tuple[Cluster, int, list[bytes]]]:
    """A farm with more than one segment and two snapshots; a follower; and all that is posted, while
    posting goes on, if it does."""
    async with cluster(directory, count, start=False, retention=KEEP) as nodes:
        for each in nodes.directories.values():
            file = each / "garlicfarm.toml"
            file.write_text(file.read_text().replace("[node]", '[node]\nscrub_every = "1s"', 1))
        await nodes.start()
        leader = await nodes.leader()
        member = min(set(nodes.directories) - {leader}, default=leader)
        posted: list[bytes] = []

        async def post() -> None:
            async with nodes.client() as client:
                while True:
                    entries = [b"entry %d " % (len(posted) + i) + bytes(80) for i in range(10)]
                    with suppress(OutcomeUnknown):  # another member may have come to lead, and be stopped
                        await client.post(entries)
                        posted.extend(entries)
                    await trio.sleep(0.05)

        async with background(post):
            await wait_until(lambda: len(snapshots(nodes, member)) == 2)
            if goes_on:
                yield nodes, member, posted
        if not goes_on:
            yield nodes, member, posted


def store(nodes: Cluster, member: int) -> LogStore:
    found = nodes.replica(member).store
    assert isinstance(found, LogStore)
    return found


def snapshots(nodes: Cluster, member: int) -> list[Path]:
    return sorted(
        (store(nodes, member).path.parent / "snapshots").glob("*.snap"),
        key=lambda path: int(path.name.partition("-")[0]),
    )


def flip(path: Path, at: int, count: int = 1) -> None:
    """Change one bit in each of so many bytes, as a disk does that nobody wrote to."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        data = file.read(count)
        file.seek(at)
        file.write(bytes(byte ^ 0x10 for byte in data))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def frames_begin(path: Path) -> int:
    return HEAD_BYTES + int.from_bytes(path.read_bytes()[12:16], "big")


def troubles(nodes: Cluster, member: int) -> list[dict[str, Any]]:
    status = nodes.node(member).farms["farm"].status()
    return [each for each in status.get("troubles", ()) if each["kind"] == "damage"]


def damage_told(nodes: Cluster, member: int, what: str) -> float | None:
    registry = nodes.node(member).metrics.registry
    return registry.get_sample_value("garlicfarm_storage_damage_total", {"farm": "farm", "what": what})


PLACES = {
    "header": lambda path: HEAD_BYTES + 9,
    "checksum of the header": lambda path: HEAD_BYTES - 1,
    "head of a frame": lambda path: frames_begin(path) + 5,
    "checksum of a frame": lambda path: frames_begin(path) + FRAME_BYTES - 1,
    "entry": lambda path: frames_begin(path) + FRAME_BYTES + 40,
    "all entries": lambda path: frames_begin(path) + FRAME_BYTES,
}


@pytest.mark.parametrize("which", ["first", "last"])
@pytest.mark.parametrize("place", PLACES)
async def test_damaged_segment_is_found_and_given_up_for_a_snapshot(
    place: str,
    which: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    async with farm(tmp_path) as (nodes, member, posted):
        log = store(nodes, member).path
        if which == "first":
            number = list_segments(log)[0]
        else:  # it has at least one frame, and does not end by itself
            monkeypatch.setattr(appender, "SEGMENT_BYTES", 1 << 30)
            number, _ = await wait_until(lambda: _with_frame(store(nodes, member)))
        path = log / segment_name(number)
        flip(path, PLACES[place](path), 1 << 30 if place == "all entries" else 1)
        await wait_until(lambda: damage_told(nodes, member, "segment") == 1)
        await wait_until(lambda: not path.exists())
        await wait_until(lambda: told(caplog, "damage-replaced"))
        await wait_until(lambda: not troubles(nodes, member))  # a whole pass has found nothing more
        assert nodes.replica(member).store.first_index() > 1
        for other in set(nodes.running) - {member}:
            assert damage_told(nodes, other, "segment") == 0
            assert nodes.replica(other).store.first_index() == 1
        await nodes.stop(member)
        await nodes.start(member)  # its store is sound
        seen = len(posted)
        await wait_until(lambda: len(posted) >= seen + 20)
        await same_state(nodes)


def _with_frame(log: LogStore) -> tuple[int, int] | None:
    number, end = log.appender.end
    path = log.path / segment_name(number)
    return (number, end) if end > frames_begin(path) else None


async def same_state(nodes: Cluster) -> None:
    """All members have the same state at some index."""

    def found() -> bool:
        states = {nodes.replica(node).application.snapshot() for node in nodes.running}
        return len(states) == 1

    await wait_until(found)


@pytest.mark.parametrize("which", [0, 1])
async def test_damaged_snapshot_is_replaced_by_a_new_one(which: int, tmp_path: Path) -> None:
    async with farm(tmp_path, goes_on=False) as (nodes, member, _):
        path = snapshots(nodes, member)[which]
        flip(path, path.stat().st_size - 3)  # in its state
        await wait_until(lambda: damage_told(nodes, member, "snapshot") == 1)
        await wait_until(lambda: not troubles(nodes, member))
        await nodes.stop(member)
        await nodes.start(member)
        assert store(nodes, member).problems == []
        await same_state(nodes)


async def test_damaged_entries_are_never_read_and_named_until_they_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("garlicfarm.storage.log_store._TAIL_BYTES", 1)  # so that all is read from the disk
    async with farm(tmp_path, 1) as (nodes, member, posted):
        log = store(nodes, member)
        path = log.path / segment_name(list_segments(log.path)[0])
        pages = PageReader(LogReader(log), trio.CapacityLimiter(1))
        flip(path, PLACES["entry"](path))
        outcomes = set()

        async def read() -> None:
            while True:
                try:
                    found = await pages.read(0, 10, 1 << 20)
                    values = [entry.value for entry in found if entry.value_type is ValueType.APPLICATION]
                    assert values == posted[: len(values)]
                except (StorageDamaged, Compacted) as error:
                    outcomes.add(type(error))
                await trio.sleep(0.01)

        async with background(read):
            await wait_until(lambda: not path.exists())
            await wait_until(lambda: Compacted in outcomes)
        assert nodes.replica(member).is_leader


async def test_damaged_key_is_told_until_it_is_put_back(tmp_path: Path) -> None:
    async with farm(tmp_path) as (nodes, member, _):
        path = nodes.data(member) / "secrets" / "farm.secret"
        copy = path.read_bytes()
        flip(path, 7)
        (trouble,) = await wait_until(lambda: troubles(nodes, member))
        assert (trouble["own"], trouble["about"]) == (True, f"damage {member}")
        assert str(path) in trouble["text"]
        assert "put your copy in its place" in trouble["text"]
        view = nodes.node(member).farms["farm"]
        assert judge(view.status()) == "degraded"
        await wait_until(lambda: nodes.replica(member).store.snapshot().index > 200)  # it goes on
        assert troubles(nodes, member)
        part = path.with_name("copy")
        part.touch(0o600)
        part.write_bytes(copy)
        part.rename(path)
        await wait_until(lambda: not troubles(nodes, member))
