"""Messages to bytes and back: `encode_request`, `encode_response`, `RequestDecoder`, `ResponseDecoder`.

All integers are unsigned and big-endian (proposal 150, "Messages")::

    request    type u8 | source u32 | destination u32 | term u64 | last_log_term u64
               | last_log_index u64 | commit_index u64 | log_entries_size u32 | log entries
    log entry  term u64 | value_type u8 | entry_size u32 | entry
    response   type u8 | source u32 | destination u32 | term u64 | next_index u64 | accepted u8

There is no count of entries: they are read until ``log_entries_size`` is used up.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import msgspec

from garlicfarm.errors import LocalProtocolError, RemoteProtocolError
from garlicfarm.wire.messages import LogEntry, MessageType, Request, Response, ValueType
from garlicfarm.wire.values import decode_configuration, encode_configuration

MAX_HINT_BYTES = 1 << 20
"""The largest Configuration of a leader hint."""

MAX_ENTRIES = 1 << 17
"""Entries in one message: empty ones would take many times more memory than bytes on the wire."""

RECEIVE_BYTES = 1 << 16
"""How much to receive at a time, and the size above which an entry counts as large; more than a header."""
LARGE_RECEIVE_BYTES = 1 << 18
"""How much to receive at a time where a large entry comes."""
SMALL_PIECE_BYTES = 1 << 12
"""Pieces of a stream below this are joined as they come: kept apart, tiny ones would take many times more
memory than their bytes."""

_REQUEST = struct.Struct(">BIIQQQQI")
_RESPONSE = struct.Struct(">BIIQQB")
_ENTRY = struct.Struct(">QBI")
_ENTRY_SIZE = _ENTRY.size


class _Rule(NamedTuple):
    """The entries that a request carries: of these kinds, any number of them or exactly one."""

    type: MessageType
    kinds: dict[int, ValueType]
    single: bool


def _rule(message_type: MessageType, *kinds: ValueType, single: bool = False) -> _Rule:
    return _Rule(message_type, {kind.value: kind for kind in kinds}, single)


# AppendEntries carries "any" entries, but only these two kinds are ever in a log.
_RULES: dict[int, _Rule] = {
    rule.type.value: rule
    for rule in (
        _rule(MessageType.REQUEST_VOTE_REQUEST),
        _rule(MessageType.APPEND_ENTRIES_REQUEST, ValueType.APPLICATION, ValueType.CONFIGURATION),
        _rule(MessageType.CLIENT_REQUEST, ValueType.APPLICATION),
        _rule(MessageType.ADD_SERVER_REQUEST, ValueType.CLUSTER_SERVER, single=True),
        _rule(MessageType.REMOVE_SERVER_REQUEST, ValueType.CLUSTER_SERVER, single=True),
        _rule(MessageType.SYNC_LOG_REQUEST, ValueType.LOG_PACK, single=True),
        _rule(MessageType.JOIN_CLUSTER_REQUEST, ValueType.CONFIGURATION, single=True),
        _rule(MessageType.LEAVE_CLUSTER_REQUEST),
        _rule(MessageType.INSTALL_SNAPSHOT_REQUEST, ValueType.SNAPSHOT_SYNC_REQUEST, single=True),
        _rule(MessageType.PRE_VOTE_REQUEST),
        _rule(MessageType.TIMEOUT_NOW_REQUEST),
        _rule(MessageType.READ_INDEX_REQUEST),
        _rule(MessageType.LEASE_REQUEST, ValueType.GRANT, single=True),
    )
}
_RESPONSES: dict[int, MessageType] = {kind.value: kind for kind in MessageType if kind.value not in _RULES}


def _name(number: int) -> str:
    """The proposal's name of a message type, or "type 99" if it has none."""
    try:
        return MessageType(number).name.title().replace("_", "")
    except ValueError:
        return f"type {number}"


class Limits(msgspec.Struct, frozen=True):
    """What a decoder accepts: ``max_message_bytes`` limits a whole request, including its header, and so
    every value; ``max_entry_bytes`` limits the value of one Application entry that a leader sends.
    A client's larger entry is returned, so that the refusal can carry its reason (D8)."""

    max_message_bytes: int = 64 * 1024 * 1024
    max_entry_bytes: int = 1024 * 1024


def encode_request(request: Request) -> bytes:
    """The bytes of a request.

    Values are copied, never decoded. Raises `LocalProtocolError` if the type is not a request's, a
    number does not fit its field, or the type does not carry these entries.
    Source: proposal 150, "Request header", "Log entry".
    """
    parts = _entry_parts(request)
    parts.insert(0, _header(request, sum(map(len, parts))))
    return b"".join(parts)


