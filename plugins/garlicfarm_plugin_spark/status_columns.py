"""Statuses as typed columns: the JSON of entries, parsed in the JVM.

The types are those of `garlicfarm.publishing.documents`, and come from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec.inspect as types
from msgspec.structs import fields

from garlicfarm.publishing.documents import NodeReport, StatusDocument
from garlicfarm.publishing.entries import DATE_END_MS
from garlicfarm.publishing.strict_json import MAX_ENTRY_BYTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CORRUPT = "_corrupt"


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
        case types.StructType(array_like=True, fields=inner_fields):
            (inside,) = {_spark_type(field.type) for field in inner_fields}
            return f"array<{inside}>"
        case types.StructType(fields=inner_fields):
            inside = ", ".join(f"`{field.encode_name}`: {_spark_type(field.type)}" for field in inner_fields)
            return f"struct<{inside}>"
    raise TypeError(f"no column for {info}")


_KEYS = {
    field.encode_name: _spark_type(types.type_info(field.type))
    for field in fields(StatusDocument)
    if field.encode_name not in ("cluster", "config")
}
_NODE = _spark_type(types.type_info(NodeReport))
_ENTRY = {"farm": "string", "farm_id": "string", "log_index": "bigint", "term": "bigint"}
COLUMNS = {**_ENTRY, **_KEYS, "node": _NODE}
"""The columns of `statuses`, by name: those of the entry, and the keys of the document with their types in
Spark. ``node`` is the key ``config.node``."""

_DOCUMENT = ", ".join(
    [
        "cluster string",
        *(f"`{name}` {kind}" for name, kind in _KEYS.items()),
        f"config struct<node: {_NODE}, admin: string>",
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
    return valid.select(*_ENTRY, *(f"document.{name}" for name in _KEYS), "document.config.node")
