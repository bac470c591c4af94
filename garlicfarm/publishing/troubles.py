"""What operators should fix in a farm that has a majority: no member publishes, or a clock is wrong.

Troubles are found while the log is folded and are not part of the fold's state: after a restore from a
snapshot they are found anew. No clock is read. Time passes by the members' statuses, so an election, a
hand-over and a farm that was stopped for a night are no troubles.

*Publication.* A member could publish, none reports that it does, and some member has posted `PATIENCE_RS`
times R statuses since one last did: R to notice a death, the rest for the next member to start.

*Clocks.* Of three recent members or more, one whose statuses contradict farm time by more than `MOST_SKEW_MS`
twice in a row. A status that is dated before farm time comes from a clock that is behind. One that farm time
has not reached when the member posts the next one comes from a clock that is ahead.
"""

from __future__ import annotations

from collections.abc import Iterator

from garlicfarm.publishing.farm_queries import FarmQueries

PATIENCE_RS = 3
MOST_SKEW_MS = 60_000
_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000


class Troubles:
    """The troubles of one farm."""

    def __init__(self) -> None:
        self._unpublished: dict[
            int, int
        ] = {}  # statuses of each member since one last said that it publishes
        self._dates: dict[int, int] = {}  # of each member's previous status
        self._skews: dict[int, int] = {}  # by the newest status of each member, 0: none
        self._confirmed: dict[int, int] = {}  # the same, where the status before it agreed

    def on_status(
        self, author: int, date_ms: int, publishing: bool | None, *, farm_time_ms: int, recent: int
    ) -> None:
        """A status of ``author`` has been folded in; ``recent`` members are."""
        if publishing:
            self._unpublished.clear()
        else:
            self._unpublished[author] = self._unpublished.get(author, 0) + 1
        late_ms, early_ms = date_ms - farm_time_ms, self._dates.get(author, 0) - farm_time_ms
        self._dates[author] = date_ms
        skew = late_ms if late_ms < -MOST_SKEW_MS else early_ms if early_ms > MOST_SKEW_MS else 0
        skew = skew if recent >= 3 else 0
        before, self._skews[author] = self._skews.get(author, 0), skew
        self._confirmed[author] = skew if before * skew > 0 else 0

    def sentences(self, farm: FarmQueries) -> list[str]:
        """The troubles, a sentence each."""
        return [*self._publication(farm), *self._clocks(farm)]

    def _publication(self, farm: FarmQueries) -> Iterator[str]:
        able = [
            one for one in farm.members if one in farm.statuses and farm.statuses[one].publishing is not None
        ]
        recent = [one for one in able if farm.is_recent(one)]
        waited = max((self._unpublished.get(one, 0) for one in farm.members), default=0)
        if not able or waited < PATIENCE_RS * farm.R or any(farm.statuses[one].publishing for one in recent):
            return
        publisher = farm.publisher
        if not recent:
            ids = ", ".join(map(str, able))
            why = (
                f"only member {ids} could, which is silent" if len(able) == 1 else f"members {ids} are silent"
            )
        elif publisher is None:
            why = "no member is eligible; `garlicfarm farm show` says why"
        elif farm.due_since is None:
            others = ", ".join(str(holder) for holder in farm.holders if holder != publisher)
            why = f"member {publisher} waits until member {others} has let go"
        elif publisher not in recent:
            why = f"member {publisher} is named, and has no [[farm.publisher]]"
        else:
            why = f"member {publisher} is named and fails; `garlicfarm publish show` on its machine says why"
        yield f"no member publishes: {why}"

    def _clocks(self, farm: FarmQueries) -> Iterator[str]:
        for member in farm.members:
            skew_ms = self._confirmed.get(member, 0)
            if skew_ms and farm.is_recent(member):
                word = "ahead of" if skew_ms > 0 else "behind"
                yield f"the clock of member {member} is {_rough(abs(skew_ms))} {word} the farm's: correct it"


def _rough(ms: int) -> str:
    unit, length = next(
        (unit, length)
        for unit, length in (("days", _DAY_MS), ("h", _HOUR_MS), ("min", _MINUTE_MS), ("s", 1000))
        if ms >= 2 * length
    )
    return f"{round(ms / length)} {unit}"
