"""One publisher of a member: a machine of named states, without I/O.

`STATES` is the whole rule of what follows what. A state may have a call: what the plugin is asked to do while
the state lasts, until a deadline. The answer is an event, and so is a deadline that passes, a role that comes
or goes, and the end of the lease. An event that a state does not name changes nothing; an answer to a call
that is over is not heard.

A plugin that fails never hurts another one or the node: it is tried again. One that does not stop in time is
left, which ends what it has opened. One that has stopped may still serve its clients; it is told who
publishes next once that is known.

What a plugin that was left, or an earlier process, may have left behind is a *doubt*: `doubt.STATES`.

Times are ms of the clock of leases, which counts the time while the machine is suspended.

Source: docs/reference/protocol.md, D19 and "The common algorithm", point 6.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Literal, Protocol

import msgspec

from garlicfarm.errors import PublisherError
from garlicfarm.i2p.lease_set import MetaLease
from garlicfarm.publishing.doubt import Doubt
from garlicfarm.publishing.orders import KeyReport, Published, PublisherStatus, PublishOrder

State = Literal[
    "outside",
    "entering",
    "preparing",
    "not ready",
    "standby",
    "checking",
    "starting",
    "publishing",
    "renewing",
    "failed",
    "retrying",
    "retiring",
    "withdrawing",
    "retired",
    "announcing",
    "leaving",
]
Event = Literal[
    "again",
    "entered",
    "entered in doubt",
    "done",
    "refused",
    "late",
    "defect",
    "left",
    "role",
    "role after a failure",
    "no role",
    "no order",
    "renew",
    "check",
    "lost",
    "successor",
    "lease over",
    "node ends",
]
Task = Literal["enter", "standby", "publish", "retire", "announce", "leave"]
Shown = Literal["not ready", "standby", "starting", "publishing", "retiring"]

STANDBY_TIMEOUT_MS = 60_000
PUBLISH_TIMEOUT_MS = 120_000
"""Sessions of routers were seen to become reachable after 75 s."""
CHECK_MS = 30_000
"""Between two checks whether it is still ready."""
REPUBLISH_MS = 60_000
FORCED_MS = 20_000
"""Between two publications that administrators ordered, as routers limit them."""
RETRY_MS = 5_000


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A state. ``task``: what the plugin is asked to do meanwhile. ``shown``: the word for it in the farm's
    status. ``is_ready``: the plugin could publish at once. ``is_exposed``: a router may publish for this
    member, so others have to wait. ``reports``: a status of this member says that it publishes, while it is
    named. ``next``: what follows which event."""

    task: Task | None = None
    shown: Shown
    is_ready: bool = False
    is_exposed: bool = False
    reports: bool = False
    next: Mapping[Event, State]


def _inside(next_: Mapping[Event, State]) -> dict[Event, State]:
    return {**next_, "defect": "leaving", "node ends": "leaving"}


def _exposed(next_: Mapping[Event, State]) -> dict[Event, State]:
    return {"node ends": "retiring", **next_, "defect": "leaving", "lease over": "leaving"}


_NAMED: Mapping[Event, State] = {"role": "starting", "role after a failure": "retrying"}
_PREPARED: Mapping[Event, State] = {"done": "standby", "refused": "not ready", "late": "not ready"}
_TRIED: Mapping[Event, State] = {
    "done": "publishing",
    "refused": "failed",
    "late": "retiring",
    "no role": "retiring",
}

