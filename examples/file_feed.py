"""A feed plugin: a file with a JSON line for each entry, which goes on where it ended."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import trio

from garlicfarm.errors import ConfigError, FeedError
from garlicfarm.feed import Entry, Feed, FeedSite, FeedSource, encode_lines

PIECE_BYTES = 1 << 20  # of entries that are in memory at a time


class FileFeedConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The keys of [[farm.feed]] that are not the node's own."""

    path: str


class FileFeed(Feed):
    Config = FileFeedConfig

    def __init__(self, config: Any, base_dir: Path, site: FeedSite) -> None:
        super().__init__(config, base_dir, site)
        self._path = base_dir / config.path
        if not self._path.parent.is_dir():
            raise ConfigError([f"feed file: path: {self._path.parent} is not a directory"])

    async def run(self, source: FeedSource, *, task_status: trio.TaskStatus[None]) -> NoReturn:
        try:
            after = await trio.to_thread.run_sync(self._last_index)
            source.report_read(after)
            task_status.started()
            # Where the log does not reach back so far, the file has a gap.
            async for entries in source.entries(max(after, source.first_index - 1), PIECE_BYTES):
                await trio.to_thread.run_sync(self._append, entries)
                source.report_read(entries[-1].index)
        except OSError as error:
            raise FeedError(f"{self._path}: {error.strerror}") from error
        raise AssertionError("unreachable: the entries do not end")

    def _last_index(self) -> int:
        """The index in the last line; a line that a crash cut short is removed."""
        with self._path.open("a+b") as file:
            file.seek(0)
            size, last = 0, b"{}"
            for line in file:
                if line.endswith(b"\n"):
                    size, last = size + len(line), line
            file.truncate(size)
        index: int = json.loads(last).get("index", 0)
        return index

    def _append(self, entries: Sequence[Entry]) -> None:
        with self._path.open("ab") as file:
            file.write(encode_lines(entries))
            file.flush()
            os.fsync(file.fileno())
