from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from garlicfarm_plugin_spark.node_reader import close_readers
from garlicfarm_plugin_spark.session import Session
from tests.spark.feed_server import FeedServer, feed_server
from tests.spark.script import scripted_log

STARTS_S = 900
"""Ends what hangs. Some tests start Java several times, each of which takes a busy machine a minute."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(STARTS_S))


@pytest.fixture(autouse=True)
def tracebacks_are_hidden_no_longer_than_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source sets this variable in a process that its error ends. In these tests it runs in theirs."""
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FeedServer]:
    """A node with the whole of `scripted_log`."""
    with feed_server(tmp_path / "node", scripted_log()) as running:
        yield running


@pytest.fixture(autouse=True)
def readers_are_closed() -> Iterator[None]:
    yield
    close_readers()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """One for all tests: a session takes half a minute to start, a query after it a second."""
    session = Session(tmp_path_factory.mktemp("spark"), master="local[2]")
    try:
        yield session
    finally:
        session.close()
