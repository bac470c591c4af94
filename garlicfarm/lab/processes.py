"""A farm of real processes on this machine: own data directories, TLS on loopback, real fsyncs.

The lab, the crash test and the benchmarks run on it. Processes are children of this one and end with
it; their stderr goes to ``node.log`` beside their configuration.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, STDOUT
from types import MappingProxyType
from typing import BinaryIO

import trio

from garlicfarm.client import AdminClient
from garlicfarm.credentials.certificates import pin_of_file
from garlicfarm.credentials.private_files import read_private_file
from garlicfarm.credentials.users import LOCAL_USER
from garlicfarm.errors import UnreachableError
from garlicfarm.lab.cleanup import lock_holder
from garlicfarm.setup.provision import FarmPlan, MadeFarm, MemberPlan, create_farm

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 45.0  # longer than a node takes at most
"""How long a process may work or idle; waiting for a busy machine does not count."""
LOOK_S = 0.05
LAST_LINES = 15
PORTS = (15000, 30999)
HELD = 100
_holders: deque[socket.socket] = deque()

FAST: Mapping[str, float] = {
    "election_timeout_min_s": 1.0,
    "election_timeout_max_s": 2.0,
    "heartbeat_s": 0.3,
    "rpc_timeout_s": 2.0,
}
"""``[farm.raft]`` for members that share a machine: seconds to a new leader where the preset takes more."""


def free_ports(count: int) -> list[int]:
    """Unused ports of loopback, outside the range from which the kernel assigns ports.

    No process that asks is given one of them again until this process has ended, or has asked for `HELD`
    others: they are bound here. A server that sets ``SO_REUSEADDR`` can listen on them nevertheless, again
    and again; until one does, connections are refused.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().randint(*PORTS)
        holder = socket.socket()
        try:
            holder.bind(("127.0.0.1", port))
        except OSError:
            holder.close()
            continue
        # Not before it is bound: it must not be given a port that another holds.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _holders.append(holder)
        ports.append(port)
    while len(_holders) > HELD:
        _holders.popleft().close()
    return ports


class NodeProcess:
    """One node: ``directory`` holds its configuration, data and ``node.log``; ``process`` is None while
    it is down."""

    def __init__(self, node_id: int, directory: Path) -> None:
        self.id = node_id
        self.directory = directory
        self.process: trio.Process | None = None
        self._log_from = 0

    def open_log(self) -> BinaryIO:
        """The log file for the next process of this node."""
        log = self.log_file.open("ab")
        self._log_from = log.tell()
        return log

    @property
    def log_file(self) -> Path:
        return self.directory / "node.log"

    @property
    def url(self) -> str | None:
        """The admin URL, None before the node has started."""
        try:
            return (self.directory / "data" / "admin.url").read_text().strip()
        except FileNotFoundError:
            return None

    def failure(self, what: str) -> UnreachableError:
        """An error: this node did ``what``, with the reason and the end of its log."""
        lines = self.log_lines()
        if not lines:
            return UnreachableError(f"node {self.id} {what}", f"it wrote nothing to {self.log_file}")
        reason = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1])
        return UnreachableError(
            f"node {self.id} {what}: {reason.removeprefix('error: ')}",
            "\n".join([f"its log, {self.log_file}, ends:", *lines[-LAST_LINES:]]),
        )

    def log_lines(self) -> list[str]:
        """The last lines of its newest process."""
        return self.log_file.read_bytes()[self._log_from :][-20_000:].decode(errors="replace").splitlines()

    @property
    def pid(self) -> int | None:
        """The pid of the process that runs this node, even if started by hand; None while it is down."""
        if self.process is not None and self.process.returncode is None:
            return self.process.pid
        return lock_holder(self.directory / "data")

    def client(self) -> AdminClient:
        """A client as the user ``local``. Raises `UnreachableError` before the node has started."""
        url = self.url
        if url is None:
            raise UnreachableError(f"node {self.id} has not started", f"see {self.log_file}")
        data = self.directory / "data"
        password = read_private_file(data / "local.password").strip()
        return AdminClient(
            [url], user=LOCAL_USER, password=password, pin=pin_of_file(data / "tls" / "node.crt")
        )


