"""What a reader of a partition keeps and fetches, and whom a server answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from garlicfarm_plugin_dafka import serving
from garlicfarm_plugin_dafka.codec import MAX_COUNT, DirectRecord, Fetch, Head
from garlicfarm_plugin_dafka.reading import WINDOW, EarlyRecords, PartitionReader
from garlicfarm_plugin_dafka.serving import PAGE_RECORDS, FetchQueue
from tests.dafka.cores import NOW, consumer, told


@given(
    st.lists(st.tuples(st.sampled_from(["record", "head", "tail", "fetch"]), st.integers(0, 40))),
    st.integers(0, 20),
)
def test_a_reader_takes_each_record_once_in_order_and_gives_back_what_it_keeps(events, first):
    early = EarlyRecords(1000)
    reader = PartitionReader("t", "p", first, early)
    taken, now = first, 0.0
    for kind, number in events:
        now += 0.1
        if kind == "record" and number >= reader.next:
            found = reader.take(number, b"%d" % number, now)
            assert list(found) == [b"%d" % sequence for sequence in range(taken, reader.next)]
            taken = reader.next
        elif kind == "head":
            reader.on_head(number)
        elif kind == "tail":
            reader.on_tail(number, now)
        elif kind == "fetch" and (asked := reader.fetch(now)) is not None:
            begin, count = asked
            assert reader.next <= begin
            assert 1 <= count <= WINDOW
            assert begin + count <= reader.head + 1
    for sequence in range(reader.next, 41):
        if sequence >= reader.next:
            reader.take(sequence, b"", now)
    assert (reader.next, early.left_bytes) == (41, 1000)


def test_a_reader_keeps_no_more_than_it_may_and_fetches_the_rest():
    early = EarlyRecords(300)
    reader = PartitionReader("t", "p", 0, early)
    for sequence in (5, 6, 7, 8, 9):
        reader.take(sequence, bytes(36), NOW)
    assert early.left_bytes == 0
    assert reader.fetch(NOW) == (0, 5)
    for sequence in range(4):
        reader.take(sequence, b"", NOW)
    assert len(reader.take(4, b"", NOW)) == 4  # with 5, 6 and 7
    assert reader.fetch(NOW) == (8, 2)


def test_a_reader_fetches_again_later_and_later_and_anew_after_progress():
    reader = PartitionReader("t", "p", 0, EarlyRecords())
    reader.on_head(9)
    now, times, stalled = 0.0, [], []
    while now < 40:
        if reader.fetch(now) is not None:
            times.append(now)
            stalled.append(reader.is_stalled)
        now += 0.25
    assert stalled == [False, False, True, True, True, True, True, True]
    assert times == [0.0, 1.0, 3.0, 7.0, 15.0, 23.0, 31.0, 39.0]
    reader.take(0, b"", now)
    assert not reader.is_stalled
    assert reader.fetch(now + 0.75) is None
    assert reader.fetch(now + 1.0) == (1, 9)


def fetches(reader: PartitionReader, size: int) -> list[tuple[int, int, int]]:
    """Read to the head: what was fetched, and how many records were still on their way then."""
    asked, end = [], 0
    while True:
        if (found := reader.fetch(NOW)) is not None:
            asked.append((*found, end - reader.next))
            end = sum(found)
        if reader.next > reader.head:
            return asked
        assert reader.next < end
        reader.take(reader.next, bytes(size), NOW)


def test_a_reader_fetches_more_and_more_before_all_has_arrived():
    reader = PartitionReader("t", "p", 0, EarlyRecords())
    reader.on_head(10 * WINDOW)
    (_, first, _), *others = asked = fetches(reader, 100)
    assert first == 256
    assert [begin for begin, _, _ in others] == [begin + count for begin, count, _ in asked[:-1]]
    assert all(waiting >= 128 for _, _, waiting in others)
    assert max(count + waiting for _, count, waiting in asked) == WINDOW
    assert len(asked) < 30


def test_a_reader_asks_for_no_more_bytes_than_a_queue_should_hold():
    reader = PartitionReader("t", "p", 0, EarlyRecords())
    reader.on_head(2000)
    asked = fetches(reader, 100_000)
    assert all(count + waiting <= 41 for _, count, waiting in asked[2:])  # 4 MiB


def test_a_reader_asks_for_less_where_records_get_lost():
    reader = PartitionReader("t", "p", 0, EarlyRecords())
    reader.on_head(10 * WINDOW)
    counts, now = [], NOW
    for _ in range(6):
        counts.append(reader.fetch(now)[1])
        now += 10
    assert counts == [256, 128, 64, 32, 16, 16]
    reader.take(0, b"", now)
    assert reader.fetch(now) is None
    for sequence in range(1, 9):
        reader.take(sequence, b"", now)
    assert reader.fetch(now) == (16, 25)
    for _ in range(10):
        for sequence in range(reader.next, reader.next + 40):
            reader.take(sequence, b"", now)
        reader.fetch(now)
    assert 40 < reader.fetch(now + 10)[1] < 200  # it does not double any more


def test_a_gap_in_an_answer_is_fetched_soon_and_once():
    core = consumer()
    told(core, Head("t", "p", 99))
    assert told(core, DirectRecord("me", "t", "p", 0, b""), DirectRecord("me", "t", "p", 2, b"")) == []
    core.tick(NOW + 0.05)
    assert core.take_commands(NOW) == []
    core.tick(NOW + 0.25)
    assert core.take_commands(NOW) == [Fetch("p", "t", "me", 1, 1)]
    assert told(core, DirectRecord("me", "t", "p", 3, b""), now=NOW + 0.3) == []
    core.tick(NOW + 1.0)
    assert core.take_commands(NOW) == []
    core.tick(NOW + 2.25)
    assert core.take_commands(NOW) == [Fetch("p", "t", "me", 1, 1)]


def test_tails_of_several_sources_lose_only_what_none_has():
    reader = PartitionReader("t", "p", 0, EarlyRecords())
    reader.on_head(99)
    for now in (0.0, 1.0, 2.0):
        assert reader.missing is None
        assert reader.fetch(now)[0] == 0
        reader.on_tail(50, now)
        reader.on_tail(30, now)
        reader.on_tail(70, now)
    assert reader.missing == (0, 30)
    assert list(reader.skip(3.0)) == []
    assert reader.fetch(3.0)[0] == 30


def test_ranges_are_answered_in_turns_a_page_at_a_time():
    queue = FetchQueue()
    for sender in ("a", "b"):
        assert queue.add(Fetch("p", "t", sender, 0, MAX_COUNT), 0, 2 * PAGE_RECORDS)
    order = []
    while (turn := queue.turn()) is not None:
        order.append((turn.requester, turn.first))
        queue.advance(turn, turn.first, turn.first + PAGE_RECORDS)
    assert order == [("a", 0), ("b", 0), ("a", PAGE_RECORDS), ("b", PAGE_RECORDS)]
    assert not queue


def test_a_fetch_that_repeats_adds_nothing_and_one_that_goes_back_begins_again():
    queue = FetchQueue()
    fetch = Fetch("p", "t", "a", 0, 100)
    queue.add(fetch, 0, 100)
    queue.add(fetch, 0, 100)
    queue.add(fetch, 100, 150)
    turn = queue.turn()
    assert (turn.first, turn.end) == (0, 150)
    queue.add(fetch, 40, 100)  # while a page is being read
    queue.advance(turn, 0, 60)
    assert (queue.turn().first, queue.turn().end) == (60, 150)
    queue.add(fetch, 10, 100)
    queue.advance(turn, 60, 150)
    assert (queue.turn().first, queue.turn().end) == (10, 100)
    queue.advance(turn, 10, 10)  # nothing is there any more
    assert queue.turn() is None


def test_no_more_is_queued_than_may_be(monkeypatch):
    monkeypatch.setattr(serving, "MAX_REQUESTERS", 2)
    monkeypatch.setattr(serving, "_MAX_RANGES", 2)
    queue = FetchQueue()
    added = [
        queue.add(Fetch(partition, "t", sender, 0, 1), 0, 1)
        for sender, partition in [("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("c", "1"), ("a", "2")]
    ]
    assert added == [True, True, False, True, False, True]
