"""A feed plugin: a file with a JSON line for each entry, which continues where it ended."""

import json
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import trio

from garlicfarm.errors import ConfigError, FeedError
from garlicfarm.feed import Feed, FeedSite, FeedSource, encode_lines


class FileFeedConfig(msgspec.Struct, forbid_unknown_fields=True):
    path: str


class FileFeed(Feed):
    Config = FileFeedConfig

    def __init__(self, config: Any, base_dir: Path, site: FeedSite) -> None:
        super().__init__(config, base_dir, site)
        self.path = base_dir / config.path
        if not self.path.parent.is_dir():
            raise ConfigError([f"feed file: path: {self.path.parent} is not a directory"])

    async def run(self, source: FeedSource, *, task_status: trio.TaskStatus[None]) -> NoReturn:
        try:
            async with await trio.open_file(self.path, "a+b") as file:
                await file.seek(0)
                whole, last = 0, b'{"index": 0}'
                async for line in file:
                    if line.endswith(b"\n"):  # a crash may have cut the last one short
                        whole, last = whole + len(line), line
                await file.truncate(whole)
                after = json.loads(last)["index"]
                source.report_read(after)
                task_status.started()
                # Where the log does not reach back so far, the file has a gap.
                async for entries in source.entries(max(after, source.first_index - 1), 1 << 20):
                    await file.write(encode_lines(entries))
                    await file.flush()
                    source.report_read(entries[-1].index)
        except OSError as error:
            raise FeedError(f"{self.path}: {error.strerror}") from error
        raise AssertionError("unreachable: the entries do not end")
