"""The file of `rank whatif --parquet`: written there, and read for the page of `rank report --whatif`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from garlicfarm.durable_files import replace_file
from garlicfarm.errors import ConfigError
from garlicfarm_plugin_spark.whatif import Outcome

_SCHEMA = pyarrow.schema(
    [
        ("farm", pyarrow.string()),
        ("farm_id", pyarrow.string()),
        ("first_index", pyarrow.int64()),
        ("last_index", pyarrow.int64()),
        ("current", pyarrow.bool_()),
        ("weights", pyarrow.map_(pyarrow.string(), pyarrow.int64())),
        *((name, pyarrow.int64()) for name in Outcome.__struct_fields__ if name != "weights"),
    ]
)


def write_outcomes(log: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """A row for each outcome, in that order; its columns are in docs/reference/spark.md. The file appears
    whole, and replaces an older one.

    :param log: the columns that all have.
    :param rows: of `Answer.row`.
    :raises ConfigError: it cannot be written.
    """
    whole = [{**log, **row, "weights": [*row["weights"].items()]} for row in rows]
    data = BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(whole, _SCHEMA), data)
    try:
        replace_file(path, [data.getvalue()], 0o644)
    except OSError as error:
        raise ConfigError([f"--parquet: {path} cannot be written ({error.strerror})"]) from error


def read_outcomes(path: Path, farm_id: str) -> list[dict[str, Any]]:
    """The rows of such a file, as written; ``weights`` as a dict.

    :raises ConfigError: it is none, cannot be read, or is of another farm than that with ``farm_id``.
    """
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigError([f"--whatif: {path} cannot be read ({error})"]) from error
    if table.schema.names != _SCHEMA.names:
        raise ConfigError([f"--whatif: {path} is not a file of rank whatif --parquet"])
    rows: list[dict[str, Any]] = [{**row, "weights": dict(row["weights"])} for row in table.to_pylist()]
    for row in rows:
        if row["farm_id"] != farm_id:
            raise ConfigError([f"--whatif: {path} is of another farm, with the id {row['farm_id']}"])
    return rows
