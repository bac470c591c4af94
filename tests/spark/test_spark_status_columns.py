"""The types of `statuses` come from the documents. Needs no Spark."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from garlicfarm.publishing.documents import NodeReport, StatusDocument
from garlicfarm_plugin_spark.status_columns import COLUMNS


def keys(kind: type[msgspec.Struct]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(kind)]


def test_columns_are_the_keys_of_the_document_and_of_the_nodes_report() -> None:
    of_document = [name for name in keys(StatusDocument) if name not in ("cluster", "config")]
    assert list(COLUMNS) == ["farm", "farm_id", "log_index", "term", *of_document, "node"]
    assert re.findall(r"`(\w+)`", COLUMNS["node"]) == keys(NodeReport)


def test_columns_hold_numbers_lists_and_objects_as_their_own_types() -> None:
    inside: dict[str, Any] = dict(re.findall(r"`(\w+)`: (\w+(?:<\w+(?:<\w+>)?>)?)", COLUMNS["node"]))
    assert inside["interval_ms"] == "bigint"
    assert inside["version"] == "string"
    assert inside["tests"] == "array<array<bigint>>"
    assert inside["transients"] == "array<string>"
    assert COLUMNS["meta"].endswith("`publishConfig`: string, `publishing`: boolean>")
    assert "`currentTunnels`: struct<`in`: bigint, `out`: bigint>" in COLUMNS["destinations"]
