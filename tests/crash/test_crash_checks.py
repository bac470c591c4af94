"""The crash test's checks find what they are for, each in a small log that is wrong in one way."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from garlicfarm.log_application import LogApplication
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.raft.types import Entry, HardState
from garlicfarm.wire import ValueType, encode_configuration
from garlicfarm.wire.messages import ClusterServer, Configuration
from tests.crash.crash_checks import Attempts, Log, Violation, check_attempts, check_logs, fold

GENESIS = Configuration(0, 0, (ClusterServer(1, "ssl://a.example:1"),))


def log(*labels: str) -> Log:
    """A log with a Configuration, then an entry per label."""
    entries = [Entry(1, 1, ValueType.CONFIGURATION, encode_configuration(GENESIS))]
    entries += [
        Entry(index, 1, ValueType.APPLICATION, label.encode().ljust(20, b"."))
        for index, label in enumerate(labels, 2)
    ]
    return Log(HardState(1, 1, len(entries)), GENESIS, entries)


def note(by: str, sequence: int) -> str:
    return f'{{"cluster":"farm","date":1,"id":0,"sequence":{sequence},"config":{{"by":"{by}"}}}}'


def attempts(*acknowledged: tuple[str, int], unknown: tuple[str, ...] = (), term: int = 1) -> Any:
    terms = {index: term for _, index in acknowledged}
    return Attempts(
        [(label, index, 0.0) for label, index in acknowledged], Counter(unknown), Counter(), terms
    )


def check(told: Attempts, found: Log) -> int:
    return check_attempts(told, found, LogApplication())


def test_attempts_that_all_are_where_they_were_acknowledged_pass() -> None:
    assert check(attempts(("a-1", 2), ("a-3", 4), unknown=("a-2", "b-1")), log("a-1", "a-2", "a-3")) == 1


@pytest.mark.parametrize(
    ("told", "found", "sentence"),
    [
        (
            attempts(("a-1", 2), ("a-2", 3)),
            log("a-1"),
            "1 of 2 acknowledged entries are missing.*a-2 at index 3",
        ),
        (attempts(("a-1", 2)), log("b-1", "a-1"), "missing.*a-1 at index 2, where the log has b-1"),
        (attempts(("a-1", 2), term=2), log("a-1"), "a-1 was acknowledged in term 2"),
        (attempts(("a-1", 2)), log("a-1", "a-1"), "a-1 is in the log 2 times"),
        (attempts(unknown=("a-1",)), log("a-1", "a-1"), "a-1 is in the log 2 times"),
        (attempts(("a-1", 2)), log("a-1", "b-1"), "b-1 is in the log 1 times; 0 attempts were acknowledged"),
        (attempts(("a-2", 3), ("a-1", 2)), log("a-1", "a-2"), "a-1 is at index 2; a was told 3 before"),
    ],
    ids=[
        "missing",
        "elsewhere",
        "other-term",
        "acknowledged-twice",
        "unknown-twice",
        "never-sent",
        "out-of-order",
    ],
)
def test_attempts_that_the_log_contradicts_are_told(told: Any, found: Any, sentence: str) -> None:
    with pytest.raises(Violation, match=sentence):
        check(told, found)


def test_fold_of_a_note_that_came_twice_applies_it_once() -> None:
    applied = fold(log(*(note("a", n) for n in (1, 1, 2, 1))), PublisherFold("farm"), 5)
    assert applied == {"a-1": 1, "a-2": 1}


def test_fold_that_applies_an_entry_twice_is_told() -> None:
    with pytest.raises(Violation, match="a-1 was applied 2 times"):
        fold(log("a-1", "a-1"), LogApplication(), 3)


def test_logs_that_differ_or_are_short_or_fold_to_another_state_are_told() -> None:
    application = LogApplication()
    fold(log("a-1", "a-2"), application, 3)
    state = application.snapshot()
    check_logs({1: log("a-1", "a-2"), 2: log("a-1", "a-2", "a-3")}, {1: state}, application, 3)
    for other, states, sentence in (
        (log("a-1", "b-2"), {1: state}, "nodes 1 and 2 differ at index 3"),
        (log("a-1"), {1: state}, "node 2 has applied entry 3; its log ends at 2"),
        (log("a-1", "a-2"), {1: state, 2: bytes(40)}, "node 2 served a state at index 3"),
    ):
        with pytest.raises(Violation, match=sentence):
            check_logs({1: log("a-1", "a-2"), 2: other}, states, application, 3)
