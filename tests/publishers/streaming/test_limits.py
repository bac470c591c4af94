"""What streams may use."""

from __future__ import annotations

import sys

import pytest

from garlicfarm_plugin_i2cp.streaming.limits import DEFAULT_LIMITS, MinuteLimit, limits_for


@pytest.mark.parametrize(
    ("open_files", "streams"), [(256, 64), (1024, 256), (4096, 1024), (1_048_576, 1024), (sys.maxsize, 1024)]
)
def test_streams_take_a_quarter_of_the_open_files_and_1024_at_most(open_files: int, streams: int) -> None:
    limits = limits_for(open_files)
    assert limits.streams == streams
    assert limits.streams_per_peer == streams // 4


def test_default_limits_are_those_of_1024_open_files() -> None:
    assert limits_for(1024) == DEFAULT_LIMITS


def test_minute_limit_counts_each_peer_apart_and_begins_anew_each_minute() -> None:
    limit = MinuteLimit(2)
    assert [limit.admit(peer, 61.0) for peer in (b"a", b"a", b"a", b"b")] == [True, True, False, True]
    assert not limit.admit(b"a", 119.9)
    assert limit.admit(b"a", 120.0)
    assert all(MinuteLimit(0).admit(b"a", 0.0) for _ in range(1000))
