"""The figures of `rank whatif` a second time, from their description and without regard for speed.

It shares no code with `garlicfarm_plugin_spark.whatif` and `garlicfarm.publishing.replay`: it folds with
`NaiveFold`, keeps who was named at every index, and goes over all of it again for every stretch of time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

import msgspec

from tests.publishing.naive_fold import DEFAULTS, NaiveFold, Said

Step = list[int] | tuple[bytes, str | None]
"""The members of a Configuration, or an entry and why it is malformed."""


class State(msgspec.Struct):
    """The farm after an entry. ``said``: the status of a member that it is, with the interval, the mode and
    the score by the weights of a new farm then."""

    publisher: int | None
    holders: list[int]
    members: list[int]
    farm_time_ms: int
    interval_ms: int
    said: tuple[Said, int, str, int] | None
    lost: int
    """how many were found lost that held"""


class NaiveReplay(NaiveFold):
    """``pins``: parameters that hold after ``first_index``; ``history``: the states of the log as it was,
    from ``first_index`` on; None: this is it."""

    def __init__(self, pins: dict[str, Any], first_index: int, history: list[State] | None = None) -> None:
        super().__init__("farm")
        self.pins, self.first_index, self.history = pins, first_index, history
        self.states: list[State] = []
        self.at = 0

    def policy(self) -> dict[str, Any]:
        return super().policy() | (self.pins if self.at > self.first_index else {})

    def status(self, said: Said) -> None:
        if self.at > self.first_index:
            said.R = self.pins.get("R", said.R)
            if self.history is not None and said.publishing is not None:
                began = said.index - 1 if said.applied is None else min(said.applied, said.index - 1)
                mine = role(self.states, began - self.first_index)
                if mine != role(self.history, began - self.first_index):
                    said.publishing = mine == (said.entry["id"], [said.entry["id"]])
        super().status(said)

    def releases_silent(self) -> bool:
        """Where a leader looked for others, silence has to be enough."""
        at = self.at - 1 - self.first_index
        is_other = self.history is not None and role(self.states, at) != role(self.history, at)
        return is_other or super().releases_silent()

    def is_found(self, index: int, is_right: bool) -> bool:
        at = self.at - self.first_index
        if self.history is None or at <= 0:
            return is_right
        return self.history[at].lost > self.history[at - 1].lost

    def run(self, log: Sequence[Step], level: int) -> list[State]:
        for self.at, step in enumerate(log, 1):
            if isinstance(step, list):
                self.configure(self.at, step, level)
            else:
                self.apply(self.at, *step)
            if self.at < self.first_index:
                continue
            said = None
            if isinstance(step, tuple) and step[1] is None:
                newest = self.newest(json.loads(step[0])["id"])
                if newest is not None and newest.index == self.at:
                    member = newest.entry["id"]
                    score = self.score(member, DEFAULTS["weights"])
                    said = newest, newest.interval_ms, self.mode(member), score
            self.states.append(
                State(
                    publisher=self.publisher,
                    holders=sorted(self.holders),
                    members=[*self.members],
                    farm_time_ms=self.farm_time_ms,
                    interval_ms=self.policy()["interval_ms"],
                    said=said,
                    lost=len(self.found_lost),
                )
            )
        return self.states


def role(states: list[State], place: int) -> tuple[int | None, list[int]]:
    return (None, []) if place < 0 else (states[place].publisher, states[place].holders)


def figures(
    log: Sequence[Step], pins: dict[str, Any], first_index: int = 1, level: int = 0
) -> dict[str, Any]:
    """All but the CPU time; none if there is no status. ``first_index``: where the log
    that is replayed begins; if that is more than 1, with the state there. ``level``: of the farm."""
    history = NaiveReplay({}, first_index).run(log, level)
    replay = NaiveReplay(pins, first_index, history)
    states, policy = replay.run(log, level), replay.policy()
    times = [max(state.farm_time_ms for state in history[: place + 1]) for place in range(len(history))]
    if first_index > 1:
        history[0].said = None  # a state, not a status
    posted = [(place, *state.said) for place, state in enumerate(history) if state.said is not None]
    if not posted:
        return {}
    needs_key = any(said.publishing is not None for _, said, _, _, _ in posted)
    begin, end_ms = posted[0][0], times[-1]
    times = [max(time_ms, times[begin]) for time_ms in times]

    def worth(member: int | None, now: int) -> int | None:
        """None: it could not publish."""
        own = [each for each in posted if each[1].entry["id"] == member]
        before, after = [each for each in own if each[0] <= now], [each for each in own if each[0] > now]
        if not before:
            return None
        at, said, interval_ms, mode, score = before[-1]
        removals = [place for place in range(at, len(history)) if member not in history[place].members]
        if removals and removals[0] <= now:
            return None
        if removals and (not after or removals[0] < after[0][0]):
            until_ms = times[removals[0]]
        else:
            until_ms = after[0][1].date if after else end_ms
        if mode == "off" or (needs_key and said.publishing is None) or until_ms - said.date > 2 * interval_ms:
            return None
        return score

    unserved_ms = lost = 0
    for place in range(begin, len(states) - 1):
        lasts_ms = times[place + 1] - times[place]
        if lasts_ms:
            publisher, holders = role(states, place)
            served = worth(publisher, place) if holders == [publisher] else None
            best = max(worth(member, place) or 0 for member in history[place].members)
            unserved_ms += lasts_ms * (served is None)
            lost += lasts_ms * (best - (served or 0))

    runs = [(p, [*places]) for p, places in groupby(range(len(states)), lambda at: states[at].publisher)]
    named = [(publisher, places) for publisher, places in runs if publisher is not None]
    changes = [(places, after) for (one, _), (after, places) in pairwise(named) if one != after]
    sole = [[at for at in places if states[at].holders == [after]] for places, after in changes]
    took_ms = [
        times[done[0]] - times[places[0]] for (places, _), done in zip(changes, sole, strict=True) if done
    ]
    flaps = sum(
        publisher is not None
        and between is not None
        and publisher == again
        and times[back[0]] - times[there[0]] < 10 * history[back[0]].interval_ms
        for (publisher, _), (between, there), (again, back) in zip(runs, runs[1:], runs[2:], strict=False)
    )
    span_ms = end_ms - times[begin]
    return {
        **{name: policy[name] for name in ("margin", "R", "weights")},
        "changes": len(changes),
        "flaps": flaps,
        "handovers": len(took_ms),
        "handover_mean_ms": round(sum(took_ms) / len(took_ms)) if took_ms else None,
        "handover_max_ms": max(took_ms, default=None),
        "unserved_ms": unserved_ms,
        "score_lost": round(lost / span_ms) if span_ms else 0,
        "span_ms": span_ms,
    }
