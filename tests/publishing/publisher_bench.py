"""One publisher's core, with a role set by hand and a plugin that answers at once; time is a test's."""

from __future__ import annotations

from typing import Any

from garlicfarm.errors import PublisherError
from garlicfarm.i2p.lease_set import MetaLease
from garlicfarm.publishing.orders import Published, PublisherStatus, PublishOrder
from garlicfarm.publishing.publisher_core import Call, PublisherCore, Traits

HANG = "hang"
LEASE_S = 45


class HandRole:
    """A role that is set by hand, of a member that has it, or not, all the time."""

    def __init__(self, **given: Any) -> None:
        self.is_due = False
        self.lease_ms = self.doubt_ms = LEASE_S * 1000
        self.lease_end_ms: int | None = 10**12
        self.listed: tuple[str, ...] = ("a",)
        self.forced_index = 0
        self.cannot_order = ""
        self.now_ms = 0
        vars(self).update(given)

    def order(self) -> tuple[PublishOrder, tuple[MetaLease, ...]]:
        if self.cannot_order:
            raise PublisherError(self.cannot_order)
        expires_ms = self.now_ms + 3_600_000
        return PublishOrder(due_index=7, published_ms=self.now_ms, expires_ms=expires_ms), ()


class Bench:
    """``trouble``: what comes of the next calls, one for each: None: it is done; `HANG`; else why it fails.
    ``leaves``: whether the plugin can be left. ``calls``: when, in s, and what."""

    def __init__(self, *trouble: str | None, **role: Any) -> None:
        self.role = HandRole(**role)
        self.core = PublisherCore(Traits(name="fake", retire_timeout_ms=5000), 0)
        self.trouble = list(trouble)
        self.leaves = True
        self.calls: list[tuple[float, str]] = []
        self.successors: list[bytes] = []
        self.logged: list[str] = []
        self._number = 0
        self.settle()

    @property
    def now_ms(self) -> int:
        return self.role.now_ms

    @property
    def state(self) -> str:
        return self.core.state

    @property
    def is_exposed(self) -> bool:
        return self.core.is_exposed

    def sleep(self, seconds: float) -> None:
        """Let time pass; the core is asked only when it wants to be, and at the end."""
        end_ms = self.now_ms + round(1000 * seconds)
        while True:
            self.settle()
            if self.now_ms == end_ms:
                return
            due = [ms for ms in self.core.wake_ms(self.role) if self.now_ms < ms < end_ms]
            self.role.now_ms = min([*due, end_ms])

    def settle(self) -> None:
        """Let the core do what is due, and the plugin answer."""
        while True:
            self.core.step(self.now_ms, self.role)
            self.logged += [note.event for note in self.core.notes]
            self.core.notes.clear()
            call = self.core.call
            if call is None or call.number == self._number:
                return
            self._number = call.number
            self.answer(call)

    def answer(self, call: Call) -> None:
        now_ms, role = self.now_ms, self.role
        if call.task == "enter":
            self.core.on_done(call.number, now_ms, role)
            return
        self.calls.append((now_ms / 1000, call.task))
        if call.task == "leave":
            if self.leaves:
                self.core.on_left(now_ms, role)
            return
        if call.successor is not None:
            self.successors.append(call.successor)
        trouble = self.trouble.pop(0) if self.trouble else None
        if trouble is None:
            published = None if call.order is None else Published(published_ms=call.order.published_ms)
            self.core.on_done(call.number, now_ms, role, published)
        elif trouble != HANG:
            self.core.on_refused(call.number, now_ms, role, trouble)

    def say(self, **status: Any) -> None:
        """What the plugin says of itself."""
        said = {"is_publishing": self.state in ("publishing", "renewing"), **status}
        self.core.on_status(self.core.changes, PublisherStatus(**said), None, self.now_ms, self.role)
        self.settle()

    def done(self) -> list[str]:
        """The calls since it was asked last."""
        calls, self.calls = [what for _, what in self.calls], []
        return calls
