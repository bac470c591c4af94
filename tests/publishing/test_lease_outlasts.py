"""Which leases a slow change of the leader does not end: by R and the interval, and since level 2."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.config.model import (
    PRESET_INTERVALS_MS,
    PRESET_LEASES_MS,
    PRESET_LEAST_ELECTION_TIMEOUTS_S,
    PRESET_RETIRE_TIMEOUTS_S,
    PRESETS,
)
from garlicfarm.publishing.granting import LEAST_BOUND_MS
from garlicfarm.publishing.lease import lease_ms, least_lease_ms, least_R


@given(
    interval_ms=st.integers(1_000, 60_000),
    election_ms=st.integers(100, 60_000),
    rpc_ms=st.integers(100, 30_000),
    retire_ms=st.integers(100, 11_250),
)
def test_least_r_is_the_first_whose_lease_outlasts_two_elections_a_request_and_the_stop(
    interval_ms: int, election_ms: int, rpc_ms: int, retire_ms: int
) -> None:
    def outlasts(R: int) -> bool:
        lease = lease_ms(interval_ms, R)
        return lease - min(retire_ms, lease / 4) >= interval_ms + 2 * election_ms + rpc_ms

    R = least_R(
        interval_ms,
        election_timeout_max_s=election_ms / 1000,
        rpc_timeout_s=rpc_ms / 1000,
        retire_timeout_s=retire_ms / 1000,
    )
    assert next(R for R in range(3, 1000) if outlasts(R)) == R


@pytest.mark.parametrize(("preset", "R"), [("clearnet", 5), ("i2p", 7)])
def test_preset_s_lease_is_as_long_as_the_inequality_asks_and_no_longer(preset: str, R: int) -> None:
    timings, interval_ms = PRESETS[preset], PRESET_INTERVALS_MS[preset]
    election_s, rpc_s = timings["election_timeout_max_s"], timings["rpc_timeout_s"]
    retire_s = PRESET_RETIRE_TIMEOUTS_S[preset]

    def left_ms(R: int) -> float:
        lease = lease_ms(interval_ms, R)
        stop_ms = min(1000 * retire_s, lease / 4)
        return lease - stop_ms - interval_ms - 1000 * (2 * election_s + rpc_s)

    assert left_ms(R - 1) < 0 <= left_ms(R)
    found = least_R(
        interval_ms, election_timeout_max_s=election_s, rpc_timeout_s=rpc_s, retire_timeout_s=retire_s
    )
    assert found == R


def test_three_statuses_every_half_minute_do_not_outlast_a_slow_election_in_i2p() -> None:
    i2p = PRESETS["i2p"]
    needed_s = 30 + 2 * i2p["election_timeout_max_s"] + i2p["rpc_timeout_s"] + PRESET_RETIRE_TIMEOUTS_S["i2p"]
    assert [R for R in (3, 5, 7) if lease_ms(30_000, R) >= 1000 * needed_s] == [7]


@given(
    election_ms=st.integers(100, 60_000),
    heartbeat_ms=st.integers(10, 30_000),
    retire_ms=st.integers(100, 11_250),
)
def test_least_lease_is_the_shortest_that_outlasts_two_elections_three_heartbeats_and_the_stop(
    election_ms: int, heartbeat_ms: int, retire_ms: int
) -> None:
    def outlasts(lease: int) -> bool:
        return lease - min(retire_ms, lease / 4) >= 2 * election_ms + 3 * heartbeat_ms

    least = least_lease_ms(
        election_timeout_max_s=election_ms / 1000,
        heartbeat_s=heartbeat_ms / 1000,
        retire_timeout_s=retire_ms / 1000,
    )
    assert outlasts(least)
    assert not outlasts(least - 1)


def test_quick_round_trips_shorten_the_lease_of_i2p_to_a_minute_and_to_no_less() -> None:
    found = least_lease_ms(
        election_timeout_max_s=PRESET_LEAST_ELECTION_TIMEOUTS_S["i2p"],
        heartbeat_s=PRESETS["i2p"]["heartbeat_s"],
        retire_timeout_s=PRESET_RETIRE_TIMEOUTS_S["i2p"],
    )
    assert found == LEAST_BOUND_MS == 60_000


@pytest.mark.parametrize(("preset", "least_ms"), [("clearnet", 4_900), ("i2p", 100_000)])
def test_preset_s_lease_on_heartbeats_is_long_enough_for_its_timings(preset: str, least_ms: int) -> None:
    timings = PRESETS[preset]
    found = least_lease_ms(
        election_timeout_max_s=timings["election_timeout_max_s"],
        heartbeat_s=timings["heartbeat_s"],
        retire_timeout_s=PRESET_RETIRE_TIMEOUTS_S[preset],
    )
    assert found == least_ms <= PRESET_LEASES_MS[preset]
