"""Every exit code, caused for real by commands of their own processes against a farm of three."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest
import trio

from garlicfarm.cli.exits import Exit
from garlicfarm.credentials.private_files import write_private_file
from garlicfarm.credentials.users import UserStore
from garlicfarm.lab.processes import NodeProcess, process_farm
from tests.running import without_signs_of_life

GARLICFARM = (sys.executable, "-m", "garlicfarm")
DEADLINE_S = 240


class Shell:
    """Runs commands at nodes and notes how each ended; those that end otherwise fail the test at once."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    async def __call__(self, expected: Exit, node: NodeProcess, *arguments: str, stdin: bytes = b"") -> None:
        with trio.fail_after(DEADLINE_S):
            done = await trio.run_process(
                _command(node, arguments), stdin=stdin, capture_stdout=True, capture_stderr=True, check=False
            )
        assert done.returncode == expected, (arguments, done.stdout, done.stderr)
        # What goes wrong is said on stderr, and only there.
        assert (without_signs_of_life(done.stderr.decode()) == "") == (
            expected is Exit.OK or arguments == ("health",)
        )
        self.seen.add(done.returncode)

    async def interrupted(self, node: NodeProcess, *arguments: str) -> None:
        async with trio.open_nursery() as nursery:
            run = partial(
                trio.run_process, _command(node, arguments), stdin=DEVNULL, stdout=PIPE, check=False
            )
            process: trio.Process = await nursery.start(run)
            assert process.stdout is not None
            with trio.fail_after(DEADLINE_S):
                assert await process.stdout.receive_some(), "it has begun"
                process.send_signal(signal.SIGINT)
                code = await process.wait()
                # Python dies of the signal if it came while generated code ran, as of a dataclass that is
                # being imported: to a shell, both are 130.
                self.seen.add(128 - code if code < 0 else code)


def _command(node: NodeProcess, arguments: Sequence[str]) -> list[str]:
    return [*GARLICFARM, *arguments, "--config", str(node.directory / "garlicfarm.toml")]


@pytest.mark.slow
async def test_every_exit_code_is_what_its_cause_ends_with(tmp_path: Path) -> None:
    shell = Shell()
    async with process_farm(tmp_path / "farm", 3) as farm:
        any_node = farm.nodes[1]
        await shell(Exit.OK, any_node, "wait", "--for", "healthy", "--timeout", "240")
        async with any_node.client() as client:
            leader = int((await client.status(farm.name))["leader"])
        at = farm.nodes[leader]
        first, second = (node for node in farm.nodes.values() if node.id != leader)

        await shell(Exit.OK, at, "farm", "set", "interval=1s", "R=14")
        await shell(Exit.ERROR, at, "log", "post", stdin=b"no status, and no note")
        await shell(Exit.ERROR, at, "farm", "override", "9", "off")
        await shell(Exit.USAGE, at, "farm", "set", "R=2")
        (tmp_path / "garlicfarm.toml").write_text("version = 2\n")
        await shell(Exit.USAGE, NodeProcess(9, tmp_path), "node", "start")
        UserStore(at.directory / "data" / "users").add("rita", "reader", "rita's word")
        password = tmp_path / "rita"
        write_private_file(password, b"rita's word")
        as_rita = ("--user", "rita", "--password-file", str(password))
        await shell(Exit.AUTH, at, "farm", "exclude", f"{'a' * 52}.b32.i2p", *as_rita)
        password.write_text("someone else's")
        await shell(Exit.AUTH, at, "status", *as_rita)
        # There is no leaf, so nobody can be named.
        await shell(Exit.DEADLINE, at, "wait", "--for", "publisher", "--timeout", "0.5")
        await shell.interrupted(at, "log", "tail", "--follow")

        await farm.kill(first.id)
        await shell(Exit.UNREACHABLE, first, "status")
        with trio.fail_after(DEADLINE_S):
            while await _health(at) != Exit.DEGRADED:  # noqa: ASYNC110 - another process finds out
                await trio.sleep(0.2)
        await shell(Exit.DEGRADED, at, "health")
        store = first.directory / "data" / "farms" / farm.name / "log"
        store.rename(store.with_name("elsewhere"))
        await shell(Exit.STORAGE, first, "node", "start")
        store.with_name("elsewhere").rename(store)
        await shell(Exit.STORAGE, at, "node", "start")  # the store is in use

        await farm.start(first.id)
        await shell(Exit.OK, first, "wait", "--for", "caught-up", "--timeout", "240")
        await shell(Exit.OK, first, "node", "leave")
        assert first.process is not None
        with trio.fail_after(DEADLINE_S):
            assert await first.process.wait() == Exit.REMOVED
        await shell(Exit.REMOVED, first, "node", "start")

        await farm.kill(second.id)
        with trio.fail_after(DEADLINE_S):
            for local in [], ["--local"]:
                while await _health(at, *local) != Exit.NO_QUORUM:  # noqa: ASYNC110 - another process finds out
                    await trio.sleep(0.2)
        await shell(Exit.NO_QUORUM, at, "health")
        assert await farm.stop(leader) == Exit.OK, "SIGTERM is how a node is ended"
    assert shell.seen == set(Exit)


async def _health(node: NodeProcess, *options: str) -> int:
    done = await trio.run_process(
        _command(node, ["health", *options]), capture_stdout=True, capture_stderr=True, check=False
    )
    return done.returncode
