"""One process of a simulated farm's member: what a node does around the core of its publisher.

As `garlicfarm.node.publisher.member_task` drives the core, with `SimulatedPlugin` in place of plugins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from garlicfarm.leases import LeaseGranter
from garlicfarm.publishing import granting
from garlicfarm.publishing.documents import PublishConfig
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.member_core import Figures, MemberCore
from garlicfarm.publishing.member_standing import MemberSetup, Now
from garlicfarm.publishing.orders import ClockReading
from garlicfarm.publishing.publisher_core import Traits
from garlicfarm.publishing.sensing import Probe
from garlicfarm.raft import Role
from garlicfarm.round_trips import RoundTrips
from garlicfarm.testing.simulator.clients import Client
from garlicfarm.testing.simulator.cluster import SimulatedCluster
from garlicfarm.testing.simulator.invariants import Violation
from garlicfarm.testing.simulator.member import SimulatedMember
from garlicfarm.testing.simulator.network import Connection
from garlicfarm.testing.simulator.publisher_setting import Setting
from garlicfarm.testing.simulator.simulated_plugin import PluginFaults, SimulatedPlugin, Standing
from garlicfarm.wire import decode_grant
from garlicfarm.wire.messages import NO_LEADER, Request, Response


class Surroundings(SimulatedCluster, ABC):
    """What the processes of a farm's members have in common. ``standings``: by member, of each publisher;
    ``modes``: what a process may have in its configuration; ``measure_ms``: how long a router takes to
    measure."""

    setting: Setting
    standings: dict[int, list[Standing]]
    plugin_faults: PluginFaults
    max_clock_offset_ms: int
    modes: tuple[PublishConfig, ...]
    measure_ms: int

    @abstractmethod
    def application(self, member: SimulatedMember) -> PublisherFold:
        """Its fold."""

    @abstractmethod
    def next_boot(self, member_id: int) -> int:
        """The number of a member's next process, as its disk says, which may be an older one."""

    @abstractmethod
    def wall_ms(self, member: SimulatedMember) -> int:
        """Its wall clock: one member's is wrong."""

    @abstractmethod
    def router_ms(self, member: SimulatedMember) -> int | None:
        """What its router tells as the date; None: nothing."""

    @abstractmethod
    def knows_better(self, member: SimulatedMember, core: MemberCore) -> bool:
        """Whether a member's clock is right, and it is not one of two whose router tells no date."""

    @abstractmethod
    def logins(self, member: SimulatedMember) -> dict[int, ClockReading]:
        """What each member with a process told when this one logged in to it last, at times."""

    @abstractmethod
    def figures(self, member: SimulatedMember) -> Figures:
        """What a member's status says beside its part in publishing."""

    @abstractmethod
    def can_test(self, member: SimulatedMember, hash_: bytes) -> bool:
        """Whether a member's router can test what it does not serve itself (D25)."""

    @abstractmethod
    def test_ms(self) -> int:
        """How long the next test takes."""

    @abstractmethod
    def answers(self, member: SimulatedMember, hash_: bytes) -> bool | None:
        """What comes of a test by ``member``; None: it could not be carried out."""

    @abstractmethod
    def on_status(self, member: SimulatedMember, core: MemberCore) -> None:
        """A member has composed a status. One that would release it denies that anything stands."""

    @abstractmethod
    def end(self, member: SimulatedMember) -> None:
        """Its process has done its part, and ends now."""


class _Poster(Client):
    """Posts a status once: it is committed at an index, or the outcome is not known."""

    def __init__(self, process: MemberProcess) -> None:
        super().__init__(process.farm, -process.member.id, process.on_committed)
        self._process = process

    def post(self, entry: bytes) -> None:
        """Try it once."""
        self.todo.append(entry)
        self.send()
        if self.todo:  # nobody listens there
            self.todo.clear()
            scheduler = self._process.scheduler
            scheduler.at(scheduler.around(50) + 1, self._process.on_failed)

    def on_failure(self, connection: Connection, tags: list[Any]) -> None:
        super().on_failure(connection, tags)
        if self.todo:
            self.todo.clear()
            self._process.on_failed()

    def on_answer(self, connection: Connection, tag: Any, response: Response) -> None:
        super().on_answer(connection, tag, response)
        if self.todo:
            self.todo.clear()
            self._process.on_failed()


