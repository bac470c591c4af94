"""All of a log at once, for programs that look back at a farm while no node uses the store."""

from __future__ import annotations

from pathlib import Path

import msgspec

from garlicfarm.errors import StorageMissing, StorageVersion
from garlicfarm.levels import unknown_algorithm
from garlicfarm.raft.types import Entry
from garlicfarm.storage.appender import LOG
from garlicfarm.storage.damage import Corrupt, storage_error
from garlicfarm.storage.log_store import SNAPSHOTS, refuse_unknown, snapshots_of_log
from garlicfarm.storage.migration import log_directory
from garlicfarm.storage.segments import Genesis, entries_from, read_log
from garlicfarm.storage.snapshots import Snapshot

_PAGE_BYTES = 1 << 24


class CommittedLog(msgspec.Struct, frozen=True):
    """The entries of a log that are known to be committed, without gaps; before the first one the application
    had the state ``begins``, None: none."""

    genesis: Genesis
    begins: Snapshot | None
    entries: list[Entry]


def read_committed(directory: Path) -> CommittedLog:
    """Read the store in ``directory`` (``data/farms/<farm>``, its data directory held), as far back as it
    goes: from index 1, else from the oldest state that it has. Nothing is changed.

    The log knows of some of its last entries only later that they are committed: these are left out.

    Raises `StorageMissing`, `StorageVersion`, `StorageDamaged`, `StorageError`.
    """
    path = directory / LOG
    try:
        path = log_directory(directory)
        if not path.exists():
            refuse_unknown(directory)
            raise StorageMissing(f"there is no log in {directory}")
        log = read_log(path)
        if unknown := unknown_algorithm(log.genesis.algorithm):
            raise StorageVersion(
                f"{path} is of {unknown}. Nothing was changed; use the program that wrote it"
            )
        begins, told = None, []
        if log.boundary.index:
            for found in snapshots_of_log(directory / SNAPSHOTS, path, log):
                if isinstance(found, str):
                    told.append(found)
                else:
                    begins = found
            if begins is None:
                problems = "; ".join(told) or f"{directory / SNAPSHOTS} holds none"
                raise Corrupt(
                    f"the log begins after {log.boundary.index}, without a snapshot of that. {problems}"
                )
        after = 0 if begins is None else begins.index
        entries = entries_from(path, log.index, after + 1, log.hard_state.commit, _PAGE_BYTES)
        return CommittedLog(log.genesis, begins, list(entries))
    except (OSError, Corrupt) as error:
        raise storage_error(error, path) from error
