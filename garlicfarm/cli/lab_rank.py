"""The lab's Spark process: `garlicfarm rank` over all of the lab's nodes, and whether it ranks as they do."""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import sys
import tempfile
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

USER = "rank"
POLL_S = 0.1
STOP_TIMEOUT_S = 30.0
MOST_SAID = 1000
MIB = 1 << 20
DOWNLOAD_MIB, INSTALLED_MIB = 560, 920
"""About what pip downloads for Spark and a Java, and by how much that grows an environment."""
MEASURE_S = 2.0
KEPT = 1000
"""How many rankings of each side are kept for the comparison: Spark is seconds behind, not minutes."""


class Preparation:
    """How far pip has come with installing Spark and a Java: by what it has downloaded to its scratch
    directories below ``scratch``, and by how much the environment ``prefix`` has grown."""

    def __init__(self, prefix: Path, scratch: Path) -> None:
        self._prefix = prefix
        self._scratch = scratch
        self._began = trio.current_time()
        self._first: int | None = None
        self._installed = self._downloaded = 0

    async def watch(self) -> NoReturn:
        """Keep the figures up to date."""
        while True:
            await trio.to_thread.run_sync(self.measure)
            await trio.sleep(MEASURE_S)

    def measure(self) -> None:
        """Take the figures of this moment."""
        downloaded = tree_bytes(self._scratch, "pip-unpack-")
        self._downloaded = max(self._downloaded, downloaded)  # pip removes them at last
        grown = tree_bytes(self._prefix)
        self._first = grown if self._first is None else self._first
        self._installed = grown - self._first

    def text(self) -> str:
        """For people who wait for it."""
        waited_s = trio.current_time() - self._began
        what = f"{self._downloaded / MIB:.0f} of about {DOWNLOAD_MIB} MiB downloaded"
        if self._installed >= MIB:
            what += f", {self._installed / MIB:.0f} of about {INSTALLED_MIB} MiB unpacked"
        return f"Spark and a Java are being installed: {what}, {waited_s:.0f} s"


def tree_bytes(directory: Path, prefix: str = "") -> int:
    """The bytes of the files below ``directory``, in those of its folders whose name begins so."""
    size = 0
    for path, folders, files in os.walk(directory):
        if prefix and Path(path) == directory:
            folders[:] = [folder for folder in folders if folder.startswith(prefix)]
            continue
        for file in files:
            with suppress(OSError):  # it is just being removed
                size += os.lstat(os.path.join(path, file)).st_size
    return size


class RankProcess:
    """What the Spark process said so far; made by `rank_process`."""

    def __init__(self, farm: ProcessFarm, log_file: Path) -> None:
        self.newest: dict[str, Any] | None = None
        """Its last ranking: the body of ``GET …/ranking`` at its index."""
        self.preparation: Preparation | None = None
        """While what it needs is being installed."""
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
                                f"at index {index}, Spark's ranking differs from that of node {node_id}"
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
            rank.preparation = Preparation(Path(sys.prefix), Path(tempfile.gettempdir()))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rank.preparation.watch)
                done = await trio.run_process(
                    shlex.split(prepare),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    check=False,
                    deliver_cancel=end,
                )
                nursery.cancel_scope.cancel()
            if done.returncode:
                said = rank.log_file.read_text(errors="replace").strip()
                raise GarlicFarmError(f"{prepare} ended with code {done.returncode}:\n{said[-MOST_SAID:]}")
            rank.preparation = None
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
    command += ["--trigger", "1s"]  # a lab shows things at once
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
