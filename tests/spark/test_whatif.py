"""Logs that `rank whatif` cannot replay, and the order of answers. Figures: `test_whatif_against_naive`."""

from __future__ import annotations

import random

import msgspec
import pytest

from garlicfarm.errors import GarlicFarmError, StorageDamaged
from garlicfarm.publishing.entries import encode_admin
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.wire import encode_configuration
from garlicfarm.wire.messages import ValueType
from garlicfarm_plugin_spark.grid import Setting
from garlicfarm_plugin_spark.ranking import STATE
from garlicfarm_plugin_spark.replays import Answer, ranked
from garlicfarm_plugin_spark.whatif import Outcome, Recording
from tests.publishing.scripted_log import T0, configuration


def test_log_without_a_status_has_nothing_to_compare() -> None:
    first = encode_configuration(configuration(1, 2, index=1))
    order = encode_admin("farm", T0, 1, None, "staleness", "alice", {"R": 4})
    with pytest.raises(GarlicFarmError, match="no status of a member"):
        Recording("farm", [(1, 1, ValueType.CONFIGURATION, first), (2, 1, ValueType.APPLICATION, order)])


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
