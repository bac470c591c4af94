"""Rewriting a log in the format of its level, when a store is opened.

A log that was raised to a level while it was written has segments of older formats before it. `migrated`
writes the whole log again beside it; the old one is kept until the next start that finds the log migrated::

    log        the log
    log.new    the log in the new format, while it is written
    log.4      the log as it was

``log.new`` is synced, then ``log`` is renamed to ``log.4``, then ``log.new`` to ``log``, and the directory is
synced after each. So after a crash ``log`` is the old one, or missing beside a complete ``log.new``, or the
new one. Older programs refuse a store in any of these states: for the format of its last segment, or for
the names that they do not know.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from garlicfarm.durable_files import fsync_path
from garlicfarm.storage.appender import LOG, write_log
from garlicfarm.storage.damage import Corrupt
from garlicfarm.storage.formats import format_of
from garlicfarm.storage.segments import Log, entries_from, read_log

KEPT = "log.4"
NEW = "log.new"


def log_directory(directory: Path) -> Path:
    """Where the log of the farm's store in ``directory`` is: ``log``, or ``log.new`` if a start was
    interrupted between its renames. It need not exist.

    Raises `Corrupt`: there is only a part of what such a start leaves.
    """
    log, new, kept = (directory / name for name in (LOG, NEW, KEPT))
    found = new.exists(), kept.exists()
    if log.exists() or not any(found):
        return log
    if all(found):
        return new
    raise Corrupt(f"there is no log beside {(new if found[0] else kept).name}")


def finish_migration(directory: Path) -> None:
    """Give ``log.new`` its name if a start was interrupted before it did; durable on return.

    Raises `OSError`, `Corrupt`.
    """
    if log_directory(directory).name == NEW:
        (directory / NEW).rename(directory / LOG)
        fsync_path(directory)


def migrated(directory: Path, log: Log) -> tuple[Log, str]:
    """Rewrite the log in ``directory``, which ``log`` is what was read of, if segments that are needed are
    older than the format of its level; durable on return. Returns what is read of the new one; or ``log``,
    and a sentence if it could not be rewritten: then it is as before. Takes about 1 MiB of memory. Blocking.

    Raises `OSError` (after which only the next start may go on), `Corrupt`.
    """
    path, new, kept = (directory / name for name in (LOG, NEW, KEPT))
    wanted, needed = format_of(log.level), log.index.oldest_segment() or log.end.number
    if not log.level:
        return log, ""
    if log.formats[needed] == wanted:
        for left in (new, kept):
            shutil.rmtree(left, ignore_errors=True)
        return log, ""
    entries = entries_from(path, log.index, log.index.first, log.index.last)
    try:
        write_log(new, log.genesis, log.hard_state, log.boundary, entries, log.level)
        found = read_log(new)
        if (found.hard_state, found.boundary, found.index.last) != (
            log.hard_state,
            log.boundary,
            log.index.last,
        ):
            raise Corrupt(f"{new.name} is not what was written there")
        path.rename(kept)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        return log, (
            f"{path} is at level {log.level}, and cannot be rewritten in format version {wanted}: "
            f"{error.strerror or error}. It is used as it is; the next start tries again"
        )
    fsync_path(directory)
    new.rename(path)
    fsync_path(directory)
    return found, ""
