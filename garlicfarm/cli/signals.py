"""How a command that runs on is ended from outside: by Ctrl-C, by a service manager, by its terminal."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click
import trio


@asynccontextmanager
async def ended_by_signals() -> AsyncIterator[None]:
    """Cancel the block as `stopped_by_signals`, and raise `click.Abort` once it has ended: the command was
    interrupted before it was done."""
    scope: trio.CancelScope | None = None
    try:
        async with stopped_by_signals() as scope:
            yield
    finally:
        if scope is not None and scope.cancel_called:
            raise click.Abort


@asynccontextmanager
async def stopped_by_signals() -> AsyncIterator[trio.CancelScope]:
    """Cancel the block at the first SIGINT, SIGTERM or SIGHUP, which is how a command that runs on is told to
    end. The scope of the block tells whether that came. Later signals change nothing, so the block can remove
    the files that it made.

    A signal that this process ignores already (``nohup``) stays ignored.
    """
    # Not by signal.signal: a handler that raises does so wherever Trio is, in its own loop too.
    wanted = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    scope = trio.CancelScope()
    try:
        with trio.open_signal_receiver(*wanted) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel, scope, signals)
                with scope:
                    yield scope
                nursery.cancel_scope.cancel()
    finally:
        if scope.cancel_called:
            for number in wanted:
                signal.signal(number, signal.SIG_IGN)  # what ended well is not killed on its way out


async def _cancel(scope: trio.CancelScope, signals: AsyncIterator[int]) -> None:
    async for _ in signals:
        scope.cancel()
