"""The fold of the Spark query against the node's, without Spark."""

from __future__ import annotations

import json
import operator
import random
from typing import Any, NamedTuple, get_args

import pytest

from garlicfarm.errors import ConfigError, RemoteProtocolError
from garlicfarm.publishing.entries import encode_status
from garlicfarm.raft.types import Entry
from garlicfarm.wire import encode_configuration
from garlicfarm.wire.messages import ValueType
from garlicfarm_plugin_spark.ranking import STATE, Fold, Row, Rows
from tests.publishing.scripted_log import T0, configuration, status
from tests.spark.script import Expected, Node, expectations, fold_rows, many_entries, scripted_log

LOG = scripted_log()
EXPECTED = expectations(LOG)
KINDS = get_args(Rows)
OTHERS = ("farm", "log_index", "changed")
NOTHING = {
    "publisher": None,
    "holders": [],
    "recency": [],
    "order": [],
    "policy": [30_000, 3, 50_000, 3_600_000, [], {}],
}


def rows(after: int, upto: int, log: list[Entry] = LOG) -> list[Row]:
    return fold_rows(log[after:upto])


def said(row: dict[str, Any]) -> Expected:
    assert row["farm"] == "farm"
    return Expected(**{name: value for name, value in row.items() if name not in OTHERS})


def plain_changes(answers: dict[int, Expected]) -> dict[int, set[str]]:
    """What each entry changes, by what a node answers before and after it, and nothing of the query's."""
    found, before = {}, NOTHING
    for index, expected in answers.items():
        body = json.loads(expected.ranking)
        after = {
            "publisher": body["publisher"],
            "holders": body["holders"],
            "recency": [each["id"] for each in body["members"] if each["recent"]],
            "order": [each["id"] for each in body["members"]],
            "policy": [
                body[name] for name in ("interval_ms", "R", "margin", "lifetime_ms", "excluded", "orders")
            ],
        }
        after["recency"].sort()
        names = {name for name in after if after[name] != before[name]}
        if names or index == 1:
            found[index] = names
        before = after
    return found


class Long(NamedTuple):
    """A long log, what a node says at each index, what each entry changes if anything, and the indexes where
    nothing changes but an hour begins."""

    log: list[Entry]
    expected: dict[int, Expected]
    changes: dict[int, set[str]]
    hours: list[int]


