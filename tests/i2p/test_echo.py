"""The echo tells a pair of routers that is silent from nodes that are."""

from __future__ import annotations

import runpy
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from garlicfarm.testing.processes import free_ports

ECHO: dict[str, Any] = runpy.run_path(str(Path(__file__).with_name("echo.py")))
TUNNELS = {1: "one.b32.i2p:27150", 2: "two.b32.i2p:27150"}


@contextmanager
def proxy(silent: bool) -> Iterator[int]:
    """A router's HTTP proxy, which says 200 in any case; then comes an answer, or nothing for ever."""
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            assert self.path in TUNNELS.values()
            self.wfile.write(b"HTTP/1.1 200 OK\r\nDate: now\r\n\r\n")
            if silent:
                ended.wait(10)
                return
            while self.rfile.readline().strip():
                pass
            self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            ended.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def ask() -> Iterator[Callable[..., list[tuple[int, int]]]]:
    """``ask(deaf, listening)``: two routers, of which some are deaf, and some have a listener."""
    with ExitStack() as stack:

        def ask(deaf: set[int], listening: set[int]) -> list[tuple[int, int]]:
            sides = {}
            for number, port in zip(TUNNELS, free_ports(2), strict=True):
                if number in listening:
                    stack.enter_context(ECHO["stand_in"](port))
                way = stack.enter_context(proxy(number in deaf))
                sides[number] = ECHO["Side"](TUNNELS[number], port, way)
            found: list[tuple[int, int]] = ECHO["silent"](sides, 1.0)
            return found

        yield ask


@pytest.mark.parametrize(
    ("deaf", "pairs"), [(set(), []), ({2}, [(2, 1)]), ({1, 2}, [(1, 2), (2, 1)])], ids=["none", "one", "both"]
)
def test_echo_tells_which_router_hears_nothing_from_which(
    ask: Callable[..., list[tuple[int, int]]], deaf: set[int], pairs: list[tuple[int, int]]
) -> None:
    assert ask(deaf, {1, 2}) == pairs


def test_echo_blames_no_router_where_a_listener_is_silent_itself(
    ask: Callable[..., list[tuple[int, int]]],
) -> None:
    with pytest.raises(AssertionError, match="behind router 2 does not answer at its own place"):
        ask({1, 2}, {1})