class MemberProcess:
    """One process of a member: its plugins, and its core, which is driven as by
    `garlicfarm.node.publisher.member_task`."""

    def __init__(self, farm: Surroundings, member: SimulatedMember, *, is_drained: bool) -> None:
        rng = farm.rng
        self.farm, self.member, self.scheduler = farm, member, farm.scheduler
        self._generation = member.generation
        self._number = 0  # of what is measured or posted
        self._tested = 0  # the number of the last test
        self._poster = _Poster(self)
        self._granter: LeaseGranter | None = None
        self.trips = RoundTrips(0, 0, 0)
        self._again_ms = 0  # when a finding that was not appended is tried again
        self._wakes_ms: int | None = None
        self._stopped_ms: int | None = None
        self._bound_ms = 0
        traits = [
            Traits(
                name=f"plugin {one}",
                is_required=not one,
                retire_timeout_ms=rng.choice((1_000, farm.setting.retire_timeout_ms)),
            )
            for one in range(len(farm.standings[member.id]))
        ]
        setup = MemberSetup(
            node_id=member.id,
            boot=farm.next_boot(member.id),
            publish_config=rng.choice(farm.modes),
            max_clock_offset_ms=farm.max_clock_offset_ms,
        )
        self.core = MemberCore(farm.application(member), setup, traits, self, self.now())
        self.plugins = [
            SimulatedPlugin(self, own, standing)
            for own, standing in zip(self.core.publishers, farm.standings[member.id], strict=True)
        ]
        self.core.drain(is_drained, self.now())
        self.step()

    @property
    def plugin_faults(self) -> PluginFaults:
        return self.farm.plugin_faults

    @property
    def is_alive(self) -> bool:
        """Whether it has not died."""
        return self.member.generation == self._generation and self.member.node is not None

    def wake_at(self) -> int | None:
        if not self.is_alive:
            return None
        return self.member.paused_until if self.farm.is_paused(self.member.id) else 0

    def now(self) -> Now:
        return Now(self.member.clock_ms(self.scheduler.now), self.farm.wall_ms(self.member))

    def router_date(self) -> ClockReading | None:
        """What its router tells."""
        date_ms, now_ms = self.farm.router_ms(self.member), self.now().wall_ms
        return None if date_ms is None else ClockReading(date_ms=date_ms, asked_ms=now_ms, answered_ms=now_ms)

    def figures(self) -> Figures:
        """See `garlicfarm.publishing.member_core.Surroundings`."""
        return self.farm.figures(self.member)

    def can_test(self, hash_: bytes) -> bool:
        """See `Surroundings`."""
        return self.farm.can_test(self.member, hash_)

    def clocks(self) -> dict[int, ClockReading]:
        """What the members tell that it has logged in to."""
        return self.farm.logins(self.member)

    # ------------------------------------------------------------------ what the core is told

    def step(self) -> None:
        """Something has been applied, or time has passed."""
        at = self.wake_at()
        if at:
            self.scheduler.at(at, self.step)
        elif at is not None:
            self._lead()
            self.core.step(self.now(), self.member.applied)
            self.on_told()

    def on_committed(self, index: int, term: int, entry: bytes) -> None:
        """The status is committed."""
        if self.is_alive and entry == self.core.turns.entry:
            self.core.on_committed(self._number, index, self.now())
            self.on_told()

    def on_failed(self) -> None:
        """The outcome of the status is not known."""
        at = self.wake_at()
        if at:
            self.scheduler.at(at, self.on_failed)
        elif at is not None:
            assert self.member.node is not None
            has_quorum = self.member.node.leader != NO_LEADER
            self.core.on_status_failed(self._number, self.now(), "no answer", has_quorum=has_quorum)
            self.on_told()

    def drain(self, drained: bool) -> None:
        """Set or remove the mark."""
        self.core.drain(drained, self.now())
        self.on_told()

    def stop(self, bound_ms: int) -> None:
        """The node is to end within this time."""
        now = self.now()
        if self._stopped_ms is None:
            self._stopped_ms, self._bound_ms = now.boot_ms, bound_ms
        self.core.stop(now, bound_ms)
        self.on_told()

    def on_told(self) -> None:
        """Check what the core has decided, and carry it out."""
        self.core.take_notes()
        self._check()
        for plugin in self.plugins:
            plugin.obey()
        turns = self.core.turns
        if turns.number != self._number and turns.state in ("measuring", "posting"):
            self._number = turns.number
            if turns.state == "measuring":
                self.scheduler.at(self.scheduler.around(self.farm.measure_ms), self._measured, self._number)
            else:
                self.farm.on_status(self.member, self.core)
                self._poster.post(turns.entry)
        for probe in self.core.sensing.probes.values():
            if probe.number > self._tested:
                self._tested = probe.number
                self.scheduler.at(self.scheduler.now + self.farm.test_ms(), self._test, probe)
        if self.core.ending.state == "over":
            self.farm.end(self.member)
        else:
            self._sleep()

    def _measured(self, number: int) -> None:
        at = self.wake_at()
        if at:
            self.scheduler.at(at, self._measured, number)
        elif at is not None:
            self.core.on_measured(number, self.now())
            self.on_told()

    def _test(self, probe: Probe) -> None:
        at = self.wake_at()
        if at:
            self.scheduler.at(at, self._test, probe)
        elif at is not None and probe.number in self.core.sensing.probes:
            self.core.on_tested(probe.number, self.farm.answers(self.member, probe.hash), self.now())
            self.on_told()

    # ------------------------------------------------------------------ leases on heartbeats

    def granter(self) -> LeaseGranter | None:
        """The leader's side, while this process leads."""
        node = self.member.node
        if node is None or node.role is not Role.LEADER:
            self._granter = None
        elif self._granter is None or self._granter.term != node.term:
            now_ms, longest_ms = self.now().boot_ms, self.farm.setting.timeouts.election_max_ms
            self._granter = LeaseGranter(self.member.id, node.term, now_ms)
            self.trips = RoundTrips(self.farm.setting.least_election_ms or longest_ms, longest_ms, now_ms)
        return self._granter

    def _lead(self) -> None:
        """Tell the leader's side of what is applied, and append what it has found."""
        granter, fold, now = self.granter(), self.farm.application(self.member), self.now()
        if granter is None or self.member.position.term != granter.term:
            return
        granting.tell(granter, fold, now.boot_ms)
        node = self.member.node
        assert node is not None
        own = granter.own([server.id for server in node.servers], now.boot_ms)
        if own is not None:
            self.core.on_own_lease(*own, now)
        if now.boot_ms < self._again_ms:
            return
        found = granting.findings(
            granter, self.trips, fold, self.member.id, now.boot_ms, self.farm.setting.least_lease_ms
        )
        for entry, done in found:
            if self.farm.propose(self.member, entry):
                self.farm.counts["findings"] += 1
                done()
            else:
                self._again_ms = now.boot_ms + self.farm.setting.timing["heartbeat_ms"]

    def take_grant(self, request: Request) -> bool:
        """A grant has arrived; whether it is from the leader of this member's term."""
        node = self.member.node
        assert node is not None
        is_taken = request.term == node.term and node.leader == request.source
        if is_taken:
            self.farm.counts["grants"] += 1
            self.core.on_grant(decode_grant(request.entries[0].value, request.term), self.now())
            self.on_told()
        return is_taken

    def _sleep(self) -> None:
        wakes = [self.core.wake_ms()]
        if self._granter is not None and (found := self._granter.wake_ms()) is not None:
            wakes.append(max(found, self._again_ms))
        wakes_ms = self.member.when(self.scheduler.now, min(wakes)) + 1
        if self._wakes_ms is None or wakes_ms < self._wakes_ms:
            self._wakes_ms = wakes_ms
            self.scheduler.at(wakes_ms, self._wake, wakes_ms)

    def _wake(self, wakes_ms: int) -> None:
        if self._wakes_ms == wakes_ms:
            self._wakes_ms = None
            self.step()

    # ------------------------------------------------------------------ invariants

    def _check(self) -> None:
        core, now_ms = self.core, self.now().boot_ms
        is_over = now_ms >= (core.lease_end_ms or 0)
        for plugin in self.plugins:
            standing, call = plugin.standing, plugin.own.call
            is_left = standing.is_left or (call is not None and call.task == "leave")
            if is_over and standing.is_up and not is_left:
                raise Violation("nothing stands beyond its lease", f"{self.member}: {plugin.own.state}")
        if core.clock.is_off and self.farm.knows_better(self.member, core):
            raise Violation("a right clock is not off", f"{self.member}: its clock {core.clock.problem}")
        if self._stopped_ms is None:
            return
        if core.ending.state == "over":
            for plugin in self.plugins:
                call, standing = plugin.own.call, plugin.standing
                is_ending = standing.is_left or (call is not None and call.task in ("retire", "leave"))
                if standing.counts(now_ms) and not is_ending:
                    raise Violation("what has ended publishes nothing", f"{self.member}: {plugin.own.state}")
        elif now_ms > self._stopped_ms + self._bound_ms:
            raise Violation("a stop ends in time", f"{self.member}: {core.ending.state}")
