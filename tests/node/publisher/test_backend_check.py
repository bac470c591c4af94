"""The check of the service behind a publisher, on real sockets of loopback."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from garlicfarm.config import PublisherSection
from garlicfarm.config.validators import is_check_url
from garlicfarm.errors import ConfigError
from garlicfarm.lab.processes import free_ports
from garlicfarm.node.publisher.backend_check import BackendCheck, BackendChecks
from tests.running import background

INTERVAL_S = 60.0
"""As deadline of a test on real sockets: never reached."""
Handler = Callable[[trio.SocketStream], Awaitable[None]]


@asynccontextmanager
async def server(handler: Handler, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    """Serves connections, closes each after its handler; gives the port."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await handler(stream)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve, port, host=host))
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


def answer(text: bytes, requests: list[bytes] | None = None) -> Handler:
    async def handle(stream: trio.SocketStream) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            request += await stream.receive_some()
        if requests is not None:
            requests.append(request)
        await stream.send_all(text)

    return handle


async def silent(stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def accept(stream: trio.SocketStream) -> None:
    await trio.lowlevel.checkpoint()


async def checked(url: str) -> BackendCheck:
    check = BackendCheck(url, INTERVAL_S, 1)
    await check.test()
    return check


async def test_tcp_service_that_accepts_is_up() -> None:
    async with server(accept) as port:
        check = await checked(f"tcp://127.0.0.1:{port}")
    assert (check.is_up, check.problem) == (True, None)


async def test_tcp_service_that_refuses_is_down() -> None:
    url = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    check = await checked(url)
    assert not check.is_up
    assert check.problem == f"the service at {url} does not answer: Connection refused"


@pytest.mark.ipv6
async def test_service_on_ipv6_is_up() -> None:
    requests: list[bytes] = []
    async with server(answer(b"HTTP/1.1 204 None\r\n\r\n", requests), "::1") as port:
        check = await checked(f"http://[::1]:{port}/")
    assert check.is_up
    assert f"host: [::1]:{port}".encode() in requests[0].lower()


@pytest.mark.parametrize("status", [200, 204, 301, 401, 404, 499])
async def test_http_status_below_500_is_up(status: int) -> None:
    async with server(answer(b"HTTP/1.1 %d Whatever\r\nContent-Length: 5\r\n\r\n" % status)) as port:
        check = await checked(f"http://127.0.0.1:{port}/")
    assert (check.is_up, check.problem) == (True, None)


@pytest.mark.parametrize("status", [500, 502, 503, 599])
async def test_http_status_from_500_is_down(status: int) -> None:
    async with server(answer(b"HTTP/1.0 %d Whatever\r\n\r\n" % status)) as port:
        url = f"http://127.0.0.1:{port}/health"
        check = await checked(url)
    assert not check.is_up
    assert check.problem == f"the service at {url} does not answer: HTTP status {status}"


async def test_http_request_names_path_query_and_host_and_follows_no_proxy_of_the_environment(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    requests: list[bytes] = []
    async with server(answer(b"HTTP/1.1 200 OK\r\n\r\n", requests)) as port:
        check = await checked(f"http://127.0.0.1:{port}/a b?c=ä")
    assert check.is_up
    line, *headers = requests[0].decode().lower().split("\r\n")
    assert line == "get /a%20b?c=%c3%a4 http/1.1"
    assert {f"host: 127.0.0.1:{port}", "connection: close"} <= set(headers)


async def test_http_answer_is_that_after_an_informational_one() -> None:
    async with server(answer(b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 503 No\r\n\r\n")) as port:
        check = await checked(f"http://127.0.0.1:{port}/")
    assert "HTTP status 503" in check.problem


@pytest.mark.parametrize(
    "text",
    [b"", b"HTTP/1.1 2", b"SSH-2.0-OpenSSH\r\n", b"\x00" * 100],
    ids=["nothing", "cut-short", "ssh", "zeros"],
)
async def test_answer_that_is_no_http_is_down(text: bytes) -> None:
    async with server(answer(text)) as port:
        check = await checked(f"http://127.0.0.1:{port}/")
    assert not check.is_up
    assert "no HTTP answer: " in check.problem
    assert check.problem.isprintable()


async def test_headers_without_end_are_not_read_to_their_end() -> None:
    """A test that read on would wait for more until its interval is over."""

    async def handle(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await answer(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 131_072)(stream)
        await trio.sleep_forever()

    async with server(handle) as port:
        check = await checked(f"http://127.0.0.1:{port}/")
    assert not check.is_up
    assert "no HTTP answer: " in check.problem


async def test_connection_that_is_reset_is_down() -> None:
    async def reset(stream: trio.SocketStream) -> None:
        stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    async with server(reset) as port:
        check = await checked(f"http://127.0.0.1:{port}/")
    assert not check.is_up


async def test_service_that_is_silent_is_down_after_the_interval(mock_clock: MockClock) -> None:
    connected = trio.Event()

    async def accept_only(stream: trio.SocketStream) -> None:
        connected.set()
        await trio.sleep_forever()

    async with server(accept_only) as port, trio.open_nursery() as nursery:
        check = BackendCheck(f"http://127.0.0.1:{port}/", 10.0, 1)
        nursery.start_soon(check.test)
        await connected.wait()
        mock_clock.jump(9.9)
        await wait_all_tasks_blocked()
        assert check.is_up
        mock_clock.jump(0.2)
    assert not check.is_up
    assert check.problem.endswith("does not answer: no answer in time")


async def test_service_is_down_after_threshold_failures_and_up_after_one_success() -> None:
    answers = iter([503, 503, 200, 503, 503, 503, 200, 503])

    async def handle(stream: trio.SocketStream) -> None:
        await answer(b"HTTP/1.1 %d Whatever\r\n\r\n" % next(answers))(stream)

    seen = []
    async with server(handle) as port:
        check = BackendCheck(f"http://127.0.0.1:{port}/", INTERVAL_S, 3)
        assert check.is_up
        for _ in range(8):
            await check.test()
            seen.append((check.is_up, check.problem is None))
    assert [up for up, _ in seen] == [True, True, True, True, True, False, True, True]
    assert [well for _, well in seen] == [False, False, True, False, False, False, True, False]


async def test_cancelled_test_counts_for_nothing() -> None:
    async with server(silent) as port:
        check = BackendCheck(f"http://127.0.0.1:{port}/", INTERVAL_S, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(check.test)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert (check.is_up, check.problem) == (True, None)


async def test_service_is_tested_once_an_interval(autojump_clock: MockClock) -> None:
    """Autojump does not wait for sockets, so here the tests are counted, not carried out."""
    times: list[float] = []

    class Counted(BackendCheck):
        async def test(self) -> None:
            times.append(trio.current_time())
            await trio.sleep(0 if len(times) == 1 else 10)  # a test takes at most the interval

    with trio.move_on_after(35):
        await Counted("tcp://127.0.0.1:1", 10.0, 3).run(lambda: None)
    assert [time - times[0] for time in times] == [0, 10, 20, 30]


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1", "http://h:1/p?q#f", "tcp://[::1]:1", "http://ü.example:8/"]
)
def test_url_that_the_configuration_accepts_is_accepted(url: str) -> None:
    assert is_check_url(url)
    BackendCheck(url, INTERVAL_S, 1)


@pytest.mark.parametrize("url", ["http://" + "x" * 64 + ".example/", "tcp://..:1", "http://127.0.0.1:99999/"])
async def test_url_of_a_host_that_cannot_be_is_down(url: str) -> None:
    check = await checked(url)
    assert not check.is_up
    assert "does not answer: " in check.problem


def test_url_that_is_malformed_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"check: .* is not a URL"):
        BackendCheck("http://h/\x7f", INTERVAL_S, 1)


def checks(targets: Sequence[str] = (), **table: Any) -> BackendChecks:
    return BackendChecks(PublisherSection(plugin="fake", check_interval_s=INTERVAL_S, **table), targets)


async def run_checks(found: BackendChecks, times: int) -> None:
    """Return when it was tested so often."""
    is_tested = trio.Event()
    counted = itertools.count(1)

    def on_tested() -> None:
        if next(counted) == times:
            is_tested.set()

    async with background(partial(found.run, on_tested)):
        await is_tested.wait()


def test_without_a_check_the_targets_of_the_publisher_are_tested() -> None:
    targets = ("127.0.0.1:1", "[::1]:2")
    assert checks(targets).up == {"tcp://127.0.0.1:1": True, "tcp://[::1]:2": True}
    assert checks(targets, check="http://h/").up == {"http://h/": True}
    none = checks(targets, check="")
    assert (none.up, none.is_up, none.problem) == ({}, True, None)


async def test_service_is_up_while_one_of_its_targets_is() -> None:
    down, other = (f"127.0.0.1:{port}" for port in free_ports(2))
    async with server(accept) as port:
        found = checks((down, f"127.0.0.1:{port}"), check_threshold=1)
        await run_checks(found, 2)
    assert found.up == {f"tcp://{down}": False, f"tcp://127.0.0.1:{port}": True}
    problem = f"the service at tcp://{down} does not answer: Connection refused"
    assert (found.is_up, found.problem) == (True, problem)
    found = checks((down, other), check_threshold=1)
    await run_checks(found, 2)
    second = problem.replace(down, other)
    assert (found.is_up, found.problem) == (False, f"{problem}; {second}")


async def test_target_with_a_page_is_up_if_its_status_says_so() -> None:
    """A page of ``check`` may have any status below 500."""
    statuses = {"/up": 204, "/moved": 302, "/gone": 404, "/busy": 503}
    async with AsyncExitStack() as stack:
        targets = []
        for path, status in statuses.items():
            text = b"HTTP/1.1 %d Whatever\r\nContent-Length: 5\r\n\r\n" % status
            port = await stack.enter_async_context(server(answer(text)))
            targets.append(f"http://127.0.0.1:{port}{path}")
        found = checks((*targets, f"127.0.0.1:{port}"), check_threshold=1)
        await run_checks(found, 5)
    assert found.down == {targets[2], targets[3]}
    assert list(found.up.values()) == [True, True, False, False, True]
    assert found.is_up
    assert f"the service at {targets[2]} does not answer: HTTP status 404" in (found.problem or "")


async def test_nothing_is_left_out_where_the_table_names_what_is_tested() -> None:
    down, url = (f"127.0.0.1:{free_ports(1)[0]}" for _ in range(2))
    found = checks((down,), check=f"tcp://{url}", check_threshold=1)
    await run_checks(found, 1)
    assert (found.is_up, found.down) == (False, frozenset())


@pytest.mark.parametrize(("check", "is_accepted"), [("", True), ("auto", True), ("off", False)])
def test_check_may_be_auto_or_none(check: str, is_accepted: bool) -> None:
    assert is_check_url(check) is is_accepted
