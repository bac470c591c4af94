"""A member that can no longer publish withdraws: it gives the role up, or is not named.

It reports no ``meta.publishing`` while it is withdrawn, so that the farm names another member. It offers
itself again once it could publish for R intervals without a break: a router that comes and goes must not move
the role each time. Where no other member can publish, nothing is gained by waiting.

Source: docs/reference/protocol.md, D22.
"""

from __future__ import annotations


class Withdrawal:
    """``count``: how often this member has withdrawn. Times are in s, of a clock that never goes back."""

    def __init__(self) -> None:
        self.count = 0
        self.is_withdrawn = False
        self._can_publish = False
        self._able_since_s = 0.0

    def observe(self, now_s: float, *, can_publish: bool, others_can: bool, pause_s: float) -> bool:
        """Take note of how it is now; whether that has changed `is_withdrawn`.

        ``can_publish``: whether this member could publish. ``others_can``: whether another member could.
        ``pause_s``: R intervals.
        """
        was_withdrawn = self.is_withdrawn
        if can_publish and not self._can_publish:
            self._able_since_s = now_s
        elif self._can_publish and not can_publish and not was_withdrawn:
            self.is_withdrawn = True
            self.count += 1
        self._can_publish = can_publish
        if was_withdrawn and can_publish and not (others_can and self.left_s(now_s, pause_s)):
            self.is_withdrawn = False
        return self.is_withdrawn != was_withdrawn

    def left_s(self, now_s: float, pause_s: float) -> float:
        """How long this member has to be able to publish until it offers itself again."""
        return max(0.0, self._able_since_s + pause_s - now_s) if self._can_publish else pause_s
