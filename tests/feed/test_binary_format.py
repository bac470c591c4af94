from __future__ import annotations

import struct
import tracemalloc
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.errors import RemoteProtocolError
from garlicfarm.feed.binary_format import RecordDecoder, encode_records
from garlicfarm.feed.lines import encode_lines
from garlicfarm.raft.types import Entry
from garlicfarm.wire.messages import ValueType

U63 = st.integers(0, 2**63 - 1)
KINDS = st.sampled_from([ValueType.APPLICATION, ValueType.CONFIGURATION])
VALUES = st.binary() | st.text().map(str.encode)
LOGS = st.lists(st.builds(Entry, st.integers(1, 2**63 - 1), U63, KINDS, VALUES), max_size=5).map(
    lambda entries: list({entry.index: entry for entry in sorted(entries, key=lambda e: e.index)}.values())
)


def test_record_has_the_bytes_that_the_interface_names() -> None:
    entry = Entry(258, 3, ValueType.CONFIGURATION, b"\xff\x00")
    assert encode_records([entry]) == bytes.fromhex("0000000000000102 0000000000000003 02 00000002 ff00")
    assert encode_records([]) == b""


@given(LOGS, st.lists(st.integers(0, 400)))
def test_records_cut_anywhere_decode_to_what_was_encoded(entries: list[Entry], cuts: list[int]) -> None:
    data = encode_records(entries)
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    decoder = RecordDecoder()
    decoded = [entry for a, b in pairwise(places) for entry in decoder.receive_data(data[a:b])]
    decoder.receive_eof()
    assert decoded == entries


def test_records_truncated_anywhere_are_told_from_whole_ones() -> None:
    first = encode_records([Entry(1, 1, ValueType.APPLICATION, b"one")])
    data = first + encode_records([Entry(2, 1, ValueType.APPLICATION, b"two")])
    for end in range(len(data)):
        decoder = RecordDecoder()
        assert len(decoder.receive_data(data[:end])) == (end >= len(first))
        if end in (0, len(first)):
            decoder.receive_eof()
        else:
            with pytest.raises(RemoteProtocolError, match="broke off"):
                decoder.receive_eof()


@pytest.mark.parametrize(
    "head",
    [(7, 1, 1, 0), (6, 1, 1, 0), (8, 1, 3, 0), (8, 1, 0, 0), (8, 1, 1, (64 << 20) + 1)],
    ids=["the same index", "an index below", "a ClusterServer", "type 0", "too large"],
)
def test_record_that_cannot_be_is_the_peers_fault(head: tuple[int, int, int, int]) -> None:
    decoder = RecordDecoder(7)
    with pytest.raises(RemoteProtocolError, match="record after index 7"):
        decoder.receive_data(struct.pack(">QQBI", *head))


def test_record_that_promises_much_allocates_nothing() -> None:
    decoder = RecordDecoder()
    tracemalloc.start()
    assert decoder.receive_data(struct.pack(">QQBI", 1, 1, 1, 64 << 20)) == []
    assert tracemalloc.get_traced_memory()[1] < 1 << 16
    tracemalloc.stop()


@given(LOGS)
def test_lines_hold_what_records_hold(entries: list[Entry]) -> None:
    lines = encode_lines(entries).split(b"\n")
    assert lines.pop() == b""
    for line, entry in zip(lines, entries, strict=True):
        read = msgspec.json.decode(line)
        kind = "application" if entry.value_type is ValueType.APPLICATION else "configuration"
        assert (read["index"], read["term"], read["type"]) == (entry.index, entry.term, kind)
        if "value" in read:
            assert read["value"].encode() == entry.value
        else:
            assert msgspec.convert(read["value_base64"], bytes, builtin_types=()) == entry.value
            with pytest.raises(UnicodeDecodeError):
                entry.value.decode()
