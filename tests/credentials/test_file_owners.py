"""A command that root runs in the directory of another user leaves no file that this user cannot read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from garlicfarm.cli import run
from garlicfarm.config import load
from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.credentials.private_files import read_private_file
from garlicfarm.durable_files import replace_file, write_new_file
from garlicfarm.errors import ConfigError
from garlicfarm.setup.add_farm import add_farm
from garlicfarm.setup.provision import FarmPlan, MemberPlan, create_farm, create_node
from garlicfarm.storage import DataDirectory

ALONE = MemberPlan(endpoint="ssl://127.0.0.1:1")
SOMEBODY = 54321
"""A user that no machine has."""

pytestmark = pytest.mark.root


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """The directory of another user."""
    directory = tmp_path / "theirs"
    directory.mkdir(mode=0o700)
    give(directory)
    return directory


def give(directory: Path) -> None:
    for path in (directory, *directory.rglob("*")):
        os.chown(path, SOMEBODY, SOMEBODY)


def of_others(directory: Path) -> list[str]:
    return [str(path) for path in directory.rglob("*") if path.lstat().st_uid != SOMEBODY]


def test_users_changed_by_root_stay_readable_to_the_user_of_the_node(theirs, monkeypatch, tmp_path):
    create_node(theirs / "node", 1, ALONE)
    give(theirs)
    monkeypatch.chdir(theirs / "node")
    password = tmp_path / "password"
    write_new_file(password, b"long enough\n", 0o600)
    assert run(["user", "add", "alice", "--password-file", str(password)]) == 0
    assert of_others(theirs) == []
    assert (theirs / "node" / "data" / "users").stat().st_mode & 0o777 == 0o600
    assert run(["user", "remove", "alice"]) == 0
    assert of_others(theirs) == []
    (theirs / "node" / "data" / "users").unlink()
    assert run(["user", "add", "alice", "--password-file", str(password)]) == 0
    assert of_others(theirs) == []


def test_all_that_root_makes_in_the_directory_of_another_user_is_theirs(theirs, monkeypatch):
    key = theirs / "keys" / "new" / "master.key"
    create_keys(key)
    create_node(theirs / "a" / "node", 1, ALONE)
    (theirs / "there").mkdir()
    os.chown(theirs / "there", SOMEBODY, SOMEBODY)
    create_node(theirs / "there", 1, ALONE)
    create_farm(theirs / "farm", {i: MemberPlan(endpoint=f"ssl://127.0.0.1:{i}") for i in (1, 2)})
    monkeypatch.chdir(theirs)
    assert run(["keys", "offline", str(key), "--nodes", "1,2", "--out", "bundles"]) == 0
    assert run(["config", "import", str(theirs / "there" / "garlicfarm.toml"), "--out", "new.toml"]) == 0
    assert of_others(theirs) == []


def test_a_file_that_root_replaces_keeps_its_owner(theirs: Path) -> None:
    path = theirs / "of-root"
    path.touch(0o600)
    replace_file(path, [b"new"], 0o600)
    assert (path.read_bytes(), path.stat().st_uid) == (b"new", 0)


def test_root_cannot_use_the_store_of_another_user(theirs, monkeypatch, capsys):
    node = theirs / "node"
    create_node(node, 1, ALONE)
    give(theirs)
    before = {path: path.stat().st_mtime_ns for path in theirs.rglob("*")}
    with pytest.raises(ConfigError, match="54321"), DataDirectory.open(node / "data"):
        pass
    with pytest.raises(ConfigError, match="54321"):
        add_farm(load(node / "garlicfarm.toml", {}), "", FarmPlan(name="second", application="log"))
    monkeypatch.chdir(node)
    assert run(["recover", "--yes-i-understand"]) == 2
    assert (
        f"{node / 'data'} belongs to the user #54321, who could not read what root leaves there; run this"
        " as that user: sudo -u '#54321' garlicfarm …"
    ) in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in theirs.rglob("*")} == before


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that everybody may write to; the test runs as another user than root."""
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o777)
        for name, mode in ("secret", 0o600), ("public", 0o644):
            (Path(directory) / name).touch(mode)
            (Path(directory) / name).chmod(mode)
        os.seteuid(SOMEBODY)
        yield Path(directory)
        os.seteuid(0)


def test_a_secret_is_not_replaced_by_a_file_that_its_owner_cannot_read(shared: Path) -> None:
    with pytest.raises(PermissionError, match="it belongs to the user root; run this as that user"):
        replace_file(shared / "secret", [b"new"], 0o600)
    replace_file(shared / "public", [b"new"], 0o644)
    assert (shared / "public").read_bytes() == b"new"
    assert sorted(path.name for path in shared.iterdir()) == ["public", "secret"]


def test_a_file_of_root_that_the_user_of_the_node_cannot_read_is_said_to_be_of_root(shared: Path) -> None:
    os.seteuid(0)
    os.chown(shared, SOMEBODY, SOMEBODY)
    os.seteuid(SOMEBODY)
    path = shared / "secret"
    mended = f"it belongs to the user root: as root, chown {SOMEBODY} {path}"
    with pytest.raises(ConfigError, match=f"^{path} cannot be read: Permission denied; {mended}$"):
        read_private_file(path)
