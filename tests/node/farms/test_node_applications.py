"""A third party's application on whole nodes: it brings a task, a metric and endpoints of the admin API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from prometheus_client import Gauge

from garlicfarm import __version__
from garlicfarm.application import (
    AdminEndpoint,
    AdminRequest,
    Application,
    ApplicationContext,
    MemberReport,
    Origin,
)
from garlicfarm.config import load
from garlicfarm.errors import ConfigError, EntryRefused
from garlicfarm.metrics import FarmMetrics
from garlicfarm.node import serve
from tests.node.support.cluster import USERS, Cluster, cluster, password_of


class Tally(Application):
    """Counts entries by their first word; each member posts ``hello``."""

    def __init__(self, farm: str) -> None:
        self.counts: dict[str, int] = {}
        self.greeted = trio.Event()
        self._gauge: Gauge | None = None

    def apply(self, index: int, term: int, entry: bytes) -> None:
        word = entry.decode().partition(" ")[0]
        self.counts[word] = self.counts.get(word, 0) + 1

    def snapshot(self) -> bytes:
        return repr(sorted(self.counts.items())).encode()

    def restore(self, data: bytes) -> None:
        raise AssertionError("no snapshot is taken so early")

    def check(self, entry: bytes, origin: Origin) -> None:
        if entry == b"hello" and not origin.member:
            raise EntryRefused("", f"members alone say hello, not {origin.user}")

    async def run(self, context: ApplicationContext) -> None:
        self._gauge = Gauge("tally_entries", "Entries.", registry=context.metrics.registry)
        assert context.applied_index == 0, "it begins before anything is applied"
        await context.post(b"hello")
        self.greeted.set()

    def endpoints(self, context: ApplicationContext) -> Sequence[AdminEndpoint]:
        async def show(request: AdminRequest) -> object:
            return {"counts": self.counts, "asked_by": request.user, "query": dict(request.query)}

        async def post(request: AdminRequest) -> object:
            index, _ = await context.post(request.body)
            return {"index": index}

        return [
            AdminEndpoint("GET", "tally", "reader", show),
            AdminEndpoint("POST", "tally", "writer", post),
        ]

    def collect(self, metrics: FarmMetrics) -> None:
        if self._gauge is not None:
            self._gauge.set(sum(self.counts.values()))

    def status(self) -> dict[str, Any]:
        return {"words": len(self.counts), "role": "not the application's to say"}

    def member_report(self, member: int) -> MemberReport:
        return MemberReport(admin_url=f"https://tally.example:{member}")


def http(nodes: Cluster, node_id: int, user: str) -> httpx.AsyncClient:
    auth = httpx.DigestAuth(user, password_of(user))
    return httpx.AsyncClient(base_url=nodes.node(node_id).admin_url, auth=auth, verify=False)


async def test_application_of_a_third_party_brings_a_task_a_metric_and_endpoints(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, application="tally", applications={"tally": Tally}) as nodes:
        await nodes.leader()
        for node_id in nodes.running:
            application = nodes.replica(node_id).application
            assert isinstance(application, Tally)
            with trio.fail_after(240):
                await application.greeted.wait()
        async with http(nodes, 2, "alice") as client:
            assert USERS["alice"] == "writer"
            posted = await client.post("/v1/farms/farm/tally", content=b"word by word")
            assert posted.status_code == 200
            assert posted.headers["Garlic-Farm-Id"] == nodes.farm_id.hex()
            await nodes.applied(posted.json()["index"])
            refused = await client.post("/v1/farms/farm/log", content=b"hello")
            assert (refused.status_code, "not alice" in refused.text) == (422, True)
        async with http(nodes, 3, "bob") as client:
            shown = await client.get("/v1/farms/farm/tally?a=b")
            counts = {"hello": 3, "word": 1}
            assert shown.json() == {"counts": counts, "asked_by": "bob", "query": {"a": "b"}}
            assert (await client.post("/v1/farms/farm/tally", content=b"x")).status_code == 403
            assert (await client.delete("/v1/farms/farm/tally")).status_code == 405
            assert (await client.get("/v1/farms/other/tally")).status_code == 404
            status = (await client.get("/v1/farms/farm/status")).json()
            assert (status["application"], status["words"], status["publisher"]) == ("tally", 2, None)
            assert status["role"] in ("leader", "follower")
            assert status["members"][0]["version"] == __version__
        async with httpx.AsyncClient(base_url=nodes.node(1).admin_url, verify=False) as client:
            assert (await client.get("/v1/farms/farm/tally")).status_code == 401
            assert "\ntally_entries 4.0\n" in (await client.get("/metrics")).text


@pytest.mark.parametrize(
    ("applications", "known"),
    [
        ({"mine": Tally}, "there are: mine"),
        ({"logs": Tally, "mine": Tally}, "did you mean 'logs'?; there are: logs, mine"),
    ],
)
async def test_every_farm_of_an_unknown_application_is_named_before_a_store_is_opened(
    tmp_path: Path, applications: Mapping[str, type[Tally]], known: str
) -> None:
    async with cluster(tmp_path, start=False) as nodes:
        directory = nodes.directories[1]
        file = directory / "garlicfarm.toml"
        barn = '\n[[farm]]\nname = "barn"\nendpoint = "ssl://127.0.0.1:1"\napplication = "log"\n'
        file.write_text(file.read_text() + barn)
        (directory / "data").rename(directory / "away")
        with pytest.raises(ConfigError) as refused:
            await serve(load(file, {}), applications=applications)
        names = f"no application 'log'; {known}"
        assert refused.value.problems == (f"farm farm: {names}", f"farm barn: {names}")
