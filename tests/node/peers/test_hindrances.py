"""Members that cannot keep up whatever is sent to them: who is told of them, and when no longer."""

from __future__ import annotations

import logging
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from garlicfarm.logs import EventLogger
from garlicfarm.node.hindrances import REFUSALS, Hindrances


class Seen:
    """A leader, member 1, and what it knows of member 2."""

    def __init__(self) -> None:
        self.progress = SimpleNamespace(refused_snapshots=0)
        raw = SimpleNamespace(
            is_term_too_high=False, status=lambda: SimpleNamespace(peers={2: self.progress}), term=1
        )
        self.core = SimpleNamespace(node_id=1, is_leader=True, applied_index=7, raw=raw)
        log = EventLogger(logging.getLogger("garlicfarm.node"), clock=count(0, 100).__next__, farm="farm")
        self.hindrances = Hindrances(cast(Any, self.core), cast(Any, None), log)

    def answered(self, refusals: int) -> None:
        self.progress.refused_snapshots = refusals
        self.hindrances.on_snapshot_answered(2)


def test_leader_tells_of_a_member_that_refuses_its_snapshots_once(caplog: pytest.LogCaptureFixture) -> None:
    seen = Seen()
    seen.answered(REFUSALS - 1)
    assert seen.hindrances.of(2) is None
    for more in range(3):
        seen.answered(REFUSALS + more)
    assert "does it run the farm's application?" in str(seen.hindrances.of(2))
    assert [record.getMessage() for record in caplog.records] == ["member-refuses-snapshot"]
    seen.answered(0)  # it took one
    assert seen.hindrances.of(2) is None
    seen.answered(REFUSALS)
    assert len(caplog.records) == 2


def test_member_that_refuses_tells_of_itself_until_it_applies_something() -> None:
    seen = Seen()
    assert seen.hindrances.of(1) is None
    seen.hindrances.on_snapshot_refused()
    assert "it refuses the leader's snapshot" in str(seen.hindrances.of(1))
    seen.core.applied_index = 8
    assert seen.hindrances.of(1) is None
