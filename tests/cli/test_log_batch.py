"""`garlicfarm log post --batch`: the lines, and farms of processes. Against a fake node: test_cli_remote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.cli.log_batch import MAX_ENTRY_BYTES, LineSplitter
from garlicfarm.errors import NoQuorum, NotLeader
from garlicfarm.lab.processes import FAST, ProcessFarm, process_farm
from garlicfarm.setup.provision import FarmPlan
from tests.process_farms import leader_of

PLAN = FarmPlan(raft=FAST, application="log")


def split(pieces: list[bytes]) -> list[bytes | None]:
    splitter = LineSplitter()
    lines = [line for piece in pieces for line in splitter.receive_data(piece)]
    return lines + splitter.receive_eof()


@given(st.lists(st.sampled_from([b"", b"a", b"\n", b"bc\n", b"\r\n", b"\n\nd", b"\x00"])))
def test_lines_do_not_depend_on_how_they_arrive(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    lines = whole.split(b"\n")
    assert split(pieces) == (lines if lines[-1] else lines[:-1])


@pytest.mark.parametrize("piece", [1 << 16, 1000_003, 1 << 22])
def test_line_that_is_too_long_is_none_and_the_others_are_whole(piece: int) -> None:
    largest = b"x" * MAX_ENTRY_BYTES
    whole = b"a\n" + largest + b"\n" + largest + b"y\nb\n" + largest + b"yy"
    pieces = [whole[start : start + piece] for start in range(0, len(whole), piece)]
    assert split(pieces) == [b"a", largest, None, b"b", None]


async def post(farm: ProcessFarm, member: int, most: int) -> trio.Process:
    """The command, for a node of the farm; its input and outputs are pipes."""
    config = str(farm.nodes[member].directory / "garlicfarm.toml")
    command = [sys.executable, "-m", "garlicfarm", "log", "post", "--batch", str(most)]
    pipe = subprocess.PIPE
    return await trio.lowlevel.open_process(
        [*command, "-o", "jsonl", "--config", config], stdin=pipe, stdout=pipe, stderr=pipe
    )


async def rows_of(process: trio.Process) -> list[dict[str, Any]]:
    """What it prints until its end."""
    assert process.stdout is not None
    printed = b"".join([piece async for piece in process.stdout])
    return [json.loads(line) for line in printed.splitlines()]


async def log_of(farm: ProcessFarm, member: int) -> dict[int, bytes]:
    """All that is committed, once a leader confirms it."""
    async with farm.nodes[member].client() as client:
        while True:
            try:
                return {entry.index: entry.value async for entry in client.log(farm.name, linearizable=True)}
            except (NoQuorum, NotLeader):
                await trio.sleep(0.05)


def check(rows: list[dict[str, Any]], lines: list[bytes], log: dict[int, bytes]) -> None:
    """Every statement holds: a committed line is at its index, in the order of the lines, and one that was
    not appended is nowhere."""
    assert [row["line"] for row in rows] == list(range(1, len(rows) + 1))
    places = [row["index"] for row in rows if row["outcome"] == "committed"]
    assert places == sorted(places)
    for row, line in zip(rows, lines, strict=False):
        if row["outcome"] == "committed":
            assert log[row["index"]] == line
        elif row["outcome"] == "not appended":
            assert line not in log.values()
        else:
            assert row["outcome"] == "unknown"
    unsent = set(lines[len(rows) :])
    assert unsent.isdisjoint(log.values())


async def test_lines_posted_through_any_member_are_in_the_log_in_their_order(tmp_path: Path) -> None:
    async with process_farm(tmp_path / "farm", 3, PLAN) as farm:
        for member in farm.nodes:
            lines = [b"%d through %d" % (number, member) for number in range(3000)]
            process = await post(farm, member, 1024)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write, process, b"\n".join(lines))
                rows = await rows_of(process)
            assert process.stderr is not None
            *signs, last = b"".join([part async for part in process.stderr]).splitlines()
            assert last == b"3000 lines: 3000 committed"
            assert all(b" s: waiting for " in line for line in signs)
            assert await process.wait() == 0
            assert {row["outcome"] for row in rows} == {"committed"}
            assert len(rows) == 3000
            check(rows, lines, await log_of(farm, member))


async def write(process: trio.Process, data: bytes) -> None:
    assert process.stdin is not None
    await process.stdin.send_all(data)
    await process.stdin.aclose()


@pytest.mark.slow
async def test_statements_hold_when_the_leader_is_killed_in_the_middle(tmp_path: Path) -> None:
    """The command asks a node that stays; its input does not end by itself."""
    async with process_farm(tmp_path / "farm", 3, PLAN) as farm:
        leader = await leader_of(farm)
        member = next(member for member in farm.nodes if member != leader)
        process = await post(farm, member, 64)
        assert process.stdout is not None
        assert process.stdin is not None
        lines = [b"line %d" % number for number in range(20_000)]
        printed = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed, process, lines)
            killed = False
            async for piece in process.stdout:
                printed += piece
                if not killed and printed.count(b"\n") > 1000:
                    killed = True
                    await farm.kill(leader)
            nursery.cancel_scope.cancel()
        rows = [json.loads(line) for line in printed.splitlines()]
        assert killed
        assert await process.wait() in (0, 1, 5)
        assert len(rows) > 1000
        check(rows, lines, await log_of(farm, member))


async def feed(process: trio.Process, lines: list[bytes]) -> None:
    assert process.stdin is not None
    try:
        for line in lines:
            await process.stdin.send_all(line + b"\n")
        await process.stdin.aclose()
    except trio.BrokenResourceError:
        pass  # it has ended because of an error
