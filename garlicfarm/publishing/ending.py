"""How a member lets go of its part in publishing before its node ends, or for as long as it is drained.

A member that lets go *stands aside*: its statuses offer it no longer (``publishConfig`` is ``off``, and
``meta.publishing`` is absent), so another one is named. It goes on publishing until then. Where no other
member could take over, it stays as it is; a drained one that is the last that can publish is named again.
Each of its statuses says that it is drained, so that of two which are drained at once none waits for the
other.

A drained member stays up; one whose node stops goes through the rest of the table. It ends when its successor
publishes and its clients have been told, or at a bound: released all the same.

Source: docs/reference/protocol.md, D22.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

State = Literal[
    "serving", "drained", "telling", "handing over", "succeeding", "lingering", "releasing", "over"
]
Event = Literal[
    "drain", "undrain", "stop", "told", "let go", "succeeded", "no successor", "bound", "released", "late"
]

STATES: Mapping[State, Mapping[Event, State]] = {
    "serving": {"drain": "drained", "stop": "telling"},
    "drained": {"undrain": "serving", "stop": "telling"},
    "telling": {"told": "handing over", "no successor": "releasing", "bound": "releasing"},
    "handing over": {"let go": "succeeding", "no successor": "releasing", "bound": "releasing"},
    "succeeding": {"succeeded": "lingering", "bound": "over"},
    "lingering": {"late": "over", "bound": "over"},
    "releasing": {"released": "over", "late": "over"},
    "over": {},
}
"""Each state, and the next one after each event that it knows. *telling*: until a status has said that it is
drained. *handing over*: until another member has the role and nothing is published here. *succeeding*: until
that member publishes. *lingering*: clients learn of that, and ask it instead. *releasing*: it retires and
gives the role back, though nobody takes it."""

LINGER_MS = 2_000
JAVA_LINGER_MS = 12_000
"""Where the router is Java I2P: clients are served until they have found the successor's LeaseSet."""
RELEASE_PART = 4
"""Of the bound, one part in so many is kept for *releasing*."""


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What an `Ending` goes by. ``is_told``: a status has been committed that says what it is to say now.
    ``is_free``: this member is neither named nor holds, and nothing may be published for it. ``others_can``:
    another member that is not drained could take over. ``others_drain``: no other recent member is there that
    is not drained; or there is no quorum. ``is_followed``: the member that is named now publishes, and the
    clients here have been told; or there was nothing to hand over. ``linger_ms``: how long they need from now
    on."""

    is_told: bool
    is_free: bool
    others_can: bool
    others_drain: bool
    is_followed: bool
    linger_ms: int


class Ending:
    """``state``: of `STATES`. ``is_aside``: it does not offer itself. Times are ms of the clock of leases."""

    def __init__(self) -> None:
        self.state: State = "serving"
        self.is_aside = False
        self.until_ms: int | None = None
        """When the present state ends at the latest."""
        self._bound_ms = 0
        self._end_ms = 0

    @property
    def is_draining(self) -> bool:
        """Whether its statuses say so."""
        return self.state != "serving"

    @property
    def is_final(self) -> bool:
        """Whether nothing may be published any more, whatever the farm says."""
        return self.state in ("releasing", "over")

    def drain(self, drained: bool) -> None:
        """Set or remove the mark."""
        self._go("drain" if drained else "undrain", 0)

    def stop(self, now_ms: int, bound_ms: int) -> None:
        """The node is about to end; within ``bound_ms``."""
        if "stop" in STATES[self.state]:
            self._bound_ms, self._end_ms = bound_ms, now_ms + bound_ms
            self.until_ms = now_ms + bound_ms - bound_ms // RELEASE_PART
            self._go("stop", now_ms)

    def step(self, now_ms: int, now: Situation) -> None:
        """Do what is due, one step of the table at a time."""
        is_late = self.until_ms is not None and now_ms >= self.until_ms
        found: tuple[tuple[bool, Event], ...] = (
            (is_late, "bound"),
            (is_late, "late"),
            (now.is_told and now.is_free, "released"),
            (now.others_drain and not now.others_can, "no successor"),
            (now.is_told, "told"),
            (now.is_free, "let go"),
            (now.is_followed, "succeeded"),
        )
        for holds, event in found:
            if holds and event in STATES[self.state]:
                self._go(event, now_ms, linger_ms=now.linger_ms)
                break
        has_let_go = self.state in ("succeeding", "lingering") or self.is_final
        self.is_aside = has_let_go or (self.is_draining and now.others_can)

    def _go(self, event: Event, now_ms: int, *, linger_ms: int = 0) -> None:
        following = STATES[self.state].get(event)
        if following is None:
            return
        self.state = following
        if following == "releasing":
            self.until_ms = min(now_ms + self._bound_ms // RELEASE_PART, self._end_ms)
        elif following == "lingering":
            assert self.until_ms is not None
            self.until_ms = min(self.until_ms, now_ms + linger_ms)
