"""What a ranking says of the publication: by whom, when, and what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

from garlicfarm.publishing.documents import MetaStatus, NodeReport
from garlicfarm.publishing.publication import expiry_problem
from tests.publishing.dated_log import Log
from tests.publishing.scripted_log import T0

DAY_MS = 86_400_000


def publication(log: Log) -> Any:
    return log.farm.ranking()["publication"]


def test_publication_of_a_farm_where_no_member_can_publish() -> None:
    log = Log(1, 2)
    nothing = {"publishing": None, "last_published_ms": 0, "can_publish": []}
    problem = "no member can publish: no recent member reports meta.publishing"
    assert publication(log) == nothing | {"problems": [problem]}
    log.post(1, 0, publishing=None)
    assert log.farm.publisher == 1
    assert publication(log) == nothing | {"problems": [problem]}


def test_publication_is_what_the_publisher_reports() -> None:
    log = Log(1, 2)
    log.post(1, 0)
    log.post(2, 0)
    found = {"publishing": False, "last_published_ms": 0, "can_publish": [1, 2]}
    assert publication(log) == found | {"problems": []}  # it could not know yet that it is due
    log.post(1, 1)
    assert publication(log)["problems"] == ["member 1 is to publish and reports that it does not"]
    log.post(1, 2, meta=MetaStatus(publishing=True, last_published_time=T0 + 1500))
    found = {"publishing": True, "last_published_ms": T0 + 1500, "can_publish": [1, 2]}
    assert publication(log) == found | {"problems": []}
    log.post(1, 3, meta=MetaStatus(publishing=True, last_published_time=2**32 * 1000))
    assert publication(log)["last_published_ms"] == 0
    log.post(2, 3)
    log.override(1, "off")
    assert publication(log)["problems"] == ["member 2 waits until member 1 has let go"]


@pytest.mark.parametrize(
    ("left_ms", "problem"),
    [
        (-1, "have expired: make new bundles with `garlicfarm keys offline`"),
        (0, "have expired: make new bundles with `garlicfarm keys offline`"),
        (DAY_MS - 1, "expire in 0 days: make new bundles with `garlicfarm keys offline`"),
        (14 * DAY_MS - 1, "expire in 13 days: make new bundles with `garlicfarm keys offline`"),
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
        "keys of member 1 have expired: make new bundles with `garlicfarm keys offline`",
        "member 2 has a transient key of another member, and must not publish with it",
    ]
