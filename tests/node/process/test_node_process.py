"""`node start` as a process of its own: how it ends, and why it would not start."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from shutil import copytree, rmtree

import pytest
import trio

from garlicfarm.cli import run
from garlicfarm.cli.exits import Exit
from garlicfarm.http.digest import ChallengeCache
from garlicfarm.lab.processes import activity, free_ports, process_farm
from garlicfarm.net.handshake import DialCredentials, dial
from garlicfarm.net.tls_stream import TlsStream
from garlicfarm.setup.provision import FarmPlan, MemberPlan, create_farm
from garlicfarm.storage import LogStore
from garlicfarm.transport import Endpoint
from garlicfarm.wire import encode_request
from tests.node.support.cluster import ALONE, TRANSPORT, client_request, let_post, password_of, posting
from tests.running import wait_until

COMMAND = [sys.executable, "-m", "garlicfarm", "node", "start", "--config"]
PLAN = FarmPlan(application="log", raft=ALONE)
LONG_POLL_S = 3600.0
LONG_POLLS = f"from garlicfarm.admin import app; app.MAX_WAIT_S = {LONG_POLL_S}; "
LONG_POLLS += "from garlicfarm.cli import main; main()"
CONTENTS = b"acknowledged before the end"


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
async def test_signal_ends_a_node_in_time_with_0_and_a_sound_store(
    how: signal.Signals, tmp_path: Path
) -> None:
    """With a long poll, idle and half-open connections, and a client that does not read."""
    command = (sys.executable, "-c", LONG_POLLS, "node", "start")
    async with (
        process_farm(tmp_path / "farm", 1, PLAN, command=command, start=False) as farm,
        trio.open_nursery() as nursery,
    ):
        node = farm.nodes[1]
        let_post(farm)
        await farm.start(1)
        endpoint = Endpoint.parse(farm.endpoints[1])
        credentials = DialCredentials("farm", "alice", password_of("alice"), ChallengeCache())
        login = partial(dial, TRANSPORT, endpoint, credentials)
        async with posting(farm) as client:
            index, _ = await client.post([CONTENTS])
        polling, answered = trio.Event(), trio.Event()

        async def poll() -> None:
            async with node.client() as admin:
                await admin.status("farm")  # logged in: the next request is sent at once
                polling.set()
                page, _ = await admin.page("farm", index, wait_s=LONG_POLL_S)
                assert page.entries == []
            answered.set()

        async def flood(stream: trio.abc.Stream) -> None:
            with suppress(trio.BrokenResourceError):
                while True:
                    await stream.send_all(encode_request(client_request()) * 1000)

        nursery.start_soon(poll)
        with trio.fail_after(240):
            await polling.wait()
        idle, deaf = (await login()).stream, (await login()).stream
        half_open = await TRANSPORT.open_stream(endpoint)
        silent = await trio.open_tcp_stream(endpoint.host, endpoint.port)
        nursery.start_soon(flood, deaf)
        assert node.process is not None
        assert isinstance(deaf, TlsStream)
        pid, deaf_socket = node.process.pid, deaf.transport_stream.socket

        def is_held_up() -> bool:
            """The node takes nothing more from the client that does not read, and waits."""
            return not select.select([], [deaf_socket], [], 0)[1] and activity(pid)[1]

        await wait_until(is_held_up)
        node.process.send_signal(how)
        await trio.sleep(0.05)
        node.process.send_signal(how)
        with trio.fail_after(240):
            code = await node.process.wait()
        assert code == 0, node.log_file.read_text()
        with trio.fail_after(240):
            await answered.wait()
        for stream in (idle, deaf, half_open, silent):
            await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()
    log = node.log_file.read_text()
    assert "event=stopping" in log
    assert "Traceback" not in log
    for wal in (node.directory / "data" / "farms" / "farm").glob("*-wal"):
        assert wal.stat().st_size == 0
    with closing(LogStore.open(node.directory / "data" / "farms" / "farm", farm="farm")) as store:
        assert store.entries(index, index + 1, 1000)[0].value == CONTENTS


def rewrite(old: str, new: str) -> Callable[[Path], None]:
    def change(node: Path) -> None:
        file = node / "garlicfarm.toml"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))

    return change


def append(text: str) -> Callable[[Path], None]:
    def change(node: Path) -> None:
        with (node / "garlicfarm.toml").open("a") as file:
            file.write(text)

    return change


def flip_a_bit(node: Path) -> None:
    (file,) = (node / "data" / "farms" / "farm" / "log").glob("*.seg")
    data = bytearray(file.read_bytes())
    data[data.index(b'"farm_id"') + 12] ^= 4
    file.write_bytes(data)


REFUSALS: dict[str, tuple[Callable[[Path], object], Exit, str]] = {
    "not TOML": (append("\n[[["), Exit.USAGE, "not TOML"),
    "unknown key": (rewrite("[node]", "[node]\nidd = 4"), Exit.USAGE, "idd"),
    "another node's id": (rewrite("id = 1", "id = 2"), Exit.USAGE, "belongs to node 1"),
    "an application that node start lacks": (rewrite('"log"', '"logs"'), Exit.USAGE, "did you mean 'log'?"),
    "another application": (rewrite('"log"', '"publisher"'), Exit.USAGE, "application 'log'"),
    "secret that all may read": (
        lambda node: (node / "data/secrets/farm.secret").chmod(0o644),
        Exit.USAGE,
        "chmod 600",
    ),
    "no secret": (lambda node: (node / "data/secrets/farm.secret").unlink(), Exit.USAGE, "farm.secret"),
    "no private key": (lambda node: (node / "data/tls/node.key").unlink(), Exit.USAGE, "node.key"),
    "broken users": (lambda node: (node / "data/users").write_text("{"), Exit.USAGE, "users, line 1"),
    "no metrics token": (
        rewrite("[admin]", '[admin]\nmetrics_token_file = "token"'),
        Exit.USAGE,
        "token cannot be read",
    ),
    "no such router": (append('\n[farm.router]\nplugin = "nosuch"\n'), Exit.USAGE, "nosuch"),
    "no such transport": (rewrite('url = "ssl://', 'url = "nosuch://'), Exit.USAGE, "nosuch"),
    "no data directory": (lambda node: rmtree(node / "data"), Exit.STORAGE, "is not the data directory"),
    "no store": (
        lambda node: rmtree(node / "data/farms/farm/log"),
        Exit.STORAGE,
        "no store of farm 'farm'",
    ),
    "damaged store": (flip_a_bit, Exit.STORAGE, "0000000001.seg"),
}


def everything_in(directory: Path) -> dict[str, bytes]:
    """All but what holds nothing: locks."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    found = {str(path.relative_to(directory)): path.read_bytes() for path in files}
    return {name: data for name, data in found.items() if data}


