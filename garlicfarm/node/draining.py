"""Lets go of a node's part in its farms: for as long as it is drained, or because it is about to end.

The application goes first: another member takes over what this one does. The leadership goes last, since a
transfer refuses entries, and never to a member that is drained itself.

The mark *drained* is a file in the data directory, so it outlasts a restart; `Draining.set` removes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import trio

from garlicfarm.durable_files import replace_file
from garlicfarm.errors import StorageError
from garlicfarm.logs import EventLogger
from garlicfarm.node.hosted_farm import HostedFarm

WATCH_S = 1.0
PAUSE_S = 10.0
"""Between two attempts to hand the leadership of a farm over."""


class Draining:
    """``is_drained``: the node has the mark, whose file is ``path``. ``farms``: by name, as they come and
    go."""

    def __init__(self, path: Path, farms: Mapping[str, HostedFarm], log: EventLogger) -> None:
        self.is_drained = path.exists()
        self._path = path
        self._farms = farms
        self._log = log
        self._next_s: dict[str, float] = {}
        self._changed = trio.Event()

    async def set(self, drained: bool) -> None:
        """Set or remove the mark, durably. Raises `StorageError`: this node's disk refuses; nothing was
        changed."""
        try:
            await trio.to_thread.run_sync(self._keep, drained)
        except OSError as error:
            raise StorageError(f"cannot change {self._path}: {error.strerror}") from error
        if drained != self.is_drained:
            self.is_drained = drained
            self._log.info("drained" if drained else "undrained")
        self.apply()
        self._changed.set()

    def _keep(self, drained: bool) -> None:
        if drained:
            replace_file(self._path, [b""], 0o600)
        else:
            self._path.unlink(missing_ok=True)

    async def run(self) -> NoReturn:
        """Obey the mark until cancelled, in farms that start later, too."""
        while True:
            self.apply()
            if self.is_drained:
                for name, farm in tuple(self._farms.items()):
                    if not farm.view.holds() and trio.current_time() >= self._next_s.get(name, 0):
                        self._next_s[name] = trio.current_time() + PAUSE_S
                        await _hand_over(farm)
            self._changed = trio.Event()
            with trio.move_on_after(WATCH_S):
                await self._changed.wait()

    def apply(self) -> None:
        """Have the farms obey the mark; before they run, too, as their first statuses say it."""
        for farm in self._farms.values():
            farm.view.drain(self.is_drained)

    def report(self) -> dict[str, Any]:
        """Whether the node is drained, whether it may be stopped now, and why not, a sentence each: ready for
        JSON."""
        holds = list(self._holds())
        return {"drained": self.is_drained, "safe": not holds, "holds": holds}

    def _holds(self) -> Iterator[str]:
        if not self.is_drained:
            yield "this node is not drained"
        for name, farm in self._farms.items():
            if held := farm.view.holds():
                yield f"farm {name}: {held}"
            others, left = farm.view.others()
            quorum = (len(others) + 1) // 2 + 1
            if not others:
                yield f"farm {name}: this is its only member"
            elif len(left) < quorum:
                ids = ", ".join(map(str, sorted(left))) or "none"
                yield (
                    f"farm {name}: a majority of its {len(others) + 1} members is {quorum}, and of the "
                    f"others only these are there and not drained: {ids}"
                )
            if farm.replica.core.is_leader:
                yield f"farm {name}: it leads"

    async def let_go(self, bound_s: float) -> None:
        """The node is about to end: let go of all farms, the leadership last; within ``bound_s``."""
        with trio.move_on_after(bound_s):
            async with trio.open_nursery() as nursery:
                for farm in self._farms.values():
                    nursery.start_soon(self._let_go_of, farm, bound_s * 2 / 3)

    async def _let_go_of(self, farm: HostedFarm, bound_s: float) -> None:
        with trio.move_on_after(bound_s):
            await farm.view.let_go(bound_s)
        await _hand_over(farm)


async def _hand_over(farm: HostedFarm) -> None:
    """If this member leads, transfer the leadership: to one that is not drained, if there is one. Returns
    when it no longer leads, or when no member took over within the deadline of a request."""
    others, left = farm.view.others()
    await farm.replica.hand_over(min(left) if left and left != others else 0)
