"""The lexical half of the validity rule."""

from __future__ import annotations

import time

import pytest

from garlicfarm.errors import EntryRefused
from garlicfarm.publishing.strict_json import MAX_DEPTH, MAX_ENTRY_BYTES, NumberText, decode_object


def nested(depth: int) -> bytes:
    """An object within which arrays are nested, ``depth`` levels in all."""
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


@pytest.mark.parametrize(
    ("entry", "field", "reason"),
    [
        (b"", "", "not JSON"),
        (b" ", "", "not JSON"),
        (b"{} {}", "", "not JSON"),
        (b"{", "", "not JSON"),
        (b'{"a":1,}', "", "not JSON"),
        (b"{'a':1}", "", "not JSON"),
        (b'{"a":NaN}', "", "not JSON"),
        (b'{"a":Infinity}', "", "not JSON"),
        (b'{"a":-Infinity}', "", "not JSON"),
        (b'{"a":01}', "", "not JSON"),
        (b'{"a":+1}', "", "not JSON"),
        (b'{"a":.5}', "", "not JSON"),
        (b'{"a":"\n"}', "", "not JSON"),
        (b'{"a":"\\x41"}', "", "not JSON"),
        (b'{"a":1}//', "", "not JSON"),
        (b"\xef\xbb\xbf{}", "", "not JSON"),
        ('{"a":\u0661}'.encode(), "", "not JSON"),
        (b'{"a":"\xff"}', "", "not UTF-8"),
        (b'{"a":"\xed\xa0\x80"}', "", "not UTF-8"),
        (b'{"a":"\xc0\x80"}', "", "not UTF-8"),
        (b'{"a":"\\ud800"}', "", "lone surrogate"),
        (b'{"a":"\\udC00\\ud800"}', "", "lone surrogate"),
        (b'{"a":"\\ud800\\ud800\\udc00"}', "", "lone surrogate"),
        (b'{"\\uDbff x":0}', "", "lone surrogate"),
        (b'{"a":"\\\\\\ud800"}', "", "lone surrogate"),
        (b'{"a":1,"a":1}', "a", "duplicate key"),
        (b'{"x":[{"b":1,"\\u0062":2}]}', "b", "duplicate key"),
        (b"[]", "", "not an object"),
        (b"null", "", "not an object"),
        (b"1", "", "not an object"),
        (b'{"a":"' + b"x" * MAX_ENTRY_BYTES + b'"}', "", "too large"),
        (nested(MAX_DEPTH + 1), "", "nested too deep"),
        (b"[" * 60_000, "", "nested too deep"),
    ],
)
def test_decode_malformed_entry_is_refused_with_its_reason(entry: bytes, field: str, reason: str) -> None:
    with pytest.raises(EntryRefused) as refused:
        decode_object(entry)
    assert (refused.value.field, refused.value.reason) == (field, reason)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        (b" \t\r\n{} ", {}),
        (b'{"a":"\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        (b'{"a":"\\\\ud800"}', {"a": "\\ud800"}),
        (b'{"a":"\\u0000"}', {"a": "\0"}),
        (b'{"a":-0}', {"a": 0}),
        (b'{"a":9223372036854775807}', {"a": 2**63 - 1}),
        (b'{"a":"' + b"[{" * 40 + b'\\"[{"}', {"a": "[{" * 40 + '"[{'}),
    ],
)
def test_decode_wellformed_entry_gives_its_value(entry: bytes, value: dict[str, object]) -> None:
    assert decode_object(entry) == value


def test_decode_depth_limit_is_inclusive_and_brackets_side_by_side_do_not_add_up() -> None:
    decode_object(nested(MAX_DEPTH))
    decode_object(nested(MAX_DEPTH)[:-1] + b',"b":[[],[]]}')
    decode_object(b'{"a":[' + b",".join([b"[[]]"] * 100) + b"]}")


@pytest.mark.parametrize("number", [b"1.0", b"1e3", b"0.5", b"-1E-2", b"1" * 20, b"-" + b"9" * 5000])
def test_decode_number_that_is_no_short_integer_stays_text(number: bytes) -> None:
    found = decode_object(b'{"a":' + number + b"}")["a"]
    assert type(found) is NumberText
    assert found == number.decode()


def test_decode_hostile_entries_of_full_size_take_no_longer_than_some_valid_ones() -> None:
    members = b"{" + b",".join(b'"%d":0' % n for n in range(7000))
    hostile = [
        b"[" * MAX_ENTRY_BYTES,
        b'"' * MAX_ENTRY_BYTES,
        b'"\\' * (MAX_ENTRY_BYTES // 2),
        b'{"a":"' + b"\\ud800" * 10_000 + b'"}',
        members + b',"0":1}',
        b'{"a":' + b"9" * 60_000 + b"}",
    ]
    began = time.process_time()
    for entry in hostile:
        with pytest.raises(EntryRefused):
            decode_object(entry + b"x" if entry.endswith(b"9}") else entry)
    took_s, began = time.process_time() - began, time.process_time()
    decode_object(members + b"}")
    assert took_s < 100 * (time.process_time() - began)
