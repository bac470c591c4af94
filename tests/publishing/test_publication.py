"""What a ranking says of the publication: by whom, when, and what is wrong with it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from garlicfarm.publishing.documents import ConnectTest, MetaStatus, NodeReport, RemoteStatus
from garlicfarm.publishing.farm_queries import clock_problem
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.publication import expiry_problem, sight
from tests.publishing.dated_log import Log, due_member_1, leaf_hash
from tests.publishing.scripted_log import T0

DAY_MS = 86_400_000


def publication(log: Log) -> Any:
    return log.farm.ranking()["publication"]


def test_publication_of_a_farm_where_no_member_can_publish() -> None:
    log = Log(1, 2)
    nothing = {"publishing": None, "last_published_ms": 0, "can_publish": [], "leaves": []}
    problem = "no member can publish: no recent member reports meta.publishing"
    assert publication(log) == nothing | {"problems": [problem]}
    log.post(1, 0, publishing=None)
    assert log.farm.publisher == 1
    assert publication(log) == nothing | {"problems": [problem]}


def test_publication_is_what_the_publisher_reports() -> None:
    log = Log(1, 2)
    log.post(1, 0)
    log.post(2, 0)
    found = {"publishing": False, "last_published_ms": 0, "can_publish": [1, 2], "leaves": []}
    assert publication(log) == found | {"problems": []}  # it could not know yet that it is due
    log.post(1, 1)
    assert publication(log)["problems"] == ["member 1 is to publish and reports that it does not"]
    log.post(1, 2, meta=MetaStatus(publishing=True, last_published_time=T0 + 1500))
    leaves = [{"hash": leaf_hash(1), "seen": None}]
    found = {"publishing": True, "last_published_ms": T0 + 1500, "can_publish": [1, 2], "leaves": leaves}
    assert publication(log) == found | {"problems": []}
    log.post(1, 3, meta=MetaStatus(publishing=True, last_published_time=2**32 * 1000))
    assert publication(log)["last_published_ms"] == 0
    log.post(2, 3)
    log.override(1, "off")
    assert publication(log)["problems"] == ["member 2 waits until member 1 has let go"]


REPLACE = (
    "make new bundles with `garlicfarm keys offline`, and replace the file at its node; no restart is needed"
)


@pytest.mark.parametrize(
    ("left_ms", "problem"),
    [
        (-1, f"have expired: {REPLACE}"),
        (0, f"have expired: {REPLACE}"),
        (DAY_MS - 1, f"expire within a day: {REPLACE}"),
        (DAY_MS, f"expire in 1 day: {REPLACE}"),
        (14 * DAY_MS - 1, f"expire in 13 days: {REPLACE}"),
        (14 * DAY_MS, ""),
    ],
)
def test_keys_that_expire_within_14_days_are_a_problem(left_ms: int, problem: str) -> None:
    assert expiry_problem(T0 + left_ms, T0) == problem


def test_publication_names_members_whose_keys_must_not_be_used() -> None:
    log = Log(1, 2)
    for member, expires_ms in ((1, T0), (2, T0 + 14 * DAY_MS)):
        node = NodeReport(applied=log.index, transients=("a" * 16,), key_expires=expires_ms)
        log.post(member, 0, config={"node": node})
    assert publication(log)["problems"] == [
        f"keys of member 1 have expired: {REPLACE}",
        "member 2 has a transient key of another member, and must not publish with it",
    ]


def test_ranking_looks_at_each_member_a_fixed_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()

    def counted(name: str) -> None:
        rule = getattr(PublisherFold, name)

        def ask(fold: PublisherFold, member: int) -> Any:
            asked[name] += 1
            return rule(fold, member)

        monkeypatch.setattr(PublisherFold, name, ask)

    for name in ("is_recent", "report"):
        counted(name)
    found = []
    for members in (10, 20):
        log = Log(*range(1, members + 1))
        for member in range(1, members + 1):
            log.post(member, 0)
        asked.clear()
        log.farm.ranking()
        found.append(asked.copy())
    fewer, more = found
    assert all(0 < more[name] <= 2 * fewer[name] for name in ("is_recent", "report"))


@pytest.mark.parametrize(
    ("off_ms", "problem"),
    [
        (DAY_MS - 1, ""),
        (1 - DAY_MS, ""),
        (DAY_MS, "is 1 day ahead of the farm's: correct it"),
        (-1826 * DAY_MS, "is 1826 days behind the farm's: correct it"),
    ],
)
def test_clock_that_is_a_day_off_is_a_problem(off_ms: int, problem: str) -> None:
    assert clock_problem(T0 + off_ms, T0) == problem


def test_clock_is_judged_by_three_recent_members_at_least() -> None:
    log = Log(1, 2, 3)
    for member, second in ((1, 0), (2, 5 * 86_400)):
        log.post(member, second)
    assert log.farm.clock_problem(T0 + 5 * DAY_MS) == ""
    log.post(3, 1)
    assert log.farm.clock_problem(T0 + 5 * DAY_MS) == "is 4 days ahead of the farm's: correct it"
    assert publication(log)["problems"] == ["the clock of member 2 is 4 days ahead of the farm's: correct it"]


def measured(seed: int, ok: bool | None) -> RemoteStatus:
    test = None if ok is None else ConnectTest(ms=40, ok=ok)
    return RemoteStatus(hash=leaf_hash(seed), fetch_time_ms=4, connect_test=test)


def seen(log: Log) -> list[Any]:
    return [leaf["seen"] for leaf in publication(log)["leaves"]]


def test_leaves_of_a_publisher_that_publishes_have_the_tests_of_the_other_members() -> None:
    log = due_member_1()
    reached = (measured(1, True), measured(5, True))
    log.post(2, 1, remote_destinations=reached)
    assert publication(log)["leaves"] == []  # not published yet
    log.post(1, 2, publishing=True, remote_destinations=reached)
    assert publication(log)["leaves"] == [{"hash": leaf_hash(1), "seen": [{"by": 2, "ok": True, "ms": 40}]}]
    log.post(3, 2, remote_destinations=(measured(1, False),))
    assert seen(log) == [[{"by": 2, "ok": True, "ms": 40}, {"by": 3, "ok": False, "ms": 40}]]
    log.post(2, 3, remote_destinations=(measured(1, None),))
    log.post(3, 3)
    assert seen(log) == [[]]
    log.exclude(1)
    assert seen(log) == []
    assert log.farm.published_leaves() == publication(log)["leaves"]


def test_leaf_is_not_confirmed_by_a_status_begun_before_the_publisher_was_due() -> None:
    log = due_member_1()
    log.post(1, 1, publishing=True)
    log.post(2, 1, applied=0, remote_destinations=(measured(1, True),))
    assert seen(log) == [[]]
    log.post(2, 2, remote_destinations=(measured(1, True),))
    assert len(seen(log)[0]) == 1


def test_leaf_is_not_confirmed_by_a_member_that_is_not_recent() -> None:
    log = due_member_1()
    log.post(1, 1, publishing=True)
    log.post(3, 1, remote_destinations=(measured(1, True),))
    assert len(seen(log)[0]) == 1
    for second in range(2, 6):
        log.post(1, second, publishing=True)
        log.post(2, second)
    assert not log.farm.is_recent(3)
    log.post(2, 6, remote_destinations=(measured(5, True),))
    assert seen(log) == [[]]


@pytest.mark.parametrize(
    ("reported", "tests"),
    [
        ({}, None),
        ({"remote_destinations": (measured(5, False),)}, []),
        ({"remote_meta": measured(9, None)}, []),
    ],
)
def test_leaf_is_not_judged_where_no_other_member_measures(reported: Any, tests: Any) -> None:
    """As in a lab of simulated routers."""
    log = due_member_1()
    log.post(1, 1, publishing=True, remote_destinations=(measured(5, True),))
    log.post(2, 1, **reported)
    assert seen(log) == [tests]


def test_leaf_that_no_other_member_measures_says_so() -> None:
    assert sight(None) == "no other member measures destinations"


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        ([], "not confirmed by any other member"),
        ([(2, False)], "not confirmed by any other member; not reached by member 2"),
        ([(2, True)], "reachable, by member 2 in 40 ms"),
        (
            [(2, False), (3, True), (4, True)],
            "reachable, by member 3 in 40 ms, member 4 in 40 ms; not reached by member 2",
        ),
    ],
)
def test_leaf_is_reachable_as_soon_as_one_member_reaches_it(tests, words):
    assert sight([{"by": by, "ok": ok, "ms": 40} for by, ok in tests]) == words
