"""Our codec against the bytes of JRaft itself (tests/data/jraft/README.md tells their origin)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from garlicfarm.errors import RemoteProtocolError
from garlicfarm.wire import (
    NO_LEADER,
    ClusterServer,
    Configuration,
    Limits,
    LogEntry,
    MessageType,
    Request,
    RequestDecoder,
    Response,
    ResponseDecoder,
    SnapshotSyncRequest,
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

DATA = Path(__file__).parent.parent / "data" / "jraft"
MIB = 1024 * 1024

Vector = dict[str, Any]


def read(path: Path) -> list[Vector]:
    return [json.loads(line) for line in path.read_text().splitlines()]


GOLDEN = read(DATA / "messages.jsonl")
CONVERSATIONS = sorted(DATA.glob("conversation-*.jsonl"))
golden = pytest.mark.parametrize("vector", GOLDEN, ids=[vector["name"] for vector in GOLDEN])
conversation = pytest.mark.parametrize("path", CONVERSATIONS, ids=[path.stem for path in CONVERSATIONS])


def messages(path: Path) -> list[Vector]:
    return [line for line in read(path) if "event" not in line]


def unsigned(number: int) -> int:
    return number & 0xFFFF_FFFF


def camel(name: str) -> str:
    return name.title().replace("_", "")


def decoder_for(vector: Vector) -> RequestDecoder | ResponseDecoder:
    return RequestDecoder(Limits()) if vector["kind"] == "request" else ResponseDecoder()


def decode(vector: Vector) -> Request | Response:
    decoder = decoder_for(vector)
    decoder.receive_data(bytes.fromhex(vector["hex"]))
    message = decoder.next_message()
    assert message is not None
    assert decoder.next_message() is None
    decoder.receive_eof()
    return message


def encode(message: Request | Response) -> bytes:
    return encode_request(message) if isinstance(message, Request) else encode_response(message)


def configuration_from(fields: Vector) -> Configuration:
    servers = tuple(ClusterServer(unsigned(s["id"]), s["endpoint"]) for s in fields["servers"])
    return Configuration(fields["logIndex"], fields["lastLogIndex"], servers)


def packed_entries_from(fields: Vector) -> tuple[LogEntry, ...]:
    return tuple(
        LogEntry(e["term"], ValueType(e["valueType"]), bytes.fromhex(e["value_hex"]))
        for e in fields["entries"]
    )


def value_from(entry: Vector) -> bytes:
    if "text" in entry:
        return str(entry["text"]).encode()
    if "configuration" in entry:
        return encode_configuration(configuration_from(entry["configuration"]))
    if "clusterServer" in entry:
        return encode_cluster_server(ClusterServer(**entry["clusterServer"]))
    if "clusterServerIdOnly" in entry:
        return encode_cluster_server(ClusterServer(**entry["clusterServerIdOnly"]), id_only=True)
    if "snapshotSyncRequest" in entry:
        fields = entry["snapshotSyncRequest"]
        return encode_snapshot_sync_request(
            SnapshotSyncRequest(
                fields["lastLogIndex"],
                fields["lastLogTerm"],
                configuration_from(fields["config"]),
                fields["offset"],
                bytes.fromhex(fields["data_hex"]),
                fields["done"],
            )
        )
    pack = entry["logPack"]
    value = bytes.fromhex(entry["value_hex"])
    if pack["flavour"] == "file":
        ours = encode_log_pack(pack["indexData"][0], packed_entries_from(pack))
        assert gzip.decompress(ours).hex() == pack["uncompressed_hex"]
    return value  # the gzip bytes are the deflate library's affair: JRaft's stand for ours


def message_from(vector: Vector) -> Request | Response:
    fields = vector["fields"]
    type_, source, destination = (
        MessageType(fields["messageType"]),
        unsigned(fields["source"]),
        unsigned(fields["destination"]),
    )
    if vector["kind"] == "response":
        return Response(type_, source, destination, fields["term"], fields["nextIndex"], fields["accepted"])
    return Request(
        type_,
        source,
        destination,
        fields["term"],
        fields["lastLogTerm"],
        fields["lastLogIndex"],
        fields["commitIndex"],
        tuple(LogEntry(e["term"], ValueType(e["valueType"]), value_from(e)) for e in fields["logEntries"]),
    )


def is_h2(vector: Vector) -> bool:
    return any(e.get("logPack", {}).get("flavour") == "h2" for e in vector["fields"].get("logEntries", ()))


def test_vectors_all_together_cover_every_message_and_value_type() -> None:
    entries = [e for vector in GOLDEN for e in vector["fields"].get("logEntries", ())]
    assert len(GOLDEN) == 47
    assert {vector["fields"]["messageType"] for vector in GOLDEN} == {m for m in MessageType if m < 18}
    assert {entry["valueType"] for entry in entries} == {kind for kind in ValueType if kind < 6}
    assert sum(is_h2(vector) for vector in GOLDEN) == 1
    assert sum(len(messages(path)) for path in CONVERSATIONS) == 504


@golden
def test_encode_golden_fields_gives_its_bytes(vector: Vector) -> None:
    assert encode(message_from(vector)).hex() == vector["hex"]


@golden
def test_decode_golden_bytes_gives_its_fields(vector: Vector) -> None:
    message = decode(vector)
    assert message == message_from(vector)
    assert camel(message.type.name) == vector["fields"]["messageTypeName"]


def test_decode_log_pack_of_the_h2_flavour_is_refused() -> None:
    (vector,) = filter(is_h2, GOLDEN)
    message = decode(vector)
    assert isinstance(message, Request)
    with pytest.raises(RemoteProtocolError, match=r"do not make up 148 bytes \(LogPack\)"):
        decode_log_pack(message.entries[0].value, MIB, MIB)


@golden
def test_decode_golden_cut_at_any_byte_then_the_end_raises(vector: Vector) -> None:
    assert_every_truncation_raises(vector)


@conversation
def test_decode_conversation_cut_at_any_byte_then_the_end_raises(path: Path) -> None:
    for vector in messages(path):
        assert_every_truncation_raises(vector)


def assert_every_truncation_raises(vector: Vector) -> None:
    data = bytes.fromhex(vector["hex"])
    for cut in range(1, len(data)):
        decoder = decoder_for(vector)
        decoder.receive_data(data[:cut])
        assert decoder.next_message() is None
        with pytest.raises(RemoteProtocolError, match="the stream ended inside a message"):
            decoder.receive_eof()


@conversation
def test_conversation_decoded_and_encoded_again_gives_its_bytes(path: Path) -> None:
    for vector in messages(path):
        message = decode(vector)
        assert encode(message).hex() == vector["hex"]
        assert (message.type, message.term) == (vector["type"], vector["term"])
        assert (message.source, message.destination) == tuple(
            unsigned(vector[k]) for k in ("source", "destination")
        )
        if isinstance(message, Request):
            assert [(e.term, e.value_type, len(e.value)) for e in message.entries] == [
                (e["term"], e["valueType"], e["size"]) for e in vector["entries"]
            ]


@conversation
def test_conversation_values_decoded_and_encoded_again_give_their_bytes(path: Path) -> None:
    for vector in messages(path):
        message = decode(vector)
        for entry in message.entries if isinstance(message, Request) else ():
            value = entry.value
            if entry.value_type is ValueType.CONFIGURATION:
                assert encode_configuration(decode_configuration(value)) == value
            elif entry.value_type is ValueType.CLUSTER_SERVER:
                id_only = message.type is MessageType.REMOVE_SERVER_REQUEST
                server = decode_cluster_server(value, id_only=id_only)
                assert encode_cluster_server(server, id_only=id_only) == value
            elif entry.value_type is ValueType.SNAPSHOT_SYNC_REQUEST:
                assert encode_snapshot_sync_request(decode_snapshot_sync_request(value)) == value
            elif entry.value_type is ValueType.LOG_PACK:
                pack = decode_log_pack(value, MIB, MIB)
                ours = encode_log_pack(pack.offsets[0], pack.entries)
                assert gzip.decompress(ours) == gzip.decompress(value)


@conversation
def test_conversation_each_direction_as_one_stream_gives_its_messages(path: Path) -> None:
    streams: dict[tuple[int, str, str], list[Vector]] = {}
    for vector in messages(path):
        streams.setdefault((vector["conn"], vector["from"], vector["kind"]), []).append(vector)
    for vectors in streams.values():
        decoder = decoder_for(vectors[0])
        data = b"".join(bytes.fromhex(vector["hex"]) for vector in vectors)
        found = []
        for at in range(0, len(data), 97):
            decoder.receive_data(data[at : at + 97])
            while (message := decoder.next_message()) is not None:
                found.append(message)
        decoder.receive_eof()
        assert found == [decode(vector) for vector in vectors]


def test_response_without_a_leader_names_no_leader() -> None:
    (vector,) = (v for v in GOLDEN if v["name"] == "AppendEntriesResponse/client-rejected-no-leader-known")
    assert decode(vector).destination == NO_LEADER
