"""Saved snapshots: whole or refused, and of many only the newest are kept."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import msgspec
import pytest

from garlicfarm.errors import StorageDamaged, StorageError, StorageVersion
from garlicfarm.storage import (
    Saved,
    backups,
    encode_snapshot,
    keep_backup,
    list_backups,
    read_saved,
    write_snapshot,
)
from tests.storage.test_snapshots import names, snapshot

SAVED = Saved("farm", 1000, 1_795_819_623_809, 3, "0.3.0")
DAY_MS = 86_400_000


def saved_at(date_ms: int, farm: str = "farm", node: int = 3) -> Saved:
    return Saved(farm, 1000, date_ms, node, "0.3.0")


def keep(directory: Path, saved: Saved, index: int, kept: int = 2, data: Path = Path("/proc")) -> Path:
    made = snapshot(index, saved=saved)
    return keep_backup(directory, made, saved, kept, data)


def test_saved_snapshot_read_says_where_it_comes_from_under_any_name(tmp_path: Path) -> None:
    made = snapshot(12, 3, saved=SAVED)
    path = tmp_path / "any name"
    path.write_bytes(b"".join(encode_snapshot(made)))
    assert read_saved(path) == (made, SAVED)
    assert read_saved(path, state=False) == (msgspec.structs.replace(made, state=b""), SAVED)


def test_saved_snapshot_cut_anywhere_or_with_a_flipped_bit_is_damaged(tmp_path: Path) -> None:
    whole = b"".join(encode_snapshot(snapshot(12, 3, saved=SAVED)))
    path = tmp_path / "farm.snap"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(StorageDamaged, match=r"farm\.snap is damaged"):
            read_saved(path, state=size % 2 == 0)
    for bit in Random(1).sample(range(8 * len(whole)), 200):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises((StorageDamaged, StorageVersion)):  # two bytes are the version
            read_saved(path)


def test_snapshot_of_a_store_is_no_saved_one(tmp_path: Path) -> None:
    write_snapshot(tmp_path, snapshot(12, 3))
    with pytest.raises(StorageError, match="does not name its farm; save one with"):
        read_saved(tmp_path / "12-3.snap")


def test_backups_beyond_those_kept_are_deleted_and_nothing_else_is(tmp_path: Path) -> None:
    others = [
        keep(tmp_path, saved_at(0, farm="other"), 1),
        keep(tmp_path, saved_at(0, node=4), 1),
        tmp_path / "farm~3~20261399T000000Z~1.snap",  # no such date
        tmp_path / "farm~3~notes.txt",
    ]
    for path in others[2:]:
        path.touch()
    (tmp_path / "farm~3~20260101T000000Z~1.snap.new").touch()  # left by a crash
    made = [keep(tmp_path, saved_at(day * DAY_MS), day) for day in (2, 3, 10, 11)]
    assert sorted([*made[2:], *others]) == sorted(tmp_path.iterdir())
    found = list_backups(tmp_path, "farm", 3)
    assert [(each.date_ms, each.path) for each in found] == [(11 * DAY_MS, made[3]), (10 * DAY_MS, made[2])]
    assert made[3].stat().st_mode & 0o777 == 0o600


def test_backup_that_the_system_refuses_deletes_no_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path, saved_at(DAY_MS), 1, kept=1)
    before = names(tmp_path)

    def refuse(*arguments: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(backups, "replace_file", refuse)
    with pytest.raises(StorageError, match="No space left on device"):
        keep(tmp_path, saved_at(2 * DAY_MS), 2, kept=1)
    assert names(tmp_path) == before


@pytest.mark.parametrize("what", ["missing", "file"])
def test_backup_into_what_is_no_directory_is_refused_in_a_sentence(tmp_path: Path, what: str) -> None:
    if what == "file":
        (tmp_path / what).touch()
    with pytest.raises(StorageError, match=rf"^{tmp_path / what}: No(t a| such file or) directory$"):
        keep(tmp_path / what, saved_at(DAY_MS), 1)


def test_backup_leaves_room_on_the_disk_of_the_nodes_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path, saved_at(DAY_MS), 1, data=tmp_path)
    disk = os.statvfs(tmp_path)
    monkeypatch.setattr(backups, "SPARE_BYTES", disk.f_blocks * disk.f_frsize)
    with pytest.raises(StorageError, match="use another disk"):
        keep(tmp_path, saved_at(2 * DAY_MS), 2, data=tmp_path)
    keep(tmp_path, saved_at(2 * DAY_MS), 2)  # of another disk
