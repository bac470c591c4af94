"""`recover`: what it tells, what it makes of a store, and that the old farm and the new one never meet."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest
import trio

from garlicfarm.cli import run
from garlicfarm.cli.exits import Exit
from garlicfarm.errors import NoQuorum, OutcomeUnknown, StorageError
from garlicfarm.lab.processes import FAST, process_farm
from garlicfarm.log_application import LogApplication
from garlicfarm.raft.types import Entry, HardState, Persist
from garlicfarm.setup import recovery
from garlicfarm.setup.provision import FarmPlan, MemberPlan, create_farm
from garlicfarm.storage import SNAPSHOTS, DataDirectory, LogStore, Snapshot, Writer, write_snapshot
from garlicfarm.wire import encode_configuration
from garlicfarm.wire.messages import ClusterServer, Configuration, ValueType
from tests.process_farms import status_when

Capture = pytest.CaptureFixture[str]
MEMBERS = tuple(ClusterServer(i, f"ssl://m{i}:27150") for i in (1, 2, 5))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The directory of node 2 of a stopped farm of the application `log`."""
    members = {i: MemberPlan(endpoint=f"ssl://m{i}:27150") for i in (1, 2, 3)}
    return create_farm(tmp_path / "farm", members, FarmPlan(application="log")).directories[2]


def store_of(node: Path) -> Path:
    return node / "data" / "farms" / "farm"


async def recover(node: Path, *arguments: str) -> int:
    """The command runs Trio itself: in a thread, as in a process of its own."""
    command = ["recover", "--config", str(node / "garlicfarm.toml"), *arguments]
    return await trio.to_thread.run_sync(run, command)


