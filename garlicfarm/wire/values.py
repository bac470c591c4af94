"""The log values to bytes and back (proposal 150, "Log values").

A `RequestDecoder` returns values as bytes; these functions decode them. Invalid bytes are the peer's
fault (`RemoteProtocolError`), invalid values our caller's (`LocalProtocolError`). All integers are
unsigned and big-endian.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from itertools import accumulate, pairwise

from garlicfarm.errors import LocalProtocolError, RemoteProtocolError
from garlicfarm.wire.messages import (
    ClusterServer,
    Configuration,
    Grant,
    LogEntry,
    LogPack,
    SnapshotSyncRequest,
    ValueType,
)

_ID = struct.Struct(">I")
_SERVER = struct.Struct(">II")
_CONFIGURATION = struct.Struct(">QQ")
_LEVEL = struct.Struct(">III")
_LEVEL_HEAD = _SERVER.pack(0, _ID.size)  # as of a server with the id 0, which is none
_PACK = struct.Struct(">II")
_PACKED_ENTRY = struct.Struct(">QB")
_SNAPSHOT = struct.Struct(">QQI")
_CHUNK = struct.Struct(">QI")
_GRANT = struct.Struct(">QQQQQ")

_GZIP = 16 + zlib.MAX_WBITS  # zlib's code for RFC 1952
_STEP = 64 * 1024
_LOGGED = {kind.value: kind for kind in (ValueType.APPLICATION, ValueType.CONFIGURATION)}


def encode_cluster_server(server: ClusterServer, *, id_only: bool = False) -> bytes:
    """``id u32 | endpoint_length u32 | endpoint``; with ``id_only`` just ``id u32``, as in a
    RemoveServerRequest. Raises `LocalProtocolError` for id 0 (a client's), an id beyond u32
    or an endpoint that is not Unicode."""
    if not 1 <= server.id <= 0xFFFF_FFFF:
        raise LocalProtocolError(f"a server cannot have the id {server.id}")
    if id_only:
        return _ID.pack(server.id)
    try:
        endpoint = server.endpoint.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"the endpoint of server {server.id} has no UTF-8 form: {error}") from error
    return _SERVER.pack(server.id, len(endpoint)) + endpoint


def decode_cluster_server(data: bytes, *, id_only: bool = False) -> ClusterServer:
    """The reverse of `encode_cluster_server`; the endpoint is "" with ``id_only``. Raises
    `RemoteProtocolError` for a wrong length, id 0, or an endpoint that is not UTF-8."""
    where = "ClusterServer"
    if id_only:
        if len(data) != _ID.size:
            raise RemoteProtocolError(f"{len(data)} bytes instead of an id of 4 bytes", where)
        return ClusterServer(_check_id(_ID.unpack(data)[0], where))
    server, end = _read_server(data, 0, where)
    if end != len(data):
        raise RemoteProtocolError(f"{len(data) - end} bytes follow the endpoint", where)
    return server


def _check_id(server_id: int, where: str) -> int:
    if server_id == 0:
        raise RemoteProtocolError("the id 0 is a client's, not a server's", where)
    return server_id


def _read_server(data: bytes, at: int, where: str) -> tuple[ClusterServer, int]:
    """The server at byte ``at``, and the position after it."""
    start = at + _SERVER.size
    if start > len(data):
        raise RemoteProtocolError(f"{len(data) - at} bytes are too few for a server", where)
    server_id, length = _SERVER.unpack_from(data, at)
    end = start + length
    if end > len(data):
        raise RemoteProtocolError(f"endpoint_length {length} is {end - len(data)} bytes too long", where)
    try:
        endpoint = data[start:end].decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("the endpoint is not UTF-8", where) from error
    return ClusterServer(_check_id(server_id, where), endpoint), end


def encode_configuration(configuration: Configuration) -> bytes:
    """``log_index u64 | last_log_index u64 | ClusterServer…``, without a count; above level 0 also
    ``0 u32 | 4 u32 | level u32`` (D26). Raises `LocalProtocolError` for a number beyond its field, or an id
    that is 0 or occurs twice."""
    if len({server.id for server in configuration.servers}) != len(configuration.servers):
        raise LocalProtocolError("an id occurs twice in the Configuration")
    try:
        head = _CONFIGURATION.pack(configuration.log_index, configuration.last_log_index)
        level = _LEVEL_HEAD + _ID.pack(configuration.level) if configuration.level else b""
    except struct.error as error:
        raise LocalProtocolError(f"Configuration: a number does not fit its field: {error}") from error
    return b"".join((head, *map(encode_cluster_server, configuration.servers), level))


def decode_configuration(data: bytes) -> Configuration:
    """The reverse of `encode_configuration`. Raises `RemoteProtocolError` for inconsistent sizes, an id
    that is 0 or occurs twice, an endpoint that is not UTF-8, or a level that is named and is 0."""
    return _configuration(data, "Configuration")


def _configuration(data: bytes, where: str) -> Configuration:
    if len(data) < _CONFIGURATION.size:
        raise RemoteProtocolError(f"{len(data)} bytes are too few", where)
    log_index, last_log_index = _CONFIGURATION.unpack_from(data)
    servers: dict[int, ClusterServer] = {}
    at, level = _CONFIGURATION.size, 0
    while at < len(data):
        if len(data) - at == _LEVEL.size and data.startswith(_LEVEL_HEAD, at):
            *_, level = _LEVEL.unpack_from(data, at)
            if not level:
                raise RemoteProtocolError("it names the level 0", where)
            break
        place = f"{where}, server {len(servers) + 1} at byte {at}"
        server, at = _read_server(data, at, place)
        if server.id in servers:
            raise RemoteProtocolError(f"the id {server.id} occurs twice", place)
        servers[server.id] = server
    return Configuration(log_index, last_log_index, tuple(servers.values()), level)


def encode_log_pack(first_offset: int, entries: Sequence[LogEntry]) -> bytes:
    """gzip of ``index_length u32 | log_length u32 | index (u64 each) | (term u64 | type u8 | value)…``.

    ``first_offset`` is the sum of 9 + len(value) over the entries that the receiver already stores: a
    JRaft receiver writes the index to its disk unchanged, and fails if it does not continue where the
    last one ended. Equal arguments give equal bytes. Raises `LocalProtocolError` for a number beyond
    its field or a kind that is never in a log. Source: proposal 150, "Log pack"; JRaft's file store.
    """
    log: list[bytes] = []
    try:
        for entry in entries:
            if entry.value_type not in _LOGGED:
                raise LocalProtocolError(f"LogPack does not carry entries of kind {entry.value_type}")
            log += (_PACKED_ENTRY.pack(entry.term, entry.value_type), entry.value)
        sizes = (_PACKED_ENTRY.size + len(entry.value) for entry in entries)
        *offsets, end = accumulate(sizes, initial=first_offset)
        index = struct.pack(f">{len(offsets)}Q", *offsets)
        head = _PACK.pack(len(index), end - first_offset)
    except struct.error as error:
        raise LocalProtocolError(f"LogPack: a number does not fit its field: {error}") from error
    # zlib's gzip header has no time in it. Level 1: a joiner waits for the network, the leader for us.
    return zlib.compress(b"".join((head, index, *log)), 1, _GZIP)


def decode_log_pack(data: bytes, max_bytes: int, max_entry_bytes: int) -> LogPack:
    """The reverse of `encode_log_pack`; uses only the differences of offsets.

    ``max_bytes`` limits the uncompressed size (checked every 64 KiB); ``max_entry_bytes`` limits the
    value of one Application entry. Raises `RemoteProtocolError` for anything except one whole gzip
    member, inconsistent sizes (including JRaft's H2 variant, which has no index), offsets that do not
    increase, kinds that are never in a log, and anything over the limits.
    """
    body = _gunzip(data, max_bytes)
    if len(body) < _PACK.size:
        raise RemoteProtocolError(f"{len(body)} bytes are too few", "LogPack")
    index_length, log_length = _PACK.unpack_from(body)
    count, odd = divmod(index_length, 8)
    log_start = _PACK.size + index_length
    if odd or log_start + log_length != len(body) or (not count and log_length):
        raise RemoteProtocolError(
            f"index_length {index_length} and log_length {log_length} do not make up {len(body)} bytes",
            "LogPack",
        )
    offsets = struct.unpack_from(f">{count}Q", body, _PACK.size)
    entries: list[LogEntry] = []
    with memoryview(body) as view:
        for start, end in pairwise((*offsets, offsets[0] + log_length) if offsets else ()):
            at = log_start + start - offsets[0]
            size = end - start - _PACKED_ENTRY.size
            where = f"LogPack, entry {len(entries) + 1} at byte {at}"
            if size < 0:
                raise RemoteProtocolError(f"its offsets leave it {end - start} bytes", where)
            if at + _PACKED_ENTRY.size + size > len(body):
                raise RemoteProtocolError("its offsets run past the end", where)
            term, kind = _PACKED_ENTRY.unpack_from(body, at)
            value_type = _LOGGED.get(kind)
            if value_type is None:
                raise RemoteProtocolError(f"an entry of kind {kind} is not allowed here", where)
            if size > max_entry_bytes and value_type is ValueType.APPLICATION:
                raise RemoteProtocolError(f"{size} bytes are over the limit of {max_entry_bytes}", where)
            value = bytes(view[at + _PACKED_ENTRY.size : at + _PACKED_ENTRY.size + size])
            entries.append(LogEntry(term, value_type, value))
    return LogPack(offsets, tuple(entries))


def _gunzip(data: bytes, max_bytes: int) -> bytearray:
    """Exactly one gzip member. Input and output in small steps: zlib copies the remaining input at every
    call, and a decompression bomb must not exceed the limit by more than one step."""
    stream = zlib.decompressobj(_GZIP)
    body = bytearray()
    try:
        for start in range(0, len(data), _STEP):
            piece = data[start : start + _STEP]
            while piece and not stream.eof:
                body += stream.decompress(piece, _STEP)
                if len(body) > max_bytes:
                    raise RemoteProtocolError(f"it uncompresses to more than {max_bytes} bytes", "LogPack")
                piece = stream.unconsumed_tail
            if stream.eof and (stream.unused_data or start + _STEP < len(data)):
                raise RemoteProtocolError("bytes follow the gzip member", "LogPack")
    except zlib.error as error:
        raise RemoteProtocolError(f"not gzip: {error}", "LogPack") from error
    if not stream.eof:
        raise RemoteProtocolError("the gzip member is truncated", "LogPack")
    return body


def encode_snapshot_sync_request(chunk: SnapshotSyncRequest) -> bytes:
    """``last_log_index u64 | last_log_term u64 | config_length u32 | config | offset u64
    | data_length u32 | data | done u8``. Raises `LocalProtocolError` for a number beyond its field,
    or a Configuration that `encode_configuration` refuses."""
    configuration = encode_configuration(chunk.configuration)
    try:
        return b"".join(
            (
                _SNAPSHOT.pack(chunk.last_log_index, chunk.last_log_term, len(configuration)),
                configuration,
                _CHUNK.pack(chunk.offset, len(chunk.data)),
                chunk.data,
                b"\x01" if chunk.done else b"\x00",
            )
        )
    except struct.error as error:
        raise LocalProtocolError(f"SnapshotSyncRequest: a number does not fit its field: {error}") from error


def decode_snapshot_sync_request(data: bytes) -> SnapshotSyncRequest:
    """The reverse of `encode_snapshot_sync_request`. Raises `RemoteProtocolError` for inconsistent sizes,
    a ``done`` other than 0 and 1, or a Configuration that `decode_configuration` refuses."""
    where = "SnapshotSyncRequest"
    fixed = _SNAPSHOT.size + _CHUNK.size + 1
    if len(data) < fixed:
        raise RemoteProtocolError(f"{len(data)} bytes are too few", where)
    last_log_index, last_log_term, config_length = _SNAPSHOT.unpack_from(data)
    if fixed + config_length > len(data):
        raise RemoteProtocolError(f"config_length {config_length} runs past the end", where)
    chunk_at = _SNAPSHOT.size + config_length
    offset, data_length = _CHUNK.unpack_from(data, chunk_at)
    if fixed + config_length + data_length != len(data):
        there = len(data) - fixed - config_length
        raise RemoteProtocolError(f"data_length is {data_length}, but {there} bytes follow", where)
    if data[-1] > 1:
        raise RemoteProtocolError(f"done is {data[-1]}, not 0 or 1", where)
    return SnapshotSyncRequest(
        last_log_index,
        last_log_term,
        _configuration(data[_SNAPSHOT.size : chunk_at], f"{where}, Configuration"),
        offset,
        data[chunk_at + _CHUNK.size : -1],
        data[-1] == 1,
    )


def encode_grant(grant: Grant) -> bytes:
    """``number u64 | answered u64 | age_ms u64 | lasts_ms u64 | index u64``; the term is the request's.
    Raises `LocalProtocolError` for a number beyond its field."""
    try:
        return _GRANT.pack(grant.number, grant.answered, grant.age_ms, grant.lasts_ms, grant.index)
    except struct.error as error:
        raise LocalProtocolError(f"Grant: a number does not fit its field: {error}") from error


def decode_grant(data: bytes, term: int) -> Grant:
    """The reverse of `encode_grant`, of a request of ``term``. Raises `RemoteProtocolError` for a wrong
    length, and for an answer to a grant that was not sent before this one."""
    if len(data) != _GRANT.size:
        raise RemoteProtocolError(f"{len(data)} bytes instead of {_GRANT.size}", "Grant")
    number, answered, age_ms, lasts_ms, index = _GRANT.unpack(data)
    if answered >= number:
        raise RemoteProtocolError(f"grant {number} says that {answered} was answered", "Grant")
    return Grant(term=term, number=number, answered=answered, age_ms=age_ms, lasts_ms=lasts_ms, index=index)
