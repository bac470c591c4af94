"""The echo tells a pair of routers that is silent from nodes that are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trio
import trio.testing

from garlicfarm.lab.processes import free_ports
from tests.i2p import farm_over_i2p
from tests.i2p.echo import POLL_S, Side, silent, stand_in
from tests.i2p.farm_over_i2p import Unreached, in_time

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
        thread = threading.Thread(target=server.serve_forever, args=(POLL_S,))
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
                    stack.enter_context(stand_in(port))
                way = stack.enter_context(proxy(number in deaf))
                sides[number] = Side(TUNNELS[number], port, way)
            return silent(sides, 5.0)

        yield ask


def test_echo_tells_which_router_hears_nothing_from_which(ask: Callable[..., list[tuple[int, int]]]) -> None:
    deaf = [set(), {2}, {1, 2}]
    with ThreadPoolExecutor(len(deaf)) as pool:  # silence takes its time: all at once
        assert [*pool.map(lambda each: ask(each, {1, 2}), deaf)] == [[], [(2, 1)], [(1, 2), (2, 1)]]


def test_echo_blames_no_router_where_a_listener_is_silent_itself(ask):
    with pytest.raises(AssertionError, match="behind router 2 does not answer at its own place"):
        ask({1, 2}, {1})


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What the echo tells the farm's test: none is silent, unless the list is added to."""
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(farm_over_i2p, "silent", lambda sides: told)
    return told


@pytest.mark.parametrize(("silent", "error"), [([], AssertionError), ([(1, 3)], Unreached)])
async def test_farm_that_does_not_come_about_is_its_routers_fault_only_where_they_are_silent(
    pairs, autojump_clock, silent, error
):
    pairs += silent
    with pytest.raises(error):
        await in_time("it", {}, trio.sleep_forever)
