"""Programs that a test starts: they end with its block, and a test that fails shows what they wrote."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from inspect import isawaitable
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import pytest
import trio

ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


@contextmanager
def running(
    command: Sequence[str | Path], *, logs: Callable[[], Iterable[Path]] = tuple, **how: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A process for as long as the block lasts; one that still runs then is killed.

    ``logs``: the files to show if the block raises, asked while the process may still run. ``how``: as for
    `subprocess.Popen`; its stdin is empty unless that says otherwise.
    """
    with subprocess.Popen(command, **{"stdin": subprocess.DEVNULL, **how}) as process:
        try:
            yield process
        except BaseException as error:
            for file in logs():
                with suppress(FileNotFoundError):  # a lab removes its files
                    error.add_note(f"--- {file}\n{file.read_text(errors='replace')}")
            raise
        finally:
            process.kill()


def without_signs_of_life(stderr: str) -> str:
    """What a command wrote, whether or not the machine was so busy that it had to wait."""
    return re.sub(r"^\d+ s: waiting for .*\n", "", stderr, flags=re.MULTILINE)


def until(condition: Callable[[], object], *processes: subprocess.Popen[bytes]) -> None:
    """Wait until a condition holds that these processes, or others, bring about. Fails if one of these ends;
    what takes too long is ended by pytest's own ``timeout``, which is minutes."""
    while not condition():
        for process in processes:
            assert process.poll() is None, f"{process.args!r} ended with {process.returncode}"
        time.sleep(0.05)


@asynccontextmanager
async def background(*tasks: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Tasks of Trio for as long as the block lasts."""
    async with trio.open_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(task)
        yield
        nursery.cancel_scope.cancel()


def told(caplog: pytest.LogCaptureFixture, *events: str) -> list[dict[str, Any]]:
    """The fields of what the program has logged: of these events, or of all."""
    fields = [vars(record).get("garlicfarm_fields", {}) for record in caplog.records]
    return [each for each in fields if each.get("event") in events or (each and not events)]


class _HasLeader(Protocol):
    async def leader(self) -> int: ...


_Farm = TypeVar("_Farm", bound=_HasLeader)


@asynccontextmanager
async def led(farm: AbstractAsyncContextManager[_Farm]) -> AsyncIterator[tuple[_Farm, int]]:
    """A farm that runs, once it has a leader, and that leader's id."""
    async with farm as nodes:
        yield nodes, await nodes.leader()


async def wait_until(condition: Callable[[], Any], every_s: float = 0.01) -> Any:
    """`until` in a task of Trio, for what has no event. ``condition`` may be a coroutine function. Returns
    what it returned last. What hangs is ended before pytest would, so that programs end, too; not by Trio's
    clock, which may jump ahead of a thread."""
    hangs_at = time.monotonic() + 240
    while True:
        assert time.monotonic() < hangs_at, "it hangs"
        found = condition()
        if isawaitable(found):
            found = await found
        if found:
            return found
        await trio.sleep(every_s)


class Terminal:
    """A terminal for programs: start them with ``theirs``, then call `close_theirs`."""

    def __init__(self) -> None:
        self._ours, self.theirs = os.openpty()
        self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close_theirs()
        os.close(self._ours)

    def close_theirs(self) -> None:
        """Let `read` notice the end of the programs."""
        if self._is_open:
            os.close(self.theirs)
        self._is_open = False

    def read(self) -> bytes:
        """What the programs have written meanwhile, at least a byte; b"" once none has the terminal open."""
        try:
            return os.read(self._ours, 100_000)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b""

    def write(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._ours, keys)

    def read_until(self, pattern: bytes) -> bytes:
        """The first group of a pattern, or all of its match, once the programs have written it.

        Looks at what they write from now on, without what moves the cursor or colours."""
        said = b""
        while (found := re.search(pattern, ESCAPES.sub(b"", said))) is None:
            more = self.read()
            assert more, f"it ended without {pattern!r}: {said!r}"
            said += more
        return found[1] if found.re.groups else found[0]
