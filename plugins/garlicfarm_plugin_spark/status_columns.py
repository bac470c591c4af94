"""Statuses as typed columns: the JSON of entries, parsed in the JVM.

The types are those of `garlicfarm.publishing.documents`, and come from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec.inspect as types

from garlicfarm.publishing.documents import NodeReport, StatusDocument
from garlicfarm.publishing.entries import DATE_END_MS
from garlicfarm.publishing.strict_json import MAX_ENTRY_BYTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CORRUPT = "_corrupt"


def _columns() -> dict[str, str]:
    info = types.type_info(StatusDocument)
    assert isinstance(info, types.StructType)
    found = {
        field.encode_name: field for field in info.fields if field.encode_name not in ("cluster", "config")
    }
    node = _spark_type(types.type_info(NodeReport))
    return {**{name: _spark_type(field.type) for name, field in found.items()}, "node": node}


def _spark_type(info: types.Type) -> str:
    match info:
        case types.Metadata(type=inner):
            return _spark_type(inner)
        case types.UnionType(types=alternatives):
            (one,) = (each for each in alternatives if not isinstance(each, types.NoneType))
            return _spark_type(one)
        case types.IntType():
            return "bigint"
        case types.BoolType():
            return "boolean"
        case types.StrType() | types.LiteralType():
            return "string"
        case types.VarTupleType(item_type=item):
            return f"array<{_spark_type(item)}>"
        case types.StructType(array_like=True, fields=fields):
            (inside,) = {_spark_type(field.type) for field in fields}
            return f"array<{inside}>"
        case types.StructType(fields=fields):
            inside = ", ".join(f"`{field.encode_name}`: {_spark_type(field.type)}" for field in fields)
            return f"struct<{inside}>"
    raise TypeError(f"no column for {info}")


COLUMNS = {"farm": "string", "farm_id": "string", "log_index": "bigint", "term": "bigint", **_columns()}
"""The columns of `statuses`, by name: those of the entry, and the keys of the document with their types in
Spark. ``node`` is the key ``config.node``."""

_DOCUMENT = ", ".join(
    [
        "cluster string",
        *(f"`{name}` {kind}" for name, kind in _columns().items() if name != "node"),
        f"config struct<node: {COLUMNS['node']}, admin: string>",
        f"{_CORRUPT} string",
    ]
)
_STRICT = {
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}


def statuses(entries: DataFrame) -> DataFrame:
    """The members' statuses in rows of ``format("garlicfarm")``, a stream or a batch; see `COLUMNS`.

    Left out: Configurations, states, notes, administrative entries, and entries that are larger than 65,536
    bytes, are no JSON object, are of another cluster, lack ``id`` or ``date``, or have another value where a
    number, a truth value, a list or an object belongs. What else makes an entry invalid for the nodes
    (`garlicfarm.publishing.entries`) is not checked: numbers out of range, keys that appear twice, text that
    is not I2P base64, authors that are no members.
    """
    from pyspark.sql import functions

    document = functions.from_json(entries["value"].cast("string"), _DOCUMENT, _STRICT)
    rows = entries.where(f"value_type = 1 and octet_length(value) <= {MAX_ENTRY_BYTES}").withColumn(
        "document", document
    )
    valid = rows.where(
        f"document.{_CORRUPT} is null and document.cluster = farm and document.id >= 1"
        f" and document.date >= 0 and document.date < {DATE_END_MS} and document.config.admin is null"
    )
    return valid.select(
        "farm",
        "farm_id",
        "log_index",
        "term",
        *(f"document.{name}" for name in _columns() if name != "node"),
        "document.config.node",
    )
