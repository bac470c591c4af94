"""Members with the timing of the preset ``i2p``, for hours, over links as slow and broken as those of I2P.

    python -m garlicfarm.testing.simulator --slow [--hours 100] [--first N] [--round-trips KIND] [--fixed]

Each seed is a run of five hours. By turns they have 3 and 5 members, and lost messages are resent or cut
their connection (`slow_links`). Every 10 minutes on average a partition begins or ends
(`slow_cluster.PARTITIONS`). The members' connections are kept up as a node's are, with deadlines and
back-off. A client posts an entry to the leader every 10 s.

Round trips are ``slow``; ``quick``, as slow as the shortest time-outs allow; or ``changing``, quick and slow
by turns for an hour each. The members' time-outs follow them, or, ``fixed``, stay those of the preset.

The invariants are checked after every event. At the end the links work, and all members have to agree. There
are bounds, for all hours and for those of each kind: on the mean of terms per hour, and on the share of
entries committed within a minute, of those posted while a majority was connected.
"""

from __future__ import annotations

import time
from functools import partial
from math import ceil, sqrt
from statistics import quantiles
from typing import Any

import msgspec

from garlicfarm.config.model import PRESET_LEAST_ELECTION_TIMEOUTS_S, PRESETS
from garlicfarm.testing.simulator.fault_injector import FaultInjector
from garlicfarm.testing.simulator.faults import CALM
from garlicfarm.testing.simulator.invariants import Violation
from garlicfarm.testing.simulator.member import SimulatedMember
from garlicfarm.testing.simulator.network import NetworkFaults
from garlicfarm.testing.simulator.slow_cluster import SlowCluster
from garlicfarm.testing.simulator.slow_links import Path

MAX_TERMS_AN_HOUR = 3.0
MIN_IN_TIME = 0.95
IN_TIME_MS = 60_000
HOUR_MS = 3_600_000
HOURS_A_SEED = 5
LONG_ENOUGH_HOURS = 100
TOGGLE_MS = 600_000
POST_MS = 10_000
AGAIN_MS = 1_000
HEALING_MS = 600_000
PATH = Path()
QUICK = Path(350, 680, loss=0.001)
"""With a 99th percentile of round trips of 2.9 s."""
KINDS = {"slow": (PATH,), "quick": (QUICK,), "changing": (QUICK, PATH)}
"""The paths of messages, by turns for an hour each."""
FAULTS = msgspec.structs.replace(
    CALM,
    network=NetworkFaults(PATH.mean_ms, 0, 0),
    disk_ms=10,
    rates=(999, 1001),
    snapshot_ms=1_200_000,
    tails=(0, 20, 200),
)


class RunStatistics(msgspec.Struct):
    """The result of one or more runs. While a majority was connected: ``led`` of ``looked`` times a member
    connected to a majority led, and ``in_time`` of the ``due`` entries were committed. ``shortened`` of the
    times that one led its time-outs were shorter than those of the preset. ``needless``: how often another
    member was elected though the one before had reached a majority for a minute."""

    hours: float = 0
    terms: int = 0
    needless: int = 0
    most: int = 0  # terms in one hour
    committed: int = 0
    due: int = 0
    in_time: int = 0
    looked: int = 0
    led: int = 0
    shortened: int = 0
    commit_ms: list[int] = []

    def add(self, other: RunStatistics) -> None:
        """Take in another run."""
        self.most = max(self.most, other.most)
        counts = ("terms", "needless", "committed", "due", "in_time", "looked", "led", "shortened")
        for name in ("hours", *counts):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.commit_ms = self.commit_ms + other.commit_ms

    @property
    def problems(self) -> list[str]:
        """The bounds that are broken. Fewer than `LONG_ENOUGH_HOURS` may have more terms by chance: three
        standard deviations of a number with this mean."""
        found = []
        terms = MAX_TERMS_AN_HOUR * self.hours
        if self.terms > terms + (3 * sqrt(terms) if self.hours < LONG_ENOUGH_HOURS else 0):
            found.append(f"more than {MAX_TERMS_AN_HOUR:g} terms an hour")
        if self.in_time < MIN_IN_TIME * self.due:
            found.append(f"less than {MIN_IN_TIME:.0%} of the entries in time")
        return found

    def __str__(self) -> str:
        trips = quantiles([ms / (2 * PATH.mean_ms) for ms in self.commit_ms or [0, 0]], n=100)
        return (
            f"{self.hours:g} hours, {self.terms / self.hours:.2f} terms an hour (at most {self.most}, "
            f"{self.needless} needless in all); "
            f"{self.committed} commits, in round trips p50 {trips[49]:.2f} p99 {trips[98]:.2f}; "
            f"a leader {self.led / self.looked:.1%} of the time; {self.in_time / self.due:.1%} in time; "
            f"time-outs shortened {self.shortened / (self.led or 1):.1%} of that time"
        )


