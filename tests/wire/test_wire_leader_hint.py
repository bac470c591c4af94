"""A refused ClientRequest and the hint behind its answer, with the extension leader-hint (D5)."""

from __future__ import annotations

import struct

import pytest

from garlicfarm.errors import RemoteProtocolError
from garlicfarm.wire import ResponseDecoder, encode_configuration, encode_response
from garlicfarm.wire.codec import MAX_HINT_BYTES
from garlicfarm.wire.messages import ClusterServer, Configuration, MessageType, Response

MEMBERS = Configuration(7, 1, (ClusterServer(1, "ssl://a.example:1"), ClusterServer(2, "ssl://ü.example:2")))


def answer(*, accepted: bool = False, hint: Configuration | None = MEMBERS) -> Response:
    return Response(MessageType.APPEND_ENTRIES_RESPONSE, 2, 1, 9, 0, accepted, hint)


def test_hint_is_one_log_entry_behind_the_26_bytes() -> None:
    data = encode_response(answer())
    value = encode_configuration(MEMBERS)
    assert data == encode_response(answer(hint=None)) + struct.pack(">QBI", 9, 2, len(value)) + value


@pytest.mark.parametrize("hint", [MEMBERS, Configuration(0, 0)])
def test_hinted_refusal_cut_anywhere_is_read_once_it_is_whole(hint: Configuration) -> None:
    data = encode_response(answer(hint=hint))
    following = answer(accepted=True, hint=None)
    for cut in range(len(data)):
        decoder = ResponseDecoder()
        decoder.receive_data(data[:cut])
        assert decoder.next_message(hinted=True) is None
        assert decoder.partial is (cut > 0)
        decoder.receive_data(data[cut:] + encode_response(following))
        assert decoder.next_message(hinted=True) == answer(hint=hint)
        assert decoder.next_message(hinted=True) == following
        decoder.receive_eof()


def test_stream_that_ends_where_the_hint_begins_is_cut() -> None:
    decoder = ResponseDecoder()
    decoder.receive_data(encode_response(answer(hint=None)))
    assert decoder.next_message(hinted=True) is None
    with pytest.raises(RemoteProtocolError, match=r"ended inside a message \(leader hint\)"):
        decoder.receive_eof()


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        (struct.pack(">QBI", 9, 1, 0), "an entry of kind 1 and 0 bytes is not a hint"),
        (struct.pack(">QBI", 9, 2, MAX_HINT_BYTES + 1), "is not a hint"),
        (struct.pack(">QBI", 9, 2, 0xFFFF_FFFF), "is not a hint"),
        (struct.pack(">QBI", 9, 2, 15) + bytes(15), "15 bytes are too few"),
        (struct.pack(">QBI", 9, 2, 25) + bytes(25), "too long|client's|too few"),
    ],
)
def test_hint_that_is_no_configuration_breaks_the_stream(entry: bytes, what: str) -> None:
    decoder = ResponseDecoder()
    decoder.receive_data(encode_response(answer(hint=None)) + entry)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match=what):
            decoder.next_message(hinted=True)


def test_unhinted_stream_knows_no_hints() -> None:
    decoder = ResponseDecoder()
    decoder.receive_data(encode_response(answer(hint=None)) * 2)
    assert [decoder.next_message(), decoder.next_message(), decoder.next_message()] == [
        answer(hint=None),
        answer(hint=None),
        None,
    ]
