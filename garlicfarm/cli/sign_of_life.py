"""What a command says on stderr while it waits, also without a terminal."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from garlicfarm.printable import printable

FIRST_S = 2.0
"""After this long the first line is written; each later pause is twice the one before."""

T = TypeVar("T")


@asynccontextmanager
async def sign_of_life(
    what: str | Callable[[], str], *, quiet: bool = False
) -> AsyncIterator[Callable[[], None]]:
    """While the block takes longer than `FIRST_S`, say for how many seconds it has waited, and for what.

    The block gets a function that ends this early: what was awaited has come. An error leaves it as it is.

    :param what: what is awaited, or a function that names it anew for each line.
    :param quiet: say nothing.
    """
    alone: BaseException | None = None
    waiting = trio.CancelScope()
    try:
        async with trio.open_nursery() as nursery:
            if not quiet:
                nursery.start_soon(_say, what, waiting)
            yield waiting.cancel
            waiting.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        (alone,) = group.exceptions
    if alone is not None:
        raise alone


async def _say(what: str | Callable[[], str], waiting: trio.CancelScope) -> None:
    began_s, pause_s = trio.current_time(), FIRST_S
    with waiting:
        while True:
            await trio.sleep(pause_s)
            pause_s *= 2
            named = what if isinstance(what, str) else what()
            line = f"{trio.current_time() - began_s:.0f} s: waiting for {named}"
            print(printable(line), file=sys.stderr, flush=True)


def run_blocking(what: str, function: Callable[[], T], *, abandon: bool = True) -> T:
    """What ``function`` returns, called in a thread with a sign of life. Ctrl-C ends the wait at once; with
    ``abandon=False``, once the function has returned."""

    async def main() -> T:
        async with sign_of_life(what):
            return await trio.to_thread.run_sync(function, abandon_on_cancel=abandon)

    return trio.run(main)
