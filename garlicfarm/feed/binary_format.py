"""Committed entries as binary records, for programs (``application/vnd.garlicfarm.entries``).

::

    index u64 | term u64 | value_type u8 | size u32 | value        big-endian, nothing between records
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from garlicfarm.errors import RemoteProtocolError
from garlicfarm.raft.types import Entry
from garlicfarm.wire import Limits
from garlicfarm.wire.messages import ValueType

MEDIA_TYPE = "application/vnd.garlicfarm.entries"
_HEAD = struct.Struct(">QQBI")
HEAD_BYTES = _HEAD.size
_KINDS = {kind.value: kind for kind in (ValueType.APPLICATION, ValueType.CONFIGURATION)}
_MAX_VALUE_BYTES = Limits().max_message_bytes


def encode_records(entries: Iterable[Entry]) -> bytes:
    """One record per entry; no bytes for no entries."""
    parts: list[bytes] = []
    for entry in entries:
        parts.append(_HEAD.pack(entry.index, entry.term, entry.value_type, len(entry.value)))
        parts.append(entry.value)
    return b"".join(parts)


def encode_values(values: Iterable[bytes]) -> bytes:
    """Application entries that are to be posted, in the same form: numbered from 1, and of no term."""
    return encode_records(Entry(at, 0, ValueType.APPLICATION, value) for at, value in enumerate(values, 1))


class RecordDecoder:
    """Decodes a body that arrives in pieces of any size into entries. Of an incomplete record it holds only
    the received bytes. All indexes must be > ``after`` and ascending."""

    def __init__(self, after: int = 0) -> None:
        self._data = bytearray()
        self._index = after

    def receive_data(self, data: bytes) -> list[Entry]:
        """The entries that ``data`` completes. `RemoteProtocolError`: the body is malformed."""
        self._data += data
        entries: list[Entry] = []
        start, end = 0, len(self._data)
        while end - start >= HEAD_BYTES:
            index, term, kind, size = _HEAD.unpack_from(self._data, start)
            if kind not in _KINDS or size > _MAX_VALUE_BYTES or index <= self._index:
                raise RemoteProtocolError("not an entry", f"record after index {self._index}")
            stop = start + HEAD_BYTES + size
            if stop > end:
                break
            entries.append(Entry(index, term, _KINDS[kind], bytes(self._data[start + HEAD_BYTES : stop])))
            self._index, start = index, stop
        del self._data[:start]
        return entries

    def receive_eof(self) -> None:
        """The body has ended. `RemoteProtocolError`: in the middle of a record."""
        if self._data:
            raise RemoteProtocolError("the records broke off", f"record after index {self._index}")
