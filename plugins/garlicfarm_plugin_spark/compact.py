"""Merges the small files of stored rankings, each farm's and date's into few.

It works beside a running writer, and a kill loses nothing: a merged file gets its name once it is durable,
and only then are the files removed that were read for it. Files that came in between are left alone. In the
meantime, and after a kill, a row can be in two files; `garlicfarm_plugin_spark.stored_rows` returns it once.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from garlicfarm.durable_files import fsync_path
from garlicfarm.errors import ConfigError, GarlicFarmError
from garlicfarm_plugin_spark.directory import LocalDirectory, locked
from garlicfarm_plugin_spark.parquet import encoded, file_name, unrepeated
from garlicfarm_plugin_spark.stored_rows import StoredFile, stored_farms

MOST_BYTES = 256 * 1024 * 1024
"""Files are merged up to this size together, as it is in memory: rankings compress to a 30th to a 200th."""


@dataclass(frozen=True)
class Merged:
    """``files`` of a farm and date have become ``left``; in these there are ``rows``."""

    farm: str
    date: str
    files: int
    left: int
    rows: int


def compact(directory: Path, most_bytes: int = MOST_BYTES) -> Iterator[Merged]:
    """Merge the files in ``directory``, one date of a farm after the other; what is done, as it is done.

    Raises `ConfigError` if it has no rankings, or other files, or another process merges them; nothing is
    changed then. Raises `GarlicFarmError` if a file cannot be read or written; nothing is lost then.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(directory, os.O_RDONLY | os.O_DIRECTORY))
        except BlockingIOError as error:
            raise ConfigError([f"another `rank compact` is working in {directory}: wait for it"]) from error
        except OSError as error:
            raise ConfigError([f"{directory} is not a directory of rankings ({error.strerror})"]) from error
        stored = LocalDirectory(directory)
        known: defaultdict[Path, list[StoredFile]] = defaultdict(list)
        for farm in stored_farms(directory):
            for file in farm.files():
                known[file.path.parent].append(file)
        for folder in sorted(directory.glob("farm=*/date=*")):
            try:
                stored.clear(str(folder.relative_to(directory)))
            except OSError as error:
                raise _failed(folder, error) from error
            files = [each for each in known[folder] if each.path.exists()]
            groups = [group for group in _groups(files, most_bytes) if len(group) > 1]
            if groups:
                rows, left = zip(*(_merge(stored, directory, folder, group) for group in groups), strict=True)
                merged = sum(map(len, groups))
                name, date = (part.name.partition("=")[2] for part in (folder.parent, folder))
                yield Merged(name, date, len(files), len(files) - merged + sum(left), sum(rows))


def _groups(files: list[StoredFile], most_bytes: int) -> Iterator[list[Path]]:
    """Neighbours by name that have no more than ``most_bytes`` together, or one of any size."""
    group: list[Path] = []
    total = 0
    for file in sorted(files, key=lambda each: each.path):
        if group and total + file.size_bytes > most_bytes:
            yield group
            group, total = [], 0
        group.append(file.path)
        total += file.size_bytes
    if group:
        yield group


def _merge(stored: LocalDirectory, directory: Path, folder: Path, files: list[Path]) -> tuple[int, int]:
    """The number of rows and of files that they are in now."""
    try:
        tables = [pyarrow.parquet.ParquetFile(path).read() for path in files]
        table = unrepeated(pyarrow.concat_tables(tables, promote_options="default"))
        kept = set()
        # A farm that was made anew under its old name has another id.
        for farm_id in sorted(set(table["farm_id"].to_pylist())):
            part = table.filter(pyarrow.compute.equal(table["farm_id"], farm_id))
            path = folder / file_name(part)
            stored.add(str(path.relative_to(directory)), encoded(part))
            kept.add(path)
        for path in files:
            if path not in kept:
                path.unlink()
        fsync_path(folder)
    except (OSError, pyarrow.ArrowException) as error:
        raise _failed(folder, error) from error
    return table.num_rows, len(kept)


def _failed(folder: Path, error: Exception) -> GarlicFarmError:
    said = str(error).partition("\n")[0]
    return GarlicFarmError(f"{folder} cannot be compacted: {said}")
