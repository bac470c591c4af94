"""What a running node tells of a publication that has expired: in its status, and as a figure."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from garlicfarm.admin.health import judge
from garlicfarm.node.publisher import application
from tests.node.publisher.test_node_publisher_and_leader import until_publishing
from tests.node.support.cluster import cluster, simulated_member


async def test_node_whose_publication_has_expired_is_degraded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {1: simulated_member(1, publishers=({"plugin": "simulated"},))}
    async with cluster(tmp_path, 1, members=members, application="publisher") as nodes:
        view = nodes.node(1).farms["farm"]
        await nodes.leader()
        await view.administer("interval", {"ms": 1000}, "alice")
        await until_publishing(nodes, 1)

        def told() -> tuple[str, list[str], float | None]:
            nodes.node(1).collect()
            figures = nodes.node(1).metrics.registry
            status = view.status()
            (row,) = status["publishers"]
            assert row["state"] == "publishing"
            figure = figures.get_sample_value("garlicfarm_farm_problems", {"farm": "farm"})
            return judge(status), status["problems"], figure

        assert told() == ("healthy", [], 0)
        # As if the publisher had not been able to publish again for more than three hours.
        later_ns = time.time_ns() + 190 * 60 * 10**9
        later = SimpleNamespace(time=lambda: later_ns / 10**9, time_ns=lambda: later_ns)
        monkeypatch.setattr(application, "time", later)
        verdict, problems, figure = told()
        assert (verdict, figure) == ("degraded", 1)
        (problem,) = problems
        assert problem == (
            "what member 1 publishes expired 3 h ago; `garlicfarm publish show` on its machine says why"
        )
