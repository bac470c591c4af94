"""Places of loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from garlicfarm.lab.processes import free_ports


@pytest.fixture
def target() -> Iterator[str]:
    """A service that accepts connections, HOST:PORT."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def nowhere() -> str:
    """HOST:PORT where nothing listens, and nothing else comes to: it is held."""
    return f"127.0.0.1:{free_ports(1)[0]}"