class ProcessFarm:
    """The processes of one farm; made by `process_farm`. ``commands``: what runs each node from its next
    start on, given ``--config FILE``."""

    def __init__(
        self,
        made: MadeFarm,
        plan: FarmPlan,
        command: Sequence[str],
        places: Mapping[int, str],
        nursery: trio.Nursery,
    ) -> None:
        self.name = plan.name
        self.application = plan.application
        self.farm_id = made.farm_id
        self.endpoints = {server.id: server.endpoint for server in made.configuration.servers}
        self.nodes = {node_id: NodeProcess(node_id, path) for node_id, path in made.directories.items()}
        self.commands = defaultdict[int, Sequence[str]](lambda: command)
        self._places = places
        self._nursery = nursery

    async def start(self, node_id: int) -> None:
        """Start a node and wait until it listens. Raises `UnreachableError` with the end of its log if it
        ends instead, or does not listen within 30 s in which it could run."""
        node = self.nodes[node_id]
        ready = node.directory / "data" / "admin.url"
        ready.unlink(missing_ok=True)
        into = ["nsenter", f"--net={self._places[node_id]}"] if node_id in self._places else []
        with node.open_log() as log:
            node.process = await self._nursery.start(
                partial(
                    trio.run_process,
                    [*into, *self.commands[node_id], "--config", str(node.directory / "garlicfarm.toml")],
                    stdin=DEVNULL,
                    stdout=log,
                    stderr=STDOUT,
                    check=False,
                    deliver_cancel=terminate,
                )
            )
        patience = Patience(node.process.pid, START_TIMEOUT_S)
        while not ready.exists():
            if (code := node.process.returncode) is not None:
                raise node.failure(f"ended with exit code {code} before it listened")
            if patience.is_over():
                raise node.failure(f"does not listen after {START_TIMEOUT_S:g} s in which it could run")
            await trio.sleep(LOOK_S)

    async def kill(self, node_id: int) -> None:
        """End a node as a power cut would end the process: SIGKILL."""
        await self._end(node_id, signal.SIGKILL)

    async def stop(self, node_id: int, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """End a node in order (SIGTERM); its exit code. `trio.TooSlowError`: it works or idles longer."""
        return await self._end(node_id, signal.SIGTERM, timeout_s)

    async def _end(self, node_id: int, how: signal.Signals, timeout_s: float = STOP_TIMEOUT_S) -> int:
        node = self.nodes[node_id]
        process = node.process
        if process is None:
            return 0
        patience = Patience(process.pid, timeout_s)
        process.send_signal(how)
        while (code := process.returncode) is None:
            if patience.is_over():
                raise trio.TooSlowError(str(node.failure(f"did not end within {timeout_s:g} s")))
            with trio.move_on_after(LOOK_S):
                await process.wait()
        node.process = None
        return code


class Patience:
    """Over once a process has used a processor, or been idle, for ``timeout_s`` in all. Waiting for a
    processor or the disk of a busy machine does not count, and no wall clock is read.

    Look at `is_over` every `LOOK_S`.
    """

    def __init__(self, pid: int, timeout_s: float) -> None:
        self._pid = pid
        self._timeout_s = timeout_s
        self._began_s = activity(pid)[0]
        self._idle_s = 0.0

    def is_over(self) -> bool:
        cpu_s, is_idle = activity(self._pid)
        # Even if we look late: a machine too busy for us is too busy for that process.
        self._idle_s += LOOK_S if is_idle else 0
        return cpu_s - self._began_s + self._idle_s > self._timeout_s


def activity(pid: int) -> tuple[float, bool]:
    """The seconds of processor time that a process has used, and whether all its threads wait for
    something other than a processor or the disk. (0, True) if the system does not say."""
    try:
        used = _stat(Path(f"/proc/{pid}/stat"))[11:13]
        threads = [_stat(thread / "stat")[0] for thread in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return 0.0, True
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK"), not any(state in "RD" for state in threads)


def _stat(file: Path) -> list[str]:
    """The fields of a process in the kernel's file after its name, which may contain anything."""
    return file.read_text(errors="replace").rpartition(")")[2].split()


async def terminate(process: trio.Process, timeout_s: float = STOP_TIMEOUT_S) -> None:
    """End a process: SIGTERM, and SIGKILL if it takes longer than that."""
    with suppress(ProcessLookupError):
        process.terminate()
    with trio.move_on_after(timeout_s):
        await process.wait()
        return
    with suppress(ProcessLookupError):
        process.kill()


@asynccontextmanager
async def process_farm(
    directory: Path,
    members: Mapping[int, MemberPlan] | int,
    plan: FarmPlan | None = None,
    *,
    command: Sequence[str] = (sys.executable, "-m", "garlicfarm", "node", "start"),
    places: Mapping[int, str] = MappingProxyType({}),
    start: bool = True,
    create: Callable[[Path, Mapping[int, MemberPlan], FarmPlan], MadeFarm] = create_farm,
) -> AsyncIterator[ProcessFarm]:
    """A farm in ``directory`` (must not exist) for as long as the block lasts.

    ``members``: a plan for each id, or how many on free ports of loopback. ``command`` runs a node, given
    ``--config FILE``. ``places``: files of the network namespaces of nodes that do not live in this one.
    ``start``: start all of them, and wait until they listen. ``create``: makes them, as `create_farm` does.
    """
    plan = plan or FarmPlan(raft=FAST)
    if isinstance(members, int):
        members = {
            node_id: MemberPlan(endpoint=f"ssl://127.0.0.1:{port}", admin_url="https://127.0.0.1:0")
            for node_id, port in enumerate(free_ports(members), 1)
        }
    made = await trio.to_thread.run_sync(create, directory, members, plan)
    async with trio.open_nursery() as nursery:
        farm = ProcessFarm(made, plan, command, places, nursery)
        if start:
            async with trio.open_nursery() as starting:
                for node_id in farm.nodes:
                    starting.start_soon(farm.start, node_id)
        yield farm
        nursery.cancel_scope.cancel()
