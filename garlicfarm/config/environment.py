"""Overrides from the environment: ``GARLICFARM_NODE__ID=3`` sets ``node.id``.

A variable is ``GARLICFARM_`` and the key path in capitals, its parts joined by two underscores.

* In a list of tables the next part selects one: by its number from 0 or, for farms, by name
  (compared without regard to case, ``_`` for ``.`` and ``-``):
  ``GARLICFARM_FARM__0__RAFT__PRIORITY``, ``GARLICFARM_FARM__MY_FARM__RAFT__PRIORITY``. Tables that
  are not in the file are not made.
* A string is used as it is. Every other value is parsed as a TOML value (``true``, ``3``, ``1.5``,
  ``["SHA-256"]``), and so are the values of plugin tables (``GARLICFARM_TRANSPORT__SSL__CA=ca.pem``);
  a value that is not TOML is a string.
* Variables without two underscores (``GARLICFARM_CONFIG``) are not overrides.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec

from garlicfarm.config.convert import Sources, is_list, join, other_keys, section_type, unknown_key
from garlicfarm.config.model import Document, PluginTable, PluginTables
from garlicfarm.config.toml import parse_toml

PREFIX = "GARLICFARM_"


def override(raw: dict[str, Any], environ: Mapping[str, str], sources: Sources) -> list[str]:
    """Apply the overrides to ``raw`` and note them in ``sources``; returns the problems."""
    problems = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and "__" in name:
            parts = name[len(PREFIX) :].lower().split("__")
            try:
                key = _set(raw, Document, "", parts, environ[name])
            except NoSuchKey as error:
                problems.append(f"{name} in the environment: {error}")
            else:
                sources[key] = f"environment {name}"
    return problems


def assign(raw: dict[str, Any], key: str, text: str) -> None:
    """Set one value in ``raw`` by its key path, ``farm[0].raft.priority`` or ``farm.NAME.raft.priority``.
    Raises `NoSuchKey`."""
    _set(raw, Document, "", key.replace("[", ".").replace("]", "").split("."), text)


class NoSuchKey(Exception):
    """The key does not exist, or its table is not in the file."""


def _set(raw: Any, kind: type[msgspec.Struct] | None, key: str, parts: list[str], text: str) -> str:
    """Set the key that ``parts`` name below ``raw``, the table ``key`` of type ``kind`` (None: a plugin's).
    Returns its key path."""
    if not isinstance(raw, dict):
        raise NoSuchKey(f"{key} is not a table in the file")
    part, *rest = parts
    key = join(key, part)
    fields = {} if kind is None else {field.name: field.type for field in msgspec.structs.fields(kind)}
    if kind is not None and part not in fields and other_keys(kind) is None:
        raise NoSuchKey(f"{key}: {unknown_key(part, fields)}")
    inner = fields.get(part, Any)
    section = section_type(inner)
    if rest and is_list(inner):
        which, *rest = rest
        table = raw[part][index := _index(raw.get(part), which, key)]
        key = f"{key}[{index}]"
    elif rest:
        if section is None and inner not in (PluginTable, PluginTables, Any):
            raise NoSuchKey(f"{key} is a value, not a table")
        table = raw.setdefault(part, {})
    elif section is None and inner not in (PluginTable, PluginTables):
        raw[part] = text if _takes_text(inner) else _toml(text)
        return key
    if not rest:
        raise NoSuchKey(f"{key} is a table; name a key of it")
    return _set(table, section, key, rest, text)


def _index(tables: Any, which: str, key: str) -> int:
    which = which.lower().replace("-", "_")
    names = [
        str(table.get("name", "") if isinstance(table, dict) else "")
        .lower()
        .replace("-", "_")
        .replace(".", "_")
        for table in (tables if isinstance(tables, list) else ())
    ]
    if which.isascii() and which.isdigit() and int(which) < len(names):
        return int(which)
    if names.count(which) != 1:
        problem = "names none" if which not in names else "names more than one"
        raise NoSuchKey(f"{which.upper()} {problem} of the {len(names)} tables [[{key}]] in the file")
    return names.index(which)


def _takes_text(kind: Any) -> bool:
    return hasattr(kind, "__metadata__") and get_args(kind)[0] in (str, Path, Path | None)


def _toml(text: str) -> Any:
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text