@pytest.fixture(scope="module")
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, port: int) -> Path:
    """A node that would start."""
    member = MemberPlan(endpoint=f"ssl://127.0.0.1:{port}", admin_url="https://127.0.0.1:0")
    return create_farm(tmp_path_factory.mktemp("whole") / "farm", {1: member}, PLAN).directories[1]


@pytest.mark.parametrize("case", REFUSALS)
@pytest.mark.usefixtures("logging_restored")
def test_node_that_must_not_start_says_why_in_one_sentence_and_changes_nothing(
    case: str, whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    change, code, words = REFUSALS[case]
    node = copytree(whole, tmp_path / "node")
    change(node)
    before = everything_in(node)
    assert run(["node", "start", "--config", str(node / "garlicfarm.toml")]) == code
    said = capfd.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("error: ")
    assert words in line
    assert everything_in(node) == before


async def start(node: Path) -> tuple[int, list[str]]:
    """Exit code and lines on stderr of a node that does not start."""
    with trio.fail_after(240):
        done = await trio.run_process(
            [*COMMAND, str(node / "garlicfarm.toml")],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            capture_stderr=True,
        )
    assert done.stdout == b""
    return done.returncode, done.stderr.decode().splitlines()


@pytest.mark.slow
async def test_second_process_in_a_data_directory_ends_with_7_and_the_first_goes_on(tmp_path: Path) -> None:
    async with process_farm(tmp_path / "farm", 1, PLAN) as farm:
        node = farm.nodes[1]
        code, lines = await start(node.directory)
        assert code == Exit.STORAGE
        (line,) = lines
        assert line.startswith("error: another process uses ")
        async with node.client() as client:
            with trio.fail_after(240):
                await client.post("farm", b"the first goes on")
        assert await farm.stop(1) == 0


@pytest.mark.slow
async def test_damaged_store_ends_the_process_with_7_and_a_taken_port_with_1(
    whole: Path, port: int, tmp_path: Path
) -> None:
    damaged, sound = copytree(whole, tmp_path / "damaged"), copytree(whole, tmp_path / "sound")
    flip_a_bit(damaged)
    code, lines = await start(damaged)
    assert code == Exit.STORAGE
    assert len(lines) == 1
    (listener,) = await trio.open_tcp_listeners(port, host="127.0.0.1")
    async with listener:
        code, lines = await start(sound)
    assert code == Exit.ERROR
    (line,) = lines
    assert line.startswith(f"error: cannot listen on ssl://127.0.0.1:{port}")


@pytest.mark.slow
async def test_log_that_nobody_reads_holds_up_neither_the_node_nor_its_end(tmp_path: Path) -> None:
    """From its first line on: the pipe is full before the node starts."""
    fifo = tmp_path / "log"
    os.mkfifo(fifo)
    unread, log = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), os.open(fifo, os.O_WRONLY)
    os.write(log, b"-" * fcntl.fcntl(log, fcntl.F_GETPIPE_SZ))
    command = ("/bin/sh", "-c", f'exec "$0" -m garlicfarm node start "$@" 2>"{fifo}"', sys.executable)
    async with process_farm(tmp_path / "farm", 1, PLAN, command=command) as farm:
        async with farm.nodes[1].client() as client:
            with trio.fail_after(240):
                await client.post("farm", CONTENTS)
        assert await farm.stop(1) == 0
    assert select.select([], [log], [], 0)[1] == []  # as full as before
    os.close(unread)
    os.close(log)
