"""What the source tells nodes of how far a query has read; no Java runs."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from garlicfarm.client.trust import client_tls
from garlicfarm.errors import UnreachableError
from garlicfarm_plugin_spark import source
from garlicfarm_plugin_spark.node_reader import NodeReader
from garlicfarm_plugin_spark.source import LogReader
from tests.spark.feed_server import PASSWORD, USER, FeedServer
from tests.spark.script import scripted_log

pytestmark = pytest.mark.spark

LOG = scripted_log()


def reader(server: FeedServer, **options: str) -> LogReader:
    return LogReader(server.options(**{"maxEntriesPerTrigger": "20", **options}))


def next_end(found: LogReader, start: dict[str, Any]) -> dict[str, Any]:
    return found.latestOffset(start, found.getDefaultReadLimit())


def told(server: FeedServer, farm: str = "farm") -> list[tuple[str, str, int, int]]:
    """Query, user, index and lag of each reader."""
    url = server.url.partition("?")[0]
    with httpx.Client(
        auth=httpx.DigestAuth(USER, PASSWORD),
        verify=client_tls(pin=server.node.pin, ca=None),
        trust_env=False,
    ) as client:
        rows = client.get(f"{url}/v1/farms/{farm}/readers").json()["readers"]
    return [(row["query"], row["user"], row["index"], row["lag"]) for row in rows]


def test_committed_batch_is_reported_under_the_querys_name_now_and_then(
    server: FeedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = reader(server, query="spark")
    first = next_end(found, found.initialOffset())
    found.commit(first)
    assert told(server) == [("spark", "local", 20, len(LOG) - 20)]
    second = next_end(found, first)
    found.commit(second)  # too soon
    assert told(server) == [("spark", "local", 20, len(LOG) - 20)]
    monkeypatch.setattr(source, "REPORT_S", 0.0)
    found.commit(second)
    assert told(server) == [("spark", "local", 40, len(LOG) - 40)]


def test_last_batch_is_reported_without_another_one(
    server: FeedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark commits a batch when it plans the next one; at each trigger it asks for the newest offset."""
    monkeypatch.setattr(source, "REPORT_S", 0.0)
    found = reader(server, query="spark", maxEntriesPerTrigger="999")
    end = next_end(found, found.initialOffset())
    assert told(server) == []
    assert next_end(found, end) == end
    assert told(server) == [("spark", "local", len(LOG), 0)]


def test_query_without_a_name_reports_nothing(server: FeedServer) -> None:
    found = reader(server)
    found.commit(next_end(found, found.initialOffset()))
    assert told(server) == []


def test_report_that_fails_is_logged_and_the_query_goes_on(
    server: FeedServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    found = reader(server, query="spark")
    end = next_end(found, found.initialOffset())
    server.node.farms.pop("farm")
    found.commit(end)
    assert "cannot report to a node that spark has read the farm farm: " in caplog.text
    server.node.farms["farm"] = server.farm
    assert next_end(found, end) != end


def test_farm_that_has_vanished_is_reported_no_more(
    server: FeedServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    server.add_farm("barn", LOG[:9])
    found = reader(server, farm="*", query="spark")
    end = next_end(found, found.initialOffset())
    server.node.farms.pop("barn")
    found.commit(next_end(found, end))
    assert told(server)
    assert "cannot report" not in caplog.text


def test_reports_of_all_farms_go_to_a_node_that_answers(server: FeedServer) -> None:
    server.add_farm("barn", LOG[:9])
    found = reader(server, farm="barn farm", query="spark", url=f"https://127.0.0.1:1 {server.url}")
    found.commit(next_end(found, found.initialOffset()))
    assert told(server, "barn") == [("spark", "local", 9, 0)]
    assert told(server) == [("spark", "local", 11, len(LOG) - 11)]


def test_silent_node_is_told_of_one_farm_only(
    server: FeedServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    server.add_farm("barn", LOG[:9])
    found = reader(server, farm="barn farm", query="spark")
    end = next_end(found, found.initialOffset())

    def report(feed: NodeReader, farm: str, query: str, index: int) -> None:
        raise UnreachableError("silence")

    monkeypatch.setattr(NodeReader, "report", report)
    found.commit(end)
    assert caplog.text.count("cannot report to a node that spark has read the farm barn: silence") == 1
    assert "has read the farm farm" not in caplog.text
