"""The mix of faults that a seed draws (swarm testing): each run has some of them, few have all."""

from __future__ import annotations

import random

import msgspec

from garlicfarm.testing.simulator.network import NetworkFaults

_KINDS = (
    "crash",
    "crash_leader",
    "partition",
    "one_way",
    "isolate_leader",
    "heal",
    "pause",
    "jump",
    "slow_disk",
    "transfer",
)


class Faults(msgspec.Struct, frozen=True):
    """The faults of one seed. All ``…_ms`` are means; 0: never, or at once.

    * ``kinds``: one of them happens every ``every_ms``, all with the same probability; a member that crashes
      or pauses is back after ``away_ms``.
    * ``change_ms``: an administrator changes the members; ``snapshot_ms``: a member takes a snapshot and
      shortens its log to the ``tails`` before it; ``read_ms``: a reader reads.
    * ``apply_ms``: how long committed entries wait for the application.
    * ``rates``: of the members' clocks, in thousandths.
    * ``no_extensions``: the probability that a member has no extensions.
    * ``config`` goes into `RaftConfig`.
    * ``seen_crashes``: the probability that a member sees, while another one is down, that its connections
      ended and new ones are refused; ``false_evidence_ms``: some members take a leader for gone whether it is
      or not, perhaps one of another term, or a member that does not lead.
    """

    network: NetworkFaults
    disk_ms: float
    apply_ms: float
    entries_every_ms: float
    every_ms: float
    kinds: tuple[str, ...]
    away_ms: float
    new_leader_crashes: float
    change_ms: float
    snapshot_ms: float
    tails: tuple[int, ...]
    read_ms: float
    rates: tuple[int, int]
    no_extensions: float
    config: dict[str, int]
    seen_crashes: float
    false_evidence_ms: float

    @classmethod
    def draw(cls, rng: random.Random) -> Faults:
        """The mix of one seed."""
        return cls(
            network=NetworkFaults(
                delay_ms=rng.choice((1, 3, 10, 30)),
                reset=rng.choice((0, 0, 0.002, 0.02)),
                split=rng.choice((0, 0.1, 0.5)),
                repeat=rng.choice((0, 0, 0.01, 0.1)),
            ),
            disk_ms=rng.choice((0.5, 3, 10, 40)),
            apply_ms=rng.choice((0, 0, 5, 50)),
            entries_every_ms=rng.choice((5, 15, 60)),
            every_ms=rng.choice((100, 250, 700)),
            kinds=tuple(kind for kind in _KINDS if rng.random() < 0.5),
            away_ms=250,
            new_leader_crashes=rng.choice((0, 0, 0.3)),
            change_ms=rng.choice((0, 50, 200, 600)),
            snapshot_ms=rng.choice((0, 60, 300, 900)),
            tails=rng.choice(((0,), (0, 5), (2, 40), (60,))),
            read_ms=rng.choice((0, 20, 100)),
            rates=rng.choice(((1000, 1000), (950, 1050), (600, 1700))),
            no_extensions=rng.choice((0, 0, 0.3, 1)),
            config={
                "batch_bytes": rng.choice((1, 40, 1 << 20)),
                "max_inflight_messages": rng.choice((1, 2, 64)),
                "max_inflight_bytes": rng.choice((20, 8 << 20)),
                "max_uncommitted_bytes": rng.choice((60, 64 << 20)),
                "priority": rng.choice((1, 1, 4)),
                "commit_notice_ms": rng.choice((0, 30)),
            },
            seen_crashes=rng.choice((0, 0.5, 1)),
            false_evidence_ms=rng.choice((0, 0, 100, 500)),
        )


CALM = Faults(
    network=NetworkFaults(2, 0, 0),
    disk_ms=1,
    apply_ms=0,
    entries_every_ms=20,
    every_ms=1000,
    kinds=(),
    away_ms=0,
    new_leader_crashes=0,
    change_ms=0,
    snapshot_ms=0,
    tails=(0,),
    read_ms=0,
    rates=(1000, 1000),
    no_extensions=0,
    config={},
    seen_crashes=0,
    false_evidence_ms=0,
)
"""No faults at all: the end of a run."""