STATES: Mapping[State, Row] = {
    "outside": Row(shown="not ready", next={"again": "entering"}),
    "entering": Row(
        task="enter",
        shown="not ready",
        next=_inside({"entered": "preparing", "entered in doubt": "withdrawing", "late": "leaving"}),
    ),
    "preparing": Row(
        task="standby",
        shown="not ready",
        next=_inside(_PREPARED),
    ),
    "not ready": Row(shown="not ready", next=_inside({"check": "preparing"})),
    "standby": Row(
        shown="standby",
        is_ready=True,
        next=_inside(
            {
                **_NAMED,
                "no order": "standby",
                "successor": "announcing",
                "lost": "preparing",
                "check": "checking",
            }
        ),
    ),
    "checking": Row(
        task="standby",
        shown="standby",
        is_ready=True,
        next=_inside(
            {
                **_PREPARED,
                "lost": "preparing",
                **_NAMED,
                "no order": "checking",
            }
        ),
    ),
    "starting": Row(
        task="publish",
        shown="starting",
        is_ready=True,
        is_exposed=True,
        reports=True,
        next=_exposed(_TRIED),
    ),
    "publishing": Row(
        shown="publishing",
        is_ready=True,
        is_exposed=True,
        reports=True,
        next=_exposed(
            {"renew": "renewing", "no order": "failed", "no role": "retiring", "lost": "withdrawing"}
        ),
    ),
    "renewing": Row(
        task="publish",
        shown="publishing",
        is_ready=True,
        is_exposed=True,
        reports=True,
        next=_exposed({**_TRIED, "lost": "withdrawing"}),
    ),
    "failed": Row(
        shown="starting",
        is_ready=True,
        is_exposed=True,
        next=_exposed(
            {
                "role after a failure": "retrying",
                "no order": "failed",
                "no role": "retiring",
                "lost": "withdrawing",
            }
        ),
    ),
    "retrying": Row(
        task="publish",
        shown="starting",
        is_ready=True,
        is_exposed=True,
        next=_exposed({**_TRIED, "lost": "withdrawing"}),
    ),
    "retiring": Row(
        task="retire",
        shown="retiring",
        is_ready=True,
        is_exposed=True,
        reports=True,
        next=_exposed({"done": "retired", "refused": "leaving", "late": "leaving", "node ends": "retiring"}),
    ),
    "withdrawing": Row(
        task="retire",
        shown="retiring",
        is_exposed=True,
        next=_exposed(
            {"done": "preparing", "refused": "leaving", "late": "leaving", "node ends": "withdrawing"}
        ),
    ),
    "retired": Row(
        task="standby",
        shown="standby",
        is_ready=True,
        next=_inside(
            {
                **_PREPARED,
                **_NAMED,
                "no order": "retired",
                "successor": "announcing",
            }
        ),
    ),
    "announcing": Row(
        task="announce",
        shown="standby",
        is_ready=True,
        next=_inside(
            {
                "done": "retired",
                "refused": "retired",
                "late": "retired",
                **_NAMED,
                "no order": "announcing",
            }
        ),
    ),
    "leaving": Row(task="leave", shown="not ready", next={"left": "outside"}),
}
"""Each state of a publisher, and the next one after each event that it knows."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What the plugin is asked to do. ``number``: another one for each call. ``deadline_ms``: None: it may
    take any time. ``order`` and ``leases``: of ``publish``; the order lacks the Meta LeaseSet, which lists
    ``leases`` (none: it is not to be made). ``successor``: of ``announce``."""

    number: int
    task: Task
    deadline_ms: int | None = None
    order: PublishOrder | None = None
    leases: tuple[MetaLease, ...] = ()
    successor: bytes | None = None


class Note(msgspec.Struct, frozen=True):
    """What to log. ``fields``: beside the publisher's name."""

    event: str
    fields: Mapping[str, object]
    is_warning: bool


class Role(Protocol):
    """What the farm has given to this member, at one moment.

    ``is_due``: it is named, and the only holder. ``lease_ms``: how long a lease lasts; ``doubt_ms``: the
    longest that a process of this member may still have. ``lease_end_ms``: of this process's, None: it has
    none. ``listed``: what the Meta LeaseSet lists: another value when it has to
    be published anew. ``forced_index``: of the newest order of an administrator to publish now, 0: none.
    """

    @property
    def is_due(self) -> bool: ...
    @property
    def lease_ms(self) -> int: ...
    @property
    def doubt_ms(self) -> int: ...
    @property
    def lease_end_ms(self) -> int | None: ...
    @property
    def listed(self) -> Hashable: ...
    @property
    def forced_index(self) -> int: ...

    def order(self) -> tuple[PublishOrder, tuple[MetaLease, ...]]:
        """See `Call`. Raises `PublisherError`: nothing can be published."""
        ...


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """A publisher as it is configured. ``destination``: that whose LeaseSet it publishes, binary. ``key``:
    its offline keys, at first."""

    name: str
    is_required: bool = True
    retire_timeout_ms: int
    destination: bytes | None = None
    key: KeyReport | None = None


