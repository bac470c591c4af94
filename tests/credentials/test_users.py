"""The users of a node: what is stored, and that a running node sees every change."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from garlicfarm.credentials.roles import ROLES, UserRole
from garlicfarm.credentials.users import UserStore
from garlicfarm.errors import ConfigError
from garlicfarm.http.digest import ALGORITHMS, REALM, ha1


def test_added_user_is_found_with_role_and_the_hashes_of_both_algorithms(tmp_path: Path) -> None:
    store = UserStore(tmp_path / "users")
    store.add("alice", "writer", "wonder land")
    assert store.lookup("alice") == {a: (ha1(a, "alice", REALM, "wonder land"),) for a in ALGORITHMS}
    assert store.role("alice") == "writer"
    assert store.lookup("bob") == {}
    assert store.role("bob") is None


def test_file_is_private_json_lines_without_the_password(tmp_path: Path) -> None:
    path = tmp_path / "users"
    store = UserStore(path)
    store.add("bob", "reader", "hunter2hunter2")
    store.add("alice", "admin", "hunter2hunter2")
    assert path.stat().st_mode & 0o777 == 0o600
    assert "hunter2" not in path.read_text()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [sorted(line) for line in lines] == [["ha1", "name", "role"]] * 2
    assert store.list() == [("alice", "admin"), ("bob", "reader")]
    assert [file.name for file in tmp_path.iterdir()] == ["users"]


def test_other_store_on_the_same_file_sees_changes_at_once(tmp_path: Path) -> None:
    running, command = UserStore(tmp_path / "users"), UserStore(tmp_path / "users")
    for password in ("one word", "two words"):
        command.add("alice", "reader", password)
        assert running.lookup("alice")["MD5"] == (ha1("MD5", "alice", REALM, password),)
    command.add("alice", "admin", "two words")
    assert running.role("alice") == "admin"
    command.remove("alice")
    assert running.list() == []
    command.add("bob", "reader", "three words")
    (tmp_path / "users").unlink()
    assert running.lookup("bob") == {}


def test_two_writers_at_once_both_count(tmp_path: Path) -> None:
    def add(prefix: str) -> None:
        store = UserStore(tmp_path / "users")
        for number in range(10):
            store.add(f"{prefix}{number}", "reader", "password")

    threads = [threading.Thread(target=add, args=(prefix,)) for prefix in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(UserStore(tmp_path / "users").list()) == 30


@pytest.mark.parametrize(
    ("name", "role", "password", "message"),
    [
        ("", "reader", "p", "user name"),
        ("a b", "reader", "p", "user name"),
        ('a"', "reader", "p", "user name"),
        ("a:b", "reader", "p", "user name"),
        ("ü", "reader", "p", "user name"),
        ("x" * 65, "reader", "p", "user name"),
        ("17", "reader", "p", "members' ids"),
        ("alice", "root", "p", "role 'root'"),
        ("alice", "reader", "", "8 characters"),
        (
            "alice",
            "reader",
            "7 chars",
            "the password of user .alice. is too short: use at least 8 characters",
        ),
    ],
)
def test_unusable_user_is_refused_and_nothing_written(tmp_path, name, role, password, message):
    store = UserStore(tmp_path / "users")
    with pytest.raises(ConfigError, match=message):
        store.add(name, role, password)
    assert list(tmp_path.iterdir()) == []


def test_removing_nobody_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no user 'alice'"):
        UserStore(tmp_path / "users").remove("alice")


def test_user_cannot_be_added_where_there_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        UserStore(tmp_path / "absent" / "users").add("alice", "reader", "password")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"name":"alice","role":"root","ha1":{}}',
        '{"name":"alice","role":"reader"}',
        '{"name":"alice","role":["poster"],"ha1":{}}',
        "[" * 50_000,
        '{"name":"alice","role":"reader","ha1":{},"password":"p"}',
        '{"name":"17","role":"reader","ha1":{}}',
        '{"name":"a","role":"reader","ha1":{}}\n{"name":"a","role":"admin","ha1":{}}',
    ],
)
def test_damaged_file_lets_nobody_in_and_is_not_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "users"
    store = UserStore(path)
    store.add("bob", "admin", "password")
    path.write_text(text)
    for call in (
        lambda: UserStore(path),
        lambda: store.lookup("bob"),
        lambda: store.add("c", "reader", "password"),
    ):
        with pytest.raises(ConfigError, match=r"line [12]"):
            call()
    assert path.read_text() == text


def test_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        UserStore(path)


def test_leftover_of_a_crash_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "users.new").write_text("half a li")
    store = UserStore(tmp_path / "users")
    store.add("alice", "reader", "password")
    assert store.list() == [("alice", "reader")]
    assert (tmp_path / "users").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("role", ROLES)
def test_login_has_its_role_and_those_before_it_until_the_user_is_removed(
    role: UserRole, tmp_path: Path
) -> None:
    store = UserStore(tmp_path / "users")
    store.add("alice", role, "password")
    login = store.login("alice")
    assert login is not None
    had = [least for least in ROLES if login.has_role(least)]
    assert had == list(ROLES[: ROLES.index(role) + 1])
    store.remove("alice")
    assert not any(login.has_role(least) for least in ROLES)
