"""Requests, responses and values of the Raft stream."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from garlicfarm.errors import RemoteProtocolError
from garlicfarm.wire import (
    RequestDecoder,
    ResponseDecoder,
    ValueType,
    decode_cluster_server,
    decode_configuration,
    decode_log_pack,
    decode_snapshot_sync_request,
    encode_cluster_server,
    encode_configuration,
    encode_log_pack,
    encode_request,
    encode_response,
    encode_snapshot_sync_request,
)
from tests.fuzz.targets.base import DATA, MEMBERS, SMALL, Target, choice, decoded, pieces


def _vectors() -> Iterator[dict[str, Any]]:
    """The messages that JRaft sent (`tests/data/jraft`)."""
    for path in sorted((DATA / "jraft").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            vector = json.loads(line)
            if "hex" in vector:
                yield vector


def _wire_stream(make: Callable[[], Any], encode: Callable[[Any], bytes], data: bytes, **how: bool) -> None:
    size, data = data[0] if data else 0, data[1:]
    messages = decoded(make(), pieces(data, 0), **how)
    assert decoded(make(), pieces(data, size), **how) == messages
    whole = [message for message in messages if not isinstance(message, str)]
    written = b"".join(map(encode, whole))
    if how:  # the term of the entry that holds a hint is lost
        assert decoded(make(), pieces(written, 0), **how) == whole
    else:
        assert data.startswith(written)


def _wire_log_pack(data: bytes) -> None:
    pack = decode_log_pack(data, 1 << 20, 1 << 12)
    again = encode_log_pack(pack.offsets[0] if pack.offsets else 0, pack.entries)
    assert decode_log_pack(again, 1 << 20, 1 << 12) == pack


def _wire_value(decode: Callable[[bytes], Any], encode: Callable[[Any], bytes], data: bytes) -> None:
    assert encode(decode(data)) == data


_WIRE: Sequence[Callable[[bytes], None]] = (
    lambda data: _wire_stream(lambda: RequestDecoder(SMALL), encode_request, data),
    lambda data: _wire_stream(ResponseDecoder, encode_response, data),
    lambda data: _wire_stream(ResponseDecoder, encode_response, data, hinted=True),
    lambda data: _wire_value(decode_cluster_server, encode_cluster_server, data),
    lambda data: _wire_value(
        lambda value: decode_cluster_server(value, id_only=True),
        lambda server: encode_cluster_server(server, id_only=True),
        data,
    ),
    lambda data: _wire_value(decode_configuration, encode_configuration, data),
    lambda data: _wire_value(decode_snapshot_sync_request, encode_snapshot_sync_request, data),
    _wire_log_pack,
    lambda data: _wire_log_pack(zlib.compress(data, 0, 31)),
)


def wire(data: bytes) -> None:
    """Decoders of requests, responses and all values."""
    kind, rest = choice(data, len(_WIRE))
    with suppress(RemoteProtocolError):
        _WIRE[kind](rest)


def _wire_seeds() -> list[bytes]:
    seeds = {b"\x03\x00\x00\x00\x07\x00\x00\x00\x03ssl", b"\x04\x00\x00\x00\x07"}
    hint = encode_configuration(MEMBERS)
    for vector in _vectors():
        data = bytes.fromhex(vector["hex"])
        if vector["kind"] != "request":
            refused = data[:-1] + b"\0" + bytes(8) + b"\x02" + len(hint).to_bytes(4, "big") + hint
            seeds |= {b"\x01\x00" + data, b"\x02\x07" + refused}
            continue
        seeds |= {b"\x00\x00" + data, b"\x00\x05" + data + data}
        for request in decoded(RequestDecoder(SMALL), pieces(data, 0)):
            for entry in () if isinstance(request, str) else request.entries:
                if entry.value_type is ValueType.CONFIGURATION:
                    seeds.add(b"\x05" + entry.value)
                elif entry.value_type is ValueType.CLUSTER_SERVER:
                    seeds.add(b"\x03" + entry.value)
                elif entry.value_type is ValueType.SNAPSHOT_SYNC_REQUEST:
                    seeds.add(b"\x06" + entry.value)
                elif entry.value_type is ValueType.LOG_PACK:
                    seeds |= {b"\x07" + entry.value, b"\x08" + gzip.decompress(entry.value)}
    return sorted(seeds)


TARGETS = {"wire": Target(wire, _wire_seeds)}
