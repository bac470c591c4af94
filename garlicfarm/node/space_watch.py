"""Watches the room on the file system of a farm's store, and keeps a reserve of it.

When only the reserve is left, the leader refuses posts, except those that the farm needs to go on
(`garlicfarm.application.Application.is_needed`). So a full disk is told, and ends by itself when there is
room, before a write fails, which would stop the farm on this node.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import trio

from garlicfarm.disk_space import REMEDY, DiskSpace, disk_space
from garlicfarm.logs import EventLogger
from garlicfarm.trouble import Trouble

LOOK_S = 1.0
_WORDS = {"ok": "disk-has-room", "note": "disk-fills", "problem": "disk-nearly-full"}


class SpaceWatch:
    """``seen``: what was seen last, None before the first look. Between two looks it counts what the store
    is given to write, as if none of the last second's were in ``seen``."""

    def __init__(self) -> None:
        self.seen: DiskSpace | None = None
        self._spent = self._spent_before = 0  # since the last look, and between the two last ones
        self._told = "ok"

    @property
    def has_room(self) -> bool:
        """Whether more than the reserve is free, as far as this is known."""
        return self.seen is None or self._left(self.seen) > self.seen.reserve

    def on_submit(self, size: int) -> None:
        """The store has been given so many bytes to write."""
        self._spent += size

    def trouble(self, node_id: int) -> Trouble | None:
        """What operators should see to; None: there is room."""
        if (seen := self.seen) is None or (seen.state != "problem" and self.has_room):
            return None
        refuses = "" if self.has_room else ", so that this node, while it leads, refuses posts"
        return Trouble("disk", f"space {node_id}", f"node {node_id}: {seen}{refuses}: {REMEDY}", own=True)

    async def run(self, path: Path, log: EventLogger, on_room: Callable[[DiskSpace], None]) -> NoReturn:
        """Look at the file system of ``path`` until cancelled; call ``on_room`` after each look. While it
        does not answer, what was seen last stays."""
        limiter = trio.CapacityLimiter(1)  # its own: the thread may hang with the disk
        problem = ""
        while True:
            self._spent_before, self._spent = self._spent, 0
            try:
                self.seen = await trio.to_thread.run_sync(
                    disk_space, path, abandon_on_cancel=True, limiter=limiter
                )
            except OSError as error:
                if problem != (problem := str(error)):
                    log.warning("disk-not-seen", cause=problem)
            else:
                problem = ""
                on_room(self.seen)
                self._tell(self.seen, log)
            await trio.sleep(LOOK_S)

    def _left(self, seen: DiskSpace) -> int:
        return seen.free - self._spent - self._spent_before

    def _tell(self, seen: DiskSpace, log: EventLogger) -> None:
        word = _WORDS[seen.state] if seen.free > seen.reserve else "disk-full"
        if word == self._told or (word == "disk-has-room" and self._told == "ok"):
            return
        self._told = word
        (log.info if word == "disk-has-room" else log.warning)(word, free=seen.free, reserve=seen.reserve)
