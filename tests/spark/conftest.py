from __future__ import annotations

from collections.abc import Iterator

import pytest

from garlicfarm_plugin_spark.session import Session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """One for all tests: a session takes half a minute to start, a query after it a second."""
    session = Session(tmp_path_factory.mktemp("spark"), master="local[2]")
    try:
        yield session
    finally:
        session.close()
