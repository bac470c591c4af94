"""How much of the score is measured with the installed plugins on i2pd: by what one has answered."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from garlicfarm.levels import OUTSIDE
from garlicfarm.publishing.documents import MemberTest
from garlicfarm.publishing.entries import encode_status
from garlicfarm.router import DestinationStatus, RouterStatus, Tunnels
from garlicfarm_plugin_i2pcontrol import router_status
from garlicfarm_plugin_i2pcontrol.client import Question
from tests.publishing.scripted_log import T0, destination, status
from tests.publishing.test_fold_leases import LeaseLog
from tests.routers.conftest import Replay

INSTALLED: dict[str, dict[str, Any]] = {
    "i2cp": {"current_tunnels": Tunnels(in_=3)},
    "sam": {},
}
"""What each publisher of a service adds to its leaf's figures, as its own tests say."""


def recorded() -> RouterStatus:
    """The figures of i2pd 2.45.1 over I2PControl."""
    answers = {}
    for question in (Question.ROUTER_INFO, Question.NETWORK_SETTING, Question.JOB_LAG):
        method, params = question.value
        answers[question] = json.loads(Replay()({"method": method, "params": params})).get("result") or {}
    return router_status(*answers.values())


def posted(log: LeaseLog, member: int, publisher: str, router: RouterStatus | None) -> None:
    leaf = DestinationStatus(
        destination=destination(member), configured_tunnels=Tunnels(in_=3, out=3), **INSTALLED[publisher]
    )
    tests = tuple(MemberTest(each, 30) for each in (1, 2, 3) if each != member)
    document = msgspec.structs.replace(
        status(member, T0, sequence=None, router=router, destinations=(leaf,)),
        config={"node": {"boot": 1, "tests": tests}},
    )
    log.append(encode_status(document))


def measured(*publishers: str, level: int = OUTSIDE) -> dict[int, int]:
    log = LeaseLog(1, 2, 3, level=level)
    for member, publisher in enumerate(publishers, 1):
        posted(log, member, publisher, recorded())
    assert log.farm.skipped == {}
    return log.farm.measured()


def test_with_i2cp_and_i2pcontrol_all_but_the_job_lag_is_measured() -> None:
    assert measured("i2cp", "i2cp", "i2cp") == {1: 85, 2: 85, 3: 85}
    log = LeaseLog(1, 2, 3, level=OUTSIDE)
    posted(log, 1, "i2cp", recorded())
    rows: Any = log.farm.ranking()["members"]
    row = rows[0]
    left_out = [name for name, part in row["parts"].items() if "left_out" in part]
    assert left_out == ["job_lag"]
    assert all(part["reported"] for name, part in row["parts"].items() if name != "job_lag")


def test_with_sam_tunnels_are_not_measured_either() -> None:
    assert measured("sam", "sam", "sam") == {1: 65, 2: 65, 3: 65}
    assert measured("sam", "i2cp", "sam") == {1: 65, 2: 85, 3: 65}


@pytest.mark.parametrize("publisher", INSTALLED)
def test_without_the_router_plugin_little_is_measured(publisher: str) -> None:
    log = LeaseLog(1, 2, 3, level=OUTSIDE)
    posted(log, 1, publisher, None)
    assert log.farm.measured() == {1: 25 if publisher == "i2cp" else 5}
