"""`garlicfarm log post --batch N`: lines as entries, and what became of each."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import trio

from garlicfarm.cli.exits import Exit
from garlicfarm.cli.say import put, say
from garlicfarm.cli.sign_of_life import sign_of_life
from garlicfarm.cli.signals import ended_by_signals
from garlicfarm.errors import (
    AuthError,
    ConfigError,
    DiskHangs,
    EntryRefused,
    GarlicFarmError,
    LocalProtocolError,
    NoQuorum,
    NotLeader,
    ProposalDropped,
    UnreachableError,
)
from garlicfarm.printable import printable

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient

__all__ = ["MAX_ENTRY_BYTES", "LineSplitter", "post_lines", "read_lines"]

MAX_ENTRY_BYTES = 1 << 20
REQUEST_BYTES = 256 << 10
"""Lines of more bytes together are posted in several requests"""
READ_BYTES = 64 << 10

_NOT_APPENDED = (
    AuthError,
    ConfigError,
    DiskHangs,
    EntryRefused,
    LocalProtocolError,
    NoQuorum,
    NotLeader,
    ProposalDropped,
    UnreachableError,
)
"""Errors of a request that say for certain that nothing was appended"""


class Outcome(StrEnum):
    """What became of a line."""

    COMMITTED = "committed"
    REFUSED = "refused"
    NOT_APPENDED = "not appended"
    UNKNOWN = "unknown"


class LineSplitter:
    """Splits bytes that arrive in pieces of any size into lines without their line feeds. A line of more than
    `MAX_ENTRY_BYTES` comes out as None, and is never held."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def receive_data(self, data: bytes) -> list[bytes | None]:
        """The lines that ``data`` completes."""
        first, *lines = data.split(b"\n")
        self._hold(first)
        if not lines:
            return []
        *complete, rest = lines
        done = [self._take(), *(line if len(line) <= MAX_ENTRY_BYTES else None for line in complete)]
        self._hold(rest)
        return done

    def receive_eof(self) -> list[bytes | None]:
        """The last line, if no line feed ends it."""
        return [self._take()] if self._size else []

    def _hold(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > MAX_ENTRY_BYTES:
            self._pieces.clear()
        elif piece:
            self._pieces.append(piece)

    def _take(self) -> bytes | None:
        line = None if self._size > MAX_ENTRY_BYTES else b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        return line


class Report:
    """Prints what became of each line, in their order, and counts.

    :param output: ``table``, for people, or ``jsonl``.
    """

    def __init__(self, output: str) -> None:
        self._output = output
        self.lines = 0
        self.counts = dict.fromkeys(Outcome, 0)

    def add(self, outcomes: Iterable[tuple[int, int] | tuple[Outcome, str]]) -> None:
        """``outcomes``: of the next lines, (index, term), or the outcome and its reason."""
        text = []
        for first, second in outcomes:
            self.lines += 1
            if isinstance(first, Outcome):
                self.counts[first] += 1
                text.append(self._row({"line": self.lines, "outcome": first, "reason": second}))
            else:
                self.counts[Outcome.COMMITTED] += 1
                row = {"line": self.lines, "outcome": Outcome.COMMITTED, "index": first, "term": second}
                text.append(self._row(row))
        put("".join(text), nl=False)

    def _row(self, row: dict[str, object]) -> str:
        if self._output == "jsonl":
            return json.dumps(row) + "\n"
        if "index" in row:
            return f"line {row['line']}: index {row['index']}, term {row['term']}\n"
        text = f"{row['outcome']}: {row['reason']}"
        return f"line {row['line']}: {printable(text)}\n"

    def summary(self, ended: bool) -> str:
        """All counts in one line. ``ended``: the input was read to its end."""
        counted = [f"{number} {outcome}" for outcome, number in self.counts.items() if number]
        after = "" if ended else f"; no line after line {self.lines} was sent"
        return f"{self.lines} lines: {', '.join(counted) or 'none'}{after}"


async def post_lines(client: AdminClient, farm: str, descriptor: int, most: int, output: str) -> Exit:
    """Post each line that can be read from ``descriptor`` as an entry, in order; the exit code.

    What has been read is posted at once, up to ``most`` lines in a request, and the next request begins when
    that is answered: so ``most`` lines are on their way at most, and none overtakes another. A refused line
    does not hold up the others. Any other error ends it, and is raised once it has been said of each line.

    :raises click.Abort: Ctrl-C or another signal; the lines on their way are reported as unknown before.
    """
    report = Report(output)
    ended = False
    try:
        async with ended_by_signals(), trio.open_nursery() as nursery:
            send, receive = trio.open_memory_channel[Sequence[bytes | None]](0)
            nursery.start_soon(read_lines, descriptor, send)
            waiting: deque[bytes | None] = deque()
            async for lines in receive:
                waiting.extend(lines)
                while waiting:
                    if len(waiting) < most:
                        with_more = _receive_nowait(receive)
                        if with_more:
                            waiting.extend(with_more)
                            continue
                    async with sign_of_life("posted lines to be committed"):
                        await _post(client, farm, _next(waiting, most), report)
            ended = True
    finally:
        say(report.summary(ended))
    return Exit.ERROR if report.counts[Outcome.REFUSED] else Exit.OK


async def read_lines(descriptor: int, send: trio.MemorySendChannel[Sequence[bytes | None]]) -> None:
    """Send the lines that can be read from ``descriptor``, those of one read together; None: one of more than
    `MAX_ENTRY_BYTES`. Closes ``send`` at the end."""
    # By os.read: a thread that is left behind in a read of sys.stdin ends the interpreter with a fatal error.
    splitter = LineSplitter()
    async with send:
        while data := await trio.to_thread.run_sync(os.read, descriptor, READ_BYTES, abandon_on_cancel=True):
            if lines := splitter.receive_data(data):
                await send.send(lines)
        if lines := splitter.receive_eof():
            await send.send(lines)


def _receive_nowait(
    receive: trio.MemoryReceiveChannel[Sequence[bytes | None]],
) -> Sequence[bytes | None]:
    try:
        return receive.receive_nowait()
    except (trio.WouldBlock, trio.EndOfChannel):
        return ()


def _next(waiting: deque[bytes | None], most: int) -> list[bytes | None]:
    """Take the lines of the next request: one at least, and no more than fit."""
    taken = [waiting.popleft()]
    size = len(taken[0] or b"")
    while waiting and len(taken) < most and (size := size + len(waiting[0] or b"")) <= REQUEST_BYTES:
        taken.append(waiting.popleft())
    return taken


async def _post(client: AdminClient, farm: str, lines: Sequence[bytes | None], report: Report) -> None:
    entries = [line for line in lines if line]
    answered: Sequence[tuple[int, int] | EntryRefused] = ()
    try:
        if len(entries) > 1:
            answered = await client.post_batch(farm, entries)
        elif entries:
            try:
                answered = [await client.post(farm, entries[0])]
            except EntryRefused as refused:
                answered = [refused]
    except trio.Cancelled:
        report.add([_unsent(line) or (Outcome.UNKNOWN, "interrupted before the answer") for line in lines])
        raise
    except GarlicFarmError as error:
        became = Outcome.NOT_APPENDED if isinstance(error, _NOT_APPENDED) else Outcome.UNKNOWN
        report.add([_unsent(line) or (became, str(error)) for line in lines])
        raise
    outcomes = iter(answered)
    report.add([_unsent(line) or _said(next(outcomes)) for line in lines])


def _unsent(line: bytes | None) -> tuple[Outcome, str] | None:
    """The outcome of a line that is no entry, and was not sent; None for any other."""
    if line:
        return None
    return Outcome.REFUSED, "it is empty" if line is not None else f"larger than {MAX_ENTRY_BYTES} bytes"


def _said(outcome: tuple[int, int] | EntryRefused) -> tuple[int, int] | tuple[Outcome, str]:
    return (Outcome.REFUSED, str(outcome)) if isinstance(outcome, EntryRefused) else outcome
