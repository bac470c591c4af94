"""How fast a simulated farm with a publisher is: as tests want it, or as a preset has it."""

from __future__ import annotations

import msgspec

from garlicfarm.config.model import (
    PRESET_INTERVALS_MS,
    PRESET_LEASES_MS,
    PRESET_LEAST_ELECTION_TIMEOUTS_S,
    PRESET_RETIRE_TIMEOUTS_S,
    PRESETS,
)
from garlicfarm.publishing.lease import least_lease_ms, least_R
from garlicfarm.round_trips import Timeouts


class Setting(msgspec.Struct, frozen=True):
    """How fast a farm is. ``timing``: the times of `RaftConfig`; ``slowness``: by how much faults, users and
    the run itself are slower than those of `QUICK`. ``lease_ms``: how long a lease on heartbeats lasts at
    most. ``retire_timeout_ms``: how long a publisher with default settings may take to stop.
    ``least_election_ms``: down to which the upper election time-out follows round trips, 0: it does not."""

    interval_ms: int
    R: int
    timing: dict[str, int]
    rpc_timeout_ms: int
    slowness: int
    lease_ms: int
    retire_timeout_ms: int
    least_election_ms: int = 0

    @property
    def timeouts(self) -> Timeouts:
        """Those that are configured."""
        low_ms, high_ms = (self.timing[f"election_timeout_{end}_ms"] for end in ("min", "max"))
        return Timeouts(low_ms, high_ms, self.rpc_timeout_ms)

    def least_lease_ms(self, election_ms: int) -> int:
        """The least that outlasts a slow change of the leader with this upper election time-out."""
        return least_lease_ms(
            election_timeout_max_s=election_ms / 1000,
            heartbeat_s=self.timing["heartbeat_ms"] / 1000,
            retire_timeout_s=max(PRESET_RETIRE_TIMEOUTS_S.values()),
        )

    @property
    def chaos_ms(self) -> int:
        """How long there are faults; without them some member has to publish within the same time."""
        return 40_000 * self.slowness


QUICK = Setting(
    10_000,
    3,
    {"election_timeout_min_ms": 3_000, "election_timeout_max_ms": 6_000, "heartbeat_ms": 1_500},
    rpc_timeout_ms=4_000,
    slowness=10,
    lease_ms=21_500,
    retire_timeout_ms=5_000,
)


def preset_setting(name: str, R: int = 0, lease_ms: int = 0) -> Setting:
    """The setting of a new farm with that preset; ``R`` and ``lease_ms`` in place of its own."""
    raft = {key.removesuffix("_s"): round(1000 * value) for key, value in PRESETS[name].items()}
    interval_ms = PRESET_INTERVALS_MS[name]
    retire_timeout_s = PRESET_RETIRE_TIMEOUTS_S[name]
    own_R = least_R(
        interval_ms,
        election_timeout_max_s=PRESETS[name]["election_timeout_max_s"],
        rpc_timeout_s=PRESETS[name]["rpc_timeout_s"],
        retire_timeout_s=retire_timeout_s,
    )
    rpc_timeout_ms = raft.pop("rpc_timeout")
    timing = {f"{key}_ms": value for key, value in raft.items()}
    slowness = QUICK.slowness * timing["election_timeout_max_ms"] // QUICK.timing["election_timeout_max_ms"]
    return Setting(
        interval_ms,
        R or own_R,
        timing,
        rpc_timeout_ms,
        slowness,
        lease_ms or PRESET_LEASES_MS[name],
        round(1000 * retire_timeout_s),
        round(1000 * PRESET_LEAST_ELECTION_TIMEOUTS_S.get(name, 0)),
    )
