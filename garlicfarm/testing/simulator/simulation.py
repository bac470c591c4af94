"""Whole clusters in one process, from one seed: networks, disks, clocks and clients fail as real ones do.

    python -m garlicfarm.testing.simulator --seeds 1000 [--first N] [--nodes 3] [--publisher [--preset NAME]]
    python -m garlicfarm.testing.simulator --leader-kills [--preset NAME] [--R N] [--seeds 100] [--first N]
    python -m garlicfarm.testing.simulator --outside [--preset NAME] [--seeds 100] [--first N] [--nodes 3]
    python -m garlicfarm.testing.simulator --slow [--hours 100] [--first N]

Each seed draws its own mix of faults (swarm testing): connections that break, with half a message or
with answers still on their way; requests that come twice; delays; partitions, also one-way; crashes that
lose what was not yet durable, all or part of it; slow disks; processes that stop for a while; clocks that
go wrong or jump; evidence, right and wrong, that the leader is gone; leadership transfers; members that join,
are removed, or have no extensions; snapshots, and logs shortened behind them. All messages go through the
real codec. The invariants (`garlicfarm.testing.simulator.invariants`) are checked after every event. Then all
faults end, and the members have to agree on one more entry, and keep their leader.

``--publisher`` runs members that post statuses and checks that at most one may publish:
`publisher_simulation`. ``--outside`` is the same with services that are not always reached:
`outside_simulation`. ``--leader-kills`` kills the leaders of such members and checks that the publisher goes
on: `leader_kills`. ``--slow`` runs for hours over links as slow and broken as those of I2P and bounds the
cost: `slow_simulation`.

The same seed gives the same run, event by event: ``digest`` is a hash over all of it. So the printed
command repeats a violation.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence

from garlicfarm.config.model import PRESETS
from garlicfarm.log_application import LogApplication
from garlicfarm.testing.simulator.clients import Administrator, Client, Proposer, Reader
from garlicfarm.testing.simulator.cluster import Outcome, SimulatedCluster
from garlicfarm.testing.simulator.comparing_simulation import ComparingSimulation
from garlicfarm.testing.simulator.fault_injector import FaultInjector
from garlicfarm.testing.simulator.faults import Faults
from garlicfarm.testing.simulator.invariants import Violation
from garlicfarm.testing.simulator.leader_kills import LeaderKills
from garlicfarm.testing.simulator.outside_simulation import OutsideSimulation
from garlicfarm.testing.simulator.publisher_setting import QUICK, preset_setting
from garlicfarm.testing.simulator.publisher_simulation import PublisherSimulation
from garlicfarm.testing.simulator.slow_simulation import KINDS, run_hours

CHAOS_MS = 4_000
HEALING_MS = 20_000
STABLE_MS = 1_000
TIMING = {"election_timeout_min_ms": 150, "election_timeout_max_ms": 300, "heartbeat_ms": 50}
FRESH = b"fresh"


class Simulation(SimulatedCluster):
    """The run of one seed; without ``faults`` the seed draws them."""

    def __init__(self, seed: int, nodes: int = 3, faults: Faults | None = None) -> None:
        super().__init__(seed, nodes, lambda rng: faults or Faults.draw(rng), LogApplication, TIMING)
        self._fault_injector = FaultInjector(self)
        self._clients = [Client(self, -i, self._acknowledge) for i in (1, 2)]
        self._administrators = [Administrator(self), Administrator(self)]
        self._made = 0
        self._fresh_index: int | None = None
        self._leadership: tuple[int, int, int] | None = None  # id, term, since when

    def run(self) -> Outcome:
        """Chaos, then healing. Raises `Violation`."""
        scheduler, rng = self.scheduler, self.rng
        for client in self._clients:
            scheduler.at(rng.randint(0, 500), self._post, client)
        users = (Proposer(self, self._acknowledge).act, Reader(self).act, self._fault_injector.act)
        for act in (*users, *(one.act for one in self._administrators)):
            scheduler.at(rng.randint(0, 500), act)
        scheduler.at(rng.randint(0, 500), self._fault_injector.snapshot)
        scheduler.at(500, self._fault_injector.mislead)
        scheduler.at(CHAOS_MS, self._heal)
        while not self._agreed():
            if scheduler.now > CHAOS_MS + HEALING_MS:
                raise Violation("liveness", f"no agreement {HEALING_MS} ms after the last fault")
            scheduler.next_event()
        self.observer.on_end()
        return self.outcome()

    def _post(self, client: Client) -> None:
        """A new entry every now and then, while not too many wait."""
        self.scheduler.at(self.scheduler.around(self.faults.entries_every_ms) + 1, self._post, client)
        if len(client.todo) < 3:
            self._made += 1
            client.todo.append(f"{client} entry {self._made}".encode())
        client.send()

    def _acknowledge(self, index: int, term: int, value: bytes) -> None:
        self.counts["acknowledged"] += 1
        self.observer.on_acknowledged(index, term, value)
        if value == FRESH:
            self._fresh_index = index

    def on_elected(self) -> None:
        """Ask a leader even before it has committed anything."""
        for administrator in self._administrators:
            self.scheduler.at(self.scheduler.around(20), administrator.ask)

    def _heal(self) -> None:
        self._fault_injector.end()
        self._clients[0].todo.appendleft(FRESH)

    def _agreed(self) -> bool:
        """Whether all members have applied the fresh entry, and one has led them for a while."""
        if self._fresh_index is None:
            return False
        now = [self.members[server.id] for server in self.newest.servers]
        leader = next((member for member in now if member.is_leader), None)
        if leader is None or leader.node is None:
            self._leadership = None
            return False
        if self._leadership is None or self._leadership[:2] != (leader.id, leader.node.term):
            self._leadership = leader.id, leader.node.term, self.scheduler.now
        calm = self.scheduler.now - self._leadership[2] >= STABLE_MS
        return calm and all(member.applied >= self._fresh_index for member in now)


_KINDS = ("leader-kills", "publisher", "outside", "comparing")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m garlicfarm.testing.simulator", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--first", type=int, default=1, help="the first one (default 1)")
    parser.add_argument("--nodes", type=int, default=3, help="members at the start (default 3)")
    parser.add_argument(
        "--publisher", action="store_true", help="simulate publishing, instead of the core alone"
    )
    parser.add_argument(
        "--outside", action="store_true", help="simulate publishing, and what is measured of it"
    )
    parser.add_argument(
        "--comparing",
        action="store_true",
        help="simulate publishing, and a member that is wrong",
    )
    parser.add_argument("--leader-kills", action="store_true", help="kill the leaders of three publishers")
    parser.add_argument("--preset", choices=sorted(PRESETS), help="timing, interval and lease of both")
    parser.add_argument("--R", type=int, default=0, help="in place of the preset's; leases rest on statuses")
    parser.add_argument("--lease", type=int, default=0, help="ms, in place of the preset's")
    parser.add_argument("--slow", action="store_true", help="hours over slow and broken links instead")
    parser.add_argument("--hours", type=float, default=100, help="of --slow, simulated (default 100)")
    parser.add_argument("--round-trips", choices=KINDS, default="slow", help="of --slow (default slow)")
    parser.add_argument("--fixed", action="store_true", help="of --slow: time-outs do not follow round trips")
    options = parser.parse_args(arguments)
    if options.slow:
        return run_hours(
            options.hours, options.first, parser.prog, options.round_trips, is_fixed=options.fixed
        )
    setting = QUICK
    if options.preset or options.leader_kills:
        setting = preset_setting(options.preset or "clearnet", options.R, options.lease)
    begun = time.process_time()
    events = committed = violations = 0
    counts: Counter[str] = Counter()
    left_ms: list[int] = []
    for seed in range(options.first, options.first + options.seeds):
        simulation: Simulation | PublisherSimulation
        if options.comparing:
            simulation = ComparingSimulation(seed, options.nodes, setting)
        elif options.outside:
            simulation = OutsideSimulation(seed, options.nodes, setting)
        elif options.leader_kills:
            simulation = LeaderKills(seed, setting, on_statuses=bool(options.R))
        elif options.publisher:
            simulation = PublisherSimulation(seed, options.nodes, setting)
        else:
            simulation = Simulation(seed, options.nodes)
        try:
            outcome = simulation.run()
        except Exception as error:  # noqa: BLE001 - for any error the seed must be printed
            print(simulation.scheduler.trace_text())
            print(f"seed {seed} of {options.nodes} nodes: {type(error).__name__}: {error}")
            kinds = {name: vars(options)[name.replace("-", "_")] for name in _KINDS}
            kind = "".join(f" --{name}" for name, is_on in kinds.items() if is_on)
            kind += f" --preset {options.preset}" if options.preset else ""
            kind += f" --R {options.R}" if options.R else ""
            kind += f" --lease {options.lease}" if options.lease else ""
            print(f"replay: {parser.prog} --seeds 1 --first {seed} --nodes {options.nodes}{kind}")
            violations += 1
            break
        events += outcome.events
        committed += outcome.committed
        counts.update(outcome.counts)
        if isinstance(simulation, LeaderKills):
            left_ms.append(simulation.least_left_ms)
    minutes = (time.process_time() - begun) / 60
    done = seed - options.first + 1
    print(
        f"{done} seeds of {options.nodes} nodes, {violations} violations: {done / minutes:.0f} seeds a CPU "
        f"minute, {events} events, {committed} entries committed"
    )
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    if left_ms:
        print(f"the publisher's lease always lasted {min(left_ms)} ms more")
    return 1 if violations else 0
