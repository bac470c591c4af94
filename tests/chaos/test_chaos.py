"""The chaos test finds what it is for, and leaves nothing behind; a short form of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from garlicfarm.log_application import LogApplication
from garlicfarm.raft.types import Entry
from garlicfarm.wire import ValueType
from tests.chaos.launch import Clock
from tests.chaos.ledger import Ledger
from tests.crash.crash_checks import Violation

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240.0  # ends what hangs; three nodes and a client on a busy machine take their time


def log(*labels: str, first: int = 2, term: int = 1) -> list[Entry]:
    return [
        Entry(index, term, ValueType.APPLICATION, label.encode().ljust(20, b"."))
        for index, label in enumerate(labels, first)
    ]


def ledger(*labels: str) -> Ledger:
    """What is known after nodes 1 and 2 showed these entries, from index 2 on."""
    made = Ledger()
    for node in (1, 2):
        made.page(node, log(*labels), len(labels) + 1)
    return made


def test_ledger_accepts_a_log_that_all_nodes_show() -> None:
    known = ledger("a-1", "b-1")
    known.page(2, log("a-2", first=4), 4)
    known.page(1, log("a-2", first=4), 5)
    known.acknowledged([b"ack 1.0 3 1 b-1\n", b"ack 1.0 4 1 a-2\n"])
    application = LogApplication()
    for entry in log("a-1", "b-1"):
        application.apply(entry.index, entry.term, entry.value)
    known.state(1, application.snapshot())


@pytest.mark.parametrize(
    ("learn", "sentence"),
    [
        (lambda known: known.acknowledged([b"ack 1.0 4 1 a-3"]), "a-3 .* the log has nothing there"),
        (lambda known: known.acknowledged([b"ack 1.0 2 1 a-2"]), "the log has b'a-1' of term 1 there"),
        (lambda known: known.acknowledged([b"ack 1.0 2 7 a-1"]), "acknowledged at index 2 in term 7"),
        (lambda known: known.page(3, log("a-1", "b-2"), 3), "node 3 shows another entry at index 3"),
        (lambda known: known.page(3, log("a-1", "a-2", term=2), 3), "node 3 shows another entry at index 2"),
        (lambda known: known.page(3, log("a-1"), 3), "node 3 shows no entry at index 3"),
        (lambda known: known.page(1, log("a-1", first=4), 4), "node 1 shows a-1 at 4; it is at 2 too"),
        (
            lambda known: (known.page(2, [], 5), known.page(1, log("b-1", first=4), 4)),
            "node 1 shows an entry at index 4, where others have none",
        ),
        (lambda known: known.state(2, (3).to_bytes(8, "big") + bytes(32)), "chain of node 2 at index 3"),
    ],
    ids=["lost", "elsewhere", "other-term", "value", "term", "missing", "twice", "late", "state"],
)
def test_ledger_that_is_contradicted_says_so(learn: Callable[[Ledger], object], sentence: str) -> None:
    with pytest.raises(Violation, match=sentence):
        learn(ledger("a-1", "a-2"))


def test_ledger_of_two_leaders_in_a_term_or_a_term_that_falls_says_so() -> None:
    known = ledger()
    known.status(1, 100, {"term": 5, "role": "leader"})
    known.status(2, 200, {"term": 5, "role": "follower"})
    with pytest.raises(Violation, match="nodes 1 and 2 both lead in term 5"):
        known.status(2, 200, {"term": 5, "role": "leader"})
    with pytest.raises(Violation, match="node 1 is in term 4, and was in 5"):
        known.status(1, 100, {"term": 4, "role": "follower"})
    known.status(1, 101, {"term": 4, "role": "follower"})  # restarted: what was not durable may be gone


def test_clock_that_is_set_moves_the_wall_clock_alone(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock")
    clock.off_s = -3600.0
    program = (
        "import pathlib, sys, time; from tests.chaos import launch;"
        "a = time.time(), time.time_ns(), time.monotonic();"
        "launch.Clock(pathlib.Path(sys.argv[1])).wear();"
        "print(time.time() - a[0], (time.time_ns() - a[1]) / 1e9, time.monotonic() - a[2])"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "clock")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert [round(float(moved), -2) for moved in done.stdout.split()] == [-3600.0, -3600.0, 0.0]


async def start(nursery: trio.Nursery, *arguments: str) -> trio.Process:
    command = [sys.executable, "-u", "-m", "tests.chaos.run", *arguments]
    process: trio.Process = await nursery.start(
        partial(
            trio.run_process, command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    )
    return process


async def read(process: trio.Process, until: str | None = None) -> str:
    """What it writes, up to a word."""
    assert process.stdout is not None
    output = ""
    with trio.fail_after(DEADLINE_S):
        async for data in process.stdout:
            output += data.decode()
            if until is not None and until in output:
                break
    return output


def sandbox_of(process: trio.Process) -> Path:
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return Path(f"/proc/{child}")


@pytest.mark.fuse
@pytest.mark.tun
@pytest.mark.slow
async def test_chaos_short() -> None:
    async with trio.open_nursery() as nursery:
        kinds = ("isolate-leader", "sync-error", "power")
        process = await start(nursery, "--nodes", "3", "--faults", "3", "--kinds", *kinds)
        output = await read(process)
        assert await process.wait() == 0, output
    assert "1 isolate-leader, 1 power, 1 sync-error" in output
    assert "all promises were kept" in output
    assert re.search(r"[1-9][0-9]* linearizable reads, [1-9][0-9]* operations in a linear order", output)


@pytest.mark.slow
@pytest.mark.tun
async def test_chaos_that_is_terminated_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    async with trio.open_nursery() as nursery:
        process = await start(nursery, "--nodes", "3", "--faults", "50", "--kinds", "pause", "kill")
        output = await read(process, "[  1/50]")
        sandbox = sandbox_of(process)
        process.send_signal(signal.SIGTERM)
        output += await read(process)
        assert await process.wait() == 130, output
    assert not await trio.Path(sandbox).exists()
    assert os.listdir(tmp_path) == []
