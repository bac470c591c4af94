"""The checker of histories finds each rule broken, and agrees with a search over all orders."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.linearizable import Post, Read
from tests.chaos.linearizable import check_linearizable as check
from tests.crash.crash_checks import Violation

LOG = {2: "a", 3: "b", 5: "c"}


def posts(*left_out: str) -> list[Any]:
    """One after the other: a until 1 s, b until 3 s, c until 5 s."""
    made = {
        label: Post(label, 2.0 * at, 2.0 * at + 1, index) for at, (index, label) in enumerate(LOG.items())
    }
    return [post for label, post in made.items() if label not in left_out]


def test_history_in_order_is_linearizable() -> None:
    reads = [
        Read(0.5, 0.6, 1),  # a is on its way: not yet, or already
        Read(0.5, 0.6, 2, 0, 2, {2: "a"}),
        Read(2.5, 3.5, 3, 2, 3, {3: "b"}),
        Read(9.0, 9.5, 7, 0, 7, LOG),
        Read(9.0, 9.5, 7),
    ]
    assert check([*posts(), *reads], LOG) == 8


def test_reads_at_the_same_time_may_see_a_post_in_either_order() -> None:
    assert check([*posts(), Read(2.1, 2.9, 3), Read(2.2, 2.8, 2)], LOG) == 5


def test_post_of_unknown_outcome_is_in_the_log_or_not_and_late() -> None:
    unknown = Post("b", 2.0, 2.5)
    assert check([*posts("b"), unknown], LOG) == 3
    assert check([*posts("b"), Post("b", 0.0), Post("x", 0.0), Read(4.9, 9.0, 2)], LOG | {}) == 4
    assert check([*posts("c"), Post("c", 0.0), Read(50.0, 51.0, 3), Read(52.0, 53.0, 5)], LOG) == 5


@pytest.mark.parametrize(
    ("operations", "log", "sentence"),
    [
        ([*posts(), Read(3.5, 3.6, 2)], LOG, "not linearizable: the post of b ended 500.0 ms before a read"),
        ([*posts(), Read(2.1, 2.3, 3), Read(2.5, 2.6, 2)], LOG, "not linearizable: a read up to index 3"),
        ([*posts(), Read(1.8, 1.9, 3)], LOG, "a read up to index 3 .* ended 100.0 ms before the post of b"),
        ([*posts("a"), Post("a", 3.5, 6.0, 2)], LOG, "the post of b ended 500.0 ms before the post of a"),
        ([*posts("b"), Post("b", 5.5)], LOG, "the post of c ended 500.0 ms before the post of b"),
        (posts(), {2: "a", 3: "b"}, "c was acknowledged at index 5, where the log has nothing"),
        (posts(), {2: "a", 3: "c", 5: "b"}, "b was acknowledged at index 3, where the log has c"),
        (posts(), LOG | {6: "b"}, "b was posted once and is in the log at 3 and 6"),
        (
            [*posts("b"), Post("b", 0.0, 1.0, refused=True)],
            LOG,
            "b was refused, and is in the log at index 3",
        ),
        (posts("b"), LOG, "b is in the log, and no client posted it"),
        ([*posts(), Read(9.0, 9.1, 5, 0, 5, {2: "a", 5: "c"})], LOG, "showed nothing at index 3, .* has b"),
        ([*posts(), Read(9.0, 9.1, 5, 0, 5, LOG | {4: "x"})], LOG, "showed x at index 4, .* has nothing"),
        ([*posts(), Read(9.0, 9.1, 5, 2, 5, {3: "c", 5: "b"})], LOG, "showed c at index 3, where .* has b"),
    ],
)
def test_history_that_breaks_a_rule_says_which(operations, log, sentence):
    with pytest.raises(Violation, match=sentence):
        check(operations, log)


TIMES = st.lists(st.integers(0, 7), min_size=2, max_size=2).map(sorted)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Any], dict[int, str]]:
    """Up to three posts, some of which are in the log, in any order, and up to three reads."""
    labels = draw(st.permutations("abc"))[: draw(st.integers(0, 3))]
    log = dict(enumerate(labels, 1))
    made: list[Any] = []
    for label in "abc":
        begun, ended = map(float, draw(TIMES))
        index = next((index for index, each in log.items() if each == label), 0)
        made.append(Post(label, begun, ended, index if draw(st.booleans()) else 0))
    for _ in range(draw(st.integers(0, 3))):
        begun, ended = map(float, draw(TIMES))
        made.append(Read(begun, ended, draw(st.integers(0, len(log)))))
    return made, log


def found_by_search(operations: list[Any], log: dict[int, str]) -> bool:
    """By all orders of all operations that took effect: is there one that a log on one machine could have
    had, and in which none stands before one that ended before it began?"""
    effective = [each for each in operations if isinstance(each, Read) or each.label in log.values()]
    for order in itertools.permutations(effective):
        made: list[str] = []
        possible = True
        for place, each in enumerate(order):
            if isinstance(each, Read):
                possible &= made == [log[index] for index in sorted(log) if index <= each.upto]
            else:
                made.append(each.label)
            for later in order[place + 1 :]:
                ended = math.inf if isinstance(later, Post) and not later.index else later.ended_s
                possible &= ended >= each.begun_s
        if possible and made == [log[index] for index in sorted(log)]:
            return True
    return False


@given(histories())
def test_checker_agrees_with_a_search_over_all_orders(history: tuple[list[Any], dict[int, str]]) -> None:
    operations, log = history
    try:
        check(operations, log)
        accepted = True
    except Violation:
        accepted = False
    assert accepted == found_by_search(operations, log)
