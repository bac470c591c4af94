"""`garlicfarm log post --batch N`: lines as entries, and what became of each."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import trio

from garlicfarm import errors
from garlicfarm.cli.exits import Exit
from garlicfarm.cli.say import put, say
from garlicfarm.cli.sign_of_life import sign_of_life
from garlicfarm.cli.signals import ended_by_signals
from garlicfarm.printable import printable

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient

MAX_ENTRY_BYTES = 1 << 20
REQUEST_BYTES = 256 << 10
"""Lines of more bytes together are posted in several requests"""
READ_BYTES = 64 << 10

_NOT_APPENDED = (
    errors.AuthError,
    errors.ConfigError,
    errors.DiskHangs,
    errors.EntryRefused,
    errors.LocalProtocolError,
    errors.NoQuorum,
    errors.NotLeader,
    errors.ProposalDropped,
    errors.UnreachableError,
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
    `MAX_ENTRY_BYTES` comes out as None, and no more of it is held."""

    def __init__(self) -> None:
        self._rest = b""

    def receive_data(self, data: bytes) -> list[bytes | None]:
        """The lines that ``data`` completes."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[: MAX_ENTRY_BYTES + 1]
        return [_entry(line) for line in lines]

    def receive_eof(self) -> list[bytes | None]:
        """The last line, if no line feed ends it."""
        return [_entry(self._rest)] if self._rest else []


def _entry(line: bytes) -> bytes | None:
    return line if len(line) <= MAX_ENTRY_BYTES else None


class Report:
    """Prints what became of each line, in their order, and counts.

    :param output: ``table``, for people, or ``jsonl``.
    """

    def __init__(self, output: str) -> None:
        self._output = output
        self.lines = 0
        self.counts = dict.fromkeys(Outcome, 0)

    def add(self, outcomes: Iterable[dict[str, Any]]) -> None:
        """``outcomes`` of the next lines: ``outcome``, with ``index`` and ``term``, or with ``reason``."""
        text = []
        for became in outcomes:
            self.lines += 1
            self.counts[became["outcome"]] += 1
            text.append(self._row({"line": self.lines, **became}))
        put("".join(text), nl=False)

    def _row(self, row: dict[str, Any]) -> str:
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
    that is answered: so at most ``most`` lines are in flight, and none overtakes another. A refused line
    does not hold up the others. Any other error ends it, and is raised once it has been said of each line.

    :raises click.Abort: Ctrl-C or another signal; the lines in flight are reported as unknown before.
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
    answered: Sequence[tuple[int, int] | errors.EntryRefused] = ()
    try:
        if len(entries) > 1:
            answered = await client.post_batch(farm, entries)
        elif entries:
            try:
                answered = [await client.post(farm, entries[0])]
            except errors.EntryRefused as refused:
                answered = [refused]
    except trio.Cancelled:
        unknown = _because(Outcome.UNKNOWN, "interrupted before the answer")
        report.add(_unsent(line) or unknown for line in lines)
        raise
    except errors.GarlicFarmError as error:
        became = Outcome.NOT_APPENDED if isinstance(error, _NOT_APPENDED) else Outcome.UNKNOWN
        report.add(_unsent(line) or _because(became, error) for line in lines)
        raise
    outcomes = iter(answered)
    report.add(_unsent(line) or _answer(next(outcomes)) for line in lines)


def _because(outcome: Outcome, reason: object) -> dict[str, Any]:
    return {"outcome": outcome, "reason": str(reason)}


def _unsent(line: bytes | None) -> dict[str, Any] | None:
    """The outcome of a line that is no entry, and was not sent; None for any other."""
    if line:
        return None
    why = "it is empty" if line is not None else f"larger than {MAX_ENTRY_BYTES} bytes"
    return _because(Outcome.REFUSED, why)


def _answer(answer: tuple[int, int] | errors.EntryRefused) -> dict[str, Any]:
    if isinstance(answer, errors.EntryRefused):
        return _because(Outcome.REFUSED, answer)
    return {"outcome": Outcome.COMMITTED, "index": answer[0], "term": answer[1]}
