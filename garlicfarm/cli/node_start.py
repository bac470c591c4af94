"""``node start``: run a node until SIGTERM or SIGINT."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from garlicfarm.cli.options import Options, shared_options

if TYPE_CHECKING:
    from garlicfarm.config import Config

__all__ = ["level", "start"]

Level = Literal["error", "warning", "info", "debug"]
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LEVELS: tuple[Level, ...] = ("error", "warning", "info", "debug")


@click.command()
@shared_options("config", "verbosity")
def start(options: Options) -> None:
    """Run the node of this machine. Never creates a store: that is `node init`'s."""
    import trio

    from garlicfarm import logs
    from garlicfarm.config import find_config, load

    path = find_config(options.config, os.environ, Path.cwd())
    config = load(path, os.environ)
    # A thousand, the usual soft limit, is fewer than strangers may open beside the members' connections.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with logs.configured(level(config.log.level, options.verbosity), config.log.format, sys.stderr):
        trio.run(_main, config)


def level(configured: Level, verbosity: int) -> Level:
    """The log level that ``-v`` and ``-q`` make of a configured one."""
    place = _LEVELS.index(configured) + verbosity
    return _LEVELS[min(max(place, 0), len(_LEVELS) - 1)]


async def _main(config: Config) -> None:
    import trio

    from garlicfarm.node import serve

    shutdown = trio.Event()

    async def end_in_time(signals: AsyncIterator[int]) -> None:
        async for _ in signals:
            shutdown.set()
            deadline = trio.current_time() + config.node.shutdown_timeout_s
            nursery.cancel_scope.deadline = min(nursery.cancel_scope.deadline, deadline)

    with trio.open_signal_receiver(*_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_in_time, signals)
            await serve(config, shutdown=shutdown)
            nursery.cancel_scope.cancel()
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # what ended well is not killed on its way out
