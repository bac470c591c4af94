"""A node for the command line to ask: in memory, in a thread of its own, found through a configuration."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from garlicfarm.wire.messages import ValueType
from tests.admin.fake_node import FakeNode

CONFIG = """
version = 1
[node]
id = 1
[admin]
url = "https://127.0.0.1:27151"
[[listener]]
url = "ssl://127.0.0.1:0"
[[farm]]
name = "farm"
endpoint = "ssl://127.0.0.1:27150"
"""
Cli = Callable[..., Any]
"""Runs the command: ``cli(*arguments, exits=0)``. Returns what it wrote."""


class Served:
    """A fake node in a thread of its own, as another program would run it, and its configuration."""

    def __init__(self, directory: Path, farms: list[str]) -> None:
        self.node = FakeNode(directory / "data", farms)
        self.config = directory / "garlicfarm.toml"
        self.config.write_text(CONFIG)
        self._ready = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=trio.run, args=[self._main])
        thread.start()
        assert self._ready.wait(240)
        try:
            yield
        finally:
            trio.from_thread.run_sync(self._end.set, trio_token=self._token)
            thread.join(60)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._end = trio.Event()
        async with self.node.running() as self.url:
            (self.node.data_dir / "admin.url").write_text(self.url + "\n")
            self._ready.set()
            await self._end.wait()

    def say(self, **changes: Any) -> dict[str, Any]:
        """Have it answer with a status changed like this; returns that, which may change later."""
        body = {**self.node.farm.status(), **changes}
        self.node.farm.status = lambda: body  # type: ignore[method-assign]
        return body

    def commit(self, value: bytes, kind: ValueType = ValueType.APPLICATION) -> int:
        return trio.from_thread.run_sync(self.node.farm.commit, value, kind, trio_token=self._token)


@contextmanager
def serving(directory: Path, monkeypatch: pytest.MonkeyPatch, *farms: str) -> Iterator[Served]:
    """A node of this machine, found through the configuration in the current directory."""
    for name in ("GARLICFARM_CONFIG", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("garlicfarm.admin.server.GRACE_S", 0.1)
    monkeypatch.chdir(directory)
    served = Served(directory, list(farms))
    with served.running():
        yield served
