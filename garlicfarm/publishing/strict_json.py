"""The lexical half of the validity rule (`entries`): which bytes a farm accepts as a JSON object.

Every server must judge a committed entry alike, so this rule decides and not what a JSON library accepts. An
entry is well-formed if all of these hold. They are checked in this order, and servers count by the reason of
the first that fails:

1. at most 65,536 bytes ("too large"),
2. valid UTF-8, no byte order mark ("not UTF-8"; a mark is "not JSON"),
3. objects and arrays nested at most 32 deep, brackets within strings not counted ("nested too deep");
   this is found by scanning the bytes, before anything is decoded,
4. every ``\\ud800`` … ``\\udfff`` escape is half of a pair ("lone surrogate"),
5. one value of RFC 8259's grammar, with white space around it and nothing else: no ``NaN``, no
   comments, no control characters in strings ("not JSON"), and no object, known or unknown to us,
   that names a key twice ("duplicate key"; found where the object closes),
6. the value is an object ("not an object").

A number is an integer if it has neither fraction nor exponent: ``1.0`` and ``1e3`` are not. No number becomes
a binary float: all but integers of at most 19 digits stay text, as `NumberText`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import NoReturn

from garlicfarm.errors import EntryRefused

MAX_ENTRY_BYTES = 65_536
MAX_DEPTH = 32
MAX_VALUES = 4096
"""of an entry that is posted, see `check_values`"""

_U63_DIGITS = 19
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"{}[]")
_PAIR_OR_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\(u[dD][89a-fA-F]|.)"
)


class NumberText(str):
    """A number other than an integer of at most 19 digits, as it was written."""

    __slots__ = ()


def _integer(text: str) -> int | NumberText:
    return int(text) if len(text) <= _U63_DIGITS else NumberText(text)


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise EntryRefused(counts.most_common(1)[0][0][:64], "duplicate key")
    return members


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=NumberText, parse_int=_integer, parse_constant=_constant
)


def _too_deep(entry: bytes) -> bool:
    if entry.count(b"{") + entry.count(b"[") <= MAX_DEPTH:
        return False
    depth = 0
    for bracket in _STRING.sub(b"", entry).translate(None, delete=_NO_BRACKETS):
        depth += 1 if bracket in b"{[" else -1
        if depth > MAX_DEPTH:
            return True
    return False


def check_values(entry: bytes) -> None:
    """Refuse an entry of more than `MAX_VALUES` values before it is decoded. Only where it is posted: this
    bounds what a committed entry costs every server, and is not part of the validity rule.

    The entry itself and everything in it count one each, keys not at all, and an object or array that is
    empty twice: this is one more than the commas and opening brackets outside strings. Raises `EntryRefused`.
    """
    if (
        len(entry) <= MAX_ENTRY_BYTES
        and _separators(entry) >= MAX_VALUES
        and _separators(_STRING.sub(b"", entry)) >= MAX_VALUES
    ):
        raise EntryRefused("", "too many values")


def _separators(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


NO_OBJECT = ("not UTF-8", "not JSON", "not an object")
"""The reasons for which bytes that never were meant as a JSON object are refused."""


def decode_object(entry: bytes) -> dict[str, object]:
    """Decode an entry's bytes to an object, by the rule above.

    Raises `EntryRefused` (the author's fault) with an empty field, or the key that was named twice.
    """
    if len(entry) > MAX_ENTRY_BYTES:
        raise EntryRefused("", "too large")
    try:
        text = entry.decode("utf-8")
    except UnicodeDecodeError:
        raise EntryRefused("", "not UTF-8") from None
    if _too_deep(entry):
        raise EntryRefused("", "nested too deep")
    if "\\u" in text and any(len(escape) > 1 for escape in _PAIR_OR_ESCAPE.findall(text)):
        raise EntryRefused("", "lone surrogate")
    try:
        value = _DECODER.decode(text)
    except ValueError:
        raise EntryRefused("", "not JSON") from None
    if type(value) is not dict:
        raise EntryRefused("", "not an object")
    return value
