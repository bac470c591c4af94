"""A node that runs out of file descriptors: it goes on, says so once a second, and recovers."""

from __future__ import annotations

import logging
import re
import resource
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit

import pytest
import trio

from garlicfarm import logs
from garlicfarm.client.farm import FarmClient
from garlicfarm.errors import NoQuorum, OutcomeUnknown, ProposalDropped
from garlicfarm.lab.processes import process_farm
from garlicfarm.setup.provision import FarmPlan
from garlicfarm.transport import Endpoint
from tests.node.support.cluster import ALONE, TRANSPORT, let_post, posting
from tests.running import wait_until

FEWER_THAN_IT_HAS = 8
EVENT = "event=listener-pauses"


def suppressed(log: str) -> int:
    """How often nothing was written of it."""
    return sum(map(int, re.findall(rf"^.* suppressed=(\d+) .*{EVENT}", log, re.MULTILINE)))


async def test_node_without_file_descriptors_goes_on_quietly_and_recovers(tmp_path: Path) -> None:
    plan = FarmPlan(application="log", raft=ALONE)
    async with process_farm(tmp_path / "farm", 1, plan, start=False) as farm:
        node = farm.nodes[1]
        let_post(farm)
        await farm.start(1)
        endpoint = Endpoint.parse(farm.endpoints[1])
        async with (
            posting(farm) as client,
            AsyncExitStack() as stack,
        ):
            await client.post([b"before"])
            assert node.process is not None
            allowed = resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (FEWER_THAN_IT_HAS, allowed[1]))
            for _ in range(3):
                stack.push_async_exit(await trio.open_tcp_stream(endpoint.host, endpoint.port))
            with trio.fail_after(240):
                while suppressed(node.log_file.read_text()) < 5:
                    await client.post([b"during"])
                    await trio.sleep(0.1)
            await stack.aclose()
            resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, allowed)
            with trio.fail_after(240):
                stream = await TRANSPORT.open_stream(endpoint)
            await stream.aclose()
            await client.post([b"after"])
        assert await farm.stop(1) == 0
    told = [line for line in node.log_file.read_text().splitlines() if EVENT in line]
    assert len(told) <= 15
    assert all("Too many open files" in line for line in told)


FLOOD = 1000


async def flood(bound: tuple[str, int], held: deque[trio.SocketStream]) -> None:
    """Connect so often without a word; the newest connections stay open."""
    for _ in range(FLOOD):
        with suppress(OSError):
            held.append(await trio.open_tcp_stream(*bound))
        if len(held) > 300:
            await trio.aclose_forcefully(held.popleft())


@pytest.mark.slow
@pytest.mark.parametrize("limit", [128, 256])
async def test_strangers_at_both_ports_cannot_take_the_descriptors_of_the_store(
    limit: int, tmp_path: Path
) -> None:
    limited = ("/bin/sh", "-c", f'ulimit -n {limit}; exec "$0" -m garlicfarm node start "$@"', sys.executable)
    retention = {"snapshot_every_entries": 100}
    plan = FarmPlan(application="log", raft=ALONE, retention=retention)
    async with process_farm(tmp_path / "farm", 1, plan, command=limited, start=False) as farm:
        node = farm.nodes[1]
        let_post(farm)
        await farm.start(1)
        assert node.url is not None
        endpoint, admin = Endpoint.parse(farm.endpoints[1]), urlsplit(node.url)
        assert admin.hostname is not None
        assert admin.port is not None
        store = node.directory / "data" / "farms" / "farm"
        held = deque[trio.SocketStream]()
        with trio.fail_after(240):
            async with (
                posting(farm) as client,
                trio.open_nursery() as nursery,
            ):
                await client.post([b"before"])
                nursery.start_soon(flood, (endpoint.host, endpoint.port), held)
                nursery.start_soon(flood, (admin.hostname, admin.port), held)
                for _ in range(120):
                    await client.post([bytes(90_000)])
            for stream in held:
                await trio.aclose_forcefully(stream)
            await wait_until(lambda: any((store / "snapshots").glob("*.snap")))
            assert len(list((store / "log").glob("*.seg"))) > 1
        assert await farm.stop(1) == 0
    told = node.log_file.read_text()
    assert "event=few-descriptors" in told
    for failure in ("farm-failed", "snapshot-failed", "disk-hangs", "EMFILE", "Too many open files"):
        assert failure not in told


