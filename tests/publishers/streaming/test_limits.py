"""What streams may use."""

from __future__ import annotations

import sys

import pytest

from garlicfarm_plugin_i2cp.streaming.limits import (
    DEFAULT_LIMITS,
    ByteLimit,
    MinuteLimit,
    RateLimit,
    limits_for,
)


@pytest.mark.parametrize(
    ("open_files", "streams"), [(256, 64), (1024, 256), (4096, 1024), (1_048_576, 1024), (sys.maxsize, 1024)]
)
def test_streams_take_a_quarter_of_the_open_files_and_1024_at_most(open_files: int, streams: int) -> None:
    limits = limits_for(open_files)
    assert limits.streams == streams
    assert limits.streams_per_peer == streams // 4


def test_default_limits_are_those_of_1024_open_files() -> None:
    assert limits_for(1024) == DEFAULT_LIMITS


def test_rate_limit_counts_what_costs_more_as_more() -> None:
    limit = RateLimit(10)
    assert [limit.admit(1.0, count) for count in (4, 5, 5, 1, 1)] == [True, True, False, True, False]
    assert limit.admit(2.0, 10)


def test_minute_limit_counts_each_peer_apart_and_begins_anew_each_minute() -> None:
    limit = MinuteLimit(2)
    assert [limit.admit(peer, 61.0) for peer in (b"a", b"a", b"a", b"b")] == [True, True, False, True]
    assert not limit.admit(b"a", 119.9)
    assert limit.admit(b"a", 120.0)
    assert all(MinuteLimit(0).admit(b"a", 0.0) for _ in range(1000))


def test_byte_limit_lets_a_minutes_share_pass_at_once_and_then_as_much_as_time_is_worth() -> None:
    limit = ByteLimit(600)
    assert [limit.pass_(b"a", 300, 0.0) for _ in range(4)] == [0.0, 0.0, 30.0, 60.0]
    assert limit.pass_(b"b", 600, 0.0) == 0.0
    assert limit.pass_(b"a", 100, 60.0) == 70.0
    assert limit.pass_(b"a", 600, 1000.0) == 1000.0  # it had not saved more than a minute's share
    assert limit.pass_(b"a", 10, 1000.0) == 1001.0


def test_byte_limit_of_none_lets_all_pass_and_another_forgets_only_who_was_silent_longest() -> None:
    assert all(ByteLimit(0).pass_(b"a", 1 << 40, 5.0) == 5.0 for _ in range(3))
    limit = ByteLimit(60)
    limit.pass_(b"first", 120, 0.0)
    limit.pass_(b"second", 60, 0.0)
    limit.pass_(b"first", 60, 0.0)
    for number in range(8191):
        limit.pass_(b"%d" % number, 60, 0.0)
    assert limit.pass_(b"first", 60, 0.0) == 180.0
    assert limit.pass_(b"second", 60, 0.0) == 0.0
