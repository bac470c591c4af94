"""Router plugin ``simulated``: a simulated router with plausible figures.

The figures vary smoothly and are a function of (seed, seconds since the first query), so that two runs
with one seed are equal; seeds differ like real routers. It serves one leaf, for any master.
"""

from __future__ import annotations

import math
import random
import time
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import trio

from garlicfarm.errors import ConfigError, RouterError
from garlicfarm.i2p.destination import decode_destination
from garlicfarm.i2p.encoding import encode
from garlicfarm.lab.destinations import simulated_destination
from garlicfarm.plugin_settings import Settings, setting
from garlicfarm.router import Bandwidth, DestinationStatus, RemoteStatus, Router, RouterStatus, Tunnels

LEASE_SET_MS = 600_000
LEASE_SET_RENEWED_MS = 480_000
FIGURES = (
    *("router.uptime", "router.jobLag", "router.exploratoryTunnels", "router.participatingTunnels"),
    *("router.configuredBandwidth.in", "router.configuredBandwidth.out"),
    *("router.currentBandwidth.in", "router.currentBandwidth.out"),
    *("destinations.uptime", "destinations.leaseSetExpires"),
    *("destinations.configuredTunnels.in", "destinations.configuredTunnels.out"),
    *("destinations.currentTunnels.in", "destinations.currentTunnels.out"),
    *("destinations.configuredConnections", "destinations.currentConnections"),
    *("destinations.currentBandwidth.in", "destinations.currentBandwidth.out"),
)


class SimulatedConfig(Settings, frozen=True, kw_only=True):
    """``[farm.router]`` with ``plugin = "simulated"``. ``destination`` (I2P base64) is the leaf that the
    router serves; empty: the one from `simulated_destination`."""

    seed: Annotated[int, setting("Determines all figures.")] = 0
    destination: Annotated[
        str, setting("The leaf that the router serves (I2P base64). Without it: from the seed.")
    ] = ""


class SimulatedRouter(Router):
    """See the module. The constructor raises `ConfigError` for an invalid destination."""

    Config = SimulatedConfig
    origins = MappingProxyType(dict.fromkeys(FIGURES, "simulated"))
    config: SimulatedConfig

    def __init__(self, config: SimulatedConfig, base_dir: Path) -> None:
        super().__init__(config, base_dir)
        self.destination = _destination(config)
        """The binary leaf destination."""
        self._started_s: float | None = None

    async def get_local_router_status(self) -> RouterStatus:
        await trio.lowlevel.checkpoint()
        return simulated_status(self.config.seed, self._elapsed_s())

    async def get_local_leaf_status(self, leaf: bytes) -> DestinationStatus:
        await trio.lowlevel.checkpoint()
        if leaf != self.destination:
            raise RouterError("the simulated router does not serve this leaf; set router.destination to it")
        elapsed_s = self._elapsed_s()
        age_ms = int(elapsed_s * 1000) % LEASE_SET_RENEWED_MS
        wander = _Wander(self.config.seed, "leaf", elapsed_s)
        return DestinationStatus(
            destination=encode(leaf),
            uptime=int(elapsed_s * 1000),
            configured_tunnels=Tunnels(in_=3, out=3),
            current_tunnels=Tunnels(in_=wander.between(2, 4), out=wander.between(2, 4)),
            configured_connections=256,
            current_connections=wander.between(0, 60),
            current_bandwidth=Bandwidth(in_=wander.between(0, 30_000), out=wander.between(0, 90_000)),
            lease_set_expires=int(time.time() * 1000) - age_ms + LEASE_SET_MS,
        )

    async def get_remote_measured_status(self, master_or_leaf: bytes) -> RemoteStatus | None:
        await trio.lowlevel.checkpoint()
        return None

    def _elapsed_s(self) -> float:
        if self._started_s is None:
            self._started_s = trio.current_time()
        return trio.current_time() - self._started_s


def simulated_status(seed: int, elapsed_s: float) -> RouterStatus:
    """The figures of router ``seed``, ``elapsed_s`` (≥ 0) after the first query."""
    wander = _Wander(seed, "router", elapsed_s)
    uptime_s = wander.constant(600, 30 * 86_400) + elapsed_s
    limit_in = wander.constant(128, 4096) * 1024
    limit_out = wander.constant(64, 2048) * 1024
    return RouterStatus(
        uptime=int(uptime_s * 1000),
        job_lag=wander.between(0, 25),
        exploratory_tunnels=wander.between(4, 12),
        participating_tunnels=wander.between(50, 50 + limit_out // 2048),
        configured_bandwidth=Bandwidth(in_=limit_in, out=limit_out),
        current_bandwidth=Bandwidth(
            in_=wander.between(limit_in // 20, limit_in * 3 // 4),
            out=wander.between(limit_out // 20, limit_out * 3 // 4),
        ),
    )


class _Wander:
    """Figures of one subject at one moment: each call returns the next figure, with its own phases."""

    def __init__(self, seed: int, subject: str, elapsed_s: float) -> None:
        self._rng = random.Random(f"{subject} {seed}")
        self._elapsed_s = elapsed_s

    def constant(self, low: int, high: int) -> int:
        return self._rng.randint(low, high)

    def between(self, low: int, high: int) -> int:
        """Three slow waves (1 to 20 minutes) around a level of its own, within ``low`` … ``high``."""
        level = self._rng.uniform(0.3, 0.7)
        waves = 0.0
        for _ in range(3):
            period_s, phase = self._rng.uniform(60, 1200), self._rng.uniform(0, math.tau)
            waves += 0.1 * math.sin(math.tau * self._elapsed_s / period_s + phase)
        return low + round((high - low) * (level + waves))


def _destination(config: SimulatedConfig) -> bytes:
    if not config.destination:
        return simulated_destination(config.seed)
    try:
        return decode_destination(config.destination)
    except ValueError:
        raise ConfigError(["router.destination: not an I2P destination in base64"]) from None
