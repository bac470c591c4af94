"""A keeper that runs, on standby."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from garlicfarm.credentials.destination_keys import write_bundle
from garlicfarm.publisher import PublisherSite
from garlicfarm.service_keys import ServiceKeys
from garlicfarm_plugin_i2cp.service_session import DEFAULT, LeasePlan
from tests.publishers.i2cp_keys import bundle
from tests.publishers.service_keeper.keeper_bench import BUNDLE_S, START_MS, Bench


@pytest.fixture
def plan() -> LeasePlan:
    return DEFAULT


@pytest.fixture
async def bench(tmp_path: Path, plan: LeasePlan, nursery: trio.Nursery) -> Bench:
    """On standby."""
    path = tmp_path / "site.bundle"
    write_bundle(path, bundle(START_MS, expires_s=START_MS // 1000 + BUNDLE_S))
    keys = ServiceKeys(path, PublisherSite(farm="farm", node_id=1, directory=tmp_path))
    made = Bench(nursery, keys, plan)
    nursery.start_soon(made.run)
    return made
