"""Publisher plugin ``hooks``: commands of the operator that publish and stop publishing.

Configuration: docs/howto/publish.md. A command is a list without a shell between. It gets its arguments in
the environment, all named ``GARLICFARM_…``, and nothing else of the node's environment but PATH, HOME and
LANG. It runs in the directory of the configuration file.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import trio

from garlicfarm.durable_files import make_private_directory, replace_file
from garlicfarm.errors import ConfigError, PublisherError
from garlicfarm.plugin_settings import Settings, setting
from garlicfarm.publisher import Published, Publisher, PublisherSite, PublisherStatus, PublishOrder
from garlicfarm_plugin_hooks.process_group import ProcessGroups, kill_marked

PASSED_ON = ("PATH", "HOME", "LANG")
RUN = "GARLICFARM_RUN"
"""The variable that marks the processes of one run of a command."""
DISK_TIMEOUT_S = 1.0

T = TypeVar("T")
Command = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class HooksConfig(Settings, frozen=True, kw_only=True):
    """``[[farm.publisher]]`` with ``plugin = "hooks"``. Each command: a program and its arguments, the
    program's path relative to the configuration file, or a name to be found in PATH. ``on_start`` empty:
    ``on_retire`` takes its place."""

    on_publish: Annotated[Command, setting("Command that publishes: a program and its arguments.")]
    on_retire: Annotated[Command, setting("Command that stops publishing.")]
    on_start: Annotated[
        tuple[str, ...],
        setting("Command that stops what an earlier process published. Without it: on_retire."),
    ] = ()
    timeout_s: Annotated[
        float, setting("Seconds after which a command is killed and has failed.", ge=0.1, le=3600)
    ] = 30.0


class HooksPublisher(Publisher):
    """Runs ``on_publish`` for each order, ``on_retire`` when it is to end, and ``on_start`` before the first
    order, since an earlier process may have left something published; never two at once.

    A command that succeeded is not repeated for the same order, and ``on_retire`` not if nothing may be
    published. A command fails if it exits with another status than 0, or runs for longer than ``timeout_s``.
    Cancelled, the command is killed with its process group. The constructor raises `ConfigError`: a program
    is missing or not executable, or the file of the last ``due_index`` is damaged.
    """

    is_auxiliary = True
    Config = HooksConfig
    config: HooksConfig

    def __init__(self, config: HooksConfig, base_dir: Path, site: PublisherSite) -> None:
        super().__init__(config, base_dir, site)
        self._environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        self._environment |= {"GARLICFARM_FARM": site.farm, "GARLICFARM_NODE": str(site.node_id)}
        self._commands = self._find_programs()
        self._due_index_file = site.directory / "due-index"
        self._lease_set_file = site.directory / "lease-set"
        self._running_file = site.directory / "running"
        self._due_index = _due_index(self._due_index_file)
        self._left_behind = _read(self._running_file, "")
        self._groups = ProcessGroups()
        self._turn = trio.Lock()
        self._problem: str | None = None
        self._forget()

    def _forget(self) -> None:
        self._is_clean = False  # whether a command has confirmed that nothing is published
        self._order: PublishOrder | None = None  # the last one that was published
        self._since_ms: int | None = None

    async def standby(self) -> None:
        async with self._turn:
            if not self._is_clean:
                await self._run("start" if self.config.on_start else "retire")
                await self._clean()

    async def publish(self, order: PublishOrder) -> Published:
        async with self._turn:
            published = Published(published_ms=order.published_ms)
            if self._is_published(order):
                return published
            if order.due_index < self._due_index:
                raise self._failed(
                    f"the order's due index, {order.due_index}, is below {self._due_index}, the highest that "
                    f"commands were given; if the farm was made again, remove {self._due_index_file}"
                )
            self._is_clean, self._order = False, None
            try:
                await trio.to_thread.run_sync(self._keep, order, abandon_on_cancel=True)
            except OSError as error:
                raise self._failed(f"{self.site.directory} cannot be written: {error.strerror}") from error
            variables = {
                "GARLICFARM_PUBLISHED_MS": str(order.published_ms),
                "GARLICFARM_EXPIRES_MS": str(order.expires_ms),
            }
            if order.lease_set is not None:
                variables["GARLICFARM_LEASE_SET"] = str(self._lease_set_file.absolute())
            await self._run("publish", variables)
            self._order = order
            if self._since_ms is None:
                self._since_ms = order.published_ms
            return published

    async def retire(self, successor: bytes | None) -> None:
        async with self._turn:
            if not self._is_clean:
                await self._run("retire")
                await self._clean()

    async def status(self) -> PublisherStatus:
        await trio.lowlevel.checkpoint()
        return PublisherStatus(
            is_publishing=self._since_ms is not None,
            since_ms=self._since_ms,
            problems=() if self._problem is None else (self._problem,),
        )

    def _is_published(self, order: PublishOrder) -> bool:
        last = self._order
        return last is not None and (last.due_index, last.published_ms) == (
            order.due_index,
            order.published_ms,
        )

    async def _clean(self) -> None:
        await _try(self._discard, self._lease_set_file)
        self._forget()
        self._is_clean = True

    async def _run(self, event: str, variables: Mapping[str, str] | None = None) -> None:
        name = f"on_{event}"
        if (survivor := self._groups.survivor) is not None:
            raise self._failed(f"process {survivor} of an earlier command still runs and cannot be killed")
        environment = {
            **self._environment,
            RUN: secrets.token_hex(8),
            "GARLICFARM_EVENT": event,
            "GARLICFARM_DUE_INDEX": str(self._due_index),
            **(variables or {}),
        }
        said = bytearray()
        command = self._commands[name]
        with trio.move_on_after(self.config.timeout_s) as scope:
            if self._left_behind:
                await kill_marked(f"{RUN}={self._left_behind}")
                self._left_behind = ""
            await _try(self._note_run, environment[RUN])
            try:
                status = await self._groups.run(command, environment, self.base_dir, said)
            except OSError as error:
                raise self._failed(f"{name}: {command[0]} cannot be started: {error.strerror}") from error
            await _try(self._discard, self._running_file)
        if scope.cancelled_caught:
            raise self._failed(f"{name} did not end within {self.config.timeout_s:g} s and was killed", said)
        if status < 0:
            raise self._failed(f"{name} was ended by signal {-status}", said)
        if status > 0:
            raise self._failed(f"{name} ended with status {status}", said)
        self._problem = None

    def _failed(self, what: str, said: bytes | bytearray = b"") -> PublisherError:
        text = "".join(each if each.isprintable() else " " for each in said.decode(errors="replace"))
        self._problem = ": ".join(filter(None, [what, " ".join(text.split())]))
        return PublisherError(self._problem)

    def _keep(self, order: PublishOrder) -> None:
        if order.due_index > self._due_index:
            self._write(self._due_index_file, b"%d" % order.due_index)
            self._due_index = order.due_index
        if order.lease_set is None:
            self._lease_set_file.unlink(missing_ok=True)
        else:
            self._write(self._lease_set_file, order.lease_set)

    def _write(self, file: Path, data: bytes) -> None:
        make_private_directory(self.site.directory)
        replace_file(file, [data], 0o600)

    def _note_run(self, run: str) -> None:
        """Note a command before it starts: a node that is killed leaves it behind."""
        with suppress(OSError):
            self._write(self._running_file, run.encode())

    def _discard(self, file: Path) -> None:
        with suppress(OSError):
            file.unlink()

    def _find_programs(self) -> dict[str, tuple[str, ...]]:
        """Each command with the absolute path of its program."""
        found, problems = {}, []
        for name in ("on_publish", "on_retire", "on_start"):
            command: Sequence[str] = getattr(self.config, name)
            if not command:
                continue
            program = command[0]
            place = str((self.base_dir / program).absolute()) if "/" in program else program
            path = shutil.which(place, path=self._environment.get("PATH"))
            if path is None:
                problems.append(f"publisher hooks: {name}: {program!r} is missing or not executable")
            else:
                found[name] = (str(Path(path).absolute()), *command[1:])
            if any("\0" in each for each in command):
                problems.append(f"publisher hooks: {name}: an argument holds a NUL")
        if problems:
            raise ConfigError(problems)
        return found


async def _try(function: Callable[[T], None], argument: T) -> None:
    """Write or remove a file, if that works: a disk that is full or hangs must not keep a node publishing."""
    with trio.move_on_after(DISK_TIMEOUT_S):
        await trio.to_thread.run_sync(function, argument, abandon_on_cancel=True)


def _due_index(file: Path) -> int:
    text = _read(file, "0")
    if not text.isdecimal():
        raise ConfigError([f"publisher hooks: {file} is damaged: it holds no number; remove it"])
    return int(text)


def _read(file: Path, missing: str) -> str:
    """The text of a file, or ``missing``."""
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return missing
    except OSError as error:
        raise ConfigError([f"publisher hooks: {file} cannot be read: {error.strerror}"]) from error
