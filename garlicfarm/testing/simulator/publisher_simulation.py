"""Farms in one process, from one seed: never are two members published for within their leases at once.

    python -m garlicfarm.testing.simulator --publisher --seeds 100 [--first N] [--nodes 3] [--preset NAME]

The members of a `SimulatedCluster` fold `garlicfarm.publishing.fold.PublisherFold`, and each does what the
core of a node decides (`garlicfarm.publishing.member_core.MemberCore`), with one or two plugins that
refuse, hang, lie, have defects, answer late, and take long to be left (`simulated_plugin`). All faults of
the simulator strike, the publisher most often; clocks of leases run at rates up to 5 % off, and one member's
wall clock shows anything. In half of the seeds members compare their wall clocks, and the router of that
member tells the right date, none, that of its machine, or an absurd one; in the others wall clocks drift, and
any clock may publish. In two of three seeds the farm is raised, at once or later, to the level at which
leases ride on heartbeats (D24); clocks of leases are up to 1 % off then. An administrator changes the
interval, the lease and which members may publish, drains members, two at once, too, and stops nodes, at any
time. A process that died counts as one that publishes until its next one has a plugin on standby, or its
lease is over: its router did not get the order to stop.

After every event these hold:

* Never does what stands for two members count at once. What stands, and until when it counts:
  `simulated_plugin.Standing`.
* At the end of its lease a member has its plugins stopped, or leaves them.
* No status that would release a member is composed while something stands for it.
* A stop ends within its bound, and then every plugin has stopped, or is to stop or being left.
* Where members compare clocks, no member takes a right one for wrong that is no worse off than with one other
  member and a router that tells no date.

Then all faults end. Some member has to publish within 60 intervals. Then one of three things happens: the
publisher's router is gone for good, and another member publishes within 30 intervals; or two members are
drained, the publisher among them, and a third one publishes, with no more than a few statuses out of turn;
or the publisher's node stops, and ends only when another member publishes (docs/reference/protocol.md, D19,
D22 and "The common algorithm", point 6). At last, where members compare clocks, the publisher's is set wrong,
by a little or by hours: another member publishes within 30 intervals, and it offers itself no more.

``--preset``: with that preset's timing, interval and R, and all else slower in proportion. By default the
interval is 10 s, R = 3: the times of the core, up to two minutes, are in proportion to that as in a real
farm.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from garlicfarm.i2p.encoding import encode
from garlicfarm.lab.destinations import simulated_destination
from garlicfarm.leases import LeaseGranter
from garlicfarm.levels import LEASES
from garlicfarm.publishing.documents import (
    Bandwidth,
    DestinationStatus,
    NodeReport,
    PublishConfig,
    RouterStatus,
)
from garlicfarm.publishing.entries import DATE_END_MS, encode_admin
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.member_core import Figures, MemberCore
from garlicfarm.publishing.orders import ClockReading
from garlicfarm.publishing.own_clock import DEFAULT_LIMIT_MS
from garlicfarm.publishing.policy import DEFAULT_R
from garlicfarm.testing.simulator.clients import Administrator, Client
from garlicfarm.testing.simulator.cluster import Outcome
from garlicfarm.testing.simulator.fault_injector import FaultInjector
from garlicfarm.testing.simulator.faults import Faults
from garlicfarm.testing.simulator.invariants import Violation
from garlicfarm.testing.simulator.member import SimulatedMember
from garlicfarm.testing.simulator.network import CLIENT, Connection
from garlicfarm.testing.simulator.publisher_process import MemberProcess, Surroundings
from garlicfarm.testing.simulator.publisher_setting import QUICK, Setting
from garlicfarm.testing.simulator.simulated_plugin import PluginFaults, Standing
from garlicfarm.wire import decode_grant, encode_grant
from garlicfarm.wire.messages import LogEntry, MessageType, Request, Response, ValueType

FARM = "simulated"
EPOCH_MS = 1_800_000_000_000
ADMIN = -1_000
_ANY_CLOCK_MS = 1 << 62


def _draw(rng: random.Random, slowness: int) -> Faults:
    """As for any cluster, but slower: publishing takes intervals. Clocks that count suspended time do not
    jump."""
    drawn = Faults.draw(rng)
    return msgspec.structs.replace(
        drawn,
        kinds=tuple(kind for kind in drawn.kinds if kind != "jump"),
        network=drawn.network._replace(delay_ms=slowness * drawn.network.delay_ms),
        every_ms=10 * slowness * drawn.every_ms,
        away_ms=slowness * rng.choice((500, 2_000, 8_000)),
        change_ms=20 * slowness * drawn.change_ms,
        snapshot_ms=20 * slowness * drawn.snapshot_ms,
        rates=rng.choice(((1000, 1000), (950, 1050))),
        new_leader_crashes=drawn.new_leader_crashes / 3,
        false_evidence_ms=10 * slowness * drawn.false_evidence_ms,
    )


class PublisherSimulation(Surroundings):
    """One seed's run."""

    modes: tuple[PublishConfig, ...] = ("auto", "auto", "auto", "on", "off")

    def __init__(self, seed: int, nodes: int = 3, setting: Setting = QUICK) -> None:
        self.setting = setting
        self.rpc_timeout_ms = self.answer_timeout_ms = self.client_timeout_ms = setting.rpc_timeout_ms
        self.processes: dict[int, MemberProcess] = {}
        self.standings: dict[int, list[Standing]] = {}
        self.plugin_faults = PluginFaults()
        self._wrong_ms = 0  # the error of the wrong clock
        self._publisher: int | None = None
        self._drained: set[int] = set()
        self._posted: defaultdict[int, set[int]] = defaultdict(set)  # sequences of statuses, by member
        self._boots: Counter[int] = Counter()  # numbers of processes, by member
        super().__init__(seed, nodes, self.draw_faults, lambda: PublisherFold(FARM), setting.timing)
        self._fault_injector = FaultInjector(self)
        if not self.has_leases:
            self.highest_level = LEASES - 1
        self._wrong = self.rng.randint(0, nodes)
        clocks = random.Random(f"clocks {seed}")  # so that it changes nothing else
        compares = clocks.random() < 0.5
        self.max_clock_offset_ms = DEFAULT_LIMIT_MS if compares else _ANY_CLOCK_MS
        self._wrong_router = clocks.choice(("right", "silent", "own", "absurd"))
        self._last_router = clocks.choice(("right", "silent", "own"))
        self._routers_tell, self._logins_tell = clocks.random() < 0.5, clocks.random() < 0.3
        self._logins: dict[int, dict[int, ClockReading]] = {}
        self._logged_in: dict[int, int] = {}  # when, last
        self._absurd_ms = clocks.randrange(1 << 62)
        self._off_ms = clocks.choice((-1, 1)) * clocks.choice((1, 50, 5_000))
        self._admin = Client(self, ADMIN, lambda index, term, entry: None)
        self.measure_ms = self.rng.choice((20, 200, 3_000))
        self._is_calm = False

    def run(self) -> Outcome:
        """Chaos, then healing, then what operators do. Raises `Violation`."""
        scheduler, rng = self.scheduler, self.rng
        self.plugin_faults = PluginFaults.draw(rng)
        self.found()
        for user in (Administrator(self), self._fault_injector):
            scheduler.at(rng.randint(0, self.setting.interval_ms), user.act)
        scheduler.at(rng.randint(0, self.setting.interval_ms), self._fault_injector.snapshot)
        scheduler.at(self.setting.interval_ms, self._fault_injector.mislead)
        scheduler.at(0, self._orders)
        scheduler.at(0, self._set_wrong_clock)
        self._pass(self.setting.chaos_ms)
        self._heal()
        self._wait_for_publisher()
        self._pass(2 * self.setting.R * self.setting.interval_ms)  # all offer themselves again
        self._wait_for_publisher()
        rng.choice((self._lose_router, self._drain_two, self._stop_one))()
        self._wait_for_publisher()
        self._set_publishers_clock()
        self.after()
        self.observer.on_end()
        return self.outcome()

    def after(self) -> None:
        """What else happens at the end."""

    def draw_faults(self, rng: random.Random) -> Faults:
        """The faults of the seed."""
        self.has_leases = rng.random() < 2 / 3
        self.genesis_level = LEASES if self.has_leases and rng.random() < 0.5 else 0
        drawn = _draw(rng, self.setting.slowness)
        if not self.has_leases:
            return drawn
        return msgspec.structs.replace(drawn, rates=(990, 1010), no_extensions=0)

    def found(self) -> None:
        """Have the farm's interval and R committed."""
        if self.setting.R != DEFAULT_R:
            self._order("staleness", {"R": self.setting.R})
        self._order("interval", {"ms": self.setting.interval_ms})
        if self.genesis_level >= LEASES:
            self._order("lease", {"ms": self.setting.lease_ms})

    # ------------------------------------------------------------------ members

    def application(self, member: SimulatedMember) -> PublisherFold:
        assert isinstance(member.application, PublisherFold)
        return member.application

    def start(self, member: SimulatedMember) -> None:
        was_down = member.node is None and not member.retired
        super().start(member)
        if was_down:
            self.scheduler.at(self.scheduler.now, self._begin, member, member.generation)

    def _begin(self, member: SimulatedMember, generation: int) -> None:
        if member.node is not None and member.generation == generation:
            if member.id not in self.standings:
                self.standings[member.id] = [Standing() for _ in range(self.rng.choice((1, 1, 2)))]
            self.processes[member.id] = MemberProcess(self, member, is_drained=member.id in self._drained)

    def crash(self, member: SimulatedMember) -> None:
        self.processes.pop(member.id, None)
        for standing in self.standings.get(member.id, ()):
            standing.outlive()
        super().crash(member)
        for connection in self.network.of(-member.id):
            self.network.sever(connection)
            self.network.lose(connection, CLIENT)

    def end(self, member: SimulatedMember) -> None:
        self.scheduler.at(self.scheduler.now, self._end, member, member.generation)

    def _end(self, member: SimulatedMember, generation: int) -> None:
        if member.node is not None and member.generation == generation:
            self.counts["ended"] += 1
            for standing in self.standings[member.id]:
                standing.end()  # its plugins have been left
            self.crash(member)
            self.scheduler.at(self.scheduler.around(4 * self.setting.interval_ms), self.start, member)

    def is_paused(self, member_id: int) -> bool:
        return super().is_paused(abs(member_id)) if member_id > ADMIN else False

    def cut(self, a: int, b: int) -> None:
        """As for all clusters; what a member's status reporter sends goes the same way."""
        self.network.blocked |= {(a, b), (-a, b), (a, -b)}

    def pick(self, ids: Sequence[int]) -> SimulatedMember:
        """Often the publisher."""
        if self._publisher is not None and self._publisher in ids and self.rng.random() < 0.5:
            return self.members[self._publisher]
        return super().pick(ids)

    def next_boot(self, member_id: int) -> int:
        self._boots[member_id] += 1
        return self._boots[member_id] if self.rng.random() < 0.9 else 1

    def _granter(self, member: SimulatedMember) -> LeaseGranter | None:
        process = self.processes.get(member.id)
        return None if process is None else process.granter()

    def on_sending(self, member: SimulatedMember, peer: int, seq: int) -> None:
        if (granter := self._granter(member)) is not None:
            now_ms = member.clock_ms(self.scheduler.now)
            granter.on_sent(peer, seq, now_ms)
            self.processes[member.id].trips.on_sent(peer, seq, now_ms)

    def on_sent(self, member: SimulatedMember, peer: int, connection: Connection) -> None:
        granter, node = self._granter(member), member.node
        if granter is None or node is None or granter.named != peer:
            return
        now_ms = member.clock_ms(self.scheduler.now)
        granted = granter.grant([server.id for server in node.servers], now_ms)
        if granted is not None:
            entry = LogEntry(0, ValueType.GRANT, encode_grant(granted))
            request = Request(MessageType.LEASE_REQUEST, member.id, peer, granted.term, entries=(entry,))
            self.network.send(connection, (granted.term, granted.number), request)

    def on_answered(self, member: SimulatedMember, peer: int, tag: Any, response: Response) -> None:
        if (granter := self._granter(member)) is None:
            return
        if isinstance(tag, int):
            now_ms = member.clock_ms(self.scheduler.now)
            self.processes[member.id].trips.on_answered(peer, tag, now_ms)
            granter.on_answered(peer, tag, response.term)
        elif tag[0] == granter.term:
            if response.accepted and response.term == granter.term:
                granter.on_grant_answered(peer, tag[1], member.clock_ms(self.scheduler.now))
            else:
                granter.on_grant_unanswered(peer, tag[1])

    def on_unanswered(self, member: SimulatedMember, peer: int, tag: Any) -> None:
        if (granter := self._granter(member)) is None:
            return
        if isinstance(tag, int):
            granter.on_unreachable(peer, tag)
        elif tag[0] == granter.term:
            granter.on_grant_unanswered(peer, tag[1])

    def on_lease_request(self, member: SimulatedMember, request: Request) -> Response:
        process, node = self.processes.get(member.id), member.node
        assert node is not None
        is_taken = process is not None and process.take_grant(request)
        number = decode_grant(request.entries[0].value, request.term).number
        return Response(MessageType.LEASE_RESPONSE, member.id, request.source, node.term, number, is_taken)

    def on_applied(self, member: SimulatedMember) -> None:
        if (told_ms := self.application(member).election_timeout_ms) and member.node is not None:
            timeouts = self.setting.timeouts.shortened(told_ms, self.setting.least_election_ms)
            member.node.set_election_timeout(timeouts.election_min_ms, timeouts.election_max_ms)
            self.counts["shortened"] += timeouts != self.setting.timeouts
        if (process := self.processes.get(member.id)) is not None:
            process.step()

    # ------------------------------------------------------------------ statuses and orders

    def wall_ms(self, member: SimulatedMember) -> int:
        now_ms = self.scheduler.now
        drifts = self.max_clock_offset_ms == _ANY_CLOCK_MS
        honest = EPOCH_MS + (member.clock_ms(now_ms) if drifts else now_ms)
        return min(max(honest + self._wrong_ms, 1), DATE_END_MS - 1) if member.id == self._wrong else honest

    def router_ms(self, member: SimulatedMember) -> int | None:
        if not self._routers_tell:
            return None
        honest = EPOCH_MS + self.scheduler.now
        if member.id != self._wrong:
            return honest
        own = self.wall_ms(member)
        return {"right": honest, "silent": None, "own": own, "absurd": self._absurd_ms}[self._wrong_router]

    def knows_better(self, member: SimulatedMember, core: MemberCore) -> bool:
        recent = {*self.application(member).recent(), member.id}
        has_date = any(publisher.status.router_date for publisher in core.publishers)
        return member.id != self._wrong and (has_date or len(recent) != 2)

    def logins(self, member: SimulatedMember) -> dict[int, ClockReading]:
        now, own_ms = self.scheduler.now, self.wall_ms(member)
        logins = self._logins.setdefault(member.id, {})
        if self._logins_tell and now >= self._logged_in.get(member.id, 0) + 2 * self.setting.interval_ms:
            self._logged_in[member.id] = now
            for other in self.processes:
                date_ms = self.wall_ms(self.members[other])
                logins[other] = ClockReading(date_ms=date_ms, asked_ms=own_ms, answered_ms=own_ms)
        return logins

    def _set_wrong_clock(self) -> None:
        if not self._is_calm:
            reach = self.rng.choice((2_000, 60_000, 10**12))
            self._wrong_ms = self.rng.randint(-reach, reach)
            self.scheduler.at(self.scheduler.around(3 * self.setting.interval_ms), self._set_wrong_clock)

    def figures(self, member: SimulatedMember) -> Figures:
        all_, used = Bandwidth(in_=100, out=100), self.used_bandwidth()
        return Figures(
            node=NodeReport(role="leader" if member.is_leader else "follower"),
            router=RouterStatus(configured_bandwidth=all_, current_bandwidth=Bandwidth(in_=used, out=used)),
            destinations=(DestinationStatus(destination=encode(simulated_destination(member.id))),),
        )

    def can_test(self, member: SimulatedMember, hash_: bytes) -> bool:
        return False

    def test_ms(self) -> int:
        return 0

    def answers(self, member: SimulatedMember, hash_: bytes) -> bool | None:
        return None

    def used_bandwidth(self) -> int:
        """Of a member's router, in percent."""
        return self.rng.randint(0, 100)

    def on_status(self, member: SimulatedMember, core: MemberCore) -> None:
        self._posted[member.id].add(core.turns.sequence)  # it may be one that is posted again
        taken, begun = self.application(member).taken_index(member.id), core.turns.begun
        assert begun is not None
        if taken is None or begun.applied < taken or not self._stands(member):
            return
        if msgspec.json.decode(core.turns.entry)["meta"].get("publishing") is not True:
            raise Violation("no status denies what stands", f"{member}: {self._states(core)}")

    def _order(self, action: str, args: dict[str, object]) -> None:
        """An administrative entry that some member accepted."""
        accepting = self.rng.choice(self.newest.servers).id
        entry = encode_admin(FARM, EPOCH_MS + self.scheduler.now, accepting, None, action, "admin", args)
        self._admin.todo.append(entry)

    def _orders(self) -> None:
        self._admin.send()
        self.scheduler.at(self.scheduler.around(500 * self.setting.slowness) + 1, self._orders)
        if not self.scheduler.chance(0.1):
            return
        if self._is_calm:
            self._clear()
            return
        rng, own_ms = self.rng, self.setting.interval_ms
        what = rng.choice(("interval", "override", "drain", "undrain", "stop", "lease"))
        member = self.pick([server.id for server in self.newest.servers])
        if what == "interval":
            self._order("interval", {"ms": rng.choice((own_ms, own_ms * 3 // 2, 4 * own_ms))})
        elif what == "override":
            mode = rng.choice((None, "on", "off", "auto"))
            self._order("override", {"member": member.id} | ({} if mode is None else {"mode": mode}))
        elif what == "lease":
            if self.newest.level >= LEASES:
                self._order("lease", {"ms": self.setting.lease_ms * rng.choice((2, 3, 6)) // 2})
        elif what == "stop":
            self._stop(member, rng.choice((own_ms // 2, 3 * own_ms, 10 * own_ms)))
        else:
            self._drain(member, what == "drain")
            if rng.random() < 0.3:
                self._drain(self.pick([server.id for server in self.newest.servers]), what == "drain")

    def _drain(self, member: SimulatedMember, drained: bool) -> None:
        (self._drained.add if drained else self._drained.discard)(member.id)
        process = self.processes.get(member.id)
        if process is not None and not process.wake_at():
            process.drain(drained)

    def _stop(self, member: SimulatedMember, bound_ms: int) -> None:
        process = self.processes.get(member.id)
        if process is not None and not process.wake_at():
            self.counts["stops"] += 1
            process.stop(bound_ms)

    def _clear(self) -> None:
        """Repeat this: an earlier order may still be pending, and arrive after it."""
        self._order("interval", {"ms": self.setting.interval_ms})
        if self.newest.level >= LEASES:
            self._order("lease", {"ms": self.setting.lease_ms})
        for server in self.newest.servers:
            self._order("override", {"member": server.id, "mode": "auto"})

    # ------------------------------------------------------------------ publishing

    def _stands(self, member: SimulatedMember) -> bool:
        """Whether something may be published for it, within the lease of the process that ordered it."""
        now_ms = member.clock_ms(self.scheduler.now)
        return any(standing.counts(now_ms) for standing in self.standings.get(member.id, ()))

    def publishes(self, member: SimulatedMember) -> bool:
        """Whether its router has taken what it has ordered now, within its lease."""
        process = self.processes.get(member.id)
        return (
            process is not None
            and self._stands(member)
            and process.core.publishers[0].state in ("publishing", "renewing")
        )

    def lease_left_ms(self, member: SimulatedMember) -> int:
        """For how long its lease still lasts, by its own clock; negative after its end."""
        expires_ms = self.processes[member.id].core.lease_end_ms
        return 0 if expires_ms is None else expires_ms - member.clock_ms(self.scheduler.now)

    def check_publishers(self) -> None:
        """At most one member publishes. Raises `Violation`."""
        up = [id_ for id_, standings in self.standings.items() if any(one.is_up for one in standings)]
        if up in ([], [self._publisher]):
            return
        standing = [self.members[id_] for id_ in up if self._stands(self.members[id_])]
        if len(standing) > 1:
            cores = {member: self.processes.get(member.id) for member in standing}
            states = [f"{member} {self._states(p.core) if p else 'dead'}" for member, p in cores.items()]
            raise Violation(
                "one publisher", f"these publish within their leases at once: {'; '.join(states)}"
            )
        if standing and standing[0].id != self._publisher and self.publishes(standing[0]):
            self.counts["hand_overs"] += 1
            self._publisher = standing[0].id

    def _states(self, core: MemberCore) -> str:
        return f"{core.ending.state}, {', '.join(one.state for one in core.publishers)}"

    def _publishing(self) -> SimulatedMember | None:
        """The current member that publishes."""
        current = [self.members[server.id] for server in self.newest.servers]
        return next((member for member in current if self.publishes(member)), None)

    # ------------------------------------------------------------------ the course of a run

    def _next_event(self) -> None:
        self.scheduler.next_event()
        self.check_publishers()

    def _pass(self, ms: int) -> None:
        """Let this time pass."""
        until = self.scheduler.now + ms
        self.scheduler.at(until, self._is_past)
        while self.scheduler.now < until:
            self._next_event()

    def _is_past(self) -> None:
        """A time has come that is waited for."""

    def _wait(self, what: str, intervals: int, holds: Callable[[], bool]) -> None:
        """Until this holds. Raises `Violation` after so many intervals."""
        until = self.scheduler.now + intervals * self.setting.interval_ms
        while not holds():
            if self.scheduler.now > until:
                states = "; ".join(f"{one}: {self._states(p.core)}" for one, p in self.processes.items())
                raise Violation("liveness", f"not within {intervals} intervals: {what} ({states})")
            self._next_event()

    def _wait_for_publisher(self) -> None:
        self._wait("somebody publishes", 60, lambda: self._publishing() is not None)

    def _heal(self) -> None:
        self._fault_injector.end()
        self.plugin_faults = PluginFaults(call_ms=self.rng.choice((50, 5_000)))
        self.measure_ms = 20
        self._is_calm = True
        self._wrong_ms, self._wrong_router = 0, "right"
        self._clear()
        for member in self.members.values():
            self._drain(member, False)

    def _another(self, *members: SimulatedMember) -> Callable[[], bool]:
        """Whether one publishes that is none of these."""
        return lambda: (now := self._publishing()) is not None and now not in members

    def _others(self, member: SimulatedMember) -> list[SimulatedMember]:
        """The other current members that could publish, and that this one knows to be there."""
        eligible = self.application(member).eligible()
        others = [self.members[server.id] for server in self.newest.servers if server.id != member.id]
        return [
            other
            for other in others
            if other.id in eligible
            and other.id in self.processes
            and self.processes[other.id].core.can_publish
        ]

    def _lose_router(self) -> None:
        """The publisher's router is gone: it does not keep the role."""
        member = self._publishing()
        assert member is not None
        if not self._others(member):
            return
        for plugin in self.processes[member.id].plugins:
            plugin.is_broken = True
        self.counts["lost_routers"] += 1
        self._wait("another publishes in place of one that cannot", 30, self._another(member))
        if member.id in self.processes:
            for plugin in self.processes[member.id].plugins:
                plugin.is_broken = False

    def _drain_two(self) -> None:
        """Two are drained at once: a third one publishes, and then nothing changes any more."""
        member = self._publishing()
        assert member is not None
        others = self._others(member)
        if not others:
            return
        drained = member, others[0]
        for one in drained:
            self._drain(one, True)
        self.counts["drained_two"] += 1
        if len(others) > 1:
            self._wait("a third one publishes while two are drained", 30, self._another(*drained))
        self._pass(10 * self.setting.interval_ms)
        self._posted.clear()
        self._pass(20 * self.setting.interval_ms)
        for one in drained:
            if (posted := len(self._posted[one.id])) > 20 + 6:
                raise Violation("two that drain do not flap", f"{one}: {posted} statuses")
        self._wait("somebody publishes while two are drained", 20, lambda: self._publishing() is not None)
        for one in drained:
            self._drain(one, False)

    def _set_publishers_clock(self) -> None:
        """The publisher's wall clock is set wrong: it does not keep the role, nor offers itself before its
        clock is right again."""
        member = self._publishing()
        assert member is not None
        if self.max_clock_offset_ms == _ANY_CLOCK_MS:
            return
        is_shown = len(self.application(member).recent()) >= 3
        if not (self._others(member) and (is_shown or self._routers_tell)):
            return
        self._wrong_router = self._last_router if is_shown else "right"
        self.counts["wrong_clocks"] += 1
        self._wrong = member.id
        least_ms = DEFAULT_LIMIT_MS + 2 * self.setting.interval_ms
        self._wrong_ms = self._off_ms * least_ms
        self._wait("another publishes in place of one with a wrong clock", 30, self._another(member))
        self._wrong_ms = -self._wrong_ms
        until = self.scheduler.now + 10 * self.setting.interval_ms
        while self.scheduler.now < until:
            self._next_event()
            process = self.processes[member.id]
            if process.core.can_publish:
                figures = process.core.clock.figures()
                raise Violation("a wrong clock is not offered", f"{member} could publish: {figures}")
        self._wrong_ms = 0
        self._wait("its clock is right again", 10, lambda: not self.processes[member.id].core.clock.is_off)

    def _stop_one(self) -> None:
        """The publisher's node stops: its successor publishes before it ends."""
        member = self._publishing()
        assert member is not None
        if not self._others(member):
            return
        self._stop(member, 30 * self.setting.interval_ms)
        self._wait("it has ended", 31, lambda: member.id not in self.processes)
        states = [
            publisher.state
            for other in self.processes.values()
            if self._stands(other.member)
            for publisher in other.core.publishers
        ]
        if not {"publishing", "renewing"} & {*states}:
            raise Violation("it ends once another one publishes", f"{member}: {states}")
        self._wait("it is back", 60, lambda: member.id in self.processes)