class _PostedEntry(msgspec.Struct, eq=False):
    value: bytes
    posted_ms: int
    index: int = 0  # once it is committed


class SlowSimulation(SlowCluster):
    """One seed's run, with the timing of ``preset`` and the ``path`` of all messages, or several paths, by
    turns for an hour each. ``is_fixed``: the time-outs do not follow round trips."""

    def __init__(
        self, seed: int, nodes: int = 3, *paths: Path, preset: str = "i2p", is_fixed: bool = False
    ) -> None:
        paths, least_s = paths or (PATH,), PRESETS[preset]["election_timeout_max_s"]
        if not is_fixed:
            least_s = PRESET_LEAST_ELECTION_TIMEOUTS_S.get(preset, least_s)
        super().__init__(seed, nodes, FAULTS, paths[0], PRESETS[preset], least_s)
        self._paths = paths
        self.statistics = RunStatistics()
        self._made = 0
        self._last_term = 0
        self._last_leader = 0
        self._toggled_ms = 0
        self._over = False

    def run(self, hours: float = HOURS_A_SEED) -> RunStatistics:
        """So many hours, then healing. Raises `Violation`."""
        scheduler = self.scheduler
        for time_ms in range(HOUR_MS, round(hours * HOUR_MS) + 1, HOUR_MS):
            scheduler.at(time_ms, self._hour_ends)
        scheduler.at(scheduler.around(TOGGLE_MS), self._toggle)
        scheduler.at(scheduler.around(POST_MS), self._post)
        scheduler.at(0, FaultInjector(self).snapshot)
        while scheduler.now < hours * HOUR_MS:
            scheduler.next_event()
        outcome = self.outcome()
        statistics = self.statistics
        statistics.hours, statistics.terms, statistics.committed = hours, outcome.term, outcome.committed
        self._heal()
        self.observer.on_end()
        return self.statistics

    # ------------------------------------------------------------------ entries

    def _post(self) -> None:
        """Post an entry, and note whether a member leads."""
        scheduler = self.scheduler
        if self._over:
            return
        scheduler.at(scheduler.around(POST_MS), self._post)
        if self.connected_since is not None:
            leader = self._leader()
            self.statistics.looked += 1
            if leader is not None and self.reaches_majority(leader.id):
                self.statistics.led += 1
                self.statistics.shortened += self.farm(leader).election_timeout_ms not in (
                    0,
                    self._timeouts.election_max_ms,
                )
        post = self._new_post()
        scheduler.at(scheduler.now + IN_TIME_MS, self._due, post)

    def _new_post(self) -> _PostedEntry:
        self._made += 1
        post = _PostedEntry(b"entry %d" % self._made, self.scheduler.now)
        self._offer(post)
        return post

    def _leader(self) -> SimulatedMember | None:
        """The leader of the latest term."""
        return max(self.leading(), key=lambda member: member.node.term if member.node else 0, default=None)

    def _offer(self, post: _PostedEntry) -> None:
        """Ask the leader to append it, again and again until it is committed."""
        leader = self._leader()
        if leader is None or leader.node is None:
            self.scheduler.at(self.scheduler.now + AGAIN_MS, self._offer, post)
            return
        offer = self.token()
        self.observer.refused.on_offered(offer, (post.value,))
        then = partial(self._answered, post, self.scheduler.now)
        if self.call(leader, leader.node.propose, (post.value,), then=then):
            self.observer.refused.on_refused(offer)
            self.scheduler.at(self.scheduler.now + AGAIN_MS, self._offer, post)

    def _answered(self, post: _PostedEntry, offered_ms: int, outcome: Any) -> None:
        if outcome is None:
            self.scheduler.at(self.scheduler.now + AGAIN_MS, self._offer, post)
            return
        index, term = outcome.index, outcome.term
        self.observer.on_acknowledged(index, term, post.value)
        self.statistics.commit_ms.append(self.scheduler.now - offered_ms)
        post.index = index

    def _due(self, post: _PostedEntry) -> None:
        """A minute after it was posted."""
        since = self.connected_since
        if not self._over and since is not None and since <= post.posted_ms:
            self.statistics.due += 1
            self.statistics.in_time += post.index > 0

    def on_elected(self) -> None:
        leader, last, now = self._leader(), self._last_leader, self.scheduler.now
        assert leader is not None
        is_well = last not in (0, leader.id) and self.reaches_majority(last)
        self.statistics.needless += is_well and now >= self._toggled_ms + IN_TIME_MS
        self._last_leader = leader.id

    def _toggle(self) -> None:
        """A partition begins, or ends."""
        if not self._over:
            self._toggled_ms = self.scheduler.now
            self.scheduler.at(self.scheduler.around(TOGGLE_MS), self._toggle)
            self.toggle()

    def _hour_ends(self) -> None:
        term = self.outcome().term
        self.statistics.most = max(self.statistics.most, term - self._last_term)
        self._last_term = term
        hours = self.scheduler.now // HOUR_MS
        self._slow.path = self._paths[hours % len(self._paths)]

    def _heal(self) -> None:
        """All links work: all members reach the same state."""
        scheduler = self.scheduler
        self._over = True
        self.heal()
        deadline, last = scheduler.now + HEALING_MS, self._new_post()
        while not last.index or any(member.applied < last.index for member in self.members.values()):
            if scheduler.now > deadline:
                raise Violation("liveness", f"no agreement {HEALING_MS} ms after the last partition")
            scheduler.next_event()


