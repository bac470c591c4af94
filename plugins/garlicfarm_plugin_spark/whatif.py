"""What a recorded farm would have done under other settings, and how that compares.

A `Recording` decodes a log once, folds it as history, and keeps what does not depend on settings: farm time,
and what each member was worth as the publisher. Each setting is then a `garlicfarm.publishing.replay.Replay`
of what was decoded, at a fraction of the fold's cost.

**Worth.** From one of its statuses to the next, a member is worth the score of the first one under fixed
reference weights, the defaults of `garlicfarm.publishing.scoring`, by the figures that counted in history
then. It is worth nothing if it could not publish: its mode was ``off`` at that status, or it did not report
``meta.publishing`` in a farm where members do, or it was away: its next status, its removal or the log's end
followed more than `AWAY_INTERVALS` intervals later.

At any time a setting is worth as much as its publisher, once that is due: nothing while there is none, during
a hand-over, or while the publisher is away. The *score lost* is by how much the best member was worth more,
in the mean over farm time. So every change costs its hand-over, and a slow one its delay.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from time import thread_time

import msgspec

from garlicfarm.errors import ConfigError, GarlicFarmError
from garlicfarm.publishing import scoring
from garlicfarm.publishing.documents import MetaStatus, NodeReport, StatusDocument
from garlicfarm.publishing.entries import Observation, Status, observe
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.replay import Replay
from garlicfarm.wire import Configuration, ValueType, decode_configuration
from garlicfarm_plugin_spark.grid import Setting
from garlicfarm_plugin_spark.period import Roles
from garlicfarm_plugin_spark.ranking import STATE, Row

AWAY_INTERVALS = 2
"""A member that posts its next status later than this many intervals was away in between."""

Step = Observation | Configuration | bytes
"""What an entry says, or a state."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a log led to under one setting. Times are farm time, ms."""

    margin: int
    R: int
    weights: dict[str, int]
    """in force at the log's end, as the other two"""
    changes: int
    """how often another member was named than the one named before"""
    flaps: int
    """changes back to the one before, see `garlicfarm_plugin_spark.period`"""
    handovers: int
    handover_mean_ms: int | None
    """from the naming of another member until it is the only holder; None: there was no hand-over"""
    handover_max_ms: int | None
    unserved_ms: int
    """how long no publisher was due, or the one that was could not publish"""
    score_lost: int
    """0 … 1,000,000"""
    span_ms: int
    """from the first status to the log's end"""
    cpu_us: int
    """CPU time of the replay"""


class _Integral:
    """A value that changes from time to time, summed up over time."""

    def __init__(self, begin_ms: int) -> None:
        self._times, self._values, self._sums = [begin_ms], [0], [0]

    def set(self, time_ms: int, value: int) -> None:
        """The value from ``time_ms`` on, which is no earlier than the last one."""
        if value != self._values[-1]:
            self._sums.append(self.until(time_ms))
            self._times.append(time_ms)
            self._values.append(value)

    def until(self, time_ms: int) -> int:
        """The sum from the begin to ``time_ms``, value × ms."""
        number = max(bisect_right(self._times, time_ms) - 1, 0)
        return self._sums[number] + self._values[number] * (time_ms - self._times[number])


class _Posted(msgspec.Struct, frozen=True):
    """A status that counts: when, of which member, and whether it is worth its score."""

    time_ms: int
    member: int
    date: int
    interval_ms: int
    score: int
    is_willing: bool
    can_publish: bool


