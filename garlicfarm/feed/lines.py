"""Committed entries as JSON lines, for people.

A line is ``{"index","term","type","value"}``, with ``value_base64`` instead of ``value`` if the value is not
UTF-8; ``type`` is ``application`` or ``configuration``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, TypeVar

import msgspec

from garlicfarm.errors import RemoteProtocolError
from garlicfarm.raft.types import Entry
from garlicfarm.wire.messages import ValueType

MEDIA_TYPE = "application/jsonl"


class EntryLine(msgspec.Struct, omit_defaults=True, frozen=True, forbid_unknown_fields=True):
    """An entry as an object of JSON: exactly one of both values is there."""

    index: Annotated[int, msgspec.Meta(ge=1)]
    term: Annotated[int, msgspec.Meta(ge=0)]
    type: Literal["application", "configuration"]
    value: str | None = None
    value_base64: bytes | None = None


_encode = msgspec.json.Encoder().encode_lines
_decode = msgspec.json.Decoder(EntryLine).decode_lines
_Line = TypeVar("_Line", bound=EntryLine)
_TYPES = {"application": ValueType.APPLICATION, "configuration": ValueType.CONFIGURATION}


def encode_lines(entries: Iterable[Entry]) -> bytes:
    """One line per entry, each ended by a newline; no bytes for no entries."""
    return _encode([entry_line(entry, EntryLine) for entry in entries])


def decode_lines(text: bytes) -> list[Entry]:
    """The entries in such lines, of which the last one need not be ended. `RemoteProtocolError`: they are
    malformed."""
    try:
        lines = _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError("not entries", "JSON lines") from error
    entries = []
    for line in lines:
        if (line.value is None) == (line.value_base64 is None):
            raise RemoteProtocolError("not a value", f"line of index {line.index}")
        value = line.value_base64 if line.value is None else line.value.encode()
        entries.append(Entry(line.index, line.term, _TYPES[line.type], value or b""))
    return entries


def entry_line(entry: Entry, kind: type[_Line]) -> _Line:
    """An entry as ``kind``."""
    name: Literal["application", "configuration"]
    name = "application" if entry.value_type is ValueType.APPLICATION else "configuration"
    try:
        return kind(entry.index, entry.term, name, value=entry.value.decode())
    except UnicodeDecodeError:
        return kind(entry.index, entry.term, name, value_base64=entry.value)