def value(index: int) -> Entry:
    return Entry(index, 1 + index // 10, ValueType.APPLICATION, b"entry %d" % index)


async def fill(node: Path, *, compacted: bool = False) -> bytes:
    """25 entries, of which 20 are committed; the 21st is a Configuration: 3 was removed, 5 added. Returns the
    state after all."""
    change = Entry(21, 3, ValueType.CONFIGURATION, encode_configuration(Configuration(21, 0, MEMBERS)))
    log = tuple(change if i == 21 else value(i) for i in range(1, 26))
    application = LogApplication()
    state = b""
    for entry in log:
        if entry is change:
            application.configure(21, Configuration(21, 0, MEMBERS))
        else:
            application.apply(entry.index, entry.term, entry.value)
        if entry.index == 15:
            state = application.snapshot()
    with closing(LogStore.open(store_of(node), farm="farm")) as store:
        writer = Writer(store, lambda token: None)
        writer.submit(Persist(1, HardState(7, 3, 20), None, log))
        with trio.CancelScope() as scope:
            scope.cancel()
            await writer.run()
        genesis = store.genesis
        assert genesis.configuration is not None
    if compacted:
        all_members = tuple(ClusterServer(i, f"ssl://m{i}:27150") for i in (1, 2, 3, 4))
        taken = Snapshot(genesis.farm_id, "log", 2, 15, 2, genesis.configuration, all_members, 15, state)
        write_snapshot(store_of(node) / SNAPSHOTS, taken)
        with closing(LogStore.open(store_of(node), farm="farm")) as store:
            writer = Writer(store, lambda token: None)
            writer.compact(12)
            with trio.CancelScope() as scope:
                scope.cancel()
                await writer.run()
    return application.snapshot()


def files(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


async def test_dry_run_tells_what_would_happen_and_changes_nothing(node: Path, capsys: Capture) -> None:
    await fill(node)
    before = files(node)
    assert await recover(node, "-o", "json") == 0
    assert files(node) == before
    told, said = capsys.readouterr()
    body = json.loads(told)
    with closing(LogStore.open(store_of(node), farm="farm")) as store:
        assert body == {
            "schema": "garlicfarm.recover/1",
            "last_term": 3,
            "last_index": 25,
            "commit": 20,
            "term": 7,
            "first_index": 1,
            "farm_id": store.genesis.farm_id.hex(),
            "members": [
                {"id": 1, "endpoint": MEMBERS[0].endpoint, "fate": "removed"},
                {"id": 2, "endpoint": MEMBERS[1].endpoint, "fate": "stays"},
                {"id": 5, "endpoint": MEMBERS[2].endpoint, "fate": "removed"},
            ],
            "new_farm_id": None,
        }
    for word in (
        "nothing was changed",
        "up to 20 are known",
        "to 25 would count",
        "are lost",
        "new ids only",
    ):
        assert word in said
    assert await recover(node) == 0
    assert "LAST TERM" in capsys.readouterr().out


@pytest.mark.parametrize("compacted", [False, True])
async def test_recovered_store_has_all_entries_and_one_member_under_another_id(
    node: Path, capsys: Capture, compacted: bool
) -> None:
    state = await fill(node, compacted=compacted)
    with closing(LogStore.open(store_of(node), farm="farm")) as store:
        first = store.first_index()
        old_id, entries = store.genesis.farm_id, store.entries(first, 26, 1 << 20)
    assert await recover(node, "--yes-i-understand", "-o", "json") == 0
    told, said = capsys.readouterr()
    new_id = bytes.fromhex(json.loads(told)["new_farm_id"])
    assert new_id != old_id
    with closing(LogStore.open(store_of(node), farm="farm")) as store:
        assert store.genesis.farm_id == new_id
        assert (store.first_index(), store.last_index(), store.term(26)) == (13 if compacted else 1, 26, 4)
        assert store.entries(first, 26, 1 << 20) == entries
        alone = Configuration(26, 21, (MEMBERS[1],))
        assert store.initial_state() == (HardState(4, 0, 26), alone)
        assert store.problems == []
        assert store.restored is not None
        application = LogApplication()
        application.restore(state)
        application.configure(26, alone)
        assert store.restored.state == application.snapshot()
        assert store.restored.meta == store.snapshot()
        assert store.snapshot().application_entries == 24  # all but the two Configurations
        assert store.snapshot().configuration == alone
        all_members = [server.id for server in store.restored.all_members]
        assert all_members == ([1, 2, 3, 4, 5] if compacted else [1, 2, 3, 5])
    kept = store_of(node).with_name(f"farm~{old_id.hex()}")
    assert str(kept) in said
    with closing(LogStore.open(kept, farm="farm")) as store:
        assert (store.genesis.farm_id, store.entries(first, 26, 1 << 20)) == (old_id, entries)


async def test_recovery_that_fails_leaves_the_old_store(
    node: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(node)
    before = files(store_of(node))

    def full(directory: Path, snapshot: Snapshot) -> None:
        raise StorageError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(recovery, "write_snapshot", full)
        assert await recover(node, "--yes-i-understand") == Exit.STORAGE
    assert files(store_of(node)) == before
    assert await recover(node, "--yes-i-understand") == 0, "and what it left behind is no hindrance"


async def test_recovery_interrupted_between_its_renames_is_finished(node: Path, capsys: Capture) -> None:
    await fill(node)
    assert await recover(node, "--yes-i-understand") == 0
    recovered = files(store_of(node))
    store_of(node).rename(store_of(node).with_name("farm~recovered"))
    assert await recover(node) == Exit.STORAGE
    capsys.readouterr()
    assert await recover(node, "--yes-i-understand") == 0
    assert "interrupted recovery is finished" in capsys.readouterr().err
    assert files(store_of(node)) == recovered


async def test_recovery_of_an_application_that_this_program_lacks_is_refused(
    node: Path, capsys: Capture
) -> None:
    file = node / "garlicfarm.toml"
    file.write_text(file.read_text().replace('application = "log"', 'application = "publsher"'))
    before = files(node)
    assert await recover(node, "--yes-i-understand") == Exit.USAGE
    known = "did you mean 'publisher'?; there are: publisher, log"
    assert f"farm farm: no application 'publsher'; {known}" in capsys.readouterr().err
    assert files(node) == before


async def test_recovery_of_a_store_in_use_or_of_a_removed_node_is_refused(
    node: Path, capsys: Capture
) -> None:
    await fill(node)
    with DataDirectory.open(node / "data"):
        assert await recover(node, "--yes-i-understand") == Exit.STORAGE
    assert await recover(node, "--farm", "other") == Exit.USAGE
    removed = node.with_name("node-3")
    shutil.rmtree(store_of(removed))
    store_of(node).rename(store_of(removed))  # whose Configuration no longer names node 3
    before = files(removed)
    assert await recover(removed, "--yes-i-understand") == Exit.ERROR
    assert "not a member" in capsys.readouterr().err
    assert files(removed) == before


# Real processes


@pytest.mark.slow
async def test_survivor_of_three_serves_alone_and_the_others_cannot_reach_it(tmp_path: Path) -> None:
    plan = FarmPlan(application="log", raft=FAST)
    async with process_farm(tmp_path / "farm", 3, plan) as farm:
        await status_when(farm, 1, lambda status: status["leader"])
        posted = {}
        async with farm.nodes[3].client() as client:
            for number in range(20):
                entry = b"entry %d" % number
                posted[(await client.post(farm.name, entry))[0]] = entry
        for node_id in farm.nodes:
            await farm.kill(node_id)
        await farm.start(3)
        async with farm.nodes[3].client() as client:
            with pytest.raises((NoQuorum, OutcomeUnknown)):
                await client.post(farm.name, b"without a majority")
        await farm.stop(3)
        assert await recover(farm.nodes[3].directory, "--yes-i-understand") == 0
        await farm.start(3)
        status = await status_when(farm, 3, lambda status: status["leader"] == 3)
        assert [member["id"] for member in status["members"]] == [3]
        assert status["farm_id"] != farm.farm_id.hex()

        # The old majority wakes up: it goes on without the third, and neither reaches the other.
        await farm.start(1)
        await farm.start(2)
        async with farm.nodes[3].client() as client:
            index, _ = await client.post(farm.name, b"alone")
            read = {entry.index: entry.value async for entry in client.log(farm.name, 0)}
        assert posted.items() <= read.items()
        assert read[index] == b"alone"
        status = await status_when(farm, 1, lambda status: status["leader"] in (1, 2))
        assert status["farm_id"] == farm.farm_id.hex()
        async with farm.nodes[1].client() as client:
            await client.post(farm.name, b"of the old farm")
            (third,) = [m for m in (await client.status(farm.name))["members"] if m["id"] == 3]
        assert third["role"] in ("unreachable", "unknown")
        await trio.sleep(2 * FAST["election_timeout_max_s"])
        status = await status_when(farm, 3, lambda status: status["leader"] == 3)
        assert status["last_index"] == index, "nothing of the old farm came here"
