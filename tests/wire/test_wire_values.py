"""The log values: round trips, and everything that a peer can get wrong."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib
from itertools import accumulate

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from garlicfarm.errors import LocalProtocolError, RemoteProtocolError
from garlicfarm.wire import (
    ClusterServer,
    Configuration,
    Grant,
    LogEntry,
    LogPack,
    SnapshotSyncRequest,
    ValueType,
    decode_cluster_server,
    decode_configuration,
    decode_grant,
    decode_log_pack,
    decode_snapshot_sync_request,
    encode_cluster_server,
    encode_configuration,
    encode_grant,
    encode_log_pack,
    encode_snapshot_sync_request,
)

MIB = 1024 * 1024

u64 = st.integers(0, 2**64 - 1)
servers = st.builds(ClusterServer, st.integers(1, 2**32 - 1), st.text(max_size=30))
configurations = st.builds(
    Configuration,
    u64,
    u64,
    st.lists(servers, max_size=5, unique_by=lambda server: server.id).map(tuple),
    st.sampled_from((0, 1, 2**32 - 1)),
)
chunks = st.builds(SnapshotSyncRequest, u64, u64, configurations, u64, st.binary(max_size=100), st.booleans())
logged = st.builds(
    LogEntry, u64, st.sampled_from([ValueType.APPLICATION, ValueType.CONFIGURATION]), st.binary(max_size=60)
)


# ClusterServer


@given(servers)
def test_cluster_server_encoded_and_decoded_is_the_same(server: ClusterServer) -> None:
    assert decode_cluster_server(encode_cluster_server(server)) == server
    assert decode_cluster_server(encode_cluster_server(server, id_only=True), id_only=True) == ClusterServer(
        server.id
    )


@given(servers)
def test_cluster_server_cut_at_any_byte_is_refused(server: ClusterServer) -> None:
    data = encode_cluster_server(server)
    for cut in range(len(data)):
        with pytest.raises(RemoteProtocolError, match="ClusterServer"):
            decode_cluster_server(data[:cut])


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (struct.pack(">II", 1, 4) + b"abcde", "1 bytes follow the endpoint"),
        (
            struct.pack(">II", 1, 2**32 - 1) + b"abc",
            "endpoint_length 4294967295 is 4294967292 bytes too long",
        ),
        (struct.pack(">II", 0, 3) + b"abc", "the id 0 is a client's"),
        (struct.pack(">II", 1, 3) + b"a\xffc", "the endpoint is not UTF-8"),
    ],
)
def test_cluster_server_that_is_wrong_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(RemoteProtocolError, match=what) as caught:
        decode_cluster_server(data)
    assert caught.value.where == "ClusterServer"


@pytest.mark.parametrize("data", [b"", bytes(3), bytes(4), b"\0\0\0\1\0", struct.pack(">II", 1, 0)])
def test_id_alone_of_another_length_or_0_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="ClusterServer"):
        decode_cluster_server(data, id_only=True)


@pytest.mark.parametrize("id_only", [False, True])
@pytest.mark.parametrize("wrong", [-1, 0, 2**32])
def test_encode_server_with_an_impossible_id_is_our_fault(wrong: int, id_only: bool) -> None:
    with pytest.raises(LocalProtocolError, match=f"id {wrong}"):
        encode_cluster_server(ClusterServer(wrong, "ssl://a:1"), id_only=id_only)


def test_encode_endpoint_without_utf8_form_is_our_fault() -> None:
    with pytest.raises(LocalProtocolError, match="UTF-8"):
        encode_cluster_server(ClusterServer(1, "\ud800"))


# Configuration


@given(configurations)
def test_configuration_encoded_and_decoded_is_the_same(configuration: Configuration) -> None:
    assert decode_configuration(encode_configuration(configuration)) == configuration


@given(configurations)
def test_configuration_cut_at_any_byte_is_refused_or_ends_between_servers(
    configuration: Configuration,
) -> None:
    data = encode_configuration(configuration)
    ends = list(accumulate((len(encode_cluster_server(s)) for s in configuration.servers), initial=16))
    for cut in range(len(data)):
        if cut in ends:  # there is no count: this is a smaller Configuration, or one of level 0
            cut_off = decode_configuration(data[:cut])
            assert cut_off.servers == configuration.servers[: ends.index(cut)]
            assert cut_off.level == 0
        else:
            with pytest.raises(RemoteProtocolError, match="Configuration"):
                decode_configuration(data[:cut])


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ([(1, b"a"), (2, b"b"), (1, b"c")], "the id 1 occurs twice (Configuration, server 3 at byte 34)"),
        (
            [(1, b"a"), (0, b"b")],
            "the id 0 is a client's, not a server's (Configuration, server 2 at byte 25)",
        ),
        ([(1, b"\xc3")], "the endpoint is not UTF-8 (Configuration, server 1 at byte 16)"),
        ([(1, b"a"), (0, bytes(4))], "it names the level 0 (Configuration)"),
        (
            [(0, b"\0\0\0\1"), (1, b"a")],
            "the id 0 is a client's, not a server's (Configuration, server 1 at byte 16)",
        ),
        (
            [(1, b"a"), (0, b"\0\0\0\1"), (0, b"\0\0\0\2")],
            "the id 0 is a client's, not a server's (Configuration, server 2 at byte 25)",
        ),
    ],
)
def test_configuration_with_a_wrong_server_is_refused(members: list[tuple[int, bytes]], what: str) -> None:
    data = struct.pack(">QQ", 5, 1) + b"".join(struct.pack(">II", i, len(e)) + e for i, e in members)
    with pytest.raises(RemoteProtocolError) as caught:
        decode_configuration(data)
    assert str(caught.value) == what


def test_level_is_the_last_record_and_the_lowest_has_none() -> None:
    low, high = (
        Configuration(5, 1, (ClusterServer(1, "a"),)),
        Configuration(5, 1, (ClusterServer(1, "a"),), 7),
    )
    assert encode_configuration(high) == encode_configuration(low) + struct.pack(">III", 0, 4, 7)


@pytest.mark.parametrize(
    "configuration",
    [
        Configuration(1, 0, (ClusterServer(1, "a"),), 2**32),
        Configuration(1, 0, (ClusterServer(1, "a"), ClusterServer(1, "b"))),
        Configuration(1, 0, (ClusterServer(0, "a"),)),
        Configuration(-1, 0),
        Configuration(0, 2**64),
    ],
)
def test_encode_configuration_that_is_wrong_is_our_fault(configuration: Configuration) -> None:
    with pytest.raises(LocalProtocolError):
        encode_configuration(configuration)


# LogPack


@given(st.integers(0, 2**40), st.lists(logged, max_size=8))
def test_log_pack_encoded_and_decoded_is_the_same(first: int, entries: list[LogEntry]) -> None:
    data = encode_log_pack(first, entries)
    pack = decode_log_pack(data, MIB, MIB)
    assert pack.entries == tuple(entries)
    assert list(pack.offsets) == list(accumulate((9 + len(e.value) for e in entries), initial=first))[:-1]
    assert data == encode_log_pack(first, entries)


def test_log_pack_has_the_layout_of_the_file_store_and_no_time_in_it() -> None:
    data = encode_log_pack(
        136, [LogEntry(2, ValueType.CONFIGURATION, b"ab"), LogEntry(3, ValueType.APPLICATION, b"")]
    )
    assert gzip.decompress(data) == struct.pack(">IIQQ", 16, 20, 136, 147) + (
        struct.pack(">QB", 2, 2) + b"ab" + struct.pack(">QB", 3, 1)
    )
    assert data[4:8] == bytes(4)


@given(st.lists(logged, max_size=4))
def test_log_pack_cut_at_any_byte_is_refused(entries: list[LogEntry]) -> None:
    data = encode_log_pack(0, entries)
    for cut in range(len(data)):
        with pytest.raises(RemoteProtocolError, match="the gzip member is truncated"):
            decode_log_pack(data[:cut], MIB, MIB)


@example(bytes(8))
@given(st.binary(max_size=100))
def test_log_pack_of_garbage_raises_only_remote_protocol_errors(body: bytes) -> None:
    for data in (body, gzip.compress(body, mtime=0)):
        try:
            pack = decode_log_pack(data, MIB, MIB)
        except RemoteProtocolError:
            continue
        first = pack.offsets[0] if pack.offsets else 0
        assert decode_log_pack(encode_log_pack(first, pack.entries), MIB, MIB) == pack


def packed(
    offsets: list[int], log: bytes, index_length: int | None = None, log_length: int | None = None
) -> bytes:
    return gzip.compress(
        struct.pack(
            f">II{len(offsets)}Q",
            8 * len(offsets) if index_length is None else index_length,
            len(log) if log_length is None else log_length,
            *offsets,
        )
        + log,
        mtime=0,
    )


ONE = struct.pack(">QB", 1, 1) + b"x"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "truncated"),
        (b"no gzip at all", "not gzip"),
        (zlib.compress(bytes(8)), "not gzip"),
        (packed([0], ONE) + b"\0", "bytes follow the gzip member"),
        (packed([0], ONE) + packed([0], ONE), "bytes follow the gzip member"),
        (packed([0], ONE)[:-8] + bytes(8), "not gzip"),
        (gzip.compress(bytes(7), mtime=0), "7 bytes are too few"),
        (packed([0], ONE, index_length=9), "index_length 9 and log_length 10 do not make up 26 bytes"),
        (packed([0], ONE, index_length=9, log_length=9), "index_length 9 and log_length 9 do not make up"),
        (packed([0], ONE, index_length=2**32 - 8), "do not make up"),
        (packed([0], ONE, log_length=9), "do not make up"),
        (packed([0], ONE, log_length=11), "do not make up"),
        (packed([], ONE), "index_length 0 and log_length 10 do not make up 18 bytes"),
        (packed([0, 10], ONE), r"its offsets leave it 0 bytes \(LogPack, entry 2 at byte 34\)"),
        (packed([0, 8], ONE + ONE), r"its offsets leave it 8 bytes \(LogPack, entry 1 at byte 24\)"),
        (packed([5, 3], ONE + ONE), "its offsets leave it -2 bytes"),
        (packed([0, 21], ONE + ONE), "its offsets run past the end"),
        (packed([0, 1000], ONE + ONE), r"its offsets run past the end \(LogPack, entry 1 at byte 24\)"),
        (packed([0], struct.pack(">QB", 1, 0)), "an entry of kind 0 is not allowed here"),
        (packed([0], struct.pack(">QB", 1, 3)), "an entry of kind 3 is not allowed here"),
        (packed([0], struct.pack(">QB", 1, 6)), "an entry of kind 6 is not allowed here"),
    ],
)
def test_log_pack_that_is_wrong_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(RemoteProtocolError, match=what) as caught:
        decode_log_pack(data, MIB, MIB)
    assert caught.value.where.startswith("LogPack")


def test_log_pack_with_a_byte_after_a_member_of_64_kib_is_refused() -> None:
    data = packed([0], ONE)
    name = b"n" * (64 * 1024 - len(data) - 1) + b"\0"  # gzip's FNAME, to get the length
    member = data[:3] + b"\x08" + data[4:10] + name + data[10:]
    assert len(member) == 64 * 1024
    assert len(decode_log_pack(member, MIB, MIB).entries) == 1
    with pytest.raises(RemoteProtocolError, match="bytes follow the gzip member"):
        decode_log_pack(member + b"\0", MIB, MIB)


def test_log_pack_offsets_count_by_their_differences_only() -> None:
    entries = (LogEntry(1, ValueType.APPLICATION, b"x"),) * 2
    assert decode_log_pack(packed([2**64 - 11, 2**64 - 1], ONE + ONE), MIB, MIB) == LogPack(
        (2**64 - 11, 2**64 - 1), entries
    )


def test_log_pack_limits_hold_for_the_whole_and_for_application_entries() -> None:
    entries = [
        LogEntry(1, ValueType.CONFIGURATION, bytes(200)),
        LogEntry(1, ValueType.APPLICATION, bytes(100)),
    ]
    data = encode_log_pack(0, entries)
    size = 8 + 16 + 18 + 300
    assert decode_log_pack(data, size, 100).entries == tuple(entries)
    with pytest.raises(RemoteProtocolError, match=f"more than {size - 1} bytes"):
        decode_log_pack(data, size - 1, 100)
    with pytest.raises(RemoteProtocolError, match="100 bytes are over the limit of 99") as caught:
        decode_log_pack(data, size, 99)
    assert caught.value.where == "LogPack, entry 2 at byte 233"


@pytest.mark.parametrize("head", [b"", struct.pack(">II", 8, 64 * MIB - 16)], ids=["zeros", "promise"])
def test_log_pack_bomb_allocates_no_more_than_the_limit(head: bytes) -> None:
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(map(squeeze.compress, [head, *[bytes(MIB)] * 64])) + squeeze.flush()
    assert len(bomb) < 70_000
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match=f"more than {4 * MIB} bytes"):
            decode_log_pack(bomb, 4 * MIB, MIB)
        assert tracemalloc.get_traced_memory()[1] < 1.2 * 4 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("first", "entry"),
    [
        (-1, LogEntry(1, ValueType.APPLICATION, b"")),
        (2**64, LogEntry(1, ValueType.APPLICATION, b"")),
        (0, LogEntry(-1, ValueType.APPLICATION, b"")),
        (0, LogEntry(2**64, ValueType.APPLICATION, b"")),
        (0, LogEntry(1, ValueType.CLUSTER_SERVER, b"")),
        (0, LogEntry(1, ValueType.LOG_PACK, b"")),
        (0, LogEntry(1, ValueType.SNAPSHOT_SYNC_REQUEST, b"")),
    ],
)
def test_encode_log_pack_that_is_wrong_is_our_fault(first: int, entry: LogEntry) -> None:
    with pytest.raises(LocalProtocolError, match="LogPack"):
        encode_log_pack(first, [entry])


# SnapshotSyncRequest


@given(chunks)
def test_snapshot_sync_request_encoded_and_decoded_is_the_same(chunk: SnapshotSyncRequest) -> None:
    assert decode_snapshot_sync_request(encode_snapshot_sync_request(chunk)) == chunk


@given(chunks)
def test_snapshot_sync_request_cut_at_any_byte_or_longer_is_refused(chunk: SnapshotSyncRequest) -> None:
    data = encode_snapshot_sync_request(chunk)
    for wrong in (*(data[:cut] for cut in range(len(data))), data + b"\0"):
        with pytest.raises(RemoteProtocolError, match="SnapshotSyncRequest"):
            decode_snapshot_sync_request(wrong)


def snapshot(
    config: bytes = bytes(16), config_length: int = 16, data_length: int = 3, tail: bytes = b"abc\1"
) -> bytes:
    return struct.pack(">QQI", 9, 2, config_length) + config + struct.pack(">QI", 0, data_length) + tail


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "0 bytes are too few"),
        (snapshot(config_length=21), "config_length 21 runs past the end"),
        (snapshot(config_length=2**32 - 1), "config_length 4294967295 runs past the end"),
        (snapshot(data_length=2), "data_length is 2, but 3 bytes follow"),
        (snapshot(data_length=4), "data_length is 4, but 3 bytes follow"),
        (snapshot(data_length=2**32 - 1), "data_length is 4294967295, but 3 bytes follow"),
        (snapshot(tail=b"abc\2"), "done is 2, not 0 or 1"),
        (snapshot(bytes(15), 15), r"15 bytes are too few \(SnapshotSyncRequest, Configuration\)"),
        (
            snapshot(bytes(24), 24),
            r"the id 0 is .* \(SnapshotSyncRequest, Configuration, server 1 at byte 16\)",
        ),
    ],
)
def test_snapshot_sync_request_that_is_wrong_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(RemoteProtocolError, match=what):
        decode_snapshot_sync_request(data)


@pytest.mark.parametrize(
    "chunk",
    [
        SnapshotSyncRequest(-1, 0, Configuration(0, 0), 0, b"", True),
        SnapshotSyncRequest(0, 2**64, Configuration(0, 0), 0, b"", True),
        SnapshotSyncRequest(0, 0, Configuration(0, 0), -1, b"", True),
        SnapshotSyncRequest(0, 0, Configuration(0, 0, (ClusterServer(0, "a"),)), 0, b"", True),
    ],
)
def test_encode_snapshot_sync_request_that_is_wrong_is_our_fault(chunk: SnapshotSyncRequest) -> None:
    with pytest.raises(LocalProtocolError):
        encode_snapshot_sync_request(chunk)


# Grant

grants = st.builds(
    Grant,
    term=u64,
    number=st.just(2**64 - 1),
    answered=st.integers(0, 2**64 - 2),
    age_ms=u64,
    lasts_ms=u64,
    index=u64,
)


@given(grants)
def test_grant_encoded_and_decoded_is_the_same(grant: Grant) -> None:
    assert decode_grant(encode_grant(grant), grant.term) == grant


def test_grant_has_a_fixed_form() -> None:
    grant = Grant(term=7, number=2, answered=1, age_ms=300, lasts_ms=4950, index=18)
    assert encode_grant(grant) == struct.pack(">5Q", 2, 1, 300, 4950, 18)
    with pytest.raises(LocalProtocolError, match="does not fit its field"):
        encode_grant(msgspec.structs.replace(grant, index=2**64))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (bytes(39), "39 bytes instead of 40"),
        (bytes(41), "41 bytes instead of 40"),
        (struct.pack(">5Q", 2, 2, 0, 0, 0), "grant 2 says that 2 was answered"),
        (bytes(40), "grant 0 says that 0 was answered"),
    ],
)
def test_grant_that_is_wrong_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(RemoteProtocolError, match=what):
        decode_grant(data, 7)