def _header(request: Request, size: int) -> bytes:
    """The header of a request whose entries take ``size`` bytes."""
    try:
        return _REQUEST.pack(
            request.type,
            request.source,
            request.destination,
            request.term,
            request.last_log_term,
            request.last_log_index,
            request.commit_index,
            size,
        )
    except struct.error as error:
        raise _overflow(request, error) from error


def _entry_parts(request: Request) -> list[bytes]:
    """The headers and the values of its entries."""
    rule = _RULES.get(request.type)
    if rule is None:
        raise LocalProtocolError(f"{_name(request.type)} is not a request")
    entries, kinds, pack = request.entries, rule.kinds, _ENTRY.pack
    if rule.single and len(entries) != 1:
        raise LocalProtocolError(f"{_name(rule.type)} carries exactly one entry, not {len(entries)}")
    parts: list[bytes] = []
    try:
        for entry in entries:
            value, value_type = entry.value, entry.value_type
            if value_type not in kinds:
                raise LocalProtocolError(f"{_name(rule.type)} does not carry entries of kind {value_type}")
            parts += (pack(entry.term, value_type, len(value)), value)
    except struct.error as error:
        raise _overflow(request, error) from error
    return parts


def _overflow(message: Request | Response, error: struct.error) -> LocalProtocolError:
    return LocalProtocolError(f"{_name(message.type)}: a number does not fit its field: {error}")


class RequestEncoder:
    """Encodes requests to several servers. Entries that some of them share (one tuple) are encoded once,
    until `forget`."""

    def __init__(self) -> None:
        # By id and type: the entries, which are kept so that their id stays theirs, and their bytes.
        self._shared: dict[tuple[int, MessageType], tuple[Sequence[LogEntry], bytes]] = {}

    def encode(self, request: Request) -> bytes:
        """As `encode_request`."""
        entries = request.entries
        if len(entries) < 2:  # a large entry is alone: it would be copied once more
            return encode_request(request)
        key = id(entries), request.type
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = entries, b"".join(_entry_parts(request))
        return _header(request, len(shared[1])) + shared[1]

    def forget(self) -> None:
        """Forget the shared entries."""
        self._shared.clear()


def encoded_size(request: Request) -> int:
    """The number of bytes that `encode_request` makes of a request."""
    return _REQUEST.size + sum([_ENTRY_SIZE + len(entry.value) for entry in request.entries])


def encode_response(response: Response) -> bytes:
    """The 26 bytes of a response, and the entry with the leader hint if it has one (an extension, D5).

    Raises `LocalProtocolError` if the type is not a response's or a number does not fit its field.
    Source: proposal 150, "Responses".
    """
    if response.type not in _RESPONSES:
        raise LocalProtocolError(f"{_name(response.type)} is not a response")
    try:
        header = _RESPONSE.pack(
            response.type,
            response.source,
            response.destination,
            response.term,
            response.next_index,
            1 if response.accepted else 0,
        )
    except struct.error as error:
        raise _overflow(response, error) from error
    if response.hint is None:
        return header
    value = encode_configuration(response.hint)
    return header + _ENTRY.pack(response.term, ValueType.CONFIGURATION, len(value)) + value


class _Decoder:
    """The part common to both decoders: the unused bytes, and the permanent failure after an error.

    Between calls, either the next ``_need`` bytes are incomplete or the caller has not asked for them.
    They are joined only once they are complete, so that a value received in many pieces is copied once
    or twice, and not once per piece; and an announced size allocates nothing.
    """

    _HEADER: ClassVar[struct.Struct]
    _KIND: ClassVar[str]

    def __init__(self) -> None:
        self._data = b""
        self._pos = 0
        self._pieces: list[bytes | bytearray] = []  # what follows _data; bytearrays are this decoder's own
        self._piece_bytes = 0
        self._need = self._HEADER.size
        self._error: RemoteProtocolError | None = None

    def receive_data(self, data: bytes | bytearray) -> None:
        """Add any number of bytes from the peer, then call ``next_message`` until it returns None: then
        less than one entry stays buffered. Raises `RemoteProtocolError` if the stream is broken."""
        self._raise_if_broken()
        if self._pos == len(self._data) and not self._pieces:
            self._data, self._pos = bytes(data), 0
            return
        self._piece_bytes += len(data)
        if len(data) >= SMALL_PIECE_BYTES:
            self._pieces.append(bytes(data))
        elif self._pieces and isinstance(last := self._pieces[-1], bytearray):
            last += data
        else:
            self._pieces.append(bytearray(data))

    @property
    def receive_bytes(self) -> int:
        """How many bytes to receive at a time: more while most of a large entry is to come."""
        return LARGE_RECEIVE_BYTES if self._need - self._held() > RECEIVE_BYTES else RECEIVE_BYTES

    def receive_eof(self) -> None:
        """The peer ended its stream; call it after ``next_message`` returned None.

        Raises `RemoteProtocolError` if it ended inside a message, `LocalProtocolError` if messages are left.
        """
        self._raise_if_broken()
        if self._held() >= self._need:
            raise LocalProtocolError("messages are left: call next_message until it returns None")
        if self.partial:
            raise self._broken("the stream ended inside a message", self._where())

    @property
    def partial(self) -> bool:
        """Whether the last message is incomplete; valid after ``next_message`` returned None."""
        return bool(self._held()) or self._inside()

    def _held(self) -> int:
        return len(self._data) - self._pos + self._piece_bytes

    def _inside(self) -> bool:
        """Whether a header was read whose message is incomplete."""
        return False

    def _where(self) -> str:
        return f"{self._KIND} header"

    def _gather(self) -> bool:
        """Make the next ``_need`` bytes contiguous in ``_data``; False: more data is needed."""
        if len(self._data) - self._pos < self._need:
            if self._held() < self._need:
                return False
            self._data = b"".join((memoryview(self._data)[self._pos :], *self._pieces))
            self._pos = 0
            self._forget_pieces()
        return True

    def _forget_pieces(self) -> None:
        self._pieces.clear()
        self._piece_bytes = 0

    def _broken(self, what: str, where: str) -> RemoteProtocolError:
        self._error = RemoteProtocolError(what, where)
        self._data, self._pos = b"", 0
        self._forget_pieces()
        return self._error

    def _raise_if_broken(self) -> None:
        if self._error is not None:
            raise RemoteProtocolError(self._error.what, self._error.where)


