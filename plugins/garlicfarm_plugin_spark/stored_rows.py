"""The rows of stored rankings in the order of their indexes, in bounded memory.

Farm time may go back, so dates alone do not give that order. The files of a farm are merged, and only files
whose indexes overlap are open together: where dates meet, or a second query stored the same rows.

It works beside a writer and beside `rank compact`. Where a file is gone that was listed, its rows are in
another one by then: the files are listed again, and the merge continues after the newest index.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from garlicfarm.errors import ConfigError
from garlicfarm_plugin_spark.directory import LocalDirectory, check_directory
from garlicfarm_plugin_spark.ranking import COLUMNS

_BATCH_ROWS = 256
"""Rows of a large farm take tens of kB as Python's own types."""

_BUFFER_BYTES = 1 << 20
_ATTEMPTS = 5
_COLUMNS = {*re.findall(r"(\w+)`? \w+(?:<.+?>)?(?:, |$)", COLUMNS)} - {"farm"}  # that is in the path
_TOLD = {"farm_id": "BYTE_ARRAY", "log_index": "INT64", "farm_time_ms": "INT64"}
"""The columns whose range a footer has to tell, with their types."""


@dataclass(frozen=True)
class StoredFile:
    """What the footer of a file says of its rows."""

    path: Path
    farm_id: str
    first: int
    """index"""
    last: int
    newest_ms: int
    """farm time"""
    size_bytes: int
    """without its compression"""


