from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.errors import ConfigError, RouterError
from garlicfarm.lab.destinations import simulated_destination
from garlicfarm.plugins import make_router
from garlicfarm.router import MEASUREMENT_TIMEOUT_S, RemoteStatus, RouterStatus
from garlicfarm.testing.router_suite import RouterSuite
from garlicfarm_plugin_simulated import SimulatedConfig, SimulatedRouter, simulated_status

WANDERING = ["job_lag", "exploratory_tunnels", "participating_tunnels"]


@pytest.fixture
def router() -> SimulatedRouter:
    return SimulatedRouter(SimulatedConfig(seed=7), Path())


class TestSimulatedRouter(RouterSuite):
    @pytest.fixture
    def router(self) -> SimulatedRouter:
        return SimulatedRouter(SimulatedConfig(seed=7), Path())

    @pytest.fixture
    def leaf(self, router: SimulatedRouter) -> bytes:
        return router.destination

    test_unreachable_router_is_entered_and_raises_router_error = None  # it is always there


# Figures

seeds = st.integers(0, 2**63)
elapsed = st.floats(0, 1e8)


@given(seeds, elapsed)
def test_status_of_any_seed_and_time_is_valid_complete_and_plausible(seed: int, elapsed_s: float) -> None:
    status = simulated_status(seed, elapsed_s)
    assert msgspec.json.decode(msgspec.json.encode(status), type=RouterStatus) == status
    reported = {name for name in status.__struct_fields__ if getattr(status, name) is not None}
    assert set(status.__struct_fields__) - reported == {"last_published_ri"}
    assert status.uptime >= elapsed_s * 1000 - 1
    assert 0 < status.current_bandwidth.in_ < status.configured_bandwidth.in_
    assert 0 < status.current_bandwidth.out < status.configured_bandwidth.out
    assert status.job_lag <= 25


@given(seeds, elapsed)
def test_status_of_same_seed_and_time_is_the_same(seed: int, elapsed_s: float) -> None:
    assert simulated_status(seed, elapsed_s) == simulated_status(seed, elapsed_s)


@given(seeds, elapsed)
def test_status_a_second_later_has_moved_a_little(seed: int, elapsed_s: float) -> None:
    now, later = simulated_status(seed, elapsed_s), simulated_status(seed, elapsed_s + 1)
    assert later.uptime - now.uptime == pytest.approx(1000, abs=1)
    assert later.configured_bandwidth == now.configured_bandwidth
    limit = now.configured_bandwidth.in_
    assert abs(later.current_bandwidth.in_ - now.current_bandwidth.in_) < 0.05 * limit
    assert abs(later.participating_tunnels - now.participating_tunnels) < 0.05 * limit // 1024 + 100


def test_status_over_an_hour_wanders() -> None:
    hour = [simulated_status(1, minute * 60) for minute in range(60)]
    for name in WANDERING:
        assert len({getattr(status, name) for status in hour}) > 3


def test_status_of_different_seeds_differs() -> None:
    assert len({msgspec.json.encode(simulated_status(seed, 0)) for seed in range(100)}) == 100


async def test_router_uptime_rises_with_the_monotonic_clock(router, autojump_clock):
    first = await router.get_local_router_status()
    await trio.sleep(3600)
    second = await router.get_local_router_status()
    assert first == simulated_status(7, 0)
    assert second == simulated_status(7, 3600)
    assert second.uptime - first.uptime == 3_600_000


# The leaf


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_destination_is_391_bytes_with_an_ed25519_key_certificate(seed: int) -> None:
    destination = simulated_destination(seed)
    assert len(destination) == 391
    assert destination[384:] == bytes.fromhex("05 0004 0007 0000")
    Ed25519PublicKey.from_public_bytes(destination[352:384])
    assert destination == simulated_destination(seed)
    assert destination != simulated_destination(seed + 1)


async def test_leaf_status_has_tunnels_and_a_lease_set_that_lasts(router: SimulatedRouter) -> None:
    assert router.destination == simulated_destination(7)
    status = await router.get_local_leaf_status(router.destination)
    assert status.current_tunnels.in_ > 0
    assert status.current_tunnels.out > 0
    assert status.lease_set_expires > 1_700_000_000_000


async def test_leaf_of_another_router_raises_router_error(router: SimulatedRouter) -> None:
    with pytest.raises(RouterError, match=r"router\.destination"):
        await router.get_local_leaf_status(simulated_destination(8))


async def test_destination_from_the_configuration_is_served() -> None:
    destination = simulated_destination(99)
    text = b64encode(destination, altchars=b"-~").decode()
    router = make_router("simulated", {"seed": 1, "destination": text}, Path())
    status = await router.get_local_leaf_status(destination)
    assert status.destination == text


@pytest.mark.parametrize("text", ["A", "AAAA", "!" * 524, b64encode(bytes(384) + b"\5\0\4").decode()])
def test_destination_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"router\.destination"):
        SimulatedRouter(SimulatedConfig(destination=text), Path())


class SlowlyMeasuringRouter(SimulatedRouter):
    """As a real one, it first builds tunnels."""

    async def get_remote_measured_status(self, master_or_leaf: bytes) -> RemoteStatus | None:
        await trio.sleep(MEASUREMENT_TIMEOUT_S - 1)
        return RemoteStatus(hash=b64encode(master_or_leaf, altchars=b"-~").decode())


async def test_suite_allows_a_measurement_the_time_that_a_node_allows(autojump_clock):
    suite = RouterSuite()
    await suite.test_remote_status_is_of_the_hash_asked_for(SlowlyMeasuringRouter(SimulatedConfig(), Path()))
