"""The lab's Spark process: `garlicfarm rank` over all of the lab's nodes, and whether it ranks as they do."""

from __future__ import annotations

import secrets
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import trio

from garlicfarm.credentials.certificates import pin_of_file
from garlicfarm.credentials.users import UserStore
from garlicfarm.errors import ConfigError, GarlicFarmError, UnreachableError
from garlicfarm.lab.processes import terminate

if TYPE_CHECKING:
    from garlicfarm.lab.processes import ProcessFarm

__all__ = ["RankProcess", "rank_process"]

USER = "rank"
POLL_S = 0.1
STOP_TIMEOUT_S = 30.0
MOST_SAID = 1000
KEPT = 1000
"""How many rankings of each side are kept for the comparison: Spark is seconds behind, not minutes."""


class RankProcess:
    """What the Spark process said so far; made by `rank_process`."""

    def __init__(self, farm: ProcessFarm, log_file: Path) -> None:
        self.newest: dict[str, Any] | None = None
        """Its last ranking: the body of ``GET …/ranking`` at its index."""
        self.preparing = False
        """Whether what it needs is still being installed."""
        self.log_file = log_file
        self._farm = farm
        self._said: dict[int, bytes] = {}
        self._of_nodes: dict[int, bytes] = {}

    async def wait_equal(self, beyond: int = 0) -> int:
        """Until it has said what a node said at the same index, one > ``beyond``; that index.

        Raises `GarlicFarmError`: they said something different.
        """
        async with AsyncExitStack() as stack:
            clients = [
                (node.id, await stack.enter_async_context(node.client()))
                for node in self._farm.nodes.values()
            ]
            while True:
                for node_id, client in clients:
                    with suppress(UnreachableError):
                        body = await client.ranking(self._farm.name)
                        _keep(self._of_nodes, body["index"], msgspec.json.encode(body))
                    for index in self._said.keys() & self._of_nodes.keys():
                        if self._said[index] != self._of_nodes[index]:
                            raise GarlicFarmError(
                                f"at index {index}, Spark ranks otherwise than node {node_id}"
                            )
                        if index > beyond:
                            return index
                    await trio.sleep(POLL_S)

    async def read(self, process: trio.Process) -> NoReturn:
        """Take what it writes, until it ends, which it must not. Raises `GarlicFarmError` then, or
        `ConfigError` where it lacks what it needs to run."""
        assert process.stdout is not None
        data = b""
        async for piece in process.stdout:
            *lines, data = (data + piece).split(b"\n")
            for line in lines:
                self.newest = msgspec.json.decode(line, type=dict[str, Any])
                _keep(self._said, self.newest["index"], line)
        said = self.log_file.read_text(errors="replace").strip().rpartition("\n")[2]
        if await process.wait() == 2:
            raise ConfigError([said.removeprefix("error: ")])
        raise GarlicFarmError(f"the Spark process ended: {said or 'it said nothing'}")


@asynccontextmanager
async def rank_process(
    directory: Path, farm: ProcessFarm, prepare: str | None = None
) -> AsyncIterator[RankProcess]:
    """Run it beside the block, reading from every node of ``farm``; its files are below ``directory``.
    It ends with the block, and nothing of it is left.

    ``prepare``: a command with its arguments, to run before it. Raises what `RankProcess.read` raises, and
    `GarlicFarmError`: ``prepare`` failed.
    """
    await trio.Path(directory).mkdir()
    rank = RankProcess(farm, directory / "rank.log")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_run, rank, directory, farm, prepare)
        yield rank
        nursery.cancel_scope.cancel()


async def _run(rank: RankProcess, directory: Path, farm: ProcessFarm, prepare: str | None) -> None:
    end = partial(terminate, timeout_s=STOP_TIMEOUT_S)
    with rank.log_file.open("wb") as log:
        if prepare is not None:
            rank.preparing = True
            done = await trio.run_process(
                shlex.split(prepare),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
                deliver_cancel=end,
            )
            if done.returncode:
                said = rank.log_file.read_text(errors="replace").strip()
                raise GarlicFarmError(f"{prepare} ended with code {done.returncode}:\n{said[-MOST_SAID:]}")
            rank.preparing = False
        command = await trio.to_thread.run_sync(_command, directory, farm)
        async with trio.open_nursery() as nursery:

            async def run(*, task_status: trio.TaskStatus[trio.Process]) -> None:
                await trio.run_process(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    check=False,
                    deliver_cancel=end,
                    task_status=task_status,
                )

            await rank.read(await nursery.start(run))


def _command(directory: Path, farm: ProcessFarm) -> list[str]:
    """Make its user at every node; the command that runs it as that user."""
    password, password_file = secrets.token_urlsafe(24), directory / "rank.password"
    password_file.touch(0o600)
    password_file.write_text(password)
    command = [sys.executable, "-m", "garlicfarm", "rank", "--farm", farm.name, "--user", USER]
    command += ["--password-file", str(password_file), "--checkpoint", str(directory / "checkpoint")]
    for node in farm.nodes.values():
        data = node.directory / "data"
        UserStore(data / "users").add(USER, "reader", password)
        command += ["--node", f"{node.url}?pin={pin_of_file(data / 'tls' / 'node.crt')}"]
    return command


def _keep(rankings: dict[int, bytes], index: int, text: bytes) -> None:
    rankings[index] = text
    if len(rankings) > KEPT:
        del rankings[next(iter(rankings))]
