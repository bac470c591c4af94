"""Farms in one process, from one seed: never do two members publish within their leases at once.

    python -m garlicfarm.testing.simulator --publisher --seeds 100 [--first N] [--nodes 3] [--preset NAME]

The members of a `SimulatedCluster` fold `garlicfarm.publishing.fold.PublisherFold`. Each
posts its status every interval of its own clock and repeats it until it is committed, as a node's status
reporter does, and keeps its `garlicfarm.publishing.lease.Lease`. Routers come and go, so members post out of
turn, too: that they can no longer publish, that they have let the role go, that they publish, and in some
runs for no reason. All faults of the simulator strike them, the publisher most often; clocks run at rates up
to 5 % off, and one member's wall clock shows anything. An administrator changes the interval and which
members may publish. A process that died counts as one that publishes until its next one has begun: its router
did not get the order to stop.

Then all faults end, and some member has to publish (docs/reference/protocol.md, "The common algorithm", point
6).

``--preset``: with that preset's timing, interval and R, and all else slower in proportion. By default
everything is quick: a status every second, R = 3.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from garlicfarm.config.model import PRESET_INTERVALS_MS, PRESETS, RETIRE_TIMEOUT_S
from garlicfarm.i2p.encoding import encode
from garlicfarm.lab.destinations import simulated_destination
from garlicfarm.publishing.documents import (
    Bandwidth,
    DestinationStatus,
    MetaStatus,
    NodeReport,
    PublishConfig,
    RouterStatus,
    StatusDocument,
)
from garlicfarm.publishing.entries import encode_admin, encode_status
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.lease import Lease, least_R
from garlicfarm.publishing.policy import DEFAULT_R
from garlicfarm.testing.simulator.clients import Administrator, Client
from garlicfarm.testing.simulator.cluster import Outcome, SimulatedCluster
from garlicfarm.testing.simulator.fault_injector import FaultInjector
from garlicfarm.testing.simulator.faults import Faults
from garlicfarm.testing.simulator.invariants import Violation
from garlicfarm.testing.simulator.member import SimulatedMember
from garlicfarm.testing.simulator.network import CLIENT

FARM = "simulated"
EPOCH_MS = 1_800_000_000_000
DATE_END_MS = 2**32 * 1000
ADMIN = -1_000
_MODES: tuple[PublishConfig, ...] = ("auto", "auto", "on", "off")


class Setting(msgspec.Struct, frozen=True):
    """How fast a farm is. ``timing``: the times of `RaftConfig`; ``slowness``: by how much faults, users and
    the run itself are slower than those of `QUICK`."""

    interval_ms: int
    R: int
    timing: dict[str, int]
    rpc_timeout_ms: int
    slowness: int

    @property
    def chaos_ms(self) -> int:
        """How long there are faults; without them some member has to publish within the same time."""
        return 60_000 * self.slowness


QUICK = Setting(
    1_000,
    3,
    {"election_timeout_min_ms": 300, "election_timeout_max_ms": 600, "heartbeat_ms": 150},
    rpc_timeout_ms=400,
    slowness=1,
)


def preset_setting(name: str, R: int = 0) -> Setting:
    """The setting of a new farm with that preset; ``R`` in place of its own."""
    raft = {key.removesuffix("_s"): round(1000 * value) for key, value in PRESETS[name].items()}
    interval_ms = PRESET_INTERVALS_MS[name]
    own_R = least_R(
        interval_ms,
        election_timeout_max_s=PRESETS[name]["election_timeout_max_s"],
        rpc_timeout_s=PRESETS[name]["rpc_timeout_s"],
        retire_timeout_s=RETIRE_TIMEOUT_S,
    )
    rpc_timeout_ms = raft.pop("rpc_timeout")
    timing = {f"{key}_ms": value for key, value in raft.items()}
    slowness = timing["election_timeout_max_ms"] // QUICK.timing["election_timeout_max_ms"]
    return Setting(interval_ms, R or own_R, timing, rpc_timeout_ms, slowness)


def _draw(rng: random.Random, slowness: int) -> Faults:
    """As for any cluster, but slower: publishing takes intervals. Clocks that count suspended time do not
    jump."""
    drawn = Faults.draw(rng)
    return msgspec.structs.replace(
        drawn,
        kinds=tuple(kind for kind in drawn.kinds if kind != "jump"),
        every_ms=10 * slowness * drawn.every_ms,
        away_ms=slowness * rng.choice((500, 2_000, 8_000)),
        change_ms=20 * slowness * drawn.change_ms,
        snapshot_ms=20 * slowness * drawn.snapshot_ms,
        rates=rng.choice(((1000, 1000), (950, 1050))),
        new_leader_crashes=drawn.new_leader_crashes / 3,
        false_evidence_ms=10 * slowness * drawn.false_evidence_ms,
    )


class _StatusReporter:
    """The statuses of one process, and the lease that rests on them."""

    def __init__(self, farm: PublisherSimulation, member: SimulatedMember) -> None:
        self._farm = farm
        self._member = member
        self._generation = member.generation
        self.lease = Lease()
        self._client = Client(farm, -member.id, self._acknowledged)
        self._due_ms: int | None = None
        self._begun_ms: int | None = None  # of a status whose outcome is not known
        self._sequence = 0
        self._is_turn = True
        self._has_router = True
        self._router_losses = 0
        self._posted_news: set[tuple[str, int]] = set()

    def act(self) -> None:
        """Begin a status if one is due or there are news; otherwise follow up the pending one."""
        farm, member, scheduler = self._farm, self._member, self._farm.scheduler
        if member.generation != self._generation or member.node is None:
            return
        if farm.is_paused(member.id):
            scheduler.at(member.paused_until, self.act)
            return
        scheduler.at(scheduler.around(100) + 1, self.act)
        if self._begun_ms is None and "interval" in farm.application(member).policy.orders:
            clock_ms = member.clock_ms(scheduler.now)
            if scheduler.chance(farm.router_changes):
                self._has_router = not self._has_router
                self._router_losses += not self._has_router
            news = self._current_news()
            is_turn = self._due_ms is None or clock_ms >= self._due_ms
            if is_turn or news - self._posted_news or scheduler.chance(farm.extra_statuses):
                farm.counts["out_of_turn"] += not is_turn
                self._posted_news = news
                self._begin(clock_ms, is_turn)
        self._client.send()

    def _current_news(self) -> set[tuple[str, int]]:
        """As `garlicfarm.node.publisher.publishing_task.PublishingTask.news`."""
        farm, member = self._farm, self._member
        application = farm.application(member)
        found = {("published", application.due_since or 0)} if farm.may_publish(member) else set()
        if not self._has_router:
            found.add(("withdrawn", self._router_losses))
        taken = application.taken_index(member.id)
        if taken is not None:
            found.add(("released", taken))
        return found

    def _begin(self, clock_ms: int, is_turn: bool) -> None:
        farm, member = self._farm, self._member
        application = farm.application(member)
        self._due_ms = clock_ms if self._due_ms is None else self._due_ms
        self._is_turn = is_turn or clock_ms >= self._due_ms - application.interval_ms // 10
        self._begun_ms = clock_ms
        self.lease.begin(clock_ms, application.interval_ms, application.R)
        date = farm.wall_ms(member)
        self._sequence = max(self._sequence + 1, application.last_sequence(member.id) + 1, date)
        publishing = farm.may_publish(member) if self._has_router or farm.is_calm else None
        status = farm.status(member, date, self._sequence, publishing)
        self._client.todo.append(encode_status(status))

    def _acknowledged(self, index: int, term: int, entry: bytes) -> None:
        member = self._member
        if member.generation == self._generation and member.node is not None:
            if member.applied >= index:
                self._settled()
            else:
                member.until_applied.append((index, self._settled))

    def _settled(self) -> None:
        application = self._farm.application(self._member)
        assert self._begun_ms is not None
        assert self._due_ms is not None
        if application.last_sequence(self._member.id) == self._sequence:
            self.lease.committed(self._begun_ms)
            self._farm.check_publishers()
        now_ms = self._member.clock_ms(self._farm.scheduler.now)
        if self._is_turn:
            self._due_ms = max(self._due_ms + application.interval_ms, now_ms)
        self._begun_ms = None


class PublisherSimulation(SimulatedCluster):
    """One seed's run."""

    def __init__(self, seed: int, nodes: int = 3, setting: Setting = QUICK) -> None:
        self.setting = setting
        self.rpc_timeout_ms = setting.rpc_timeout_ms
        if setting is not QUICK:
            self.answer_timeout_ms = self.client_timeout_ms = setting.rpc_timeout_ms
        self._reporters: dict[int, _StatusReporter] = {}
        self._wrong_ms: int | None = None  # the current error of the wrong clock
        self._publisher: int | None = None
        super().__init__(seed, nodes, self.draw_faults, lambda: PublisherFold(FARM), setting.timing)
        self._fault_injector = FaultInjector(self)
        self._wrong = self.rng.randint(0, nodes)
        self._admin = Client(self, ADMIN, lambda index, term, entry: None)
        self._router_fails = self.rng.choice((0, 0, 0.1, 0.5))
        self.router_changes = self.rng.choice((0, 0.02, 0.1))
        self.extra_statuses = self.rng.choice((0, 0, 0.3))
        self.is_calm = False

    def run(self) -> Outcome:
        """Chaos, then healing. Raises `Violation`."""
        scheduler, rng = self.scheduler, self.rng
        self.found()
        for user in (Administrator(self), self._fault_injector):
            scheduler.at(rng.randint(0, 5_000), user.act)
        scheduler.at(rng.randint(0, 5_000), self._fault_injector.snapshot)
        scheduler.at(5_000, self._fault_injector.mislead)
        scheduler.at(0, self._orders)
        chaos_ms = self.setting.chaos_ms
        scheduler.at(chaos_ms, self._heal)
        while not self._published_again():
            if scheduler.now > 2 * chaos_ms:
                raise Violation("liveness", f"no member publishes {chaos_ms} ms after the last fault")
            scheduler.next_event()
        self.observer.on_end()
        return self.outcome()

    def draw_faults(self, rng: random.Random) -> Faults:
        """The faults of the seed."""
        return _draw(rng, self.setting.slowness)

    def found(self) -> None:
        """Have the farm's interval and R committed."""
        if self.setting.R != DEFAULT_R:
            self._order("staleness", {"R": self.setting.R})
        self._order("interval", {"ms": self.setting.interval_ms})

    # ------------------------------------------------------------------ members

    def application(self, member: SimulatedMember) -> PublisherFold:
        """Its fold."""
        assert isinstance(member.application, PublisherFold)
        return member.application

    def start(self, member: SimulatedMember) -> None:
        was_down = member.node is None and not member.retired
        if was_down:
            self._reporters.pop(member.id, None)
        super().start(member)
        if was_down:
            reporter = self._reporters[member.id] = _StatusReporter(self, member)
            self.scheduler.at(self.scheduler.now, reporter.act)

    def crash(self, member: SimulatedMember) -> None:
        super().crash(member)
        for connection in self.network.of(-member.id):
            self.network.sever(connection)
            self.network.lose(connection, CLIENT)

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

    def on_applied(self, member: SimulatedMember) -> None:
        self.check_publishers()

    # ------------------------------------------------------------------ posts

    def wall_ms(self, member: SimulatedMember) -> int:
        """Its wall clock: one member's is wrong, by a varying amount."""
        honest = EPOCH_MS + member.clock_ms(self.scheduler.now)
        if member.id != self._wrong:
            return honest
        if self._wrong_ms is None or self.scheduler.chance(0.2):
            reach = self.rng.choice((2_000, 60_000, 10**12))
            self._wrong_ms = self.rng.randint(-reach, reach)
        return min(max(honest + self._wrong_ms, 1), DATE_END_MS - 1)

    def status(
        self, member: SimulatedMember, date: int, sequence: int, publishing: bool | None
    ) -> StatusDocument:
        """A member's status; it says that it publishes, if its router does. None: it could not."""
        application, rng = self.application(member), self.rng
        node = NodeReport(
            applied=member.applied, interval_ms=application.interval_ms, R=application.R, role="follower"
        )
        all_, used = Bandwidth(in_=100, out=100), self.used_bandwidth()
        works = self.is_calm or not self.scheduler.chance(self._router_fails)
        publishing = publishing and works
        return StatusDocument(
            cluster=FARM,
            date=date,
            id=member.id,
            sequence=sequence,
            config={"node": node},
            meta=MetaStatus(
                publish_config="auto" if self.is_calm else rng.choice(_MODES), publishing=publishing
            ),
            router=RouterStatus(configured_bandwidth=all_, current_bandwidth=Bandwidth(in_=used, out=used)),
            destinations=(DestinationStatus(destination=encode(simulated_destination(member.id))),),
        )

    def used_bandwidth(self) -> int:
        """Of a member's router, in percent."""
        return self.rng.randint(0, 100)

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
        if self.is_calm:
            self._clear()
            return
        if self.scheduler.chance(0.5):
            own_ms = self.setting.interval_ms
            self._order("interval", {"ms": self.rng.choice((own_ms, own_ms * 3 // 2, 4 * own_ms))})
        else:
            member = self.rng.choice(self.newest.servers).id
            mode = self.rng.choice((None, "on", "off", "auto"))
            args: dict[str, object] = {"member": member}
            self._order("override", args if mode is None else args | {"mode": mode})

    def _heal(self) -> None:
        self._fault_injector.end()
        self.is_calm = True
        self._clear()

    def _clear(self) -> None:
        """Repeat this: an earlier order may still be pending, and arrive after it."""
        self._order("interval", {"ms": self.setting.interval_ms})
        for server in self.newest.servers:
            self._order("override", {"member": server.id})

    # ------------------------------------------------------------------ publishing

    def may_publish(self, member: SimulatedMember) -> bool:
        """Whether it may publish now, as far as it knows."""
        reporter = self._reporters.get(member.id)
        if reporter is None:
            return False
        now_ms = member.clock_ms(self.scheduler.now)
        return self.application(member).may_publish(member.id, now_ms, reporter.lease.expires_ms)

    def lease_left_ms(self, member: SimulatedMember) -> int:
        """For how long its lease still lasts, by its own clock; negative after its end."""
        expires_ms = self._reporters[member.id].lease.expires_ms
        return 0 if expires_ms is None else expires_ms - member.clock_ms(self.scheduler.now)

    def check_publishers(self) -> None:
        """At most one may publish. The right to publish comes from applied and committed entries, and ends by
        time. Raises `Violation`."""
        publishing = [member.id for member in self.members.values() if self.may_publish(member)]
        if len(publishing) > 1:
            raise Violation("one publisher", f"members {publishing} publish within their leases")
        if publishing and publishing[0] != self._publisher:
            self.counts["hand_overs"] += 1
            self._publisher = publishing[0]

    def _published_again(self) -> bool:
        return self.is_calm and any(
            member.node is not None and self.may_publish(member)
            for member in (self.members[server.id] for server in self.newest.servers)
        )