class Recording:
    """A farm's log, decoded, folded and judged, some 2 kB for each entry. ``history``: its replay as it was.
    ``begin_ms`` and ``end_ms``: farm time of its first status and of its end. ``first_index`` and
    ``last_index``: of its entries."""

    def __init__(self, farm: str, rows: Iterable[Row]) -> None:
        """``rows``: as of `garlicfarm_plugin_spark.recorded_log.RecordedLog`.

        :raises ConfigError: there are no entries among them.
        :raises GarlicFarmError: no status of a member is.
        :raises StorageVersion, StorageDamaged: the state that they begin with is of another version or farm.
        """
        self.farm = farm
        self._steps: list[tuple[int, Step]] = []
        self._times: list[int] = []
        self._intervals: list[int] = []
        self.history = Replay(farm)
        posted: list[_Posted | tuple[int, int]] = []
        time_ms, members = 0, self.history.farm.members
        for index, term, kind, value in rows:
            step = _decoded(self.history.farm, term, kind, value)
            _take(self.history, index, step)
            fold = self.history.farm
            time_ms = max(time_ms, fold.farm_time_ms)
            self._steps.append((index, _lean(step) if isinstance(step, Status) else step))
            self._times.append(time_ms)
            self._intervals.append(fold.interval_ms)
            if fold.members != members:
                posted += [(time_ms, gone) for gone in members if gone not in fold.members]
                members = fold.members
            if isinstance(step, Status) and (fold.newest(step.document.id) or (0,))[0] == index:
                posted.append(self._posted(time_ms, step))
        entries = [index for index, step in self._steps if not isinstance(step, bytes)]
        if not entries:
            raise ConfigError([f"the log of {farm} has no committed entries yet: wait for some"])
        self.first_index, self.last_index = entries[0], entries[-1]
        statuses = [each for each in posted if isinstance(each, _Posted)]
        if not statuses:
            raise GarlicFarmError(f"the log of {farm} has no status of a member: nothing to compare")
        self.begin_ms, self.end_ms = statuses[0].time_ms, time_ms
        self._best = _Integral(self.begin_ms)
        self._worth: dict[int, _Integral] = {}
        self._able: dict[int, _Integral] = {}
        self._judge(posted, needs_key=any(each.can_publish for each in statuses))

    def outcome(self, setting: Setting) -> Outcome:
        """What the log leads to under a setting; under an empty one, history.

        :raises ConfigError: its weights do not add up.
        """
        begun = thread_time()
        replay = Replay(self.farm, setting.pinned(self.history.farm.policy), self.history.roles)
        for index, step in self._steps:
            _take(replay, index, step)
        return self._compared(replay, thread_time() - begun)

    def _compared(self, replay: Replay, cpu_s: float) -> Outcome:
        roles, policy = replay.roles, replay.farm.policy
        begins = [max(self._at(self._times, index), self.begin_ms) for index in roles.indexes]
        follow = Roles()
        changes = flaps = worth = able = 0
        handovers: list[int] = []
        last: int | None = None
        is_change = False
        for number, (publisher, holders) in enumerate(roles.roles):
            begin_ms = begins[number]
            end_ms = begins[number + 1] if number + 1 < len(begins) else self.end_ms
            interval_ms = self._at(self._intervals, roles.indexes[number])
            is_flap, handover_ms = follow.follow(begin_ms, publisher, holders, interval_ms)
            flaps += is_flap
            if publisher is None:
                is_change = False  # the one named next may be the same again
            elif publisher != last:
                is_change = last is not None
                changes += is_change
                last = publisher
            if handover_ms is not None and is_change:
                handovers.append(handover_ms)
            if publisher in self._worth and holders == (publisher,):
                worth += self._worth[publisher].until(end_ms) - self._worth[publisher].until(begin_ms)
                able += self._able[publisher].until(end_ms) - self._able[publisher].until(begin_ms)
        span_ms = self.end_ms - self.begin_ms
        return Outcome(
            margin=policy.margin,
            R=policy.R,
            weights=dict(policy.weights),
            changes=changes,
            flaps=flaps,
            handovers=len(handovers),
            handover_mean_ms=round(sum(handovers) / len(handovers)) if handovers else None,
            handover_max_ms=max(handovers, default=None),
            unserved_ms=span_ms - able,
            score_lost=round((self._best.until(self.end_ms) - worth) / span_ms) if span_ms else 0,
            span_ms=span_ms,
            cpu_us=round(1e6 * cpu_s),
        )

    def _at(self, values: list[int], index: int) -> int:
        """A value after the entry at ``index``; before the first one, that of the first."""
        return values[max(index - self._steps[0][0], 0)]

    def _posted(self, time_ms: int, status: Status) -> _Posted:
        fold, member = self.history.farm, status.document.id
        return _Posted(
            time_ms=time_ms,
            member=member,
            date=status.document.date,
            interval_ms=status.node.interval_ms or fold.interval_ms,
            score=scoring.score(fold.statuses[member].parts),
            is_willing=fold.mode(member) != "off",
            can_publish=status.publishing is not None,
        )

    def _judge(self, posted: list[_Posted | tuple[int, int]], *, needs_key: bool) -> None:
        """Sum up what each member was worth, and the best one, from the last status to the first."""
        worths: list[tuple[int, int, int | None]] = []
        following: dict[int, int] = {}
        for each in reversed(posted):
            if not isinstance(each, _Posted):
                removed_ms, member = each
                worths.append((removed_ms, member, None))
                following[member] = removed_ms
                continue
            next_date = following.get(each.member, self.end_ms)
            is_away = next_date - each.date > AWAY_INTERVALS * each.interval_ms
            is_able = each.is_willing and (each.can_publish or not needs_key) and not is_away
            worths.append((each.time_ms, each.member, each.score if is_able else None))
            following[each.member] = each.date
        now: dict[int, int] = {}
        for time_ms, member, worth in reversed(worths):
            now[member] = worth or 0
            self._worth.setdefault(member, _Integral(self.begin_ms)).set(time_ms, worth or 0)
            self._able.setdefault(member, _Integral(self.begin_ms)).set(time_ms, worth is not None)
            self._best.set(time_ms, max(now.values()))


def _decoded(farm: PublisherFold, term: int, kind: int, value: bytes) -> Step:
    if kind == STATE:
        return value
    if kind == ValueType.CONFIGURATION:
        return decode_configuration(value)
    return observe(value, farm.farm, farm.level, term)


def _take(replay: Replay, index: int, step: Step) -> None:
    if isinstance(step, Configuration):
        replay.configure(index, step)
    elif isinstance(step, bytes):
        replay.restore(index, step)
    else:
        replay.fold(index, step)


def _lean(status: Status) -> Status:
    """A status without what decides nothing: a tenth of the memory."""
    document, node = status.document, status.node
    meta = document.meta
    return msgspec.structs.replace(
        status,
        entry=b"null",
        document=StatusDocument(
            cluster=document.cluster,
            date=document.date,
            id=document.id,
            sequence=document.sequence,
            meta=meta and MetaStatus(publishing=meta.publishing, publish_config=meta.publish_config),
        ),
        node=NodeReport(applied=node.applied, interval_ms=node.interval_ms, R=node.R),
    )
