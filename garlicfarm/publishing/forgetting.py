"""Members that stay silent are removed, where an order says so: which one, and when (D28).

*Silence* is counted in the time that the farm has served, by farm time: from the member's newest status, or
from when it became a member. A step of farm time counts as R intervals at most, and a step back as nothing.
So neither a stop of the whole farm nor a clock that is set makes anybody silent for days.

Who is silent for how long is part of the fold's state, so a new leader does not count anew. The leader
removes a member only if it does not hear it either, nor does another member reach it.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from garlicfarm.levels import FORGETTING, level_of
from garlicfarm.publishing.documents import connect_tests
from garlicfarm.publishing.farm_queries import FarmQueries
from garlicfarm.publishing.fold_state import FarmState, ServedState
from garlicfarm.publishing.own_clock import rough_time


class Silence(msgspec.Struct, frozen=True):
    """A member that will be removed if it stays silent: ``for_ms`` so far; ``left_ms`` until then, 0: it is
    due."""

    member: int
    for_ms: int
    left_ms: int

    @property
    def told(self) -> str:
        """The same in words, without the member."""
        when = f"in {rough_time(self.left_ms)}" if self.left_ms else "once no other member reaches it"
        return f"silent for {rough_time(self.for_ms)}, and will be removed {when}"


# ------------------------------------------------------------------ the fold's part


def configure(state: FarmState) -> None:
    """The members and the level of ``state`` are those of a Configuration now."""
    if not state.served and level_of(state.algorithm) >= FORGETTING:
        state.served = ServedState(until_ms=state.farm_time_ms)
    if served := state.served:
        served.heard = {member: served.heard.get(member, served.ms) for member in state.members}


def on_farm_time(state: FarmState) -> None:
    """Farm time may be another one."""
    if served := state.served:
        step_ms, most_ms = state.farm_time_ms - served.until_ms, state.policy.R * state.policy.interval_ms
        if step_ms > 0 or step_ms < -most_ms:
            served.ms += max(min(step_ms, most_ms), 0)
            served.until_ms = state.farm_time_ms


def on_status(state: FarmState, author: int) -> None:
    """A status of ``author`` has been folded in."""
    if served := state.served:
        served.heard[author] = served.ms


# ------------------------------------------------------------------ what follows


def silences(farm: FarmQueries) -> list[Silence]:
    """The members that will be removed if they stay silent, longest first. None without an order to do so,
    and never more than may be removed."""
    return _silences(farm)[: _spare(farm)]


def to_remove(farm: FarmQueries, leader: int, unheard: Collection[int]) -> int | None:
    """The member that the leader removes now, if any: one that is due, is ``unheard`` by the leader, and is
    not reached by any recent member, by the connect tests of its newest status."""
    silent = [one.member for one in _silences(farm) if not one.left_ms and _spare(farm)]
    due = [one for one in silent if one in unheard and one != leader]
    return next((one for one in due if not _is_reached(farm, one)), None)


def _silences(farm: FarmQueries) -> list[Silence]:
    forget, served = farm.policy.forget, farm.state.served
    if not forget or not served:
        return []
    silent_ms = {one: served.ms - served.heard[one] for one in farm.members if not farm.is_recent(one)}
    return [
        Silence(one, ms, max(forget.after_ms - ms, 0))
        for one, ms in sorted(silent_ms.items(), key=lambda silent: (-silent[1], silent[0]))
    ]


def _is_reached(farm: FarmQueries, member: int) -> bool:
    newest = (connect_tests(farm.statuses[one].document, farm.report(one)) for one in farm.recent())
    return any((member, True) in tests for tests in newest)


def _spare(farm: FarmQueries) -> int:
    """How many members the order lets be removed."""
    forget = farm.policy.forget
    return max(len(farm.members) - forget.min_members, 0) if forget else 0
