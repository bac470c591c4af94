"""Converting raw TOML to typed sections, field by field, so that one pass finds all problems."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from garlicfarm.config.model import OptionalDirectory, OptionalPath, Origin, OtherKeys
from garlicfarm.errors import ConfigError
from garlicfarm.names import did_you_mean

Sources = dict[str, str]
"""Key path (``farm[0].raft.heartbeat_s``) to the source of its value. Values without an entry come from the
file."""

S = TypeVar("S", bound=msgspec.Struct)


class Converter:
    """Converts one document and collects ``problems`` and ``origins``."""

    def __init__(self, base_dir: Path, sources: Sources) -> None:
        self._base_dir = base_dir
        self._sources = sources
        self.problems: list[str] = []
        self.origins: list[Origin] = []

    def table(self, kind: type[S], raw: Any, key: str) -> S | None:
        """An instance of ``kind``, or None if it has a problem, which is noted."""
        if not isinstance(raw, dict):
            self._problem(key, f"{_shown(raw)} is not allowed; it must be a table")
            return None
        fields = msgspec.structs.fields(kind)
        known = [field.name for field in fields if field.type != OtherKeys]
        others = other_keys(kind)
        if others is not None:
            taken = {name: value for name, value in raw.items() if name in known}
            raw = {**taken, others: {name: value for name, value in raw.items() if name not in known}}
        found = len(self.problems)
        for name in raw:
            if name not in known and name != others:
                self._problem(join(key, name), unknown_key(name, known))
        values = {
            field.name: self._field(field, raw, key if field.name == others else join(key, field.name))
            for field in fields
        }
        if len(self.problems) > found:
            return None
        try:
            return kind(**values)
        except ConfigError as error:  # a rule between the fields of one table
            self.problems += [join(key, problem) for problem in error.problems]
            return None

    def _field(self, field: msgspec.structs.FieldInfo, raw: dict[str, Any], key: str) -> Any:
        section = section_type(field.type)
        if section is not None:
            if is_list(field.type):
                return self._tables(section, raw.get(field.name, []), key)
            return self.table(section, raw.get(field.name, {}), key)
        if field.name in raw:
            value = self._value(field.type, raw[field.name], key)
            self._origin(key, value, "file")
        elif field.required:
            self._problem(key, f"missing; it must be {_meta(field.type).description}")
            value = None
        else:
            value = {} if field.default is msgspec.NODEFAULT else field.default
            if isinstance(value, Path):  # a default path is also relative to the file
                value = self._base_dir / value
            self._origin(key, value, "default")
        return value

    def _tables(self, kind: type[S], raw: Any, key: str) -> tuple[S | None, ...]:
        if not isinstance(raw, list):
            self._problem(key, f"{_shown(raw)} is not allowed; it must be a list of tables, as [[{key}]]")
            return ()
        return tuple(self.table(kind, item, f"{key}[{index}]") for index, item in enumerate(raw))

    def _value(self, kind: Any, value: Any, key: str) -> Any:
        if value == "" and kind in (OptionalPath, OptionalDirectory):
            return None
        meta = _meta(kind)
        form = (meta.extra or {}).get("form", lambda converted: True)
        try:
            converted = msgspec.convert(value, kind, dec_hook=self._path)
        except msgspec.ValidationError:
            valid = False
        else:
            # TOML has nan, and nan passes every range.
            valid = form(converted) and converted == converted
        if not valid:
            self._problem(key, f"{_shown(value)} is not allowed; it must be {meta.description}")
            return None
        return converted

    def _path(self, kind: type, value: Any) -> Path:
        if kind is Path and isinstance(value, str) and value and "\0" not in value:
            return self._base_dir / value
        raise ValueError("not a path")

    def _origin(self, key: str, value: Any, otherwise: str) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                self._origin(join(key, name), inner, otherwise)
        else:
            self.origins.append(Origin(key, value, self._sources.get(key, otherwise)))

    def _problem(self, key: str, sentence: str) -> None:
        source = self._sources.get(key, "")
        self.problems.append(f"{key} (from the {source}): {sentence}" if source else f"{key}: {sentence}")


def other_keys(kind: type[msgspec.Struct]) -> str | None:
    """The field that takes the keys that have no field of their own; None: such keys are problems."""
    return next((field.name for field in msgspec.structs.fields(kind) if field.type == OtherKeys), None)


def section_type(kind: Any) -> type[msgspec.Struct] | None:
    """The struct in a field of type ``X`` or ``tuple[X, ...]``; None if the field is a value."""
    item = get_args(kind)[0] if is_list(kind) else kind
    return item if isinstance(item, type) and issubclass(item, msgspec.Struct) else None


def is_list(kind: Any) -> bool:
    """Whether a field holds a list of tables."""
    return get_origin(kind) is tuple


def unknown_key(name: str, known: Iterable[str]) -> str:
    """The problem of a key that does not exist."""
    known = list(known)
    allowed = f"; allowed here: {', '.join(known)}"
    return f"no such key{did_you_mean(name, known) or allowed}"


def join(key: str, name: str) -> str:
    """The path of the key ``name`` in the table ``key`` ("": the whole file)."""
    return f"{key}.{name}" if key else name


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _meta(kind: Any) -> msgspec.Meta:
    (meta,) = kind.__metadata__
    assert isinstance(meta, msgspec.Meta)
    return meta