class RequestDecoder(_Decoder):
    """Decodes the bytes of one connection to requests.

    Every header and entry header is checked as soon as it is complete, before the bytes that it announces.
    A message is returned as a whole, with its values as bytes.
    """

    _HEADER = _REQUEST
    _KIND = "request"

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limits = limits
        self._rule: _Rule | None = None  # None: between messages
        self._fields = (0, 0, 0, 0, 0, 0)  # source, destination, term and the three log fields
        self._entries: list[LogEntry] = []
        self._size = 0  # log_entries_size, and how much of it is not yet in _entries
        self._left = 0

    def next_message(self) -> Request | None:
        """The next request, None if more data is needed.

        Raises `RemoteProtocolError`, and again at every later call, for a type that is unknown or not a
        request's, entries of a kind or number that the type does not carry, inconsistent sizes, and
        anything over the limits or `MAX_ENTRIES`.
        """
        self._raise_if_broken()
        if self._rule is None:
            if not self._gather():
                return None
            self._read_header()
        if not self._read_entries():
            return None
        assert self._rule is not None
        request = Request(self._rule.type, *self._fields, tuple(self._entries))
        self._rule = None
        self._entries = []
        self._need = _REQUEST.size
        return request

    def _inside(self) -> bool:
        return self._rule is not None

    def _where(self) -> str:
        if self._rule is None:
            return super()._where()
        at = _REQUEST.size + self._size - self._left
        return f"{_name(self._rule.type)}, entry {len(self._entries) + 1} at byte {at}"

    def _read_header(self) -> None:
        number, source, destination, term, log_term, log_index, commit, size = _REQUEST.unpack_from(
            self._data, self._pos
        )
        rule = _RULES.get(number)
        if rule is None:
            fault = "is not a request" if number in _RESPONSES else "is unknown"
            raise self._broken(f"{_name(number)} {fault}", self._where())
        limit = self._limits.max_message_bytes
        fault = ""
        if _REQUEST.size + size > limit:
            fault = f"log_entries_size {size} is over the limit of {limit} bytes a message"
        elif not rule.kinds and size:
            fault = f"log_entries_size is {size} where no entries are allowed"
        elif size < _ENTRY_SIZE and (size or rule.single):
            fault = f"log_entries_size {size} is too small for an entry"
        if fault:
            raise self._broken(fault, f"{_name(number)}, header")
        self._pos += _REQUEST.size
        self._fields = (source, destination, term, log_term, log_index, commit)
        self._rule, self._size, self._left, self._need = rule, size, size, _ENTRY_SIZE

    def _read_entries(self) -> bool:
        """Read all entries received so far; True: the message is complete."""
        assert self._rule is not None
        kinds, single = self._rule.kinds, self._rule.single
        bounded = self._rule.type is not MessageType.CLIENT_REQUEST
        max_entry, application = self._limits.max_entry_bytes, ValueType.APPLICATION
        unpack, append = _ENTRY.unpack_from, self._entries.append
        while self._left:
            if self._need > RECEIVE_BYTES and self._has_just_come():
                append(self._take_large(kinds))
                continue
            if not self._gather():
                return False
            data, pos, left = self._data, self._pos, self._left
            have = len(data)
            while left:
                start = pos + _ENTRY_SIZE
                if start > have:
                    self._need = _ENTRY_SIZE
                    break
                term, kind, size = unpack(data, pos)
                value_type = kinds.get(kind)
                rest = left - _ENTRY_SIZE - size
                if (
                    value_type is None
                    or (rest < _ENTRY_SIZE and rest)
                    or (size > max_entry and value_type is application and bounded)
                    or (single and rest)
                ):
                    self._left = left
                    raise self._broken(self._entry_fault(kind, size, rest), self._where())
                end = start + size
                if end > have:
                    self._need = end - pos
                    break
                append(LogEntry(term, value_type, data[start:end]))
                pos, left = end, rest
            self._pos, self._left = pos, left
            if len(self._entries) > MAX_ENTRIES:
                raise self._broken(f"more than {MAX_ENTRIES} entries in one message", self._where())
        return True

    def _has_just_come(self) -> bool:
        """Whether the next entry, the header of which was checked, was completed by the last piece."""
        return bool(self._pieces) and 0 <= self._held() - self._need < len(self._pieces[-1])

    def _take_large(self, kinds: Mapping[int, ValueType]) -> LogEntry:
        """That entry, its value copied once."""
        term, kind, _ = _ENTRY.unpack_from(self._data, self._pos)
        last = self._pieces.pop()
        end = len(last) - (self._held() - self._need)
        first = memoryview(self._data)[self._pos + _ENTRY_SIZE :]
        value = b"".join((first, *self._pieces, memoryview(last)[:end]))
        self._forget_pieces()
        self._data, self._pos = bytes(last), end
        self._left -= self._need
        self._need = _ENTRY_SIZE
        return LogEntry(term, kinds[kind], value)

    def _entry_fault(self, kind: int, size: int, rest: int) -> str:
        assert self._rule is not None
        if kind not in self._rule.kinds:
            return f"an entry of kind {kind} is not allowed here"
        if rest < 0:
            return f"entry_size {size} is {-rest} bytes more than log_entries_size leaves"
        bounded = self._rule.type is not MessageType.CLIENT_REQUEST
        if kind == ValueType.APPLICATION and size > self._limits.max_entry_bytes and bounded:
            return f"entry_size {size} is over the limit of {self._limits.max_entry_bytes} bytes an entry"
        return f"{rest} bytes follow the {'only' if self._rule.single else 'last'} entry"


