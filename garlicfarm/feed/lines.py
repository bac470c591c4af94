"""Committed entries as JSON lines, for people.

A line is ``{"index","term","type","value"}``, with ``value_base64`` instead of ``value`` if the value is not
UTF-8; ``type`` is ``application`` or ``configuration``.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Literal

import msgspec

from garlicfarm.raft.types import Entry
from garlicfarm.wire.messages import ValueType

__all__ = ["MEDIA_TYPE", "encode_lines"]

MEDIA_TYPE = "application/jsonl"


class _Line(msgspec.Struct, omit_defaults=True):
    index: int
    term: int
    type: Literal["application", "configuration"]
    value: str | None = None
    value_base64: str | None = None


_encode = msgspec.json.Encoder().encode_lines


def encode_lines(entries: Iterable[Entry]) -> bytes:
    """One line per entry, each ended by a newline; no bytes for no entries."""
    return _encode([_line(entry) for entry in entries])


def _line(entry: Entry) -> _Line:
    kind: Literal["application", "configuration"]
    kind = "application" if entry.value_type is ValueType.APPLICATION else "configuration"
    try:
        return _Line(entry.index, entry.term, kind, value=entry.value.decode())
    except UnicodeDecodeError:
        encoded = base64.b64encode(entry.value).decode()
        return _Line(entry.index, entry.term, kind, value_base64=encoded)
