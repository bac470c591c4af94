"""The fold of the Spark query against the node's, without Spark."""

from __future__ import annotations

import random

import pytest

from garlicfarm.errors import RemoteProtocolError
from garlicfarm_plugin_spark.ranking import STATE, Fold, Row
from tests.spark.script import Expected, Node, expectations, scripted_log

LOG = scripted_log()
EXPECTED = expectations(LOG)


def rows(after: int, upto: int) -> list[Row]:
    return [(each.index, each.term, int(each.value_type), each.value) for each in LOG[after:upto]]


def said(fold: Fold) -> Expected:
    row = fold.row()
    assert (row.pop("farm"), row.pop("log_index")) == ("farm", fold.index)
    return Expected(**row)


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
        fold.apply(rows(max(0, index - chance.randrange(4)), upto))
        assert said(fold) == EXPECTED[upto]
        index, snapshot = fold.index, fold.snapshot()


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
    assert said(fold) == EXPECTED[90]
    fold.apply([(60, 0, STATE, node.farm.snapshot())])  # older than what is folded
    assert said(fold) == EXPECTED[90]


def test_fold_over_a_gap_is_refused() -> None:
    fold = Fold("farm")
    with pytest.raises(RemoteProtocolError, match="index 3 follows 1"):
        fold.apply([*rows(0, 1), *rows(2, 5)])