class ResponseDecoder(_Decoder):
    """Decodes the bytes of one connection to responses."""

    _HEADER = _RESPONSE
    _KIND = "response"

    def __init__(self) -> None:
        super().__init__()
        self._refusal: Response | None = None  # the response whose hint has not arrived yet

    def next_message(self, *, hinted: bool = False) -> Response | None:
        """The next response, None if more data is needed. ``hinted``: it answers a ClientRequest and
        leader-hint is in force, so that a hint follows if it is a refusal (D5).

        Raises `RemoteProtocolError`, and again at every later call, for a type that is unknown or not a
        response's, for an ``accepted`` other than 0 and 1, and for a hint that is not a Configuration.
        """
        self._raise_if_broken()
        if self._refusal is None:
            response = self._read_response()
            if response is None or not hinted or response.accepted:
                return response
            self._refusal, self._need = response, _ENTRY_SIZE
        return self._read_hint(self._refusal)

    def _inside(self) -> bool:
        return self._refusal is not None

    def _where(self) -> str:
        return super()._where() if self._refusal is None else "leader hint"

    def _read_hint(self, refusal: Response) -> Response | None:
        if not self._gather():
            return None
        _, kind, size = _ENTRY.unpack_from(self._data, self._pos)
        if kind != ValueType.CONFIGURATION or size > MAX_HINT_BYTES:
            raise self._broken(f"an entry of kind {kind} and {size} bytes is not a hint", self._where())
        self._need = _ENTRY_SIZE + size
        if not self._gather():
            return None
        start = self._pos + _ENTRY_SIZE
        try:
            hint = decode_configuration(self._data[start : start + size])
        except RemoteProtocolError as error:
            raise self._broken(error.what, f"{self._where()}, {error.where}") from error
        self._pos = start + size
        self._refusal, self._need = None, _RESPONSE.size
        return msgspec.structs.replace(refusal, hint=hint)

    def _read_response(self) -> Response | None:
        if not self._gather():
            return None
        number, source, destination, term, next_index, accepted = _RESPONSE.unpack_from(self._data, self._pos)
        message_type = _RESPONSES.get(number)
        if message_type is None:
            fault = "is not a response" if number in _RULES else "is unknown"
            raise self._broken(f"{_name(number)} {fault}", self._where())
        if accepted > 1:
            raise self._broken(f"accepted is {accepted}, not 0 or 1", _name(number))
        self._pos += _RESPONSE.size
        return Response(message_type, source, destination, term, next_index, accepted == 1)
