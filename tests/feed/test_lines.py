"""Entries as JSON lines: what is written is read again, and nothing else is."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.errors import RemoteProtocolError
from garlicfarm.feed.lines import decode_lines, encode_lines
from garlicfarm.raft.types import Entry
from garlicfarm.wire.messages import ValueType

ENTRIES = st.lists(
    st.builds(
        Entry,
        st.integers(1, 2**63 - 1),
        st.integers(0, 2**63 - 1),
        st.sampled_from([ValueType.APPLICATION, ValueType.CONFIGURATION]),
        st.one_of(
            st.binary(max_size=40), st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace"))
        ),
    ),
    max_size=5,
)
LINE = {"index": 3, "term": 1, "type": "application", "value": "x"}


@given(ENTRIES)
def test_lines_written_are_read_again(entries: list[Entry]) -> None:
    text = encode_lines(entries)
    assert decode_lines(text) == entries
    assert decode_lines(text.removesuffix(b"\n")) == entries


def test_line_has_text_as_it_is_and_other_bytes_in_base64() -> None:
    shown = [
        json.loads(line)
        for line in encode_lines(
            [Entry(3, 1, ValueType.APPLICATION, b"x"), Entry(4, 2, ValueType.CONFIGURATION, b"\xff")]
        ).splitlines()
    ]
    assert shown == [
        LINE,
        {"index": 4, "term": 2, "type": "configuration", "value_base64": base64.b64encode(b"\xff").decode()},
    ]


@pytest.mark.parametrize(
    "line",
    [
        {},
        {**LINE, "index": 0},
        {**LINE, "index": "3"},
        {**LINE, "term": -1},
        {**LINE, "type": "snapshot"},
        {**LINE, "value": None},
        {**LINE, "value_base64": ""},
        {**LINE, "more": 1},
        {key: value for key, value in LINE.items() if key != "value"},
        {**LINE, "value": None, "value_base64": "#"},
        [],
        "x",
    ],
)
def test_line_that_is_no_entry_is_refused(line: object) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_lines(json.dumps(LINE).encode() + b"\n" + json.dumps(line).encode())


@pytest.mark.parametrize(
    "text", [b"\xff", b"{", b"[" * 100_000, json.dumps(LINE).encode()[:-1], b'{"value":"\xff"}']
)
def test_text_that_is_no_line_is_refused(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_lines(text)
