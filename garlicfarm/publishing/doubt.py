"""Whether something may be published for a member though no state of its publisher says so.

A publisher is in doubt when its process begins, since an earlier process may have left something behind, and
when its plugin is left while a router may have published for it. The doubt ends once the plugin has confirmed
that nothing is published. Others wait for that as long as the farm waits for a dead node: a lease. A doubt
that was waited out is not waited for again when leases become longer.

Source: docs/reference/protocol.md, D19.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

State = Literal["inherited", "inherited, waited out", "none", "raised", "raised, waited out"]
Event = Literal["confirmed", "left", "over"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A state. ``is_waited_for``: others have to wait. ``is_own``: what is doubted was published by this
    process, so a plugin that is entered is to retire first. ``next``: what follows which event."""

    is_waited_for: bool = False
    is_own: bool = False
    next: Mapping[Event, State]


STATES: Mapping[State, Row] = {
    "inherited": Row(is_waited_for=True, next={"confirmed": "none", "over": "inherited, waited out"}),
    "inherited, waited out": Row(next={"confirmed": "none"}),
    "none": Row(next={"left": "raised"}),
    "raised": Row(is_waited_for=True, is_own=True, next={"confirmed": "none", "over": "raised, waited out"}),
    "raised, waited out": Row(is_own=True, next={"confirmed": "none"}),
}
"""Each state, and the next one after each event that it knows."""


class Doubt:
    """``state``: of `STATES`. Times are ms of the clock of leases."""

    def __init__(self, now_ms: int) -> None:
        """``now_ms``: when the process begins."""
        self.state: State = "inherited"
        self._since_ms = now_ms

    @property
    def row(self) -> Row:
        """The present state's."""
        return STATES[self.state]

    def confirm(self) -> None:
        """Nothing is published for this member any more, and that is certain."""
        self._go("confirmed")

    def leave(self, now_ms: int) -> None:
        """A plugin is left while a router may publish for it."""
        if self._go("left"):
            self._since_ms = now_ms

    def step(self, now_ms: int, doubt_ms: int) -> None:
        """Take note of the time. ``doubt_ms``: how long others wait."""
        if now_ms >= self._since_ms + doubt_ms:
            self._go("over")

    def wake_ms(self, doubt_ms: int) -> list[int]:
        """When `step` may have something to do; it may be past."""
        return [] if self.state == "none" else [self._since_ms + doubt_ms]

    def _go(self, event: Event) -> bool:
        """Follow the table; whether the state knows the event."""
        following = self.row.next.get(event)
        self.state = following or self.state
        return following is not None
