"""A node that runs out of file descriptors: it goes on, says so once a second, and recovers."""

from __future__ import annotations

import logging
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TextIO

import pytest
import trio

from garlicfarm import logs
from garlicfarm.client.farm import open_farm_client
from garlicfarm.credentials.users import UserStore
from garlicfarm.lab.processes import process_farm
from garlicfarm.setup.provision import FarmPlan
from garlicfarm.transport import Endpoint
from tests.node.support.cluster import ALONE, TRANSPORT

FEWER_THAN_IT_HAS = 8
EVENT = "event=listener-pauses"


def suppressed(log: str) -> int:
    """How often nothing was written of it."""
    return sum(map(int, re.findall(rf"^.* suppressed=(\d+) .*{EVENT}", log, re.MULTILINE)))


async def test_node_without_file_descriptors_goes_on_quietly_and_recovers(tmp_path: Path) -> None:
    plan = FarmPlan(application="log", raft=ALONE)
    async with process_farm(tmp_path / "farm", 1, plan, start=False) as farm:
        node = farm.nodes[1]
        UserStore(node.directory / "data" / "users").add("alice", "writer", "a secret word")
        await farm.start(1)
        endpoint = Endpoint.parse(farm.endpoints[1])
        async with (
            open_farm_client(
                farm.endpoints,
                farm="farm",
                user="alice",
                password="a secret word",
                transport=lambda scheme: TRANSPORT,
            ) as client,
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
