"""Committed entries as JSON lines, and a page of them.

A line is ``{"index","term","type","value"}``, or ``value_base64`` in the place of ``value`` where the
value is not UTF-8; ``type`` is ``application`` or ``configuration``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from garlicfarm.errors import RemoteProtocolError
from garlicfarm.raft.types import Entry
from garlicfarm.wire.messages import ValueType

__all__ = ["Page", "decode_line", "encode_lines"]


@dataclass(frozen=True, slots=True)
class Page:
    """Some committed entries, in order.

    ``next_after`` is what to ask for next: at least the index of the last entry, more where entries of
    other types were passed over; so an empty page may move on. At the end it is the commit index.
    """

    entries: Sequence[Entry]
    next_after: int


class _Line(msgspec.Struct, omit_defaults=True):
    index: int
    term: int
    type: Literal["application", "configuration"]
    value: str | None = None
    value_base64: str | None = None


_encode = msgspec.json.Encoder().encode_lines
_decode = msgspec.json.Decoder(_Line).decode


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


def decode_line(line: bytes | str) -> Entry:
    """The entry that `encode_lines` made this line of. `RemoteProtocolError` if it is none."""
    try:
        read = _decode(line)
        if read.value is not None:
            value = read.value.encode()
        else:
            value = base64.b64decode(read.value_base64 or "", validate=True)
    except (msgspec.DecodeError, UnicodeError, binascii.Error) as error:
        raise RemoteProtocolError("not an entry", "line of the log") from error
    kind = ValueType.APPLICATION if read.type == "application" else ValueType.CONFIGURATION
    return Entry(read.index, read.term, kind, value)
