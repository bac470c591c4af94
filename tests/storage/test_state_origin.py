"""Whose snapshot a member has restored, and the chain that a snapshot has."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from garlicfarm.errors import StorageDamaged
from garlicfarm.levels import COMPARING
from garlicfarm.storage.snapshot_receiver import SnapshotReceiver
from garlicfarm.storage.snapshots import read_snapshot
from garlicfarm.storage.state_origin import keep_origin, read_origin
from garlicfarm.wire.messages import SnapshotSyncRequest
from tests.storage.test_snapshot_transfer import GENESIS, SENT, file_of

CHAIN = bytes(range(32))


@pytest.mark.parametrize(("level", "origin"), [(COMPARING, 3), (COMPARING - 1, 0)])
def test_origin_is_durable_before_the_snapshot_has_its_name(
    tmp_path: Path, level: int, origin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = msgspec.structs.replace(SENT.configuration, level=level)
    sent = msgspec.structs.replace(SENT, configuration=configuration, chain=CHAIN)
    data = file_of(sent)
    request = SnapshotSyncRequest(sent.index, sent.term, configuration, 0, data, True)
    farm = tmp_path / "farm"
    farm.mkdir()
    renamed: list[int] = []

    def rename(path: Path, target: Path) -> None:
        renamed.append(read_origin(farm))
        path.replace(target)

    monkeypatch.setattr(Path, "rename", rename)
    held, meta = SnapshotReceiver(farm / "snapshots", GENESIS).take(request, 3)
    assert (held, meta) == (len(data), sent.meta)
    assert renamed == [origin]
    assert read_snapshot(farm / "snapshots" / "30-2.snap").chain == CHAIN


@pytest.mark.parametrize("text", [b"", b"3", b"0\n", b"-1\n", b"three\n", b"3\n\n", b"9999999999\n"])
def test_damaged_origin_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "origin").write_bytes(text)
    with pytest.raises(StorageDamaged, match="names no member"):
        read_origin(tmp_path)


def test_origin_that_is_kept_is_read(tmp_path: Path) -> None:
    assert read_origin(tmp_path) == 0
    for member in (7, 2**31 - 1):
        keep_origin(tmp_path, member)
        assert read_origin(tmp_path) == member
