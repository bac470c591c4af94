"""The type half of the validity rule (`entries`): known keys have the types of `documents`.

A checker is built once from a msgspec type and then judges decoded JSON by itself, so that what is
valid, and the reason given, does not depend on a library's version:

* keys that the type does not have are ignored; ``null`` is the same as absent,
* an integer is a JSON integer within its bounds (never ``1.0``, ``"1"`` or ``true``),
* the known keys are checked in the order of the type's fields, and the first error is reported.

The field of an `EntryRefused` is the path to the error: ``destinations[1].currentTunnels.in``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

import msgspec
from msgspec import inspect

from garlicfarm.errors import EntryRefused
from garlicfarm.publishing.strict_json import NumberText

Judged = TypeVar("Judged")

Checker = Callable[[object], None]
"""Returns for a valid value; raises `EntryRefused` with the path below that value."""


def at(path: str, judge: Callable[[object], Judged], value: object) -> Judged:
    """Apply ``judge`` to the value at ``path``; its `EntryRefused` then names the whole path."""
    try:
        return judge(value)
    except EntryRefused as error:
        raise _below(path, error) from None


def _below(parent: str, error: EntryRefused) -> EntryRefused:
    dot = "." if error.field and not error.field.startswith("[") else ""
    return EntryRefused(f"{parent}{dot}{error.field}", error.reason)


def checker(
    document: type[msgspec.Struct],
    text_rules: Mapping[str, Callable[[str], object]],
    instead: Mapping[type, type] = MappingProxyType({}),
) -> Checker:
    """A checker for objects of the type ``document``.

    ``text_rules``: for some names of string keys, a function that raises `ValueError`, with the fixed
    reason as its message, for text that does not suit that key. ``instead``: other types for some of those
    that ``document`` is made of.
    """

    def of_type(kind: inspect.Type, text_rule: Callable[[str], object] | None = None) -> Checker:
        if isinstance(kind, inspect.StructType) and kind.cls in instead:
            kind = inspect.type_info(instead[kind.cls])
        return _for_type(kind, text_rule, text_rules, of_type)

    return of_type(inspect.type_info(document))


def _for_type(
    kind: inspect.Type,
    text_rule: Callable[[str], object] | None,
    rules: Mapping[str, Callable[[str], object]],
    of_type: Callable[..., Checker],
) -> Checker:
    match kind:
        case inspect.UnionType(types=types):  # X | None: absent values are not checked
            (kind,) = (one for one in types if not isinstance(one, inspect.NoneType))
            return of_type(kind, text_rule)
        case inspect.IntType():
            return _integer(kind)
        case inspect.StrType():
            return _text(text_rule)
        case inspect.LiteralType(values=values):
            return _literal(values)
        case inspect.BoolType():
            return _exactly(bool, "not true or false")
        case inspect.DictType():
            return _exactly(dict, "not an object")
        case inspect.VarTupleType(item_type=item, max_length=most):
            return _array(of_type(item, text_rule), most)
        case inspect.StructType(array_like=True, fields=fields):
            return _fixed_array([of_type(field.type) for field in fields])
        case inspect.StructType(fields=fields):
            return _struct(
                [
                    (field.encode_name, field.required, of_type(field.type, rules.get(field.encode_name)))
                    for field in fields
                ]
            )
    raise TypeError(f"no rule for {kind}")


def _exactly(kind: type, reason: str) -> Checker:
    def check(value: object) -> None:
        if type(value) is not kind:
            raise EntryRefused("", reason)

    return check


def _integer(kind: inspect.IntType) -> Checker:
    least = 0 if kind.ge is None else kind.ge
    most = kind.le if kind.le is not None else kind.lt - 1 if kind.lt is not None else 2**63 - 1

    def check(value: object) -> None:
        if type(value) is int:
            if not least <= value <= most:
                raise EntryRefused("", "out of range")
        elif type(value) is NumberText and value.lstrip("-").isdecimal():
            raise EntryRefused("", "out of range")
        else:
            raise EntryRefused("", "not an integer")

    return check


def _text(rule: Callable[[str], object] | None) -> Checker:
    def check(value: object) -> None:
        if type(value) is not str:
            raise EntryRefused("", "not a string")
        if rule is not None:
            try:
                rule(value)
            except ValueError as error:
                raise EntryRefused("", str(error)) from None

    return check


def _literal(values: tuple[object, ...]) -> Checker:
    def check(value: object) -> None:
        if type(value) is not str or value not in values:
            raise EntryRefused("", "not one of its values")

    return check


def _array(item: Checker, most: int | None) -> Checker:
    def check(value: object) -> None:
        if type(value) is not list:
            raise EntryRefused("", "not an array")
        if most is not None and len(value) > most:
            raise EntryRefused("", "too many")
        for place, one in enumerate(value):
            try:
                item(one)
            except EntryRefused as error:
                raise _below(f"[{place}]", error) from None

    return check


def _fixed_array(items: list[Checker]) -> Checker:
    def check(value: object) -> None:
        if type(value) is not list:
            raise EntryRefused("", "not an array")
        if len(value) != len(items):
            raise EntryRefused("", "wrong length")
        for place, (item, one) in enumerate(zip(items, value, strict=True)):
            at(f"[{place}]", item, one)

    return check


def _struct(fields: list[tuple[str, bool, Checker]]) -> Checker:
    def check(value: object) -> None:
        if type(value) is not dict:
            raise EntryRefused("", "not an object")
        for name, required, rule in fields:
            item = value.get(name)
            if item is not None:
                try:
                    rule(item)
                except EntryRefused as error:
                    raise _below(name, error) from None
            elif required:
                raise EntryRefused(name, "missing")

    return check