@pytest.fixture(scope="module")
def long() -> Long:
    log = many_entries(900)
    expected = expectations(log)
    changes = {index: names for index, names in plain_changes(expected).items() if names}
    hour = {index: each.farm_time_ms // 3_600_000 for index, each in expected.items()}
    hours = [
        index for index in range(2, len(log) + 1) if index not in changes and hour[index] > hour[index - 1]
    ]
    return Long(log, expected, changes, hours)


def test_script_has_all_that_can_happen() -> None:
    publishers = {each.publisher for each in EXPECTED.values()}
    assert publishers >= {None, 2, 3, 4}
    assert set(EXPECTED[len(LOG)].skipped) >= {"not a member", "repeated"}
    assert len(EXPECTED[len(LOG)].skipped) >= 4
    assert len({each.contents for each in EXPECTED.values()}) > 3
    assert len({tuple(each.order) for each in EXPECTED.values()}) > 5


@pytest.mark.parametrize("seed", range(20))
def test_fold_in_random_cuts_is_that_of_the_node_at_every_cut(seed: int) -> None:
    """Each batch goes on from a snapshot, and some of its rows were in the batch before."""
    chance = random.Random(seed)
    index, snapshot = 0, b""
    while index < len(LOG):
        fold = Fold("farm", index, snapshot)
        upto = min(len(LOG), index + chance.choice((1, 1, 2, 5, 30)))
        (row,) = fold.rankings(rows(max(0, index - chance.randrange(4)), upto), "batches")
        assert row["log_index"] == upto
        assert said(row) == EXPECTED[upto]
        index, snapshot = fold.index, fold.snapshot()


@pytest.mark.parametrize("seed", range(10))
def test_changes_in_random_cuts_are_those_of_each_entry(seed: int, long: Long) -> None:
    """No change is lost inside a batch, and none is told twice, wherever the log is cut: each batch begins
    with a snapshot, as after a restart, and repeats rows of the batch before."""
    chance = random.Random(seed)
    found: list[dict[str, Any]] = []
    index, snapshot = 0, b""
    while index < len(long.log):
        fold = Fold("farm", index, snapshot)
        upto = min(len(long.log), index + chance.choice((1, 2, 5, 30, 150, len(long.log))))
        batch = rows(max(0, index - chance.randrange(4)), upto, long.log)
        found += fold.rankings(batch, "changes")
        index, snapshot = fold.index, fold.snapshot()
    hours = [row["log_index"] for row in found if not row["changed"]]
    assert {row["log_index"]: {*row["changed"]} for row in found if row["changed"]} == long.changes
    assert hours == long.hours
    for row in found:
        assert said(row) == long.expected[row["log_index"]]


def test_changes_of_the_publisher_are_all_there_where_one_batch_has_one_row(long: Long) -> None:
    log = long.log
    seen = {
        kind: [row["publisher"] for row in Fold("farm").rankings(rows(0, len(log), log), kind)]
        for kind in KINDS
    }
    flips = {kind: sum(map(operator.ne, seen[kind], seen[kind][1:])) for kind in KINDS}
    assert flips == {"changes": flips["entries"], "batches": 0, "entries": flips["entries"]}
    assert flips["entries"] > 20
    assert (len(seen["entries"]), len(seen["batches"])) == (len(log), 1)
    assert len(seen["changes"]) < len(log)


def test_changes_of_the_script_are_of_all_five_kinds(long: Long) -> None:
    assert {name for names in long.changes.values() for name in names} == {*NOTHING}


def test_changes_of_a_quiet_farm_have_one_row_an_hour_and_say_that_nothing_changed() -> None:
    minute_ms = 60_000
    log = [Entry(1, 1, ValueType.CONFIGURATION, encode_configuration(configuration(1, 2, index=1)))]
    for number in range(60):
        date = T0 + number // 2 * 10 * minute_ms
        post = {"applied": number + 1, "sequence": date, "publishing": number % 2 == 0}
        made = status(1 + number % 2, date, **post)
        log.append(Entry(number + 2, 1, ValueType.APPLICATION, encode_status(made)))
    found = list(Fold("farm").rankings(rows(0, len(log), log), "changes"))
    quiet = [row["farm_time_ms"] - T0 for row in found if not row["changed"]]
    assert quiet == [hour * 60 * minute_ms for hour in range(1, 5)]
    assert found[-1]["farm_time_ms"] - T0 == 4 * 60 * minute_ms


def test_changes_after_a_state_begin_with_it() -> None:
    """It stands for entries that were deleted, and what they changed is in its row."""
    state = Node()
    for entry in LOG[:60]:
        state.apply(entry)
    found = list(Fold("farm").rankings([(60, 0, STATE, state.farm.snapshot()), *rows(60, 61)], "changes"))
    assert found[0]["log_index"] == 60
    assert found[0]["changed"] == ["publisher", "holders", "recency", "order", "policy"]
    fold = Fold("farm")
    fold.apply(rows(0, 59))
    (again,) = fold.rankings([(60, 0, STATE, state.farm.snapshot())], "changes")
    assert said(again) == EXPECTED[60]


def test_fold_without_the_genesis_has_the_bits_of_one_with_it() -> None:
    """The first Configuration of a store is no entry of the log; entry 1 repeats it."""
    node = Node(genesis=None)
    for entry in LOG:
        node.apply(entry)
        assert node.expected() == EXPECTED[entry.index]


def test_fold_of_a_state_goes_on_from_there() -> None:
    node = Node()
    for entry in LOG[:60]:
        node.apply(entry)
    fold = Fold("farm")
    fold.apply([(60, 0, STATE, node.farm.snapshot()), *rows(60, 90)])
    assert said(fold.row()) == EXPECTED[90]
    fold.apply([(60, 0, STATE, node.farm.snapshot())])  # older than what is folded
    assert said(fold.row()) == EXPECTED[90]


def test_fold_over_a_gap_is_refused() -> None:
    fold = Fold("farm")
    with pytest.raises(RemoteProtocolError, match="index 3 follows 1"):
        fold.apply([*rows(0, 1), *rows(2, 5)])


def test_fold_that_begins_amid_the_log_asks_for_a_state() -> None:
    sentence = "the entries of farm begin at index 3, behind .*: read them with startingIndex=state"
    with pytest.raises(ConfigError, match=sentence):
        Fold("farm").apply(rows(2, 5))
