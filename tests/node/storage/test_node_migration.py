"""A member of a farm whose level was raised rewrites its log at its next start."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from garlicfarm.raft import Change, ConfChange
from garlicfarm.storage import migration
from tests.node.support.cluster import cluster
from tests.running import told
from tests.storage.segment_headers import levels


def without_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_log_is_migrated_at_the_start_after_its_level_was_raised_and_what_hinders_it_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("garlicfarm.setup.provision.HIGHEST", 0)
    async with cluster(tmp_path) as nodes:
        await nodes.leader()
        async with nodes.client() as client:
            first, _ = await client.post([b"before"])
        await nodes.replica().membership.change(ConfChange(Change.RAISE, level=1))
        log = nodes.data(1) / "farms" / nodes.plan.name / "log"
        assert levels(log) == [(4, 0), (5, 1)]
        await nodes.stop(1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(migration, "write_log", without_room)
            await nodes.start(1)
        (event,) = told(caplog, "log-not-migrated")
        assert "No space left on device. It is used as it is" in event["cause"]
        await nodes.leader()
        async with nodes.client() as client:
            last, _ = await client.post([b"after"])
        await nodes.stop(1)
        await nodes.start(1)
        await nodes.leader()
        assert len(told(caplog, "log-not-migrated")) == 1
        assert {*levels(log)} == {(5, 1)}
        store = nodes.replica().store
        found = [store.entries(index, index + 1, 0)[0].value for index in (first, last)]
        assert found == [b"before", b"after"]
