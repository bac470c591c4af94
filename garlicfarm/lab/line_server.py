"""Child processes that serve a test: told a line each, they answer it by a line, and end with their stdin."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from subprocess import PIPE

import trio

__all__ = ["Attendant", "attendant", "why_it_fails"]

ANSWER_S = 20.0


class Attendant:
    """A child process that is told a line and answers it by a line: made by `attendant`."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._asking = trio.Lock()

    async def ask(self, line: str) -> str:
        """Say a line; the answer. Raises `EOFError`: the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with trio.fail_after(ANSWER_S):
            async with self._asking:
                await self._process.stdin.send_all(f"{line}\n".encode())
                answer = b""
                while not answer.endswith(b"\n"):
                    data = await self._process.stdout.receive_some()
                    if not data:
                        raise EOFError(f"{self._process.args!r} has ended")
                    answer += data
        return answer.decode().strip()


@asynccontextmanager
async def attendant(command: Sequence[str]) -> AsyncIterator[Attendant]:
    """Runs ``command``, which ends when its stdin does."""
    async with trio.open_nursery() as nursery:
        process = await nursery.start(partial(trio.run_process, list(command), stdin=PIPE, stdout=PIPE))
        try:
            yield Attendant(process)
        finally:
            with trio.CancelScope(shield=True):
                await process.stdin.aclose()
                await process.wait()


def why_it_fails(command: Sequence[str]) -> str | None:
    """Start the command and let it end at once; what it complains of, None if it does not."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S)
    except FileNotFoundError:
        return f"{command[0]} is not installed"
    if done.returncode == 0:
        return None
    *_, cause = done.stderr.decode().strip().split("\n")
    return cause or f"{command[0]} ended with {done.returncode}"
