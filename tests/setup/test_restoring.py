"""`snapshot save`, `inspect`, `verify` and `restore`: another farm with the same state, or nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import trio

from garlicfarm.cli import run
from garlicfarm.cli.exits import Exit
from garlicfarm.client.farm import open_farm_client
from garlicfarm.credentials.member_credentials import read_secret_file
from garlicfarm.errors import AuthError, first_error
from garlicfarm.lab.processes import FAST, process_farm
from garlicfarm.log_application import LogApplication
from garlicfarm.node.publisher.application import PublisherApplication
from garlicfarm.raft.state import MAX_TERM
from garlicfarm.raft.types import HardState
from garlicfarm.setup.provision import FarmPlan, MadeFarm
from garlicfarm.setup.restoring import check_state, restore_farm
from garlicfarm.storage import LogStore, Saved, Snapshot, encode_snapshot, read_saved
from garlicfarm.wire.messages import ClusterServer, Configuration
from tests.node.support.cluster import THREE, TRANSPORT, cluster, simulated_member
from tests.process_farms import status_when
from tests.running import wait_until

Capture = pytest.CaptureFixture[str]
OLD = Configuration(7, 0, (ClusterServer(1, "ssl://a:1"), ClusterServer(4, "ssl://d:1")), 3)
EVER = (ClusterServer(1, "ssl://a:1"), ClusterServer(2, "ssl://gone:1"), ClusterServer(4, "ssl://d:1"))
MEMBERS = ("--member", "1=ssl://a.example:27150", "--member", "5=ssl://b.example:27150")


async def command(*arguments: str | Path) -> int:
    """The command runs Trio itself: in a thread, as in a process of its own."""
    return await trio.to_thread.run_sync(run, [str(each) for each in arguments])


def saved(path: Path, application: str = "log", state: bytes | None = None, **fields: object) -> Snapshot:
    origin = Saved("farm", 1000, 1_795_819_623_809, 3, "0.3.0")
    log = LogApplication()
    log.apply(6, 2, b"entry")
    state = log.snapshot() if state is None else state
    made = Snapshot(b"farm-id-16-bytes", application, 5, 12, 3, OLD, EVER, 10, state, saved=origin)
    made = msgspec.structs.replace(made, **fields)
    path.write_bytes(b"".join(encode_snapshot(made)))
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    saved(tmp_path / "farm.snap")
    return tmp_path / "farm.snap"


def test_restored_farm_has_the_state_and_another_id_secret_and_members(
    file: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "new"
    assert run(["snapshot", "restore", str(file), "--out", str(out), *MEMBERS, "-o", "json"]) == 0
    printed, said = capsys.readouterr()
    rows = json.loads(printed)["rows"]
    assert [row["id"] for row in rows] == [1, 5]
    assert "continues after index 12" in said
    before = read_saved(file)[0]
    ids, secrets = set(), set()
    for node_id in (1, 5):
        data = out / f"node-{node_id}" / "data"
        secrets.add(read_secret_file(data / "secrets" / "farm.secret")[0])
        with closing(LogStore.open(data / "farms" / "farm", farm="farm")) as store:
            ids.add(store.genesis.farm_id)
            assert (store.genesis.application, store.genesis.epoch_length) == ("log", 1000)
            members = tuple(ClusterServer(row["id"], row["endpoint"]) for row in rows)
            now = Configuration(13, 7, members, 3)
            assert store.initial_state() == (HardState(4, 0, 13), now)
            assert (store.first_index(), store.last_index(), store.term(13)) == (14, 13, 4)
            assert store.restored is not None
            assert [server.id for server in store.restored.all_members] == [1, 2, 4, 5]
            assert store.restored.all_members[0] == members[0]
            assert store.restored.application_entries == 10
            application = LogApplication()
            application.restore(before.state)
            application.configure(13, now)
            assert store.restored.state == application.snapshot()
            assert store.restored.saved is None
    assert len(ids) == len(secrets) == 1
    assert before.farm_id not in ids

    assert run(["snapshot", "restore", str(file), "--out", str(tmp_path / "twice"), *MEMBERS]) == 0
    data = tmp_path / "twice" / "node-1" / "data"
    assert read_secret_file(data / "secrets" / "farm.secret")[0] not in secrets
    with closing(LogStore.open(data / "farms" / "farm", farm="farm")) as store:
        assert store.genesis.farm_id not in ids


def test_restore_over_what_exists_changes_nothing(file: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "new"
    out.mkdir()
    (out / "kept").touch()
    arguments = ["snapshot", "restore", str(file), "--out", str(out), *MEMBERS]
    assert run(arguments) == Exit.USAGE
    assert "exists already; nothing was overwritten" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["kept"]


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"application": "nosuch"}, Exit.USAGE, "is of the application 'nosuch', and there are:"),
        ({"algorithm": 99}, Exit.STORAGE, "version 99 of the common algorithm"),
        ({"state": b"no state"}, Exit.STORAGE, "farm.snap: "),
        ({"application": "publisher", "state": b"{}"}, Exit.STORAGE, "not a snapshot of the farm farm"),
        ({"saved": None}, Exit.STORAGE, "is a snapshot of a node's own store"),
        ({"term": MAX_TERM}, Exit.STORAGE, "which no other can follow"),
    ],
)
def test_snapshot_that_cannot_be_restored_makes_nothing(
    tmp_path: Path, capsys: Capture, change: dict[str, object], code: Exit, says: str
) -> None:
    path, out = tmp_path / "farm.snap", tmp_path / "new"
    saved(path, **change)  # type: ignore[arg-type]
    assert run(["snapshot", "restore", str(path), "--out", str(out), *MEMBERS]) == code
    assert says in capsys.readouterr().err
    assert not out.exists()
    if "term" not in change:
        assert run(["snapshot", "verify", str(path)]) == code


def test_state_of_another_farm_than_the_file_says_is_refused(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "farm.snap"
    saved(path, "publisher", PublisherApplication("other").snapshot())
    assert run(["snapshot", "verify", str(path)]) == Exit.STORAGE
    assert "this is a snapshot of the farm other, not of farm" in capsys.readouterr().err


def test_jraft_cannot_be_a_member_of_a_farm_restored_at_a_higher_level(
    file: Path, tmp_path: Path, capsys: Capture
) -> None:
    member = ["--member", "1=jraft://a.example:27150"]
    assert run(["snapshot", "restore", str(file), "--out", str(tmp_path / "new"), *member]) == Exit.USAGE
    assert "of level 3, and JRaft can be a member at level 0 only" in capsys.readouterr().err


def test_verify_and_inspect_of_damaged_files_end_with_7(file: Path, capsys: Capture) -> None:
    whole = file.read_bytes()
    for damaged in (b"", whole[:40], whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b"x" * 500):
        file.write_bytes(damaged)
        for name in ("verify", "inspect"):
            assert run(["snapshot", name, str(file)]) == Exit.STORAGE
            assert len(capsys.readouterr().err.splitlines()) == 1


def test_inspect_shows_what_a_file_is_of(file: Path, capsys: Capture) -> None:
    assert run(["snapshot", "inspect", str(file), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": "garlicfarm.snapshot/1",
        "file": str(file),
        "size_bytes": file.stat().st_size,
        "farm": "farm",
        "farm_id": b"farm-id-16-bytes".hex(),
        "application": "log",
        "level": 3,
        "index": 12,
        "term": 3,
        "application_entries": 10,
        "epoch_length": 1000,
        "date_ms": 1_795_819_623_809,
        "node": 3,
        "program": "0.3.0",
        "members": [{"id": 1, "endpoint": "ssl://a:1"}, {"id": 4, "endpoint": "ssl://d:1"}],
    }
    assert run(["snapshot", "inspect", str(file)]) == 0
    out = capsys.readouterr().out
    assert "log, level 3\n" in out
    assert "2026-11-27 22:47:03Z by node 3" in out


async def test_farm_restored_elsewhere_serves_with_the_ranking_of_the_old_one(
    tmp_path: Path, capsys: Capture
) -> None:
    """Saved from a follower that serves; the new farm has two members, one with the id of an old one."""
    path = tmp_path / "farm.snap"
    members = {node_id: simulated_member(node_id) for node_id in (1, 2, 3)}
    async with cluster(
        tmp_path / "old", members=members, application="publisher", raft=THREE, interval_ms=1000
    ) as nodes:
        follower = 1 + await nodes.leader() % 3
        view = nodes.node(follower).farms["farm"]
        await wait_until(lambda: all(row["score"] for row in view.ranking()["members"]))
        config = nodes.directories[follower] / "garlicfarm.toml"
        assert await command("snapshot", "save", path, "--config", config) == 0
        assert await command("snapshot", "save", path, "--config", config) == Exit.USAGE
        assert (
            await command("snapshot", "save", tmp_path / "no" / "where", "--config", config) == Exit.STORAGE
        )
        assert "cannot be written: No such file or directory; nothing was saved" in capsys.readouterr().err
        assert path.stat().st_mode & 0o777 == 0o600
        assert sorted(os.listdir(tmp_path)) == ["farm.snap", "old"]
        found, origin = read_saved(path)
        assert (found.farm_id, origin.node) == (nodes.farm_id, follower)
        old_password, old_id = nodes.password(1), nodes.farm_id
    application = PublisherApplication("farm")
    check_state(path, found, application)
    ranked = application.ranking()
    assert all(row["score"] for row in ranked["members"])

    def create(directory: Path, members: object, plan: FarmPlan) -> MadeFarm:
        return restore_farm(directory, chosen, plan, found, origin, application)

    chosen = {1: simulated_member(1), 4: simulated_member(4)}
    async with process_farm(tmp_path / "new", chosen, FarmPlan(raft=FAST), create=create) as farm:
        status = await status_when(farm, 4, lambda told: told["leader"] and told["applied"] > found.index + 1)
        assert status["farm_id"] != old_id.hex()
        assert [row["id"] for row in status["members"]] == [1, 4]
        async with farm.nodes[4].client() as client:
            index, state = await client.state("farm", oldest=True)
            assert index == found.index + 1
            begins = PublisherApplication("farm")
            begins.restore(state)
            (before,) = [row for row in ranked["members"] if row["id"] == 1]
            (after,) = [row for row in begins.ranking()["members"] if row["id"] == 1]
            assert (after["score"], after["parts"]) == (before["score"], before["parts"])
            assert begins.fold.policy == application.fold.policy
            with trio.fail_after(240):
                while True:  # the members of the new farm compare what they hold, and it is the same
                    now = PublisherApplication("farm")
                    now.restore((await client.state("farm"))[1])
                    one, other = map(now.claimed, chosen)
                    if one and other and one.index == other.index > found.index:
                        break
                    await trio.sleep(0.2)
            assert one == other
            assert [now.contradicted(member) for member in chosen] == ["", ""]
        await status_when(farm, 1, lambda told: told["publisher"] in (1, 4))
        with pytest.raises(BaseExceptionGroup) as refused:
            await post_as_old_member(farm.endpoints, old_password)
        assert isinstance(first_error(refused.value), AuthError)
    capsys.readouterr()


async def post_as_old_member(endpoints: Mapping[int, str], password: str) -> None:
    async with open_farm_client(
        endpoints, farm="farm", user="1", password=password, transport=lambda scheme: TRANSPORT
    ) as client:
        await client.post([b"of the old farm"])