class PublisherCore:
    """``state``: of `STATES`. ``call``: the plugin's present call, if any. ``published``: what a router has
    taken; after it has stopped in order, what it took last, until its clients know of a successor.
    ``problem``: why it does not publish, "" if nothing is wrong. ``status`` and ``key``: the plugin's newest.
    ``is_up``: the service behind it answers, as far as that is checked;
    ``check_problem``: a sentence if it does not. ``changes``: how often
    ``state`` has changed. ``notes``: to be logged, and cleared.
    """

    def __init__(self, traits: Traits, now_ms: int) -> None:
        """``now_ms``: since then it is not known whether something of an earlier process is published."""
        self.traits = traits
        self.state: State = "outside"
        self.call: Call | None = None
        self.published: Published | None = None
        self.problem = ""
        self.status = PublisherStatus(is_publishing=False)
        self.key = traits.key
        self.is_up = True
        self.check_problem: str | None = None
        self.notes: list[Note] = []
        self.changes = 0
        self._calls = 0
        self._doubt = Doubt(now_ms)
        self._has_failed = False  # since it was published last, or had the role anew
        self._again_ms = now_ms  # when to enter, to get ready, or to publish again
        self._check_ms = now_ms
        self._published_ms = 0
        self._half_life_ms = 0
        self._listed: Hashable = None
        self._forced_index = 0
        self._successor: bytes | None = None

    # ------------------------------------------------------------------ what it says of itself

    @property
    def row(self) -> Row:
        """The present state's."""
        return STATES[self.state]

    @property
    def is_exposed(self) -> bool:
        """Whether a router may publish for this member, so that others have to wait."""
        return self.row.is_exposed or self._doubt.row.is_waited_for

    def problems(self) -> list[str]:
        """Why it does not do its work, one sentence each."""
        return list(dict.fromkeys(filter(None, [self.problem, *self.status.problems, self.check_problem])))

    # ------------------------------------------------------------------ what comes in

    def on_done(self, number: int, now_ms: int, role: Role, published: Published | None = None) -> None:
        """The call has done what it should. ``published``: by ``publish``."""
        call = self.call
        if call is None or call.number != number:
            return
        event: Event = "done"
        if call.task == "enter":
            event = "entered in doubt" if self._doubt.row.is_own else "entered"
        elif call.task == "standby":
            self._doubt.confirm()
            self.problem, self._check_ms = "", now_ms + CHECK_MS
        elif call.task == "publish" and call.order is not None and published is not None:
            self._on_published(call.order, published, now_ms)
        elif call.task == "retire":
            if self.state == "retiring" and self.published is not None:
                self._note("not-publishing")
            self._doubt.confirm()
        elif call.task == "announce":
            self._note("successor-announced")
        self._go(event, now_ms, role)

    def on_refused(self, number: int, now_ms: int, role: Role, cause: str) -> None:
        """The call has failed: a `PublisherError`."""
        if self.call is not None and self.call.number == number:
            self._on_failure(self.call, now_ms, cause)
            self._go("refused", now_ms, role)

    def on_defect(self, now_ms: int, role: Role, cause: str) -> None:
        """The plugin has raised an error that it may not raise, answered nonsense, or not in time."""
        self._warn("publisher-failed", cause)
        self._go("defect", now_ms, role)

    def on_left(self, now_ms: int, role: Role) -> None:
        """The plugin has been left, and what it has opened has ended."""
        self._go("defect", now_ms, role)
        self._again_ms = now_ms + (RETRY_MS if self.problem else 0)
        self._go("left", now_ms, role)

    def on_status(
        self, asked: int, status: PublisherStatus, key: KeyReport | None, now_ms: int, role: Role
    ) -> None:
        """What the plugin says. ``asked``: `changes` when it was asked; a state that it did not see is not
        judged by it. That it is not ready between ``retire`` and ``standby`` is no loss."""
        if self.state in ("outside", "entering", "leaving"):
            return
        self.status, self.key = status, key
        if status.is_withdrawn and asked == self.changes and not self.row.is_exposed:
            self._doubt.confirm()
        stands = status.is_publishing or self.state not in ("publishing", "renewing")
        if (stands and status.is_ready) or asked != self.changes or "lost" not in self.row.next:
            return
        cause = "; ".join(status.problems) or "for no known reason"
        self._warn("publication-lost" if self.row.is_exposed else "standby-lost", cause)
        self.published = None
        self._go("lost", now_ms, role)

    def announce(self, successor: bytes) -> None:
        """Have the plugin tell its clients of ``successor``, a LeaseSet of its destination that another
        member has published; unless this one is published again before."""
        self._successor = successor

    def on_node_ends(self, now_ms: int, role: Role) -> None:
        """The node ends now: what is published is to be retired, and all else ends."""
        self._go("node ends", now_ms, role)

    # ------------------------------------------------------------------ what follows

    def may_publish(self, now_ms: int, role: Role) -> bool:
        """Whether it has the role, for longer than it takes to stop."""
        return role.is_due and _left_ms(now_ms, role) > self._retire_ms(role)

    def step(self, now_ms: int, role: Role) -> None:
        """Do all that is due."""
        self._doubt.step(now_ms, role.doubt_ms)
        if not self.may_publish(now_ms, role):
            self._has_failed = False
        for _ in STATES:
            if (event := self._due(now_ms, role)) is None:
                return
            if event == "late" and self.call is not None:
                self._on_failure(self.call, now_ms, "not in time")
            self._go(event, now_ms, role)
        raise AssertionError(f"publisher {self.traits.name} comes to no rest in {self.state}")

    def wake_ms(self, role: Role) -> list[int]:
        """When it may have something to do, if nothing comes in; some of it may be past."""
        found = [self._check_ms, self._again_ms]
        found += [self._published_ms + age_ms for age_ms in (FORCED_MS, REPUBLISH_MS, self._half_life_ms)]
        found += self._doubt.wake_ms(role.doubt_ms)
        if self.call is not None and self.call.deadline_ms is not None:
            found.append(self.call.deadline_ms)
        if role.lease_end_ms is not None:
            found += [role.lease_end_ms, role.lease_end_ms - self._retire_ms(role)]
        return found

    def _due(self, now_ms: int, role: Role) -> Event | None:
        """The first event that time or the role has brought, of those that the state knows."""
        left_ms = _left_ms(now_ms, role)
        deadline_ms = None if self.call is None else self.call.deadline_ms
        may_publish = self.may_publish(now_ms, role)
        is_again = now_ms >= self._again_ms
        found: tuple[tuple[bool, Event], ...] = (
            (not left_ms and self._doubt.state == "none", "lease over"),
            (deadline_ms is not None and now_ms >= deadline_ms, "late"),
            (not may_publish, "no role"),
            (may_publish and is_again, "role after a failure" if self._has_failed else "role"),
            (may_publish and self.state == "publishing" and self._is_to_renew(now_ms, role), "renew"),
            (self._successor is not None, "successor"),
            (now_ms >= self._check_ms, "check"),
            (is_again, "again"),
        )
        return next((event for holds, event in found if holds and event in self.row.next), None)

    def _is_to_renew(self, now_ms: int, role: Role) -> bool:
        """At half the lifetime and when the list has changed, at most once a minute; and once after each
        order of an administrator."""
        age_ms = now_ms - self._published_ms
        if role.forced_index > self._forced_index and age_ms >= FORCED_MS:
            return True
        lasts_ms = self._half_life_ms if role.listed == self._listed else 0
        return age_ms >= max(lasts_ms, REPUBLISH_MS)

    def _retire_ms(self, role: Role) -> int:
        """How long it may take to stop: at most a quarter of a lease, which may be short."""
        return min(self.traits.retire_timeout_ms, role.lease_ms // 4)

    def _go(self, event: Event, now_ms: int, role: Role) -> None:
        """Follow the table."""
        if event not in self.row.next:
            return
        order: PublishOrder | None = None
        leases: tuple[MetaLease, ...] = ()
        if STATES[self.row.next[event]].task == "publish":
            try:
                order, leases = role.order()
            except PublisherError as error:
                self._on_not_published(now_ms, str(error))
                event = "no order"
        was, self.state = self.state, self.row.next[event]
        if self.state == was:
            return
        self.changes += 1
        if self.state == "leaving":
            self._on_leaving(was, event, now_ms)
        self._calls += 1
        task = self.row.task
        self.call = (
            None
            if task is None
            else Call(
                number=self._calls,
                task=task,
                deadline_ms=self._deadline_ms(task, now_ms, role),
                order=order,
                leases=leases,
                successor=self._successor if task == "announce" else None,
            )
        )
        if task == "publish":
            self._listed, self._forced_index = role.listed, role.forced_index
        elif task == "announce":
            self._successor = self.published = None

    def _deadline_ms(self, task: Task, now_ms: int, role: Role) -> int | None:
        if task == "leave":
            return None
        if task == "publish":
            return now_ms + PUBLISH_TIMEOUT_MS
        if task in ("enter", "standby"):
            return now_ms + STANDBY_TIMEOUT_MS
        left_ms = _left_ms(now_ms, role)
        is_bound = task == "retire" and self._doubt.state == "none"  # by the lease
        return now_ms + (min(self._retire_ms(role), left_ms) if is_bound else self._retire_ms(role))

    def _on_published(self, order: PublishOrder, published: Published, now_ms: int) -> None:
        if self.published is None or self.state != "renewing":
            self._note("publishing", due_index=order.due_index)
        self.published, self._successor = published, None
        self.problem, self._has_failed = "", False
        self._published_ms = now_ms
        self._half_life_ms = (order.expires_ms - order.published_ms) // 2

    def _on_failure(self, call: Call, now_ms: int, cause: str) -> None:
        """A call has failed, or was not done in time."""
        if call.task == "enter":
            self._warn("publisher-failed", f"it could not be started: {cause}")
        elif call.task == "standby":
            self._check_ms = now_ms + RETRY_MS
            self._warn("publisher-not-ready", cause)
        elif call.task == "publish":
            self._on_not_published(now_ms, cause)
        elif call.task == "retire":
            self._warn("retire-failed", cause)
        elif call.task == "announce":
            self._warn("successor-not-announced", cause)

    def _on_not_published(self, now_ms: int, cause: str) -> None:
        self._has_failed = True
        self._again_ms = now_ms + RETRY_MS
        self._warn("publish-failed", cause)

    def _on_leaving(self, was: State, event: Event, now_ms: int) -> None:
        if STATES[was].is_exposed:
            self._doubt.leave(now_ms)
        if event == "lease over":
            self._warn("publisher-left", "the lease is over")
        elif event in ("refused", "late") and STATES[was].task == "retire":
            self._warn("publisher-left", "it did not stop in time" if event == "late" else self.problem)
        self._check_ms, self._successor, self.published = now_ms, None, None
        self.status = PublisherStatus(is_publishing=False)

    def _note(self, event: str, **fields: object) -> None:
        self.notes.append(Note(event, fields, is_warning=False))

    def _warn(self, event: str, cause: str) -> None:
        self.problem = cause
        self.notes.append(Note(event, {"cause": cause}, is_warning=True))


def _left_ms(now_ms: int, role: Role) -> int:
    """Of the lease."""
    return 0 if role.lease_end_ms is None else max(0, role.lease_end_ms - now_ms)
