"""When a member posts its statuses, without I/O: once every interval of the farm, and what cannot wait.

What its publishers have to say may not be able to wait for the next status (*news*, D22). It is posted out of
turn then, with the figures of the status before, since a router that is gone answers late. Such a status
renews the lease and proves that this member lives, as any other does. It is not counted as a sign that others
are silent, because it follows a counted one too soon; in the last tenth of an interval it takes the place of
the next one, which would follow too soon.

A status that may or may not have been committed is posted again, the same bytes, until its outcome is known.
Its ``sequence`` makes the repetition harmless (D17: repetitions are skipped).

Times are ms of the clock of leases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from garlicfarm.publishing.farm_queries import FarmQueries
from garlicfarm.publishing.lease import Lease

State = Literal["alone", "confirming", "measuring", "posting", "pausing", "applying", "waiting"]
Event = Literal[
    "farm", "confirmed", "measured", "news", "committed", "refused", "failed", "again", "applied", "due"
]

STATES: Mapping[State, Mapping[Event, State]] = {
    "alone": {"farm": "confirming"},
    "confirming": {"confirmed": "measuring"},
    "measuring": {"measured": "posting", "news": "posting"},
    "posting": {"committed": "applying", "refused": "waiting", "failed": "pausing"},
    "pausing": {"again": "posting"},
    "applying": {"applied": "waiting"},
    "waiting": {"due": "measuring", "news": "posting"},
}
"""Each state, and the next one after each event that it knows. *alone*: until the farm is known.
*confirming*: its first status lets others publish, so it waits while a router may still publish for an
earlier process. *pausing*: before the same status is posted again."""

RETRY_MS = 500

News = frozenset[tuple[str, int]]
"""What cannot wait, each with the index, or the number, of the change that it belongs to."""


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """What held when a status was begun. ``boot_ms``: the clock of leases; ``date_ms``: the wall clock;
    ``applied``: the index of the last entry that was applied; ``news``: what the status has to say."""

    boot_ms: int
    date_ms: int
    applied: int
    interval_ms: int
    R: int
    news: News


class StatusTurns:
    """``state``: of `STATES`. ``begun``: of the newest status. ``posted``: what is no news any more, since a
    status that was begun says it; ``told``: since one is committed and applied here. ``number``: another one
    whenever something new is to be measured or posted. ``entry``: to be posted, while it is. ``turns``: how
    many statuses in turn have ended."""

    def __init__(self, fold: FarmQueries, node_id: int, lease: Lease) -> None:
        self.state: State = "alone"
        self.begun: Begun | None = None
        self.posted: News = frozenset()
        self.told: News = frozenset()
        self.number = 0
        self.entry = b""
        self.sequence = 0
        self.turns = 0
        self._fold = fold
        self._node_id = node_id
        self._lease = lease
        self._is_turn = True
        self._last_due_ms = 0
        self._waits_since_ms = 0
        self._again_ms = 0
        self._committed_index = 0

    def begin(self, boot_ms: int, date_ms: int, applied: int, news: News) -> None:
        """Begin a status: what it says of time is of now. What is posted with it is no longer news."""
        fold = self._fold
        self.begun = Begun(
            boot_ms=boot_ms,
            date_ms=date_ms,
            applied=applied,
            interval_ms=fold.interval_ms,
            R=fold.R,
            news=news,
        )
        if not fold.has_leases:
            self._lease.begin(boot_ms, fold.interval_ms, fold.R)
        self.posted = news

    def next_sequence(self, date_ms: int) -> int:
        """Of a status of this date."""
        self.sequence = max(self._fold.last_sequence(self._node_id) + 1, date_ms)
        return self.sequence

    def go(self, event: Event, now_ms: int) -> bool:
        """Follow the table; whether it knows the event."""
        following = STATES[self.state].get(event)
        if following is None:
            return False
        if event == "failed":
            self._again_ms = now_ms + RETRY_MS
        elif following == "waiting":
            self._waits_since_ms = now_ms
            self.turns += self._is_turn
        elif event == "confirmed":
            self._last_due_ms = now_ms
        self.state = following
        self.number += following in ("measuring", "posting")
        return True

    def on_committed(self, number: int, index: int, now_ms: int) -> None:
        """What was to be posted under ``number`` is committed at ``index``."""
        if number == self.number:
            self._committed_index = index
            self.go("committed", now_ms)

    def due(self, now_ms: int, applied: int, news: News, *, is_confirmed: bool) -> Event | None:
        """What has come by time or by what was applied, if the state knows it."""
        following = STATES[self.state]
        if self.state == "applying" and applied >= self._committed_index:
            self._on_applied()
            return "applied"
        if self.state == "waiting":
            due_ms = self._due_ms()
            if now_ms >= due_ms:
                self._last_due_ms, self._is_turn = due_ms, True
                return "due"
            if news - self.posted:
                period_ms = self._period_ms()
                self._is_turn = False
                if now_ms >= due_ms - period_ms // 10:
                    self._last_due_ms = due_ms
                return "news"
        found: tuple[tuple[bool, Event], ...] = (
            (applied > 0, "farm"),
            (is_confirmed, "confirmed"),
            (self.state == "measuring" and bool(news - self.posted), "news"),
            (self.state == "pausing" and now_ms >= self._again_ms, "again"),
        )
        return next((event for holds, event in found if holds and event in following), None)

    def wake_ms(self) -> list[int]:
        """When something may be due by time alone."""
        if self.state == "waiting":
            return [self._due_ms()]
        return [self._again_ms] if self.state == "pausing" else []

    def _period_ms(self) -> int:
        """A shorter interval takes effect at once, a longer one with the next status: the lease rests on what
        the last status named, and would end long before."""
        named_ms = self._fold.interval_ms if self.begun is None else self.begun.interval_ms
        return min(self._fold.interval_ms, named_ms)

    def _due_ms(self) -> int:
        return max(self._last_due_ms + self._period_ms(), self._waits_since_ms)

    def _on_applied(self) -> None:
        """The fold skips a status whose sequence is not above the last, as after the clock was set back, or
        where one of an earlier process has the same. It does not count, so no lease rests on it."""
        assert self.begun is not None
        fold, id_ = self._fold, self._node_id
        if fold.last_sequence(id_) == self.sequence and bytes(fold.newest_entry(id_)) == self.entry:
            if not fold.has_leases:
                self._lease.committed(self.begun.boot_ms)
            self.told = self.begun.news
