"""What holds secrets or data is private whatever the umask, and its name is as durable as its contents."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from garlicfarm.cli import run
from garlicfarm.config import load
from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.credentials.private_files import write_private_file
from garlicfarm.credentials.users import UserStore
from garlicfarm.errors import ConfigError
from garlicfarm.i2p.encoding import encode
from garlicfarm.setup.add_farm import add_farm
from garlicfarm.setup.provision import STAGING, FarmPlan, MemberPlan, create_farm, create_node
from tests.node.support.cluster import ALONE, cluster

PUBLIC = {"garlicfarm.toml", "node.crt", "out.toml"}
"""What others may read, and nobody but the owner write."""


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(directory: Path) -> dict[str, str]:
    """Whatever others could read, or write where they may read."""
    found = {}
    for path in directory.rglob("*"):
        mode = path.lstat().st_mode & 0o777
        if mode & (0o022 if path.name in PUBLIC else 0o077):
            found[str(path.relative_to(directory))] = f"{mode:04o}"
    return found


@pytest.mark.usefixtures("open_umask")
def test_everything_that_commands_make_is_private_without_a_umask(tmp_path, monkeypatch):
    made = tmp_path / "made"
    made.mkdir(mode=0o700)
    key = made / "keys" / "new" / "master.key"
    plan = FarmPlan(application="publisher", master=encode(create_keys(key).destination), master_key_file=key)
    create_node(made / "here" / "and" / "there", 1, MemberPlan(endpoint="ssl://127.0.0.1:1"), plan)
    create_farm(made / "a" / "farm", {1: MemberPlan(endpoint="ssl://127.0.0.1:1")}, plan)
    node = made / "here" / "and" / "there"
    add_farm(load(node / "garlicfarm.toml", {}), "", FarmPlan(name="second", application="log"))
    UserStore(node / "data" / "users").add("alice", "reader", "password")
    write_private_file(made / "to" / "a" / "token", b"secret")
    monkeypatch.chdir(made)
    assert run(["config", "import", str(node / "garlicfarm.toml"), "--out", "out.toml"]) == 0
    assert open_to_others(made) == {}


@pytest.mark.usefixtures("open_umask")
async def test_everything_that_a_running_node_makes_is_private_without_a_umask(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir(mode=0o700)
    retention = {"snapshot_every_entries": 10, "keep_entries": 1}
    async with cluster(made, raft=ALONE, retention=retention) as nodes:
        await nodes.leader()
        for _ in range(30):
            await nodes.replica().post(b"x")
        snapshots = nodes.data(1) / "farms" / "farm" / "snapshots"
        with trio.fail_after(240):
            while not [*snapshots.glob("*.snap")]:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert (nodes.data(1) / "admin.url").exists()
        assert open_to_others(made) == {}


def test_names_of_secrets_and_of_their_directories_are_synced(tmp_path, monkeypatch):
    synced: list[str] = []
    fsync = os.fsync

    def recording(descriptor: int) -> None:
        synced.append(
            os.readlink(f"/proc/self/fd/{descriptor}").replace(f"/{STAGING}", "").replace("log.part", "log")
        )
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recording)
    key = tmp_path / "keys" / "new" / "master.key"
    plan = FarmPlan(application="publisher", master=encode(create_keys(key).destination), master_key_file=key)
    create_node(tmp_path / "here" / "there", 1, MemberPlan(endpoint="ssl://127.0.0.1:1"), plan)
    last = {path: place for place, path in enumerate(synced)}
    for path in tmp_path.rglob("*"):
        if path.name == "lock":
            continue
        assert str(path.parent) in last, f"the name of {path} is not durable"
        written = max((last.get(str(path) + suffix, -1) for suffix in ("", ".part", ".new")), default=-1)
        assert path.is_dir() or written >= 0, f"the contents of {path} are not durable"
        assert path.is_dir() or last[str(path.parent)] > written, path


def test_secret_that_could_not_be_written_leaves_no_half_of_it(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "master.key"
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(ConfigError, match="No space left"):
            create_keys(path)
    assert not path.exists()
    create_keys(path)
    with pytest.raises(ConfigError, match="exists"):
        create_keys(path)
