"""Reads all files of a farm's member again, once in a while and slowly, and has what is damaged replaced.

The state in memory came from what was read and checked, so a snapshot of it stands in for a damaged snapshot,
and for damaged entries that it covers: those are deleted. Others still have them. A damaged key is only told.
When all is replaced, a new pass begins; the trouble is over when a whole pass finds nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn, TypeVar

import trio

from garlicfarm.logs import EventLogger
from garlicfarm.metrics import FarmMetrics
from garlicfarm.node.retention import Retention
from garlicfarm.storage import (
    SNAPSHOTS,
    Corrupt,
    KeyFiles,
    LogStore,
    list_segments,
    list_snapshots,
    scrub_segment,
    scrub_snapshot,
    segment_name,
)
from garlicfarm.trouble import Trouble

BYTES_PER_S = 4 << 20
"""So much is read per second, on average."""
REPAIR_S = 5.0
_KEYS = ("secrets", "tls")
_TO_DO = {
    "segment": "its entries are deleted here as soon as a snapshot and a newer entry make them unnecessary; "
    "do not restart the node before that",
    "snapshot": "a new one is being written",
    "key": "put your copy in its place",
}

T = TypeVar("T")


class _File(NamedTuple):
    """``number``: of a segment, else 0."""

    what: Literal["segment", "snapshot", "key"]
    path: Path
    number: int = 0


class Scrub:
    """The checks of one farm's files, and of the node's keys.

    :param data: the node's data directory.
    """

    def __init__(
        self,
        node_id: int,
        data: Path,
        every_s: float,
        store: LogStore,
        retention: Retention,
        metrics: FarmMetrics,
        log: EventLogger,
    ) -> None:
        self._node_id = node_id
        self._data = data
        self._every_s = every_s
        self._store = store
        self._retention = retention
        self._metrics = metrics
        self._log = log
        self._keys = KeyFiles()
        self._limiter = trio.CapacityLimiter(1)  # its own: the thread may hang with the disk
        self._damaged: dict[_File, str] = {}
        self._replaced: list[str] = []  # since the last pass that found nothing

    @property
    def trouble(self) -> Trouble | None:
        """What operators should see to; None: no damage is known."""
        told = [f"{file.path} is damaged: {why}; {_TO_DO[file.what]}" for file, why in self._damaged.items()]
        if self._replaced:
            told.append(f"{', '.join(self._replaced)} was damaged and is replaced; check the disk")
        if not told:
            return None
        text = f"node {self._node_id}: {'. '.join(told)}"
        return Trouble("damage", f"damage {self._node_id}", text, own=True)

    async def run(self) -> NoReturn:
        """Run until cancelled; a thread that is reading is then left to end with the process."""
        for file in await self._in_thread(self._key_files):
            await self._why_damaged(file)  # what they are like now
        is_clean = True
        while True:
            with trio.move_on_after(self._every_s):
                while self._damaged:
                    await trio.sleep(REPAIR_S)
                    await self._repair()
                if is_clean:
                    await trio.sleep_forever()
            is_clean = await self._pass()

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=self._limiter)

    async def _pass(self) -> bool:
        """Check everything; whether nothing was found."""
        try:
            files = await self._in_thread(self._files)
        except OSError as error:
            self._log.warning("not-scrubbed", file=str(self._data), cause=str(error))
            return True
        is_clean = not self._damaged
        for file in files:
            if (why := await self._why_damaged(file)) and file not in self._damaged:
                self._damaged[file] = why
                self._metrics.count_damage(file.what)
                self._log.error("damaged", file=str(file.path), cause=why)
                await self._repair()
                is_clean = False
        if is_clean:
            self._replaced.clear()
            self._metrics.storage_scrub_timestamp.set(time.time())
        return is_clean

    async def _why_damaged(self, file: _File) -> str:
        """What is wrong with a file; "": nothing, or it is gone."""
        pieces = self._pieces(file)
        size = 1
        try:
            while size:
                size = await self._in_thread(lambda: next(pieces, 0))
                await trio.sleep(size / BYTES_PER_S)
        except Corrupt as damage:
            return str(damage)
        except FileNotFoundError:  # it was deleted or replaced meanwhile
            pass
        except OSError as error:
            self._log.warning("not-scrubbed", file=str(file.path), cause=str(error))
        return ""

    def _pieces(self, file: _File) -> Iterator[int]:
        if file.what == "segment":
            last, size = self._store.appender.end
            return scrub_segment(file.path, file.number, size if file.number == last else None)
        return scrub_snapshot(file.path) if file.what == "snapshot" else self._keys.scrub(file.path)

    def _files(self) -> list[_File]:
        log, snapshots = self._store.path, self._store.path.parent / SNAPSHOTS
        return [
            *(_File("segment", log / segment_name(each), each) for each in list_segments(log)),
            *(_File("snapshot", path) for path in list_snapshots(snapshots)),
            *self._key_files(),
        ]

    def _key_files(self) -> list[_File]:
        paths = [path for name in _KEYS for path in (self._data / name).glob("*")]
        return [_File("key", path) for path in [*paths, self._data / "users", self._data / "node.json"]]

    async def _repair(self) -> None:
        """Have damaged files replaced, and take note of those that are."""
        for file in list(self._damaged):
            if file.what == "segment":
                is_there = await self._in_thread(partial(_is_there, file.path))
                self._store.appender.end_segment(file.number)
                if is_there and file.number < self._store.appender.segment:
                    self._retention.discard(self._store.index.last_within(file.number))
            else:
                is_there = bool(await self._why_damaged(file))
                if is_there and file.what == "snapshot":
                    self._retention.replace(file.path)
            if not is_there:
                del self._damaged[file]
                self._replaced.append(str(file.path))
                self._log.warning("damage-replaced", file=str(file.path))


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError:  # as far as it can be seen
        pass
    return True
