"""A directory for backups: saved snapshots (`garlicfarm.storage.snapshots`), the newest of which are kept.
Several nodes may use one directory. ::

    <farm>~<node>~<date, UTC>~<index>.snap          farm~1~20261127T224500Z~1042.snap
    <farm>~<node>~<date, UTC>~<index>.snap.new      being written, or left by a crash
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from garlicfarm.durable_files import replace_file
from garlicfarm.errors import StorageError
from garlicfarm.names import FARM_NAME
from garlicfarm.storage.snapshots import Saved, Snapshot, encode_snapshot

SPARE_BYTES = 64 << 20
"""A backup on the disk of the node's own data leaves so much of it."""

_DATE = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(rf"({FARM_NAME})~(\d{{1,10}})~(\d{{8}}T\d{{6}}Z)~\d{{1,20}}\.snap(\.new)?", re.ASCII)


class Backup(NamedTuple):
    """One backup. ``date_ms``: to the second, by the wall clock of its node. ``is_whole``: no crash broke it
    off."""

    date_ms: int
    path: Path
    is_whole: bool


def list_backups(directory: Path, farm: str, node: int) -> list[Backup]:
    """The backups of one farm by one node, by their names; the newest first. Blocking. Raises
    `StorageError`: the directory cannot be read."""
    try:
        paths = list(directory.iterdir())
    except OSError as error:
        raise _refused(directory, error) from error
    found = [(match, path) for path in paths if (match := _NAME.fullmatch(path.name))]
    dated = [
        Backup(_date_ms(match[3]), path, not match[4])
        for match, path in found
        if (match[1], int(match[2])) == (farm, node)
    ]
    return sorted((each for each in dated if each.date_ms >= 0), reverse=True)


def keep_backup(directory: Path, snapshot: Snapshot, saved: Saved, keep: int, data: Path) -> Path:
    """Write ``snapshot``, whose origin is ``saved``, into ``directory``, which must exist: a missing one may
    be a disk that is not mounted. Then delete all but the ``keep`` newest ones of this farm and node. Durable
    on return; returns its file. Blocking.

    ``data``: the node's data directory; a backup does not fill its disk up.

    Raises `StorageError`: the system refuses, and no backup is deleted; or the state is too large.
    """
    parts = encode_snapshot(snapshot)
    date = datetime.fromtimestamp(saved.date_ms // 1000, UTC).strftime(_DATE)
    path = directory / f"{saved.farm}~{saved.node}~{date}~{snapshot.index}.snap"
    earlier = list_backups(directory, saved.farm, saved.node)
    try:
        for each in earlier:
            if not each.is_whole:
                each.path.unlink(missing_ok=True)
        _check_spare(directory, data, sum(map(len, parts)))
        replace_file(path, parts, 0o600)
        whole = [each.path for each in earlier if each.is_whole and each.path != path]
        for old in whole[keep - 1 :]:
            old.unlink(missing_ok=True)
    except OSError as error:
        raise _refused(directory, error) from error
    return path


def _check_spare(directory: Path, data: Path, size: int) -> None:
    if directory.stat().st_dev != data.stat().st_dev:
        return
    disk = os.statvfs(directory)
    free = disk.f_bavail * disk.f_frsize
    if free < size + SPARE_BYTES:
        raise StorageError(
            f"{directory} is on the disk of {data}, which has {free} bytes left; a backup of {size} bytes "
            f"has to leave {SPARE_BYTES} of them to the farm: use another disk"
        )


def _date_ms(text: str) -> int:
    """-1: there is no such date."""
    try:
        return round(datetime.strptime(text, _DATE).replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        return -1


def _refused(directory: Path, error: OSError) -> StorageError:
    return StorageError(f"{error.filename or directory}: {error.strerror or error}")
