"""``node start``: run a node until SIGTERM or SIGINT."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.exits import Exit
from garlicfarm.cli.options import Options, shared_options
from garlicfarm.cli.say import say

if TYPE_CHECKING:
    import trio

    from garlicfarm.cli.service_manager import ServiceManager
    from garlicfarm.config import Config
    from garlicfarm.node import Node

Level = Literal["error", "warning", "info", "debug"]
NEXT = ("status", "log tail -f", "health")
"""What to try once the node runs."""
ORDERLY = 0.9
"""This share of the time is for ending in order, the rest for writing, which cannot be cancelled."""
EXIT_S = 2.0
"""How long after that the process may take to end, with the last lines of its log."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LEVELS: tuple[Level, ...] = ("error", "warning", "info", "debug")


@click.command(
    cls=Command,
    examples=["garlicfarm node start", "garlicfarm node start --config node-1/garlicfarm.toml -v"],
)
@click.option(
    "--stay", is_flag=True, help="Stay a member of farms whose leader told this node to leave (exit code 8)."
)
@shared_options("config", "verbosity")
def start(options: Options, stay: bool) -> None:
    """Run the node of this machine until SIGTERM or Ctrl-C. This never makes a store.

    On a terminal it shows which commands to try next, without -q. A service manager that sets NOTIFY_SOCKET,
    such as systemd, is told when the node serves, that it runs (WATCHDOG_USEC), and when it stops.
    """
    with _noted() as early:
        import trio

        from garlicfarm import descriptors, logs
        from garlicfarm.config import find_config, load

        path = find_config(options.config, os.environ, Path.cwd())
        config = load(path, os.environ)
        descriptors.raise_limit()
        with logs.configured(level(config.log.level, options.verbosity), config.log.format, sys.stderr):
            is_shown = sys.stderr.isatty() and options.verbosity >= 0 and config.log.format == "text"
            status = _Next(path, config) if is_shown else trio.TASK_STATUS_IGNORED
            trio.run(_main, config, early, stay, status)


class _Next:
    """Prints what to do next once the node has started."""

    def __init__(self, path: Path, config: Config) -> None:
        self._path = path
        self._config = config

    def started(self, _: object = None) -> None:
        commands = next_commands(self._path, [farm.name for farm in self._config.farm])
        say("\n  ".join(["This node runs until Ctrl-C. In another terminal, try:", *commands]))


class _Ready:
    """Tells the service manager that the node has started, and then ``status``."""

    def __init__(self, nursery: trio.Nursery, manager: ServiceManager, status: trio.TaskStatus[Node]) -> None:
        self._nursery = nursery
        self._manager = manager
        self._status = status

    def started(self, value: Any = None) -> None:
        self._nursery.start_soon(self._manager.ready)
        self._status.started(value)


def next_commands(path: Path, farms: Sequence[str]) -> list[str]:
    """Commands that ask the node of the configuration at ``path``, from any directory."""
    from garlicfarm.config import find_config
    from garlicfarm.errors import ConfigError

    try:
        found_anywhere = find_config(None, {"HOME": os.environ.get("HOME", "")}, Path("/"))
    except ConfigError:
        found_anywhere = None
    which = [] if path == found_anywhere else ["--config", str(path.absolute())]
    which += ["--farm", farms[0]] if len(farms) > 1 else []
    return [shlex.join(["garlicfarm", *command.split(), *which]) for command in NEXT]


def level(configured: Level, verbosity: int) -> Level:
    """The log level that ``-v`` and ``-q`` make of a configured one."""
    place = _LEVELS.index(configured) + verbosity
    return _LEVELS[min(max(place, 0), len(_LEVELS) - 1)]


@contextmanager
def _noted() -> Iterator[list[int]]:
    """Collect the signals that arrive before the block is in Trio, which collects later ones itself. They are
    obeyed there, so nothing that has begun is left half done."""
    early: list[int] = []
    before = {number: signal.signal(number, lambda number, _: early.append(number)) for number in _SIGNALS}
    try:
        yield early
    except BaseException:
        for number, handler in before.items():
            signal.signal(number, handler)
        raise
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # what ended well is not killed on its way out


async def _main(config: Config, early: Sequence[int], stays: bool, status: trio.TaskStatus[Node]) -> None:
    import trio

    from garlicfarm.cli.service_manager import ServiceManager
    from garlicfarm.logs import EventLogger
    from garlicfarm.node import serve

    log = EventLogger(logging.getLogger("garlicfarm.node"), node=config.node.id)
    timeout_s = config.node.shutdown_timeout_s
    manager = ServiceManager(os.environ, log)
    shutdown = trio.Event()
    ending = trio.CancelScope(shield=True)

    async def end_in_time(signals: AsyncIterator[int]) -> None:
        async for _ in signals:
            if not shutdown.is_set():
                nursery.cancel_scope.deadline = trio.current_time() + ORDERLY * timeout_s
                nursery.start_soon(give_up)
                await manager.stopping(timeout_s + EXIT_S)
                shutdown.set()

    async def give_up() -> None:
        with ending:
            await trio.sleep(timeout_s)
            # Threads that a disk holds up cannot be ended. Nothing that was acknowledged waits for them.
            log.error("not-ended", cause="the disk does not take what is to be written", timeout_s=timeout_s)
            logging.shutdown()
            os._exit(Exit.STORAGE)

    with trio.open_signal_receiver(*_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_in_time, signals)
            nursery.start_soon(manager.keep_alive)
            try:
                if not early:
                    ready = _Ready(nursery, manager, status)
                    await serve(config, shutdown=shutdown, stays=stays, task_status=ready)
            finally:
                ending.cancel()
            nursery.cancel_scope.cancel()
