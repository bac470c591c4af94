"""Publisher plugins that fail in every way that their contract allows, and some that it does not.

The contract is `garlicfarm.publisher`. What counts in the end is not what a plugin answers but what *stands*:
what a router may publish for a member (`Standing`).
"""

from __future__ import annotations

import random
from typing import Protocol

import msgspec

from garlicfarm.publishing.member_core import MemberCore
from garlicfarm.publishing.member_standing import Now
from garlicfarm.publishing.orders import ClockReading, Published, PublisherStatus
from garlicfarm.publishing.publisher_core import Call, PublisherCore
from garlicfarm.testing.simulator.network import Scheduler

STATUS_MS = 2_000


class PluginFaults(msgspec.Struct, frozen=True, kw_only=True):
    """Of one seed. ``refuses``, ``hangs`` and ``fails`` (a defect): the probability, of a call. ``lies``: of
    a status. ``unwinds_ms``: how long a call that is cancelled takes to end, and ``leaves_ms`` the plugin to
    be left, on average. ``lingers``: the probability that what a plugin has opened does not end when it is
    left, which its contract rules out. Of a status, too: ``router_changes``, that its router goes or comes
    back; ``service_changes``, that the service behind it does; ``announces``, that it is to tell its clients
    of a successor; ``withdraws``, that it knows before it is ready that nothing is published. ``call_ms``:
    how long a call takes, on average."""

    refuses: float = 0
    hangs: float = 0
    fails: float = 0
    lies: float = 0
    unwinds_ms: float = 0
    leaves_ms: float = 0
    lingers: float = 0
    router_changes: float = 0
    service_changes: float = 0
    announces: float = 0
    withdraws: float = 0
    call_ms: float = 50

    @classmethod
    def draw(cls, rng: random.Random) -> PluginFaults:
        """The mix of one seed."""
        return cls(
            refuses=rng.choice((0, 0, 0.1, 0.4)),
            hangs=rng.choice((0, 0, 0.05, 0.3)),
            fails=rng.choice((0, 0, 0.02, 0.1)),
            lies=rng.choice((0, 0, 0.01, 0.1)),
            unwinds_ms=rng.choice((0, 0, 50, 3_000)),
            leaves_ms=rng.choice((0, 50, 3_000, 30_000)),
            lingers=rng.choice((0, 0, 0.5)),
            router_changes=rng.choice((0, 0.005, 0.05)),
            service_changes=rng.choice((0, 0, 0.02)),
            announces=rng.choice((0, 0, 0.05)),
            call_ms=rng.choice((20, 200, 2_000)),
            withdraws=rng.choice((0, 0, 0, 0.5)),
        )


class Standing:
    """What a router may publish for one publisher of a member: from the moment that ``publish`` begins until
    ``retire`` or a later ``standby`` is done, or the plugin has been left. A process that dies leaves it.

    It *counts* within the lease of the process that ordered it. What a plugin that is being left has opened
    counts for a lease from then on, no longer: so long do others wait (docs/reference/protocol.md, D19). It
    does not where that lease was over before, as of a process that was stopped, whatever lease follows."""

    def __init__(self) -> None:
        self.is_up = False
        self._core: MemberCore | None = None  # of the process that ordered it, while that lives
        self._ends_ms = 0  # of a process that is dead
        self._left_ms: int | None = None

    def begin(self, core: MemberCore) -> None:
        """An order to publish is given."""
        self.is_up, self._core, self._left_ms = True, core, None

    def end(self) -> None:
        """Nothing is published any more."""
        self.is_up = False

    def leave(self, now_ms: int) -> None:
        """The plugin is ordered to be left."""
        if self._left_ms is None:
            self.is_up = self.is_up and now_ms < self._end_ms()
            self._left_ms = now_ms

    def outlive(self) -> None:
        """The process dies."""
        self._ends_ms, self._core = self._end_ms(), None

    @property
    def is_left(self) -> bool:
        """Whether its plugin is being left, or was, or its process is dead."""
        return self._core is None or self._left_ms is not None

    def counts(self, now_ms: int) -> bool:
        """Whether it may stand within its lease; boot clock of its member."""
        left_ms, core = self._left_ms, self._core
        if left_ms is not None and core is not None and now_ms >= left_ms + core.doubt_ms:
            self.is_up = False
        return self.is_up and now_ms < self._end_ms()

    def _end_ms(self) -> int:
        if self._core is None:
            return self._ends_ms
        end_ms = self._core.lease_end_ms or 0
        return end_ms if self._left_ms is None else min(end_ms, self._left_ms + self._core.doubt_ms)


class Host(Protocol):
    """The process of a plugin."""

    core: MemberCore
    scheduler: Scheduler

    @property
    def plugin_faults(self) -> PluginFaults: ...
    def now(self) -> Now: ...
    def router_date(self) -> ClockReading | None:
        """What the member's router tells, if it tells anything."""
        ...

    def wake_at(self) -> int | None:
        """When the process goes on: 0 now, None never."""
        ...

    def on_told(self) -> None:
        """The core was told something."""
        ...


