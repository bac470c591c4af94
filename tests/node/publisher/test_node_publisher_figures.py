"""What a running node tells of its publisher's streams, refusals and targets: in status, and as metrics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from garlicfarm.i2p.encoding import encode
from garlicfarm.lab.processes import free_ports
from garlicfarm.metrics import NodeMetrics
from garlicfarm.node.publisher.backend_check import BackendCheck
from garlicfarm.publisher import PublisherStatus
from garlicfarm.router import DestinationStatus, StreamFigures
from tests.node.support.service_farm import KEYS, Service, service_farm
from tests.running import wait_until


async def test_streams_refusals_and_targets_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused, status_of = {"unsigned": 2}, Service.status
    target = f"127.0.0.1:{free_ports(1)[0]}"

    async def status(service: Service) -> PublisherStatus:
        streams = StreamFigures(round_trip_ms=80, sent_packets=9, resent_packets=1, refused=2)
        leaf = DestinationStatus(
            destination=encode(KEYS.destination),
            configured_connections=256,
            current_connections=3,
            streams=streams,
        )
        return msgspec.structs.replace(
            await status_of(service), leaf=leaf, refused=refused, encryption="X25519"
        )

    monkeypatch.setattr(Service, "status", status)
    monkeypatch.setattr(Service, "targets", (target,))
    async with service_farm(tmp_path, monkeypatch) as farm:
        first = await farm.publisher()
        node = farm.nodes.node(first)
        view: Any = node.farms["farm"]

        def row() -> dict[str, Any]:
            found: list[dict[str, Any]] = view.status()["publishers"]
            return found[0]

        def figure(name: str, **labels: str) -> float | None:
            node.collect()
            labels |= {"farm": "farm", "publisher": "0-simulated"}
            return node.metrics.registry.get_sample_value(f"garlicfarm_publisher_{name}", labels)

        await wait_until(lambda: row()["refused"])
        assert row()["streams"] == {
            "open": 3,
            "most": 256,
            "round_trip_ms": 80,
            "sent_packets": 9,
            "resent_packets": 1,
            "refused": 2,
        }
        assert row()["encryption"] == "X25519"
        assert row()["targets"] == {f"tcp://{target}": True}
        assert (figure("streams"), figure("streams_max")) == (3, 256)
        assert figure("target_up", target=f"tcp://{target}") == 1
        assert figure("refused_total", cause="unsigned") == 2
        refused |= {"unsigned": 5, "too many streams": 1}
        await wait_until(lambda: "too many streams" in row()["refused"])
        assert figure("refused_total", cause="unsigned") == 5
        assert figure("refused_total", cause="too many streams") == 1


async def test_role_leaves_a_member_whose_service_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    """No check is configured: the target of its publisher is tested."""
    listening: dict[int, trio.CancelScope] = {}
    targets: dict[int, str] = {}

    async def listen(node_id: int, *, task_status: trio.TaskStatus[None]) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        targets[node_id] = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        with trio.CancelScope() as listening[node_id]:
            task_status.started()
            await trio.serve_listeners(trio.SocketStream.aclose, [listener])

    async def test_often(check: BackendCheck, on_tested: Callable[[], None]) -> None:
        while True:
            await check.test()
            on_tested()
            await trio.sleep(0.02)

    monkeypatch.setattr(BackendCheck, "run", test_often)
    monkeypatch.setattr(Service, "targets", property(lambda service: (targets[service.site.node_id],)))
    for node_id in (1, 2, 3):
        await nursery.start(listen, node_id)
    async with service_farm(tmp_path, monkeypatch) as farm:
        first = await farm.publisher()
        node = farm.nodes.node(first)
        listening[first].cancel()
        second = await farm.publisher(other_than=first)
        assert farm.services[first].order is None
        (row,) = node.farms["farm"].status()["publishers"]
        url = f"tcp://{targets[first]}"
        assert row["targets"] == {url: False}
        assert f"the service at {url} does not answer: Connection refused" in row["problems"]
        node.collect()
        labels = {"farm": "farm", "publisher": "0-simulated", "target": url}
        assert node.metrics.registry.get_sample_value("garlicfarm_publisher_target_up", labels) == 0
        (row,) = farm.nodes.node(second).farms["farm"].status()["publishers"]
        assert row["problems"] == []
    nursery.cancel_scope.cancel()


def test_refusals_of_a_publisher_that_is_made_anew_are_added() -> None:
    node = NodeMetrics()
    farm = node.farm("farm")
    for count in (3, 3, 2):
        farm.count_publisher_refused("0-i2cp", {"unsigned": count})
    labels = {"farm": "farm", "publisher": "0-i2cp", "cause": "unsigned"}
    assert node.registry.get_sample_value("garlicfarm_publisher_refused_total", labels) == 5
