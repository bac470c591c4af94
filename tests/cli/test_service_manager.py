"""What a service manager hears of a node, at a real socket."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from garlicfarm.cli.service_manager import ServiceManager
from garlicfarm.logs import EventLogger
from garlicfarm.setup.provision import MemberPlan, create_node
from tests.running import running, told

NOT_TOLD = "service-manager-not-told"


def manager_of(environ: Mapping[str, str]) -> ServiceManager:
    return ServiceManager(environ, EventLogger(logging.getLogger("garlicfarm.node"), interval_s=0))


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a service manager listens, as ``NOTIFY_SOCKET`` names it."""
    return str(tmp_path / "notify") if request.param == "path" else f"@garlicfarm-{secrets.token_hex(8)}"


@pytest.fixture
def manager(address: str) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as its:
        its.bind("\0" + address[1:] if address.startswith("@") else address)
        its.settimeout(240)
        yield its


async def test_manager_is_told_in_one_datagram_each(address: str, manager: socket.socket) -> None:
    node = manager_of({"NOTIFY_SOCKET": address})
    await node.ready()
    await node.stopping(12.5)
    assert manager.recv(4096) == b"READY=1"
    assert manager.recv(4096) == b"STOPPING=1\nEXTEND_TIMEOUT_USEC=12500000"


async def test_manager_with_a_watchdog_hears_thrice_in_its_time(
    address: str, manager: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    manager.setblocking(False)
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "6000000", "WATCHDOG_PID": str(os.getpid())}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager_of(environ).keep_alive)
        for _ in range(4):
            await trio.testing.wait_all_tasks_blocked()
            assert manager.recv(4096) == b"WATCHDOG=1"
            with pytest.raises(BlockingIOError):
                manager.recv(4096)
            await trio.sleep(2.01)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "watchdog",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}],
)
async def test_without_a_watchdog_for_this_process_nothing_is_said_again(
    watchdog: dict[str, str], address: str, manager: socket.socket
) -> None:
    await manager_of({"NOTIFY_SOCKET": address, **watchdog}).keep_alive()
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(4096)


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}])
async def test_where_there_is_no_manager_nothing_is_told(environ, caplog):
    await manager_of(environ).ready()
    assert told(caplog) == []


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        ("/nowhere/notify", "No such file"),
        ("notify", "neither an absolute path"),
        ("vsock:2:1", "neither an absolute path"),
        ("/" + 200 * "x", "too long"),
        ("@" + 200 * "x", "too long"),
    ],
)
async def test_manager_that_cannot_be_told_is_logged_once(bad, cause, caplog):
    manager = manager_of({"NOTIFY_SOCKET": bad})
    await manager.ready()
    await manager.stopping(1)
    (fields,) = told(caplog, NOT_TOLD)
    assert cause in fields["cause"]


@pytest.mark.parametrize("address", ["path"], indirect=True)
async def test_manager_that_reads_nothing_holds_nothing_up(
    address: str,
    manager: socket.socket,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as other:
        other.setblocking(False)
        with suppress(BlockingIOError):  # once the queue of the manager is full
            while True:
                other.sendto(b"x", address)
        await manager_of({"NOTIFY_SOCKET": address}).ready()
    (fields,) = told(caplog, NOT_TOLD)
    assert fields["cause"] == "it takes no message within 1 s"


@pytest.mark.slow
def test_node_says_when_it_serves_and_asks_for_the_time_that_its_end_may_take(
    address: str, manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = MemberPlan(
        endpoint="ssl://127.0.0.1:1", listen="ssl://127.0.0.1:0", admin_url="https://127.0.0.1:0"
    )
    create_node(tmp_path / "node", 1, plan)
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    monkeypatch.setenv("GARLICFARM_NODE__SHUTDOWN_TIMEOUT_S", "77")
    config = tmp_path / "node" / "garlicfarm.toml"
    with running([sys.executable, "-m", "garlicfarm", "node", "start", "--config", str(config)]) as node:
        assert manager.recv(4096) == b"READY=1"
        assert (tmp_path / "node" / "data" / "admin.url").exists()
        node.send_signal(signal.SIGTERM)
        assert manager.recv(4096) == b"STOPPING=1\nEXTEND_TIMEOUT_USEC=79000000"
        assert node.wait(240) == 0
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(4096)
