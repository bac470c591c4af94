"""Watches the disk of a farm's store: it hangs when no write has been completed for too long.

Time is counted in ticks of this process. So a process that was stopped, or whose machine slept, does not
mistake its own pause for one of the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import trio

from garlicfarm.errors import DiskHangs

TICKS = 10


class DiskWatch:
    """The steps that a farm's writer has taken and not completed. ``on_change`` is called when the disk
    hangs, and when it answers again."""

    def __init__(self, timeout_s: float, on_change: Callable[[], None]) -> None:
        self._timeout_s = timeout_s
        self._on_change = on_change
        self._submitted = self._durable = 0  # tokens of steps
        self._pieces = 0  # of snapshots
        self._answers = 0
        self._since = trio.current_time()  # time of the last answer, or of the first step since
        self._work = trio.Event()
        self.is_hanging = False

    @property
    def silent_s(self) -> float:
        """Seconds since it last completed something, or had nothing to do."""
        return trio.current_time() - self._since

    def must_answer(self) -> None:
        """Raises `DiskHangs` if it hangs."""
        if self.is_hanging:
            raise DiskHangs(f"the disk of this node has not answered for {self.silent_s:.0f} s")

    def on_submit(self, token: int) -> None:
        """The writer has the step ``token``."""
        self._begin()
        self._submitted = token

    def on_durable(self, token: int) -> None:
        """All steps up to ``token`` are durable."""
        self._durable = token
        self._on_answer()

    def on_piece_submit(self) -> None:
        """The writer has one more piece of a snapshot."""
        self._begin()
        self._pieces += 1

    def on_piece_stored(self) -> None:
        """The writer has stored the oldest piece."""
        self._pieces -= 1
        self._on_answer()

    async def watch(self) -> NoReturn:
        """Watch until cancelled."""
        while True:
            await self._work.wait()
            self._work = trio.Event()
            answers, silent = self._answers, 0
            while self.has_work:
                await trio.sleep(self._timeout_s / TICKS)
                silent += 1
                if answers != self._answers:
                    answers, silent = self._answers, 0
                elif silent == TICKS:
                    self.is_hanging = True
                    self._on_change()

    @property
    def has_work(self) -> bool:
        """Whether the writer has something that it has not completed."""
        return self._durable < self._submitted or self._pieces > 0

    def _begin(self) -> None:
        if not self.has_work:
            self._since = trio.current_time()
            self._work.set()

    def _on_answer(self) -> None:
        self._answers += 1
        if self.is_hanging:
            self.is_hanging = False
            self._on_change()
        self._since = trio.current_time()