class SimulatedPlugin:
    """Carries out what ``own`` wants, as `garlicfarm.node.publisher.hosted_publisher` has it done.

    ``is_broken``: its router is gone for good."""

    def __init__(self, host: Host, own: PublisherCore, standing: Standing) -> None:
        self.own = own
        self.standing = standing
        self.is_broken = False
        self._host = host
        self._number = 0
        self._has_router = True
        self._is_left = True  # or it is being left
        self._entries = 0
        self._changed = False  # since its last status

    def obey(self) -> None:
        """Begin what the core wants now."""
        call = self.own.call
        if call is None or call.number == self._number:
            return
        self._number = call.number
        if call.task == "leave":
            self._is_left = True
            self.standing.leave(self._host.now().boot_ms)
            self._after(self._host.plugin_faults.leaves_ms, self._left)
        else:
            self._after(self._host.plugin_faults.unwinds_ms, self._begin, call)

    def _after(self, mean_ms: float, function: object, *arguments: object) -> None:
        scheduler = self._host.scheduler
        at = scheduler.around(mean_ms) if mean_ms else scheduler.now
        scheduler.at(at, self._run, function, *arguments)

    def _run(self, function, *arguments) -> None:  # type: ignore[no-untyped-def]
        """Unless the process has died; once it is awake."""
        at = self._host.wake_at()
        if at == 0:
            function(*arguments)
        elif at is not None:
            self._host.scheduler.at(at, self._run, function, *arguments)

    def _is_current(self, call: Call) -> bool:
        return self.own.call is not None and self.own.call.number == call.number

    def _begin(self, call: Call) -> None:
        host, scheduler, faults = self._host, self._host.scheduler, self._host.plugin_faults
        if not self._is_current(call):
            return
        if call.task == "enter":
            self._is_left = False
            self._entries += 1
        if call.task == "publish":
            self.standing.begin(host.core)
        needs_router = call.task in ("publish", "standby", "retire")
        is_down = needs_router and (self.is_broken or not self._has_router)
        if scheduler.chance(faults.hangs) or (is_down and scheduler.chance(0.3)):
            self._after(200_000, self._late, call)
        elif scheduler.chance(faults.fails):
            self._after(faults.call_ms, self._fail, call)
        elif is_down or (call.task != "enter" and scheduler.chance(faults.refuses)):
            self._after(faults.call_ms, self._refuse, call)
        else:
            self._after(faults.call_ms, self._finish, call)

    def _finish(self, call: Call) -> None:
        host, published = self._host, None
        if not self._is_current(call):
            self._late(call)
            return
        if call.task in ("standby", "retire", "announce"):
            self.standing.end()
        elif call.task == "publish":
            assert call.order is not None
            published = Published(published_ms=call.order.published_ms)
        host.core.on_done(self.own, call.number, host.now(), published)
        if call.task == "enter":
            self._after(0, self._watch, self._entries)
        host.on_told()

    def _late(self, call: Call) -> None:
        """An answer after the call is over, or after a very long time: it is too late for any effect."""
        if not self._is_current(call):
            self._host.core.on_done(self.own, call.number, self._host.now())
            self._host.on_told()

    def _refuse(self, call: Call) -> None:
        self._host.core.on_refused(self.own, call.number, self._host.now(), "the router refuses")
        self._host.on_told()

    def _fail(self, call: Call) -> None:
        if self._is_current(call):
            self._host.core.on_defect(self.own, self._host.now(), "ValueError: a defect")
            self._host.on_told()

    def _left(self) -> None:
        host = self._host
        if not host.scheduler.chance(host.plugin_faults.lingers):
            self.standing.end()
        host.core.on_left(self.own, host.now())
        host.on_told()

    def _watch(self, entries: int) -> None:
        """Tell its status, again and again while it is entered."""
        host, scheduler, faults = self._host, self._host.scheduler, self._host.plugin_faults
        if self._is_left or entries != self._entries:
            return
        if scheduler.chance(faults.router_changes):
            self._has_router = not self._has_router
        elif not faults.router_changes:
            self._has_router = True
        has_router = self._has_router and not self.is_broken
        is_publishing = self.standing.is_up and has_router
        if scheduler.chance(faults.lies):
            is_publishing, has_router = scheduler.chance(0.5), scheduler.chance(0.5)
        is_withdrawn = has_router and not self.own.row.is_exposed and scheduler.chance(faults.withdraws)
        if is_withdrawn:
            self.standing.end()
        status = PublisherStatus(
            is_publishing=is_publishing,
            is_ready=has_router,
            is_withdrawn=is_withdrawn,
            router_date=host.router_date() if has_router else None,
        )
        host.core.on_status(self.own, self.own.changes, status, None, host.now())
        if self.own.is_up == scheduler.chance(faults.service_changes):
            is_up = not self.own.is_up
            host.core.on_check(self.own, host.now(), is_up=is_up, problem=None if is_up else "no answer")
        if scheduler.chance(faults.announces):
            self.own.announce(b"the LeaseSet of a successor")
        self._after(STATUS_MS, self._watch, entries)
        host.on_told()
