from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.errors import Compacted, RemoteProtocolError
from garlicfarm.feed.lines import decode_line, encode_lines
from garlicfarm.feed.pages import MAX_PAGE_BYTES, PageReader, reader_limiter
from garlicfarm.raft.types import Entry
from garlicfarm.wire.messages import ValueType

U63 = st.integers(0, 2**63 - 1)
ENTRIES = st.builds(
    Entry,
    U63,
    U63,
    st.sampled_from([ValueType.APPLICATION, ValueType.CONFIGURATION]),
    st.binary() | st.text().map(str.encode),
)


@given(st.lists(ENTRIES, max_size=4))
def test_lines_decoded_are_the_entries_encoded(entries: list[Entry]) -> None:
    lines = encode_lines(entries).split(b"\n")
    assert lines.pop() == b""
    assert [decode_line(line) for line in lines] == entries


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"index":1,"term":1,"type":"other","value":""}',
        b'{"index":1,"term":1,"type":"application","value_base64":"%"}',
        b'{"index":1,"term":1,"type":"application","value":"\xff"}',
    ],
)
def test_line_that_is_no_entry_is_the_peers_fault(line: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="not an entry"):
        decode_line(line)


class FakeReader:
    """Stands for the store: notes who reads, and how many at a time."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int, int, bool]] = []
        self.threads: set[int] = set()
        self.at_once = self.most_at_once = 0
        self.pause = threading.Event()

    def page(
        self, after: int, limit: int, max_bytes: int, upto_index: int, all_types: bool
    ) -> tuple[Sequence[Entry], int]:
        if after < 3:
            raise Compacted(4)
        self.threads.add(threading.get_ident())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.pause.wait(0.002)
        self.at_once -= 1
        self.asked.append((after, limit, max_bytes, upto_index, all_types))
        return [Entry(after + 1, 1, ValueType.APPLICATION, b"x")], after + 1


async def test_page_read_comes_from_a_worker_thread_in_bounded_pieces() -> None:
    store = FakeReader()
    reader = PageReader(store, reader_limiter())  # type: ignore[arg-type]
    page = await reader.read(7, 50, upto_index=9, all_types=True)
    assert (page.entries[0].index, page.next_after) == (8, 8)
    assert store.asked == [(7, 50, MAX_PAGE_BYTES, 9, True)]
    assert threading.get_ident() not in store.threads
    with pytest.raises(Compacted):
        await reader.read(2, 50, upto_index=9, all_types=True)


async def test_readers_of_all_farms_take_turns() -> None:
    limiter = reader_limiter()
    store = FakeReader()
    readers = [PageReader(store, limiter) for _ in range(4)]  # type: ignore[arg-type]

    async def drain(reader: PageReader) -> None:
        for after in range(3, 13):
            await reader.read(after, 1, upto_index=20, all_types=False)

    async with trio.open_nursery() as nursery:
        for reader in readers:
            nursery.start_soon(drain, reader)
    assert len(store.asked) == 40
    assert store.most_at_once == 1
