"""Committed entries as JSON lines, for people.

A line is ``{"index","term","type","value"}``, with ``value_base64`` instead of ``value`` if the value is not
UTF-8; ``type`` is ``application`` or ``configuration``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from garlicfarm.errors import RemoteProtocolError
from garlicfarm.raft.types import Entry
from garlicfarm.wire.messages import ValueType

__all__ = ["MEDIA_TYPE", "decode_lines", "encode_lines"]

MEDIA_TYPE = "application/jsonl"


class _Line(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    index: Annotated[int, msgspec.Meta(ge=1)]
    term: Annotated[int, msgspec.Meta(ge=0)]
    type: Literal["application", "configuration"]
    value: str | None = None
    value_base64: bytes | None = None


_encode = msgspec.json.Encoder().encode_lines
_decode = msgspec.json.Decoder(_Line).decode_lines
_TYPES = {"application": ValueType.APPLICATION, "configuration": ValueType.CONFIGURATION}


def encode_lines(entries: Iterable[Entry]) -> bytes:
    """One line per entry, each ended by a newline; no bytes for no entries."""
    return _encode([_line(entry) for entry in entries])


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


def _line(entry: Entry) -> _Line:
    kind: Literal["application", "configuration"]
    kind = "application" if entry.value_type is ValueType.APPLICATION else "configuration"
    try:
        return _Line(entry.index, entry.term, kind, value=entry.value.decode())
    except UnicodeDecodeError:
        return _Line(entry.index, entry.term, kind, value_base64=entry.value)
