"""Whether a member offers itself to the farm as a publisher.

A member that can no longer publish withdraws: it gives the role up, or is not named. It reports no
``meta.publishing`` then, so that the farm names another member. It offers itself again once it could publish
for R intervals without a break: a router that comes and goes must not move the role each time. Where no other
member can publish, nothing is gained by waiting.

Source: docs/reference/protocol.md, D22.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

State = Literal["not able yet", "offered", "withdrawn", "recovering"]
Event = Literal["able", "not able", "recovered"]

STATES: Mapping[State, Mapping[Event, State]] = {
    "not able yet": {"able": "offered"},
    "offered": {"not able": "withdrawn"},
    "withdrawn": {"able": "recovering"},
    "recovering": {"not able": "withdrawn", "recovered": "offered"},
}
"""Each state, and the next one after each event that it knows."""


class Offer:
    """``count``: how often this member has withdrawn. Times are ms, of a clock that never goes back."""

    def __init__(self) -> None:
        self.state: State = "not able yet"
        self.count = 0
        self._able_since_ms = 0

    @property
    def is_withdrawn(self) -> bool:
        """Whether it could publish once, and does not offer itself now."""
        return self.state in ("withdrawn", "recovering")

    def step(self, now_ms: int, *, can_publish: bool, others_can: bool, pause_ms: int) -> bool:
        """Take note of how it is now; whether that has changed `is_withdrawn`.

        ``can_publish``: whether this member could publish. ``others_can``: whether another member could.
        ``pause_ms``: R intervals.
        """
        was_withdrawn = self.is_withdrawn
        self._go("able" if can_publish else "not able", now_ms)
        if not (others_can and self.left_ms(now_ms, pause_ms)):
            self._go("recovered", now_ms)
        return self.is_withdrawn != was_withdrawn

    def left_ms(self, now_ms: int, pause_ms: int) -> int:
        """How long this member has to be able to publish until it offers itself again."""
        return max(0, self._able_since_ms + pause_ms - now_ms) if self.state == "recovering" else pause_ms

    def _go(self, event: Event, now_ms: int) -> None:
        following = STATES[self.state].get(event)
        if following is None:
            return
        if following == "recovering":
            self._able_since_ms = now_ms
        self.count += following == "withdrawn" and self.state == "offered"
        self.state = following
