"""Child processes that answer each line on stdin with a line on stdout, and end when stdin closes."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from subprocess import PIPE

import trio

ANSWER_S = 20.0


class LineServer:
    """The client of such a child process; made by `line_server`."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._asking = trio.Lock()

    async def ask(self, line: str) -> str:
        """Send a line and return the answer. Raises `EOFError`: the process has ended."""
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
async def line_server(command: Sequence[str]) -> AsyncIterator[LineServer]:
    """Run ``command`` for as long as the block lasts; it must end when its stdin closes."""
    async with trio.open_nursery() as nursery:
        process = await nursery.start(partial(trio.run_process, list(command), stdin=PIPE, stdout=PIPE))
        try:
            yield LineServer(process)
        finally:
            with trio.CancelScope(shield=True):
                await process.stdin.aclose()
                await process.wait()


def startup_error(command: Sequence[str]) -> str | None:
    """Run ``command`` with an empty stdin; its last line on stderr if it fails, None if it succeeds."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S)
    except FileNotFoundError:
        return f"{command[0]} is not installed"
    if done.returncode == 0:
        return None
    *_, cause = done.stderr.decode().strip().split("\n")
    return cause or f"{command[0]} ended with {done.returncode}"
