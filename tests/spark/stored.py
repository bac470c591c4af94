"""Rankings of a log as Arrow tables, as Spark gives them to the sink."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.dataset

from garlicfarm.raft.types import Entry
from garlicfarm_plugin_spark.directory import LocalDirectory
from garlicfarm_plugin_spark.parquet import encoded, parts, unrepeated
from garlicfarm_plugin_spark.ranking import Fold, Rows
from tests.spark.script import fold_rows

FARM_ID = "07" * 16
_IDS = pyarrow.list_(pyarrow.int64())
SCHEMA = pyarrow.schema(
    [
        ("farm", pyarrow.string()),
        ("farm_id", pyarrow.string()),
        *((name, pyarrow.int64()) for name in ("log_index", "farm_time_ms", "interval_ms")),
        ("changed", pyarrow.list_(pyarrow.string())),
        ("publisher", pyarrow.int64()),
        *((name, _IDS) for name in ("holders", "recent", "order")),
        ("scores", pyarrow.map_(pyarrow.int64(), pyarrow.int64())),
        ("contents", pyarrow.binary()),
        ("skipped", pyarrow.map_(pyarrow.string(), pyarrow.int64())),
        *((name, pyarrow.string()) for name in ("ranking", "state_sha256")),
    ]
)


def ranked(log: Sequence[Entry], kind: Rows = "changes", farm_id: str = FARM_ID) -> list[dict[str, Any]]:
    """The rows of `rankings`."""
    return [{**row, "farm_id": farm_id} for row in Fold("farm").rankings(fold_rows(log), kind)]


def table_of(rows: Iterable[Mapping[str, Any]]) -> pyarrow.Table:
    """What the sink gets of a batch."""
    return pyarrow.Table.from_pylist(
        [{**row, "scores": [*row["scores"].items()], "skipped": [*row["skipped"].items()]} for row in rows],
        SCHEMA,
    )


class Batch:
    """As Spark hands one to the sink."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows

    def toArrow(self) -> pyarrow.Table:
        return table_of(self._rows)


def write(directory: Path, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """As the sink writes one batch; the files' names."""
    table = table_of(rows)
    names = []
    for name, part in parts(table):
        LocalDirectory(directory).add(name, encoded(part))
        names.append(name)
    return names


def write_in_batches(directory: Path, rows: Sequence[Mapping[str, Any]], seed: int, most: int = 40) -> None:
    """Cut at random."""
    chance, begin = random.Random(seed), 0
    while begin < len(rows):
        end = begin + chance.randint(1, most)
        write(directory, rows[begin:end])
        begin = end


def read_rankings(directory: Path, columns: Sequence[str]) -> pyarrow.Table:
    """All rows at once, each index once, by farm, its id and index."""
    partitions = pyarrow.dataset.partitioning(
        pyarrow.schema([("farm", pyarrow.string()), ("date", pyarrow.string())]), flavor="hive"
    )
    found = pyarrow.dataset.dataset(directory, format="parquet", partitioning=partitions)
    return unrepeated(found.to_table(columns=["farm", "farm_id", "log_index", *columns]))
