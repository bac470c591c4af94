"""`garlicfarm node drain` and `undrain`, as processes of their own that ask real nodes; and what they say."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from garlicfarm.cli.exits import Exit
from garlicfarm.cli.node_drain import WAIT_S
from garlicfarm.credentials.private_files import write_private_file
from tests.node.support.cluster import cluster, password_of
from tests.node.support.service_farm import ServiceFarm, service_farm
from tests.project.pages import ROOT
from tests.running import wait_until, without_signs_of_life

pytestmark = pytest.mark.slow

DEADLINE_S = 240
SAFE = "safe: this node can be stopped; `garlicfarm node undrain` has it take part again\n"
PAGE = ROOT / "docs" / "howto" / "stop.md"


@pytest.fixture
async def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServiceFarm]:
    async with service_farm(tmp_path, monkeypatch) as farm:
        yield farm


async def garlicfarm(directory: Path, *arguments: str, exits: Exit = Exit.OK) -> str:
    """Run a command at the node of a directory; what it writes."""
    command = [sys.executable, "-m", "garlicfarm", *arguments]
    if "--help" not in arguments:
        command += ["--config", str(directory / "garlicfarm.toml")]
    with trio.fail_after(DEADLINE_S):
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    errors = without_signs_of_life(done.stderr.decode())
    assert done.returncode == exits, (done.stdout, errors)
    assert (errors == "") is (exits in (Exit.OK, Exit.DEGRADED)), errors
    return done.stdout.decode() or errors


def reasons(out: str) -> list[str]:
    """Why the node is not to be stopped, as it is said of its farm: each is explained to readers."""
    table = PAGE.read_text(encoding="utf-8").partition("## What can go wrong")[2]
    explained = [re.sub(r"\d+$", "N", each) for each in re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)]
    found = []
    for line in out.splitlines():
        assert line.startswith("not now: farm farm: "), out
        found.append(line.removeprefix("not now: farm farm: "))
    assert {re.sub(r"\d+$", "N", each) for each in found} <= set(explained), found
    return found


async def test_drain_ends_once_others_publish_and_lead_and_undrain_ends_that(farm: ServiceFarm) -> None:
    first = await farm.publisher()
    await farm.lead(first)
    at = farm.nodes.directories[first]
    assert await garlicfarm(at, "node", "drain", "--timeout", "200s") == SAFE
    assert farm.services[first].order is None
    assert not farm.nodes.replica(first).is_leader
    assert await farm.publisher() != first
    assert json.loads(await garlicfarm(at, "node", "drain", "-o", "json")) == {
        "schema": "garlicfarm.node-drain/1",
        "drained": True,
        "safe": True,
        "holds": [],
    }
    assert await garlicfarm(at, "node", "undrain") == "this node takes part in its farms\n"
    assert not farm.nodes.node(first).draining.is_drained
    await wait_until(lambda: len(farm.fold().eligible()) == 3)


async def test_drain_where_no_other_member_can_publish_says_so_and_waits_for_one(farm: ServiceFarm) -> None:
    first = await farm.publisher()
    others = sorted(farm.services.keys() - {first})
    for other in others:
        farm.services[other].kill_router()
    await wait_until(lambda: farm.fold(first).eligible() == [first])
    await farm.lead(others[0])
    at = farm.nodes.directories[first]
    out = await garlicfarm(at, "node", "drain", "--timeout", "1s", exits=Exit.DEGRADED)
    assert reasons(out) == ["it publishes, and no other member can"]
    assert farm.services[first].order is not None
    assert farm.nodes.node(first).draining.is_drained

    # That a member can publish again is no news: its next status in turn says so.
    await farm.set_interval(2000)
    said: list[str] = []
    async with trio.open_nursery() as nursery:

        async def drain() -> None:
            said.append(await garlicfarm(at, "node", "drain", "--timeout", "200s"))

        nursery.start_soon(drain)
        farm.services[others[1]].start_router()
    assert said == [SAFE]
    assert await farm.publisher() == others[1]


async def test_drain_of_one_too_many_names_those_that_are_left(farm: ServiceFarm) -> None:
    first = await farm.publisher()
    second, third = sorted(farm.services.keys() - {first})
    await farm.lead(third)
    directories = farm.nodes.directories
    assert await garlicfarm(directories[second], "node", "drain", "--timeout", "200s") == SAFE
    await wait_until(lambda: farm.fold(first).is_draining(second))
    out = await garlicfarm(directories[first], "node", "drain", "--timeout", "1s", exits=Exit.DEGRADED)
    few = "a majority of its 3 members is 2, and of the others only these are there and not drained:"
    assert reasons(out)[-1] == f"{few} {third}"
    body = await garlicfarm(
        directories[first], "node", "drain", "--timeout", "0.1s", "-o", "json", exits=Exit.DEGRADED
    )
    assert json.loads(body)["holds"][-1] == f"farm farm: {few} {third}"
    await garlicfarm(directories[second], "node", "undrain")
    assert await garlicfarm(directories[first], "node", "drain", "--timeout", "200s") == SAFE


async def test_drain_of_the_only_member_and_by_a_user_that_may_not(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as nodes:
        at = nodes.directories[1]
        word = tmp_path / "word"
        write_private_file(word, password_of("alice").encode())
        as_writer = ("--user", "alice", "--password-file", str(word))
        for command in "drain", "undrain":
            said = await garlicfarm(at, "node", command, *as_writer, exits=Exit.AUTH)
            assert "admin" in said
        assert not nodes.node().draining.is_drained
        out = await garlicfarm(at, "node", "drain", "--timeout", "0.1s", exits=Exit.DEGRADED)
        assert out == "not now: farm farm: this is its only member\nnot now: farm farm: it leads\n"


async def test_help_names_the_exit_code_and_the_wait(tmp_path: Path) -> None:
    text = " ".join((await garlicfarm(tmp_path, "node", "drain", "--help")).split())
    assert f"6: not yet after --timeout, by default {WAIT_S:g} s" in text
    assert Exit.DEGRADED == 6
    assert f"After `--timeout` ({WAIT_S:g} s)" in PAGE.read_text(encoding="utf-8")