@dataclass(frozen=True)
class StoredFarm:
    """The rankings of the farms of one name, which has an id of its own each time that it was made anew."""

    directory: Path
    name: str

    _known: dict[Path, StoredFile | None] = field(default_factory=dict, compare=False)

    @property
    def newest_date(self) -> str:
        """As 2026-11-23. Raises `ConfigError`: there are no rankings."""
        with _listed(self.directory):
            dates = [path.parent.name.partition("=")[2] for path in self._paths("")]
        if not dates:
            raise _none(self.directory, self.name)
        return max(dates)

    def files(self, since: str = "") -> list[StoredFile]:
        """Those of dates from ``since`` on, which is as 2026-11-23."""
        for attempt in count(1):
            with _listed(self.directory) if attempt == _ATTEMPTS else suppress(FileNotFoundError):
                return [each for each in map(self._described, self._paths(since)) if each is not None]
        raise AssertionError

    def rows(
        self,
        farm_id: str,
        columns: Sequence[str],
        *,
        since: str = "",
        indexes: Collection[int] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Each index once, in order.

        :param columns: of `rankings`. ``farm``, ``farm_id`` and ``log_index`` are there anyway.
        :param since: only of dates from this one on, as 2026-11-23.
        :param indexes: only these.
        :raises ConfigError: a file cannot be read, or is no file of rankings.
        """
        newest, attempts = -1, 0
        while True:
            due = [
                each
                for each in self.files(since)
                if each.farm_id == farm_id
                and each.last > newest
                and (indexes is None or any(each.first <= index <= each.last for index in indexes))
            ]
            try:
                for row in _merged(due, ["log_index", *columns], indexes):
                    if row["log_index"] > newest:
                        newest, attempts = row["log_index"], 0
                        yield {"farm": self.name, "farm_id": farm_id, **row}
                return
            except FileNotFoundError as error:
                attempts += 1
                if attempts == _ATTEMPTS:
                    raise _unreadable(self.directory, error) from error

    def _described(self, path: Path) -> StoredFile | None:
        """Its footer is read once: what a file has follows from its name."""
        if path not in self._known:
            self._known[path] = _described(path)
        return self._known[path]

    def _paths(self, since: str) -> Iterator[Path]:
        """Raises `ConfigError`: there is something else, and `FileNotFoundError`: a directory is gone."""
        for date in _names(self.directory / f"farm={self.name}", "date="):
            if date >= since:
                for path in _names(self.directory / f"farm={self.name}" / f"date={date}", ""):
                    yield self.directory / f"farm={self.name}" / f"date={date}" / path


def stored_farms(directory: Path, name: str | None = None) -> list[StoredFarm]:
    """The farms that have rankings in ``directory``, by name; or only the one of this ``name``.

    Raises `ConfigError`: there are none, or there is something else.
    """
    check_directory(LocalDirectory(directory))
    with _listed(directory):
        found = [
            farm
            for farm in (StoredFarm(directory, each) for each in _names(directory, "farm="))
            if name in (None, farm.name) and next(farm._paths(""), None) is not None
        ]
    if not found:
        raise _none(directory, name)
    return found


def no_time(directory: Path, name: str | None) -> ConfigError:
    """There is no history yet, of the farm of this name or of any."""
    return ConfigError([f"{directory} has no two rankings{_of(name)} at different times yet"])


def _of(name: str | None) -> str:
    return "" if name is None else f" of the farm {name}"


def _none(directory: Path, name: str | None) -> ConfigError:
    return ConfigError(
        [f"{directory} has no rankings{_of(name)}: `garlicfarm rank --sink parquet:{directory}` adds them"]
    )


def _unreadable(path: Path, error: OSError) -> ConfigError:
    said = (error.strerror or str(error)).partition("\n")[0]
    return ConfigError([f"{path} cannot be read ({said})"])


def _names(folder: Path, prefix: str) -> list[str]:
    """What is in a folder, without ``prefix``, by name; what readers of Parquet pass over is left out."""
    with _read(folder):
        found = [path.name for path in folder.iterdir() if path.name[0] not in "._"]
    for each in found:
        if not each.startswith(prefix):
            raise _foreign(folder / each, f"its name does not begin with {prefix}")
    return sorted(each.removeprefix(prefix) for each in found)


def _foreign(path: Path, why: object) -> ConfigError:
    said = str(why).partition("\n")[0]
    return ConfigError([f"{path.parent} has files that are not rankings: {path.name} ({said})"])


@contextmanager
def _listed(directory: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise _unreadable(directory, error) from error


@contextmanager
def _read(path: Path) -> Iterator[None]:
    """Raises `ConfigError` where it cannot be read, but `FileNotFoundError` as it is."""
    try:
        yield
    except FileNotFoundError:
        raise
    except NotADirectoryError as error:
        raise _foreign(path, "it is a file") from error
    except OSError as error:
        raise _unreadable(path, error) from error
    except pyarrow.ArrowException as error:
        raise _foreign(path, error) from error


def _described(path: Path) -> StoredFile | None:
    """None: it has no rows."""
    ranges: dict[str, tuple[Any, Any]] = {}
    described = 0
    with _read(path):
        footer = pyarrow.parquet.read_metadata(path)
        if missing := _COLUMNS.difference(footer.schema.to_arrow_schema().names):
            raise _foreign(path, f"it has no column {min(missing)}")
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        for group in groups:
            for column in map(group.column, range(group.num_columns)):
                name, told = column.path_in_schema, column.statistics
                if _TOLD.get(name) == column.physical_type and told and told.has_min_max:
                    low, high = ranges.get(name, (told.min, told.max))
                    ranges[name] = min(low, told.min), max(high, told.max)
                    described += 1
    if not footer.num_rows:
        return None
    if described < len(_TOLD) * footer.num_row_groups or ranges["farm_id"][0] != ranges["farm_id"][1]:
        raise _foreign(path, "its footer names no single farm_id, log_index and farm_time_ms")
    size_bytes = sum(group.total_byte_size for group in groups)
    return StoredFile(path, ranges["farm_id"][0], *ranges["log_index"], ranges["farm_time_ms"][1], size_bytes)


def _merged(
    files: Sequence[StoredFile], columns: list[str], indexes: Collection[int] | None
) -> Iterator[dict[str, Any]]:
    """The rows of all files, by index. Files whose indexes do not overlap are read one after the other."""
    chains: list[list[StoredFile]] = []
    for file in sorted(files, key=lambda each: (each.first, each.path.name)):
        free = next((each for each in chains if each[-1].last < file.first), None)
        if free is None:
            chains.append([file])
        else:
            free.append(file)

    def rows(files: Sequence[StoredFile]) -> Iterator[dict[str, Any]]:
        for file in files:
            yield from _rows(file.path, columns, indexes)

    return heapq.merge(*map(rows, chains), key=itemgetter("log_index"))


def _rows(path: Path, columns: list[str], indexes: Collection[int] | None) -> Iterator[dict[str, Any]]:
    """The rows of one file."""
    newest = -1
    with _read(path), pyarrow.parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES) as file:
        for batch in file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False):
            if indexes is not None:
                among = pyarrow.array(indexes, pyarrow.int64())
                batch = batch.filter(pyarrow.compute.is_in(batch["log_index"], value_set=among))
            for row in batch.to_pylist():
                if row["log_index"] < newest:
                    raise _foreign(path, "its rows are not in the order of their indexes")
                newest = row["log_index"]
                if "scores" in row:
                    row["scores"] = dict(row["scores"])
                yield row