@pytest.mark.slow
async def test_node_without_any_descriptor_waits_with_its_store_and_goes_on(tmp_path: Path) -> None:
    plan = FarmPlan(application="log", raft=ALONE)
    async with process_farm(tmp_path / "farm", 1, plan, start=False) as farm:
        node = farm.nodes[1]
        let_post(farm)
        await farm.start(1)
        process, log = node.process, node.directory / "data" / "farms" / "farm" / "log"
        assert process is not None
        allowed = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        with trio.fail_after(240):
            async with posting(farm) as client:
                await client.post([b"before"])
                resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (FEWER_THAN_IT_HAS, allowed[1]))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(post_many, client)
                    await wait_until(lambda: (log / "0000000001.seg").stat().st_size >= 8 << 20)
                    await wait_until(lambda: "event=disk-hangs" in node.log_file.read_text())
                    assert process.poll() is None
                    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, allowed)
                await client.post([b"after"])
        assert (log / "0000000002.seg").exists()
        assert await farm.stop(1) == 0
    assert "farm-failed" not in node.log_file.read_text()


async def post_many(client: FarmClient) -> None:
    """Post until a segment is full, and the next one begun."""
    for _ in range(100):
        while True:
            try:
                await client.post([bytes(90_000)])
                break
            except (NoQuorum, OutcomeUnknown, ProposalDropped):
                await trio.sleep(0.1)


async def test_node_with_a_limit_that_is_too_low_does_not_start_and_says_how_to_raise_it(
    tmp_path: Path,
) -> None:
    limited = ("/bin/sh", "-c", 'ulimit -n 64; exec "$0" -m garlicfarm node start "$@"', sys.executable)
    plan = FarmPlan(application="log", raft=ALONE)
    async with process_farm(tmp_path / "farm", 1, plan, start=False) as farm:
        config = farm.nodes[1].directory / "garlicfarm.toml"
        ended = await trio.run_process(
            [*limited, "--config", str(config)], check=False, capture_stderr=True, capture_stdout=True
        )
    assert ended.returncode == 2
    assert b"may open 64 files, and the node needs 96: raise it with `ulimit -n`" in ended.stderr


async def test_node_takes_all_file_descriptors_that_it_may_have(tmp_path: Path) -> None:
    limited = (
        "/bin/sh",
        "-c",
        'ulimit -Sn 64; ulimit -Hn 512; exec "$0" -m garlicfarm node start "$@"',
        sys.executable,
    )
    plan = FarmPlan(application="log", raft=ALONE)
    async with process_farm(tmp_path / "farm", 1, plan, command=limited) as farm:
        process = farm.nodes[1].process
        assert process is not None
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (512, 512)


@pytest.fixture
def output(tmp_path: Path, logging_restored: None) -> Iterator[TextIO]:
    with (tmp_path / "log").open("w+") as file:
        yield file


def test_foreign_message_is_written_once_a_second_and_the_rest_counted(
    output: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    with logs.configured("info", "text", output):
        monkeypatch.setattr("garlicfarm.logs.time.monotonic", lambda: now)
        foreign = logging.getLogger("library")
        for _ in range(5):
            foreign.warning("no room for %s", "x")
        foreign.warning("another")
        for _ in range(3):
            logging.getLogger("garlicfarm.node").info("e", extra={"garlicfarm_fields": {"event": "e"}})
        now += 1
        foreign.warning("no room for %s", "y")
        now += 1
        foreign.warning("no room for %s", "z")
    output.seek(0)
    lines = [line.partition(" ")[2].strip() for line in output]
    assert lines == [
        'WARNING library message="no room for x"',
        "WARNING library message=another",
        *["INFO  node event=e"] * 3,
        'WARNING library message="no room for y" suppressed=4',
        'WARNING library message="no room for z"',
    ]
