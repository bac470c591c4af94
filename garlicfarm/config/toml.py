"""TOML as text: read with a limit of its depth, and written."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

MAX_DEPTH = 32
"""Of tables and lists in a document: ours need five levels, a plugin's table some more."""


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML document. Raises `ValueError`: it is malformed, or nested deeper than `MAX_DEPTH`."""
    too_deep = ValueError(f"nested more than {MAX_DEPTH} deep")
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise too_deep from None
    level: list[Any] = [document]
    for _ in range(MAX_DEPTH + 1):
        children = (child for each in level for child in (each.values() if isinstance(each, dict) else each))
        level = [child for child in children if isinstance(child, dict | list)]
        if not level:
            return document
    raise too_deep


def to_toml(document: Mapping[str, Any]) -> str:
    """The text of a document: of each table its values, then the tables in it, an empty line before each."""
    return "".join(f"{line}\n" for line in _lines(document, ""))


def _lines(table: Mapping[str, Any], path: str) -> Iterator[str]:
    inner: list[tuple[str, str, Any]] = []
    for name, value in table.items():
        below = f"{path}.{_key(name)}" if path else _key(name)
        if isinstance(value, Mapping):
            inner.append((f"[{below}]", below, value))
        elif isinstance(value, list | tuple) and value and all(isinstance(item, Mapping) for item in value):
            inner += [(f"[[{below}]]", below, item) for item in value]
        else:
            yield f"{_key(name)} = {_value(value)}"
    for heading, below, value in inner:
        lines = list(_lines(value, below))
        if lines[:1] != [""] or heading.startswith("[["):  # else the tables in it are enough
            lines = ["", heading, *lines]
        yield from lines


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: Any) -> str:
    match value:
        case str() | bool():
            # JSON's spelling is TOML's, except for what is not printable: a terminal gets the text of a file.
            return re.sub(r"[^ -~]", _escaped, json.dumps(value, ensure_ascii=False))
        case int() | float():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(map(_value, value))}]"
        case Mapping():
            return f"{{{', '.join(f'{_key(name)} = {_value(inner)}' for name, inner in value.items())}}}"
    return str(value.isoformat())


def _escaped(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else f"\\U{ord(found[0]):08x}"
