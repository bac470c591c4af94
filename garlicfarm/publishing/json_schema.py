"""The validity rule as a JSON Schema (draft 2020-12), for programs in other languages.

`entry_schema` is made from the same types as the checkers of `validation`, so the two cannot drift apart; its
copy in the repository is ``docs/reference/status.schema.json``. Only servers check what a schema cannot
express: that ``cluster`` is this farm and ``id`` the author's, that a destination is as long as its
certificate says and none is named twice, that weights add up to 100, size, depth, duplicate keys, and
that ``1.0`` is not an integer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import inspect

from garlicfarm.publishing.administration import ACTIONS, MAX_BY_CHARS
from garlicfarm.publishing.documents import ComparingReport, StatusDocument
from garlicfarm.publishing.entries import DATE_END_MS

_CHARACTER = "[A-Za-z0-9~-]"
_TWO_BYTES = _CHARACTER + "{2}[AEIMQUYcgkosw048]="
_TAIL = f"({_TWO_BYTES}|{_CHARACTER}[AQgw]==)?$"
TRANSIENT_PATTERN = "^[0-9a-f]{16}$"
_DIGEST_PATTERN = "^[0-9a-f]{32}$"
_PATTERNS = {
    "chain": _DIGEST_PATTERN,
    "control": f"^{_CHARACTER}{{40}}{_TWO_BYTES}$",
    "destination": f"^({_CHARACTER}{{4}}){{129,}}{_TAIL}",
    "hash": f"^{_CHARACTER}{{40}}{_TWO_BYTES}$",
    "lastPublishedLS": f"^({_CHARACTER}{{4}})*{_TAIL}",
    "lastPublishedRI": f"^({_CHARACTER}{{4}})*{_TAIL}",
    "leaseSet": f"^({_CHARACTER}{{4}})*{_TAIL}",
    "state": _DIGEST_PATTERN,
    "transients": TRANSIENT_PATTERN,
}
_BY = {"type": "string", "minLength": 1, "maxLength": MAX_BY_CHARS}


def entry_schema() -> dict[str, Any]:
    """The schema of an entry: a status, an administrative entry or a note."""
    definitions: dict[str, Any] = {}
    document = _struct(StatusDocument, definitions)
    document["properties"]["date"]["maximum"] = DATE_END_MS - 1
    node = _or_null(_reference(ComparingReport, definitions))
    admin = {"anyOf": [_order(action, args, definitions) for action, args in ACTIONS.items()]}
    document["properties"]["config"] = _or_null(
        {"type": "object", "properties": {"node": node, "admin": _or_null(admin)}}
    )
    note = {"type": "object", "properties": {"by": _BY, "admin": {"type": "null"}}, "required": ["by"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An entry of a Garlic Farm",
        "description": "null is the same as absent. Unknown keys are kept and ignored.",
        **document,
        "anyOf": [
            {"title": "status or administrative entry", "properties": {"id": {"minimum": 1}}},
            {
                "title": "note of a user",
                "properties": {"id": {"const": 0}, "config": note},
                "required": ["config"],
            },
        ],
        "$defs": dict(sorted(definitions.items())),
    }


def _order(action: str, args: type[msgspec.Struct], definitions: dict[str, Any]) -> dict[str, Any]:
    shown = _struct(args, definitions)
    if action == "forget":  # how many, only beside when
        when = {"required": ["after_ms"], "properties": {"after_ms": {"type": "integer"}}}
        shown["anyOf"] = [when, {"properties": {"min_members": {"type": "null"}}}]
    elif shown["properties"] and not shown["required"]:
        shown["anyOf"] = [
            {"required": [name], "properties": {name: {"type": "integer"}}} for name in shown["properties"]
        ]
    properties = {"action": {"const": action}, "by": _BY, "args": shown}
    return {"type": "object", "properties": properties, "required": ["action", "by", "args"]}


def _reference(kind: type[msgspec.Struct], definitions: dict[str, Any]) -> dict[str, Any]:
    name = kind.__name__
    if name not in definitions:
        definitions[name] = _struct(kind, definitions)
    return {"$ref": f"#/$defs/{name}"}


def _struct(kind: type[msgspec.Struct], definitions: dict[str, Any]) -> dict[str, Any]:
    shown = inspect.type_info(kind)
    assert isinstance(shown, inspect.StructType)
    return {
        "type": "object",
        "properties": {
            one.encode_name: _for_type(one.type, one.encode_name, definitions) for one in shown.fields
        },
        "required": [one.encode_name for one in shown.fields if one.required],
    }


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _for_type(kind: inspect.Type, name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    match kind:
        case inspect.UnionType(types=types):
            (kind,) = (one for one in types if not isinstance(one, inspect.NoneType))
            return _or_null(_for_type(kind, name, definitions))
        case inspect.IntType(ge=least, le=most, lt=above):
            return {"type": "integer", "minimum": least, "maximum": most if above is None else above - 1}
        case inspect.StrType():
            return {"type": "string", **({"pattern": _PATTERNS[name]} if name in _PATTERNS else {})}
        case inspect.LiteralType(values=values):
            return {"enum": sorted(values)}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.DictType():
            return {"type": "object"}
        case inspect.VarTupleType(item_type=item, max_length=most):
            limit = {} if most is None else {"maxItems": most}
            return {"type": "array", "items": _for_type(item, name, definitions), **limit}
        case inspect.StructType(array_like=True, fields=fields):
            items = [_for_type(one.type, one.encode_name, definitions) for one in fields]
            return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        case inspect.StructType(cls=cls):
            return _reference(cls, definitions)
    raise TypeError(f"no schema for {kind}")
