"""What the fold makes of honest members over hours and weeks: noise, deaths, and who cannot publish."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garlicfarm.publishing.lease import lease_ms
from tests.publishing.posting import INTERVAL_MS, WEEK_MS, Posting, changes_in
from tests.publishing.scripted_log import T0

SEEDS = st.integers(0, 2**32)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_publisher_changes_at_most_twice_in_a_week_of_noise(seed: int) -> None:
    changes = changes_in(seed, WEEK_MS)
    print(f"seed {seed}: {changes} changes in a week")
    assert changes <= 2


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(3, 7), st.integers(0, 5 * INTERVAL_MS))
def test_dead_publisher_is_replaced_within_R_plus_one_intervals_and_a_commit(seed, members, after_ms):
    commit_ms = 500
    posting = Posting(range(1, members + 1), seed, commit_ms=commit_ms)
    posting.run(3 * INTERVAL_MS + after_ms)
    dead = posting.farm.publisher
    assert dead is not None
    assert posting.farm.due_since is not None
    posting.alive -= {dead, *posting.random.sample(sorted(posting.alive - {dead}), (members - 1) // 2 - 1)}
    assert 2 * len(posting.alive) > members
    died_ms = posting.now_ms
    while posting.farm.publisher == dead:
        posting.step()
    newest = posting.farm.newest(dead)
    assert newest is not None
    assert posting.now_ms + T0 - newest[1].date > lease_ms(INTERVAL_MS, posting.farm.R)
    while posting.farm.publisher not in posting.alive or posting.farm.due_since is None:
        posting.step()  # of those that died with it, some were heard of a little later
    assert posting.now_ms - died_ms <= (posting.farm.R + 1) * INTERVAL_MS + commit_ms


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.integers(3, 5))
def test_living_publisher_is_never_replaced_however_others_come_and_go(seed: int, members: int) -> None:
    posting = Posting(range(1, members + 1), seed, commit_ms=5_000)
    posting.run(2 * INTERVAL_MS)
    publisher = posting.farm.publisher
    assert publisher is not None
    away = posting.random.sample(sorted(posting.alive - {publisher}), (members - 1) // 2)
    posting.alive -= {*away}
    for _ in range(1000):
        posting.step()
        assert posting.farm.publisher == publisher


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.integers(2, 5))
def test_publisher_that_fails_loses_the_role_within_R_plus_two_intervals(seed: int, members: int) -> None:
    works = dict.fromkeys(range(1, members + 1), True)
    posting = Posting(range(1, members + 1), seed, publishes=lambda member: works[member])
    posting.run(3 * INTERVAL_MS)
    failing = posting.farm.publisher
    assert failing is not None
    works[failing] = False
    posting.run((posting.farm.R + 2) * INTERVAL_MS)
    assert posting.farm.publisher not in (failing, None)
    posting.run(2 * INTERVAL_MS)
    assert posting.farm.holders == (posting.farm.publisher,)


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.integers(2, 5))
def test_publisher_that_loses_its_key_loses_the_role_with_its_next_status(seed: int, members: int) -> None:
    keys: dict[int, bool | None] = dict.fromkeys(range(1, members + 1), True)
    posting = Posting(range(1, members + 1), seed, publishes=lambda member: keys[member])
    posting.run(3 * INTERVAL_MS)
    keyless = posting.farm.publisher
    assert keyless is not None
    keys[keyless] = None
    posting.run(INTERVAL_MS + 1_000)
    assert posting.farm.publisher not in (keyless, None)
    keys = dict.fromkeys(keys, None)
    posting.run(10 * INTERVAL_MS)
    assert posting.farm.publisher is not None  # a ranking is of use where nobody can publish
