"""Rankings as Parquet files: ``DIRECTORY/farm=NAME/date=YYYY-MM-DD/FIRST-LAST-DIGEST.parquet``.

The date is that of the farm time, in UTC. A file's name follows from the rows in it: the indexes of the first
and the last one, and a digest of what they say. A batch that Spark repeats after a crash gets the names that
it had, so it adds no row, and no list of written batches is needed, which would grow for ever. A file
appears under its name only when it is complete; what is being written has a name with a leading dot, which
readers of Parquet directories pass over.

The columns are those of `rankings`, but ``farm`` and ``date`` are in the path.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.parquet

from garlicfarm.errors import GarlicFarmError
from garlicfarm_plugin_spark.directory import claim_directory, open_directory
from garlicfarm_plugin_spark.period import date_of
from garlicfarm_plugin_spark.ranking import Rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ParquetSink:
    """For ``foreachBatch`` of a query on `rankings`: adds the rows of each batch, on the driver."""

    def __init__(self, spark: SparkSession, where: str, rows: Rows = "changes") -> None:
        """``where``: a path, or a URI of a Hadoop file system. ``rows``: as those of `rankings`.

        Raises what `claim_directory` does.
        """
        self._directory = open_directory(where, spark)
        claim_directory(self._directory, rows)

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Raises `GarlicFarmError` if a file cannot be written; the batch can be repeated."""
        try:
            for name, part in parts(batch.toArrow()):
                self._directory.add(name, encoded(part))
        except (pyarrow.ArrowException, MemoryError) as error:
            said = str(error).partition("\n")[0]
            raise GarlicFarmError(
                f"the rows of batch {number} cannot be stored in {self._directory.name} ({said})"
            ) from error


def parts(table: pyarrow.Table) -> Iterator[tuple[str, pyarrow.Table]]:
    """Cut the columns of `rankings` into files: (path below the directory, rows by index)."""
    table = table.sort_by("log_index")
    dates = [date_of(time_ms) for time_ms in table["farm_time_ms"].to_pylist()]
    farms, ids = table["farm"].to_pylist(), table["farm_id"].to_pylist()
    places: dict[tuple[str, str, str], list[int]] = {}
    for number, of in enumerate(zip(farms, dates, ids, strict=True)):
        places.setdefault(of, []).append(number)
    for (farm, date, _), numbers in sorted(places.items()):
        part = table.take(numbers).drop_columns(["farm"])
        yield f"farm={farm}/date={date}/{file_name(part)}", part


def file_name(part: pyarrow.Table) -> str:
    """Of rows of one farm and date, by index. Same rows, same name."""
    names = ("farm_id", "log_index", "changed", "state_sha256")
    said = list(zip(*(part[name].to_pylist() for name in names), strict=True))
    digest = sha256(repr(said).encode()).hexdigest()[:12]
    return f"{said[0][1]:020d}-{said[-1][1]:020d}-{digest}.parquet"


def encoded(part: pyarrow.Table) -> bytes:
    """The bytes of a Parquet file."""
    out = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(part, out, compression="zstd")
    return bytes(out.getvalue().to_pybytes())


def unrepeated(table: pyarrow.Table) -> pyarrow.Table:
    """The rows by farm, its id and index, each index once."""
    order = [name for name in ("farm", "farm_id", "log_index") if name in table.column_names]
    table = table.sort_by([(name, "ascending") for name in order])
    keys = table.select(["farm_id", "log_index"])
    numbered = keys.append_column("number", pyarrow.array(range(table.num_rows), pyarrow.int64()))
    first = numbered.group_by(keys.column_names).aggregate([("number", "min")])["number_min"]
    return table.take(first.combine_chunks().sort())
