"""What `rank whatif` says of a log, without Spark."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest

from garlicfarm.errors import GarlicFarmError, StorageDamaged
from garlicfarm.publishing import scoring
from garlicfarm.publishing.entries import Status, encode_admin, observe
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.policy import Pinned
from garlicfarm.publishing.replay import Replay
from garlicfarm.wire import decode_configuration, encode_configuration
from garlicfarm.wire.messages import ValueType
from garlicfarm_plugin_spark.grid import Setting, settings_of
from garlicfarm_plugin_spark.ranking import STATE, Row
from garlicfarm_plugin_spark.replays import Answer, ranked
from garlicfarm_plugin_spark.whatif import AWAY_INTERVALS, Outcome, Recording
from tests.publishing.posting import INTERVAL_MS
from tests.publishing.scripted_log import T0, configuration
from tests.spark.script import many_entries
from tests.spark.whatif_log import recorded

CONFIGURATION = int(ValueType.CONFIGURATION)


def folded(rows: Sequence[Row], replay: Replay) -> list[tuple[int | None, tuple[int, ...], int]]:
    """Publisher, holders and farm time after each row, of whole statuses."""
    found = []
    for index, _, kind, value in rows:
        if kind == CONFIGURATION:
            replay.configure(index, decode_configuration(value))
        else:
            replay.fold(index, observe(value, "farm"))
        found.append((replay.farm.publisher, replay.farm.holders, replay.farm.farm_time_ms))
    return found


def naive(rows: Sequence[Row], pinned: Pinned) -> dict[str, int]:
    """The figures again, from their description and entry by entry."""
    history = Replay("farm")
    times = [time_ms for _, _, time_ms in folded(rows, history)]
    for place in range(1, len(times)):
        times[place] = max(times[place - 1 : place + 1])
    states = folded(rows, Replay("farm", pinned, history.roles))
    statuses = [(place, observe(value, "farm")) for place, (_, _, _, value) in enumerate(rows)]
    posted = [(place, each) for place, each in statuses if isinstance(each, Status)]

    def worth(member: int | None, place: int) -> int | None:
        """None: it could not publish."""
        before = [each for at, each in posted if at <= place and each.document.id == member]
        after = [each.date for at, each in posted if at > place and each.document.id == member]
        if not before or before[-1].publishing is None:
            return None
        gap_ms = (after[0] if after else times[-1]) - before[-1].date
        return None if gap_ms > AWAY_INTERVALS * INTERVAL_MS else scoring.score(before[-1].parts)

    unserved_ms = lost = 0
    named = [publisher for publisher, _, _ in states if publisher is not None]
    changes = sum(one != other for one, other in pairwise(named))
    begin = next(place for place, time_ms in enumerate(times) if time_ms)
    for place in range(begin, len(rows) - 1):
        span_ms = times[place + 1] - times[place]
        publisher, holders, _ = states[place]
        served = worth(publisher, place) if holders == (publisher,) else None
        best = max(worth(member, place) or 0 for member in (1, 2, 3, 4))
        unserved_ms += span_ms * (served is None)
        lost += span_ms * (best - (served or 0))
    whole_ms = times[-1] - times[begin]
    return {
        "changes": changes,
        "unserved_ms": unserved_ms,
        "score_lost": round(lost / whole_ms),
        "span_ms": whole_ms,
    }


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_figures_are_those_of_their_description(seed: int) -> None:
    rows = recorded(seed)
    recording = Recording("farm", rows)
    for setting in [Setting(), *settings_of([("margin", (0, 100_000)), ("R", (3, 8))])]:
        outcome = recording.outcome(setting)
        expected = naive(rows, setting.pinned(recording.history.farm.policy))
        assert {name: getattr(outcome, name) for name in expected} == expected
    assert recording.outcome(Setting(margin=0)).changes > 2


@pytest.mark.parametrize("seed", range(3))
def test_outcome_is_that_of_whole_statuses(seed: int) -> None:
    """What is kept of a status is enough, also of a log with orders, removed members and nonsense."""
    rows = [(each.index, each.term, int(each.value_type), each.value) for each in many_entries(400)]
    for log in (rows, recorded(seed)):
        recording = Recording("farm", log)
        whole = Replay("farm")
        folded(log, whole)
        assert (recording.history.roles.indexes, recording.history.roles.roles) == (
            whole.roles.indexes,
            whole.roles.roles,
        )
        again = recording.outcome(Setting())
        assert (again.margin, again.R) == (whole.farm.policy.margin, whole.farm.policy.R)
        named = [publisher for publisher, _ in whole.roles.roles if publisher is not None]
        assert again.changes == sum(one != other for one, other in pairwise(named)) > 0


def test_log_that_begins_with_a_state_goes_on_from_there() -> None:
    rows = recorded(1)
    whole, cut = Recording("farm", rows), 60
    farm = PublisherFold("farm")
    for index, term, kind, value in rows[:cut]:
        if kind == CONFIGURATION:
            farm.configure(index, decode_configuration(value))
        else:
            farm.apply(index, term, value)
    rest = Recording("farm", [(rows[cut - 1][0], 0, STATE, farm.snapshot()), *rows[cut:]])
    at = range(cut, rows[-1][0] + 1)
    assert [rest.history.roles.at(index) for index in at] == [whole.history.roles.at(index) for index in at]
    assert rest.outcome(Setting(margin=0)).changes > rest.outcome(Setting()).changes


def test_log_without_a_status_has_nothing_to_compare() -> None:
    first = encode_configuration(configuration(1, 2, index=1))
    order = encode_admin("farm", T0, 1, None, "staleness", "alice", {"R": 4})
    with pytest.raises(GarlicFarmError, match="no status of a member"):
        Recording("farm", [(1, 1, CONFIGURATION, first), (2, 1, int(ValueType.APPLICATION), order)])


def test_state_of_another_farm_is_refused() -> None:
    with pytest.raises(StorageDamaged):
        Recording("farm", [(7, 0, STATE, PublisherFold("other").snapshot())])


def answer(setting: Setting, **figures: int) -> Answer:
    known = {"margin": setting.margin or 50_000, "R": setting.R or 3, "changes": 1, "score_lost": 10}
    rest = dict.fromkeys(("flaps", "handovers", "unserved_ms", "span_ms", "cpu_us"), 0)
    made = Outcome(weights={}, handover_mean_ms=None, handover_max_ms=None, **{**rest, **known, **figures})
    return Answer(setting, made)


def test_answers_are_ranked_by_score_lost_then_changes_without_repeating_history() -> None:
    history = answer(Setting(), cpu_us=5)
    same, equal = answer(Setting(margin=50_000)), answer(Setting(margin=60_000))
    better, calmer = answer(Setting(margin=1), score_lost=9), answer(Setting(margin=2), changes=0)
    differs = answer(Setting(margin=50_000, R=3), changes=2)  # history had others for a while
    answers = [same, equal, differs, history, calmer, better]
    random.Random(1).shuffle(answers)
    assert ranked(answers) == [better, calmer, history, equal, differs]
    assert [each.is_current for each in ranked(answers)] == [False, False, True, False, False]
    assert ranked([same, better]) == [better, same]  # history was not compared yet
    assert msgspec.structs.asdict(history.outcome)["cpu_us"] == 5
