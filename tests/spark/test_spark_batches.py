"""Where batches begin and end: pure rules, and the offsets that Spark keeps. Needs no Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from garlicfarm.errors import ConfigError, FellBehind
from garlicfarm_plugin_spark.batches import MAX_VALUE_BYTES, Losses, next_positions, shares, split
from garlicfarm_plugin_spark.node_reader import FarmHead
from garlicfarm_plugin_spark.offsets import Position, decode_offset, encode_offset

A, B = "0a" * 16, "0b" * 16
EARLIEST = Losses("earliest", strict=True)
INDEXES = st.integers(0, 2**63 - 1)
IDS = st.sampled_from([A, B])
PAST = st.lists(IDS, max_size=2).map(tuple)
POSITIONS = st.builds(Position, INDEXES, IDS, st.none() | INDEXES, st.none(), PAST) | st.builds(
    Position, INDEXES, IDS, INDEXES, st.none() | st.binary(), PAST
)


def head(commit_index: int, first_index: int = 1, farm_id: str = A) -> FarmHead:
    return FarmHead(farm_id, "publisher", first_index, commit_index)


def ends(*arguments: Any, **limits: Any) -> dict[str, tuple[int | None, int]]:
    """(begin, index) by farm."""
    return {farm: (one.begin, one.index) for farm, one in next_positions(*arguments, **limits).items()}


def batches(heads: Mapping[str, FarmHead], **limits: Any) -> Iterator[Mapping[str, Position]]:
    """The ends of all batches, until everything is read."""
    positions: Mapping[str, Position] = {}
    while (end := next_positions(positions, heads, EARLIEST, **limits)) is not positions:
        yield end
        positions = end


# Offsets


@given(st.dictionaries(st.sampled_from(["farm", "barn", "a.b"]), POSITIONS))
def test_offset_survives_json_and_is_one_text(positions: dict[str, Position]) -> None:
    text = json.dumps(encode_offset(positions))
    found = decode_offset(json.loads(text))
    assert found == positions
    assert json.dumps(encode_offset(dict(reversed(found.items())))) == text


@pytest.mark.parametrize(
    "offset",
    [
        {},
        {"farms": 1},
        {"farms": {"a": 5}},
        {"farms": {"a": {"index": 1}}},
        {"index": 1, "farm_id": A},
        *[
            {"farms": {"a": {"index": 1, "farm_id": A} | wrong}}
            for wrong in (
                {"index": "1"},
                {"from": 1, "state": "AAAA"},
                {"from": 1, "state": "not base64"},
                {"state": "eJwDAAAAAAE="},
                {"past": 5},
            )
        ],
    ],
)
def test_offset_of_another_source_is_refused(offset: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is not an offset of this query"):
        decode_offset(offset)


# Starts


@pytest.mark.parametrize(
    ("start", "begin"),
    [("earliest", 49), ("latest", 80), (-10, 70), (-100, 49), (60, 59), (81, 80)],
)
def test_batch_without_an_offset_begins_at_the_starting_index(start: Any, begin: int) -> None:
    assert ends({}, {"a": head(80, 50)}, Losses(start, strict=True)) == {"a": (begin, 80)}


def test_batch_of_a_compacted_log_that_begins_with_a_state_holds_that_alone() -> None:
    """However long the log is at another node that reads it."""
    losses, asked = Losses("state", strict=True), []

    def state(farm: str, farm_id: str, least: int) -> tuple[int, bytes]:
        asked.append((farm, farm_id, least))
        return 83, b"at 83"

    first = next_positions({}, {"a": head(80, 50)}, losses, max_entries=10, state=state)
    assert first == {"a": Position(83, A, 83, b"at 83")}
    assert asked == [("a", A, 49)]
    assert next_positions(first, {"a": head(80, 50)}, losses, state=state) is first
    second = next_positions(first, {"a": head(99, 50)}, losses, max_entries=10, state=state)
    assert second == {"a": Position(93, A)}
    assert next_positions({}, {"a": head(80)}, losses, max_entries=10) == {"a": Position(10, A, 0)}


def test_batch_of_a_farm_made_anew_begins_with_its_first_entry_and_remembers_the_old_one() -> None:
    start = {"a": Position(80, A, 3), "b": Position(9, B)}
    anew = {"a": head(5, farm_id=B), "b": head(9, farm_id=B)}
    first = next_positions(start, anew, EARLIEST)
    assert first == {"a": Position(5, B, 0, None, (A,)), "b": Position(9, B)}
    assert next_positions(first, anew, EARLIEST) is first
    second = next_positions(first, {"a": head(7, farm_id=B)}, EARLIEST)
    assert second == {"a": Position(7, B, None, None, (A,)), "b": Position(9, B)}


def test_batch_beyond_the_log_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        next_positions({}, {"a": head(80)}, Losses(82, strict=True))
    assert str(refused.value) == (
        "startingIndex is 82, and the log of a ends at 80: name an index up to 81, or latest"
    )


def test_batch_of_a_farm_that_lost_entries_concerns_no_other_farm() -> None:
    start = {"a": Position(20, A), "b": Position(20, B)}
    heads = {"a": head(60, 50), "b": head(60, 1, B)}
    with pytest.raises(
        FellBehind, match="the entries after index 20 are gone, the log of a now starts at 50"
    ):
        next_positions(start, heads, EARLIEST)
    found = ends(start, heads, Losses("earliest", strict=False))
    assert found == {"a": (49, 60), "b": (None, 60)}


# Several farms


def test_batch_without_anything_new_is_the_offset_itself() -> None:
    start = {"a": Position(80, A, 3), "b": Position(9, B)}
    assert next_positions(start, {"a": head(80), "b": head(9, farm_id=B)}, EARLIEST) is start
    assert next_positions(start, {"a": head(70)}, EARLIEST) is start  # a node that lags, and a farm away


def test_batch_with_news_of_one_farm_repeats_nothing_of_another() -> None:
    start = {"a": Position(80, A, 3), "gone": Position(7, B, 0)}
    assert ends(start, {"a": head(80), "b": head(9, farm_id=B)}, EARLIEST) == {
        "a": (None, 80),
        "b": (0, 9),
        "gone": (None, 7),
    }


def test_batch_of_what_is_available_now_begins_no_farm_that_came_later() -> None:
    heads = {"a": head(80), "b": head(9, farm_id=B)}
    assert ends({}, heads, EARLIEST, last={"a": 60}) == {"a": (0, 60)}


def test_batches_divide_the_limit_fairly_until_all_is_read() -> None:
    sizes = {"a": 1000, "b": 10, "c": 300}
    heads = {farm: head(size) for farm, size in sizes.items()}
    seen = [{farm: one.index for farm, one in end.items()} for end in batches(heads, max_entries=100)]
    assert seen[0] == {"a": 45, "b": 10, "c": 45}
    assert seen[-1] == sizes
    assert len(seen) == -(-sum(sizes.values()) // 100)


@given(st.lists(st.integers(1, 10_000), max_size=20), st.integers(1, 30_000))
def test_shares_are_fair(wanted: list[int], limit: int) -> None:
    found = shares(wanted, limit)
    assert all(1 <= share <= most for share, most in zip(found, wanted, strict=True))
    assert sum(found) <= max(limit, len(wanted))
    if limit >= len(wanted):
        assert sum(found) == min(limit, sum(wanted))
    unsated = [share for share, most in zip(found, wanted, strict=True) if share < most]
    assert not unsated or max(found) - min(unsated) <= 1


@given(st.lists(st.integers(0, 1000), max_size=10), st.integers(1, 50))
def test_split_makes_as_many_parts_as_asked_or_as_there_are_indexes(sizes: list[int], least: int) -> None:
    found = split(sizes, least)
    assert all(1 <= parts <= max(1, size) for parts, size in zip(found, sizes, strict=True))
    assert not sizes or sum(found) >= min(least, sum(sizes))


# Bytes


class Sizes:
    """Logs with entries of these sizes; counts requests."""

    def __init__(self, **logs: list[int]) -> None:
        self.logs = logs
        self.asked: list[str] = []

    def __call__(self, farm: str, farm_id: str, after: int, upto: int, max_bytes: int) -> tuple[int, int]:
        self.asked.append(farm)
        last, size = after + 1, self.logs[farm][after]
        while last < upto and size + self.logs[farm][last] <= max_bytes:
            size += self.logs[farm][last]
            last += 1
        return last, size


def test_batch_of_few_entries_asks_for_no_sizes() -> None:
    sizes = Sizes()
    found = ends({}, {"a": head(64)}, EARLIEST, max_bytes=64 * MAX_VALUE_BYTES, extent=sizes)
    assert found == {"a": (0, 64)}
    assert sizes.asked == []


def test_batches_of_the_largest_entries_stay_within_the_bytes() -> None:
    sizes = Sizes(a=[MAX_VALUE_BYTES] * 500)
    found = batches({"a": head(500)}, max_entries=20_000, max_bytes=64 << 20, extent=sizes)
    assert [end["a"].index for end in found] == [*range(64, 500, 64), 500]


def test_batches_divide_the_bytes_fairly_and_small_farms_leave_theirs_to_others() -> None:
    sizes = Sizes(a=[10] * 500, b=[10] * 500, c=[10] * 3)
    heads = {farm: head(len(log)) for farm, log in sizes.logs.items()}
    found = ends({}, heads, EARLIEST, max_bytes=630, extent=sizes)
    assert found == {"a": (0, 30), "b": (0, 30), "c": (0, 3)}


@example([[0, 1], [0, 1]], 1)
@given(
    st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=30), min_size=1, max_size=5),
    st.integers(1, 500),
)
def test_batches_of_any_sizes_end_within_the_bytes_or_with_one_entry_per_farm(
    logs: list[list[int]], most: int
) -> None:
    sizes = Sizes(**{f"f{number}": log for number, log in enumerate(logs)})
    heads = {farm: head(len(log)) for farm, log in sizes.logs.items()}
    positions: Mapping[str, Position] = {}
    for end in batches(heads, max_bytes=most, extent=sizes):
        begun = {farm: positions[farm].index if farm in positions else 0 for farm in heads}
        batch = {farm: sizes.logs[farm][begun[farm] : end[farm].index] for farm in heads}
        one_each = sum(each[0] for each in batch.values() if each)
        assert sum(map(sum, batch.values())) <= most + one_each
        assert any(batch.values())
        positions = end
    assert {farm: one.index for farm, one in positions.items()} == {
        farm: len(log) for farm, log in sizes.logs.items()
    }
