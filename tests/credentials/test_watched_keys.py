"""Keys whose file is replaced while they are in use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from garlicfarm.credentials.destination_keys import write_bundle
from garlicfarm.credentials.watched_keys import WatchedKeys
from garlicfarm.i2p.keys import DestinationKeys
from tests.publishers.i2cp_keys import bundle, now_ms
from tests.publishers.renewed_keys import renew


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "site.bundle"


@pytest.fixture
def old(path: Path) -> DestinationKeys:
    keys = bundle(now_ms())
    write_bundle(path, keys)
    return keys


@pytest.fixture
def watched(path: Path, old: DestinationKeys) -> WatchedKeys:
    return WatchedKeys(path, node_id=1)


def test_new_keys_are_used_once_they_are_taken(
    watched: WatchedKeys, path: Path, old: DestinationKeys
) -> None:
    new = renew(path, now_ms())
    assert not watched.has_new
    watched.look()
    assert (watched.has_new, watched.keys, watched.problem) == (True, old, "")
    assert watched.take_new()
    assert (watched.has_new, watched.keys) == (False, new)
    assert not watched.take_new()


def test_same_keys_written_again_are_not_new(watched: WatchedKeys, path: Path, old: DestinationKeys) -> None:
    path.unlink()
    write_bundle(path, old)
    watched.look()
    assert not watched.has_new


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda path: path.write_text(path.read_text()[:100]), "is not a complete bundle"),
    "empty": (lambda path: path.write_bytes(b""), "does not hold"),
    "gone": (lambda path: path.unlink(), "No such file"),
    "readable": (lambda path: path.chmod(0o644), "chmod 600"),
    "another destination": (lambda path: renew(path, now_ms(), destination=2), "does not hold the key of"),
    "another node": (
        lambda path: renew(path, now_ms(), node=2),
        "is the bundle of node 2, and this is node 1",
    ),
    "expired": (lambda path: renew(path, now_ms(), days=-1), "expired on"),
}


@pytest.mark.parametrize(("spoil", "problem"), BAD.values(), ids=BAD)
def test_file_that_cannot_be_used_is_a_problem_until_it_can_and_the_old_keys_stay(
    watched: WatchedKeys, path: Path, old: DestinationKeys, spoil: Callable[[Path], object], problem: str
) -> None:
    spoil(path)
    for _ in range(2):
        watched.look()
        assert problem in watched.problem
        assert watched.problem.endswith("the keys that were read before stay in use")
        assert (watched.has_new, watched.keys) == (False, old)
    new = renew(path, now_ms())
    watched.look()
    assert (watched.problem, watched.take_new(), watched.keys) == ("", True, new)


def test_mode_that_is_put_right_is_noticed(watched: WatchedKeys, path: Path) -> None:
    """As after scp, which writes the file first."""
    new = renew(path, now_ms())
    path.chmod(0o644)
    watched.look()
    assert watched.problem
    path.chmod(0o600)
    watched.look()
    assert (watched.problem, watched.take_new(), watched.keys) == ("", True, new)


def test_file_that_is_spoilt_before_its_keys_are_taken_takes_them_back(
    watched: WatchedKeys, path: Path, old: DestinationKeys
) -> None:
    renew(path, now_ms())
    watched.look()
    path.write_bytes(b"")
    watched.look()
    assert (watched.take_new(), watched.keys) == (False, old)
