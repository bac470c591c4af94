"""Messages: round trips, chunks, and everything that a peer can get wrong."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.errors import LocalProtocolError, RemoteProtocolError
from garlicfarm.wire import (
    Limits,
    LogEntry,
    MessageType,
    Request,
    RequestDecoder,
    RequestEncoder,
    Response,
    ResponseDecoder,
    ValueType,
    codec,
    encode_request,
    encode_response,
    encoded_size,
)
from garlicfarm.wire.codec import LARGE_RECEIVE_BYTES, RECEIVE_BYTES

APP, CONF, SERVER, PACK, CHUNK, GRANT = ValueType

# The tables of docs/reference/protocol.md ("Messages", and D5's extensions) once more: type -> kinds of its
# entries, and whether exactly one.
CARRIES: dict[int, tuple[set[ValueType], bool]] = {
    1: (set(), False),
    3: ({APP, CONF}, False),
    5: ({APP}, False),
    6: ({SERVER}, True),
    8: ({SERVER}, True),
    10: ({PACK}, True),
    12: ({CONF}, True),
    14: (set(), False),
    16: ({CHUNK}, True),
    20: (set(), False),
    28: (set(), False),
    30: (set(), False),
    32: ({GRANT}, True),
}
RESPONSES = [2, 4, 7, 9, 11, 13, 15, 17, 21, 29, 31, 33]
SINGLE = [number for number, (_, single) in CARRIES.items() if single]
EMPTY = [number for number, (kinds, _) in CARRIES.items() if not kinds]

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    number = draw(st.sampled_from(sorted(CARRIES)))
    kinds, single = CARRIES[number]
    entries: list[LogEntry] = []
    if kinds:
        entry = st.builds(LogEntry, u64, st.sampled_from(sorted(kinds)), st.binary(max_size=40))
        entries = draw(st.lists(entry, min_size=single, max_size=1 if single else 5))
    numbers = (draw(u32), draw(u32), draw(u64), draw(u64), draw(u64), draw(u64))
    return Request(MessageType(number), *numbers, tuple(entries))


responses = st.builds(
    Response, st.sampled_from(RESPONSES).map(MessageType), u32, u32, u64, u64, st.booleans()
)


def header(number: int, size: int) -> bytes:
    return struct.pack(">BIIQQQQI", number, 1, 2, 3, 4, 5, 6, size)


def entry_header(kind: int, size: int) -> bytes:
    return struct.pack(">QBI", 7, kind, size)


def entry(kind: int, value: bytes) -> bytes:
    return entry_header(kind, len(value)) + value


def outcome(decoder: RequestDecoder | ResponseDecoder, chunks: list[bytes]) -> tuple[list[Any], str]:
    """The messages, and the error that ended them, "" if the end was clean."""
    found: list[Any] = []
    try:
        for chunk in chunks:
            decoder.receive_data(chunk)
            while (message := decoder.next_message()) is not None:
                found.append(message)
        decoder.receive_eof()
    except RemoteProtocolError as error:
        return found, str(error)
    return found, ""


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(edges)]


def refuse(data: bytes, limits: Limits | None = None) -> RemoteProtocolError:
    """Feed ``data``, which must be refused now, and for ever after."""
    decoder = RequestDecoder(limits or Limits())
    decoder.receive_data(data)
    with pytest.raises(RemoteProtocolError) as first:
        decoder.next_message()
    with pytest.raises(RemoteProtocolError) as second:
        decoder.next_message()
    with pytest.raises(RemoteProtocolError):
        decoder.receive_data(header(1, 0))
    with pytest.raises(RemoteProtocolError):
        decoder.receive_eof()
    assert str(second.value) == str(first.value)
    return first.value


def wants_more(data: bytes, limits: Limits | None = None) -> None:
    decoder = RequestDecoder(limits or Limits())
    decoder.receive_data(data)
    assert decoder.next_message() is None


# Round trips and chunks


@given(st.lists(requests(), max_size=5))
def test_requests_encoded_and_decoded_are_the_same(given_requests: list[Request]) -> None:
    data = b"".join(map(encode_request, given_requests))
    assert outcome(RequestDecoder(Limits()), [data]) == (given_requests, "")
    assert sum(map(encoded_size, given_requests)) == len(data)


@given(st.lists(responses, max_size=5))
def test_responses_encoded_and_decoded_are_the_same(given_responses: list[Response]) -> None:
    data = b"".join(map(encode_response, given_responses))
    assert len(data) == 26 * len(given_responses)
    assert outcome(ResponseDecoder(), [data]) == (given_responses, "")


@given(
    st.lists(requests(), min_size=1, max_size=4), st.lists(st.integers(0, 2000), max_size=20), st.integers(0)
)
def test_request_chunks_cut_anywhere_give_what_the_whole_gives(
    given_requests: list[Request], places: list[int], end: int
) -> None:
    data = b"".join(map(encode_request, given_requests))
    data = data[: len(data) - end % len(data)]
    whole = outcome(RequestDecoder(Limits()), [data])
    assert outcome(RequestDecoder(Limits()), cut(data, places)) == whole
    assert outcome(RequestDecoder(Limits()), [data[i : i + 1] for i in range(len(data))]) == whole


@given(
    st.lists(requests(), min_size=1, max_size=4),
    st.integers(0),
    st.integers(1, 255),
    st.lists(st.integers(0, 2000), max_size=20),
)
def test_request_chunks_with_a_flipped_byte_fail_as_the_whole_fails(
    given_requests: list[Request], place: int, flip: int, places: list[int]
) -> None:
    data = bytearray(b"".join(map(encode_request, given_requests)))
    data[place % len(data)] ^= flip
    whole = outcome(RequestDecoder(Limits()), [bytes(data)])
    assert outcome(RequestDecoder(Limits()), cut(bytes(data), places)) == whole


@given(
    st.lists(responses, min_size=1, max_size=4), st.lists(st.integers(0, 200), max_size=10), st.integers(0)
)
def test_response_chunks_cut_anywhere_give_what_the_whole_gives(
    given_responses: list[Response], places: list[int], end: int
) -> None:
    data = b"".join(map(encode_response, given_responses))
    data = data[: len(data) - end % len(data)]
    assert outcome(ResponseDecoder(), cut(data, places)) == outcome(ResponseDecoder(), [data])


@given(
    st.lists(requests(), min_size=1, max_size=4),
    st.integers(0),
    st.lists(st.integers(0, 2000), max_size=20),
    st.sampled_from([(13, 0), (13, 4), (16, 2), (30, 16), (30, 1000)]),
    st.lists(st.booleans(), min_size=1),
)
def test_entries_that_count_as_large_are_the_same_however_they_are_cut(
    given_requests: list[Request],
    end: int,
    places: list[int],
    thresholds: tuple[int, int],
    asked: list[bool],
) -> None:
    data = b"".join(map(encode_request, given_requests))
    data = data[: len(data) - end % len(data)]
    whole = outcome(RequestDecoder(Limits()), [data])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "RECEIVE_BYTES", thresholds[0])
        patch.setattr(codec, "SMALL_PIECE_BYTES", thresholds[1])
        assert outcome(RequestDecoder(Limits()), cut(data, places)) == whole
        assert outcome(RequestDecoder(Limits()), [data[i : i + 1] for i in range(len(data))]) == whole
        decoder, found = RequestDecoder(Limits()), list[Any]()
        for number, piece in enumerate(cut(data, places)):
            decoder.receive_data(piece)
            while asked[number % len(asked)] and (message := decoder.next_message()) is not None:
                found.append(message)
        found.extend(iter(decoder.next_message, None))
        assert found == whole[0]
        assert decoder.partial == bool(whole[1])


@pytest.mark.parametrize("piece", [1400, 4096, 65536, 1 << 18])
def test_large_entry_comes_out_as_it_went_in_and_asks_for_large_receives(piece: int) -> None:
    value = bytes(range(256)) * 4096
    small = Request(MessageType.CLIENT_REQUEST, 0, 0, entries=(LogEntry(0, APP, b"x"),))
    entries = (LogEntry(1, APP, b"a"), LogEntry(1, APP, value), LogEntry(1, APP, value[:100_000]))
    large = Request(MessageType.APPEND_ENTRIES_REQUEST, 1, 2, entries=entries)
    data = encode_request(small) + encode_request(large) + encode_request(small)
    decoder, found, asked = RequestDecoder(Limits()), list[Request](), list[int]()
    for start in range(0, len(data), piece):
        decoder.receive_data(data[start : start + piece])
        found.extend(iter(decoder.next_message, None))
        asked.append(decoder.receive_bytes)
    assert found == [small, large, small]
    assert all(type(entry.value) is bytes for entry in found[1].entries)
    assert max(asked[:-1]) == LARGE_RECEIVE_BYTES
    assert asked[-1] == RECEIVE_BYTES


@given(st.binary(max_size=200))
def test_garbage_never_raises_anything_but_a_remote_protocol_error(data: bytes) -> None:
    outcome(RequestDecoder(Limits()), [data])
    outcome(ResponseDecoder(), [data])


@given(
    st.lists(requests(), max_size=4), st.lists(st.tuples(st.integers(0, 3), u32, st.booleans()), max_size=8)
)
def test_requests_that_share_entries_are_encoded_as_each_by_itself(
    given_requests: list[Request], sent: list[tuple[int, int, bool]]
) -> None:
    encoder = RequestEncoder()
    for which, destination, is_last in sent:
        if which < len(given_requests):
            request = msgspec.structs.replace(given_requests[which], destination=destination)
            assert encoder.encode(request) == encode_request(request)
        if is_last:
            encoder.forget()


class CountedEntries(tuple[LogEntry, ...]):
    """Entries that count how often they are read."""

    read = 0

    def __iter__(self) -> Iterator[LogEntry]:
        self.read += 1
        return super().__iter__()


def test_entries_that_requests_share_are_encoded_once_until_forgotten() -> None:
    entries, encoder = CountedEntries((LogEntry(1, APP, b"a"), LogEntry(1, APP, b"b"))), RequestEncoder()
    for member in (2, 3, 4):
        request = Request(MessageType.APPEND_ENTRIES_REQUEST, 1, member, 1, entries=entries)
        encoder.encode(request)
    assert entries.read == 1
    with pytest.raises(LocalProtocolError):  # another type has rules of its own
        encoder.encode(Request(MessageType.REQUEST_VOTE_REQUEST, 1, 2, 1, entries=entries))
    before = entries.read
    encoder.encode(request)
    assert entries.read == before
    encoder.forget()
    encoder.encode(request)
    assert entries.read == before + 1


def test_request_values_are_bytes_even_from_a_bytearray() -> None:
    request = Request(MessageType.CLIENT_REQUEST, 0, 0, entries=(LogEntry(0, APP, b"x" * 100),))
    decoder = RequestDecoder(Limits())
    chunk = bytearray(encode_request(request))
    decoder.receive_data(chunk)
    chunk[:] = bytes(len(chunk))
    message = decoder.next_message()
    assert message == request
    assert type(message.entries[0].value) is bytes


def test_error_after_whole_messages_comes_after_them() -> None:
    found, error = outcome(RequestDecoder(Limits()), [header(1, 0) + header(14, 0) + header(99, 0)])
    assert [request.type for request in found] == [1, 14]
    assert error == "type 99 is unknown (request header)"


# The end of the stream


def test_eof_before_the_messages_are_taken_is_our_fault() -> None:
    decoder = RequestDecoder(Limits())
    decoder.receive_data(header(1, 0))
    with pytest.raises(LocalProtocolError):
        decoder.receive_eof()
    assert decoder.next_message() is not None
    decoder.receive_eof()


def test_eof_between_header_and_entries_raises_and_names_the_entry() -> None:
    decoder = RequestDecoder(Limits())
    decoder.receive_data(header(3, 60) + entry(1, b"abcd"))
    assert decoder.next_message() is None
    with pytest.raises(RemoteProtocolError) as caught:
        decoder.receive_eof()
    assert caught.value.what == "the stream ended inside a message"
    assert caught.value.where == "AppendEntriesRequest, entry 2 at byte 62"


def test_partial_is_true_only_inside_a_message() -> None:
    decoder = RequestDecoder(Limits())
    data = header(3, 17) + entry(APP, b"abcd")
    for at in range(len(data)):
        assert decoder.partial == (at > 0)
        decoder.receive_data(data[at : at + 1])
        assert (decoder.next_message() is not None) == (at == len(data) - 1)
    assert not decoder.partial


def test_more_entries_than_allowed_are_refused_though_small() -> None:
    entries = entry(APP, b"") * (1 << 16)
    decoder = RequestDecoder(Limits())
    decoder.receive_data(header(3, 4 * len(entries)))
    for _ in range(2):
        decoder.receive_data(entries)
        assert decoder.next_message() is None
    decoder.receive_data(entries)
    with pytest.raises(RemoteProtocolError, match="more than 131072 entries"):
        decoder.next_message()


# Bad requests: each is refused with nothing more than the header that shows the fault


@pytest.mark.parametrize("number", [0, 18, 19, 22, 34, 71, 255])
def test_request_of_an_unknown_type_is_refused(number: int) -> None:
    assert str(refuse(header(number, 0))) == f"type {number} is unknown (request header)"


@pytest.mark.parametrize("number", RESPONSES)
def test_response_on_a_request_stream_is_refused(number: int) -> None:
    assert "Response is not a request" in str(refuse(header(number, 0)))


@pytest.mark.parametrize("number", sorted(CARRIES))
def test_request_on_a_response_stream_is_refused_for_ever(number: int) -> None:
    decoder = ResponseDecoder()
    decoder.receive_data(header(number, 0))
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match=r"Request is not a response \(response header\)"):
            decoder.next_message()


@pytest.mark.parametrize("number", [0, 18, 255])
def test_response_of_an_unknown_type_is_refused(number: int) -> None:
    assert outcome(ResponseDecoder(), [header(number, 0)[:26]]) == (
        [],
        f"type {number} is unknown (response header)",
    )


@pytest.mark.parametrize("accepted", [2, 127, 255])
def test_response_accepted_other_than_0_or_1_is_refused(accepted: int) -> None:
    data = struct.pack(">BIIQQB", 4, 1, 2, 3, 4, accepted)
    assert outcome(ResponseDecoder(), [data]) == (
        [],
        f"accepted is {accepted}, not 0 or 1 (AppendEntriesResponse)",
    )


@pytest.mark.parametrize("size", [1, 13, 26, 2**32 - 1])
@pytest.mark.parametrize("number", EMPTY)
def test_request_without_entries_that_promises_some_is_refused(number: int, size: int) -> None:
    assert refuse(header(number, size)).where == f"{camel(number)}, header"


@pytest.mark.parametrize("size", range(1, 13))
def test_request_with_less_than_an_entry_is_refused(size: int) -> None:
    assert str(refuse(header(3, size))) == (
        f"log_entries_size {size} is too small for an entry (AppendEntriesRequest, header)"
    )


@pytest.mark.parametrize("number", SINGLE)
def test_request_without_the_one_entry_it_needs_is_refused(number: int) -> None:
    assert "too small for an entry" in str(refuse(header(number, 0)))


@pytest.mark.parametrize("kind", [0, *ValueType, 6, 255])
@pytest.mark.parametrize("number", sorted(set(CARRIES) - set(EMPTY)))
def test_entry_kind_is_taken_only_where_the_type_carries_it(number: int, kind: int) -> None:
    data = header(number, 23) + entry_header(kind, 10)
    if kind in CARRIES[number][0]:
        wants_more(data)
    else:
        assert str(refuse(data)) == (
            f"an entry of kind {kind} is not allowed here ({camel(number)}, entry 1 at byte 45)"
        )


@pytest.mark.parametrize(("size", "excess"), [(11, 1), (24, 14), (2**32 - 1, 2**32 - 11)])
def test_entry_larger_than_what_is_left_is_refused(size: int, excess: int) -> None:
    error = refuse(header(12, 23) + entry_header(CONF, size))
    assert error.what == f"entry_size {size} is {excess} bytes more than log_entries_size leaves"


@pytest.mark.parametrize("extra", range(1, 13))
def test_entries_followed_by_less_than_an_entry_are_refused(extra: int) -> None:
    error = refuse(header(3, 2 * 17 + extra) + entry(APP, b"abcd") + entry_header(APP, 4))
    assert str(error) == f"{extra} bytes follow the last entry (AppendEntriesRequest, entry 2 at byte 62)"


@pytest.mark.parametrize("extra", [1, 12, 13, 30])
@pytest.mark.parametrize("number", SINGLE)
def test_anything_after_the_only_entry_is_refused(number: int, extra: int) -> None:
    (kind,) = CARRIES[number][0]
    error = refuse(header(number, 17 + extra) + entry_header(kind, 4))
    assert str(error) == f"{extra} bytes follow the only entry ({camel(number)}, entry 1 at byte 45)"


def test_fault_in_the_third_entry_is_named_as_such() -> None:
    body = entry(APP, b"abcd") + entry(CONF, bytes(4)) + entry(PACK, b"")
    assert str(refuse(header(3, len(body)) + body)) == (
        "an entry of kind 4 is not allowed here (AppendEntriesRequest, entry 3 at byte 79)"
    )


# Limits


def test_application_entry_of_a_leader_is_bounded_by_max_entry_bytes() -> None:
    limits = Limits(max_entry_bytes=100)
    wants_more(header(3, 113) + entry_header(APP, 100), limits)
    error = refuse(header(3, 13 + 114) + entry(APP, b"") + entry_header(APP, 101), limits)
    assert error.what == "entry_size 101 is over the limit of 100 bytes an entry"


def test_entry_of_a_client_is_bounded_by_the_message_alone_so_that_it_can_be_refused() -> None:
    limits = Limits(max_message_bytes=1000, max_entry_bytes=100)
    body = entry(APP, bytes(1000 - 45 - 13))
    (request,), error = outcome(RequestDecoder(limits), [header(5, len(body)) + body])
    assert not error
    assert [len(each.value) for each in request.entries] == [942]
    assert refuse(header(5, len(body) + 1), limits).what == (
        f"log_entries_size {len(body) + 1} is over the limit of 1000 bytes a message"
    )


@pytest.mark.parametrize(
    ("number", "kind"),
    [(3, CONF), (6, SERVER), (8, SERVER), (10, PACK), (12, CONF), (16, CHUNK), (32, GRANT)],
)
def test_other_entries_are_bounded_by_the_message_alone(number: int, kind: ValueType) -> None:
    limits = Limits(max_message_bytes=1000, max_entry_bytes=100)
    body = entry(kind, bytes(1000 - 45 - 13))
    (request,), error = outcome(RequestDecoder(limits), [header(number, len(body)) + body])
    assert not error
    assert len(encode_request(request)) == 1000
    assert refuse(header(number, len(body) + 1), limits).what == (
        f"log_entries_size {len(body) + 1} is over the limit of 1000 bytes a message"
    )


def test_limits_by_default_are_64_mib_and_1_mib() -> None:
    assert Limits() == Limits(max_message_bytes=67108864, max_entry_bytes=1048576)
    frozen: Any = Limits()
    with pytest.raises(AttributeError):
        frozen.max_entry_bytes = 1


def peak_of(data: bytes, *, refused: bool) -> int:
    decoder = RequestDecoder(Limits())
    tracemalloc.start()
    try:
        decoder.receive_data(data)
        if refused:
            with pytest.raises(RemoteProtocolError):
                decoder.next_message()
        else:
            assert decoder.next_message() is None
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("number", sorted(CARRIES))
def test_header_that_promises_4_gib_allocates_nothing(number: int) -> None:
    peak_of(header(number, 2**32 - 1), refused=True)  # what pytest itself allocates once
    assert peak_of(header(number, 2**32 - 1), refused=True) < 64 * 1024


@pytest.mark.parametrize(
    ("number", "kind"),
    [(3, CONF), (6, SERVER), (8, SERVER), (10, PACK), (12, CONF), (16, CHUNK), (32, GRANT)],
)
def test_promise_just_under_the_limit_allocates_nothing(number: int, kind: ValueType) -> None:
    size = 64 * 1024 * 1024 - 45
    assert peak_of(header(number, size), refused=False) < 64 * 1024
    assert peak_of(header(number, size) + entry_header(kind, size - 13), refused=False) < 64 * 1024


@pytest.mark.parametrize("sizes", [[8 * 1024], [2], [4096, 2], [4095, 4097]], ids=repr)
def test_large_value_in_small_pieces_takes_memory_as_it_comes(sizes: list[int]) -> None:
    size = 64 * 1024 * 1024 - 45
    decoder = RequestDecoder(Limits())
    received = 0
    tracemalloc.start()
    try:
        decoder.receive_data(header(10, size) + entry_header(PACK, size - 13))
        while received < 1 << 18:
            for each in sizes:
                decoder.receive_data(bytearray(each))
                assert decoder.next_message() is None
                received += each
        assert tracemalloc.get_traced_memory()[1] < 1.5 * received
    finally:
        tracemalloc.stop()


# What our own caller can get wrong


def camel(number: int) -> str:
    return MessageType(number).name.title().replace("_", "")


@pytest.mark.parametrize("wrong", [-1, 2**32])
@pytest.mark.parametrize("field", ["source", "destination"])
def test_encode_id_beyond_u32_is_our_fault(field: str, wrong: int) -> None:
    request = msgspec.structs.replace(Request(MessageType.LEAVE_CLUSTER_REQUEST, 1, 2), **{field: wrong})
    response = msgspec.structs.replace(
        Response(MessageType.LEAVE_CLUSTER_RESPONSE, 1, 2, 3, 4, True), **{field: wrong}
    )
    with pytest.raises(LocalProtocolError, match="LeaveClusterRequest"):
        encode_request(request)
    with pytest.raises(LocalProtocolError, match="LeaveClusterResponse"):
        encode_response(response)


@pytest.mark.parametrize("wrong", [-1, 2**64])
@pytest.mark.parametrize("field", ["term", "last_log_term", "last_log_index", "commit_index"])
def test_encode_request_number_beyond_u64_is_our_fault(field: str, wrong: int) -> None:
    request = msgspec.structs.replace(Request(MessageType.REQUEST_VOTE_REQUEST, 1, 2), **{field: wrong})
    with pytest.raises(LocalProtocolError):
        encode_request(request)


@pytest.mark.parametrize("wrong", [-1, 2**64])
@pytest.mark.parametrize("field", ["term", "next_index"])
def test_encode_response_number_beyond_u64_is_our_fault(field: str, wrong: int) -> None:
    response = Response(MessageType.REQUEST_VOTE_RESPONSE, 1, 2, 3, 4, True)
    with pytest.raises(LocalProtocolError):
        encode_response(msgspec.structs.replace(response, **{field: wrong}))


@pytest.mark.parametrize("wrong", [-1, 2**64])
def test_encode_entry_term_beyond_u64_is_our_fault(wrong: int) -> None:
    with pytest.raises(LocalProtocolError):
        encode_request(Request(MessageType.CLIENT_REQUEST, 0, 0, entries=(LogEntry(wrong, APP, b""),)))


@pytest.mark.parametrize("kind", list(ValueType))
@pytest.mark.parametrize("number", sorted(CARRIES))
def test_encode_entry_kind_is_taken_only_where_the_type_carries_it(number: int, kind: ValueType) -> None:
    request = Request(MessageType(number), 1, 2, entries=(LogEntry(1, kind, b"x"),))
    if kind in CARRIES[number][0]:
        assert len(encode_request(request)) == 59
    else:
        with pytest.raises(
            LocalProtocolError, match=f"{camel(number)} does not carry entries of kind {kind}"
        ):
            encode_request(request)


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("number", SINGLE)
def test_encode_other_than_exactly_one_entry_is_our_fault(number: int, count: int) -> None:
    (kind,) = CARRIES[number][0]
    with pytest.raises(LocalProtocolError, match=f"exactly one entry, not {count}"):
        encode_request(Request(MessageType(number), 1, 2, entries=(LogEntry(1, kind, b"x"),) * count))


def test_encode_type_of_the_other_side_is_our_fault() -> None:
    for number in RESPONSES:
        with pytest.raises(LocalProtocolError, match="is not a request"):
            encode_request(Request(MessageType(number), 1, 2))
    for number in CARRIES:
        with pytest.raises(LocalProtocolError, match="is not a response"):
            encode_response(Response(MessageType(number), 1, 2, 3, 4, True))