def run_hours(hours: float, first: int, program: str, kind: str = "slow", *, is_fixed: bool = False) -> int:
    """Runs of `HOURS_A_SEED`, from the seed ``first`` on, ``hours`` altogether; prints the results, and
    returns the exit code."""
    begun = time.process_time()
    runs = ceil(hours / HOURS_A_SEED)
    more = f" --round-trips {kind}" * (kind != "slow") + " --fixed" * is_fixed
    groups: dict[str, RunStatistics] = {}
    for seed in range(first, first + runs):
        nodes, resent = (3, 5)[seed % 2], seed // 2 % 2 == 0
        paths = [path._replace(resent=resent) for path in KINDS[kind]]
        simulation = SlowSimulation(seed, nodes, *paths, is_fixed=is_fixed)
        try:
            statistics = simulation.run(hours / runs)
        except Exception as error:  # noqa: BLE001 - for any error the seed must be printed
            print(simulation.scheduler.trace_text())
            print(f"seed {seed} of {nodes} nodes: {type(error).__name__}: {error}")
            print(f"replay: {program} --slow --hours {hours / runs:g} --first {seed}{more}")
            return 1
        group = f"{nodes} members, {'resent' if resent else 'cut'}"
        for name in (group, "all"):
            groups.setdefault(name, RunStatistics()).add(statistics)
    broken = False
    for group, statistics in sorted(groups.items(), reverse=True):
        print(f"{group}: {statistics}")
        for problem in statistics.problems:
            print(f"{group}: {problem}")
            broken = True
    print(f"{runs} seeds, 0 violations, {time.process_time() - begun:.0f} s of CPU time")
    return int(broken)
