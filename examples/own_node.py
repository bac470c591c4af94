"""A node with a state machine of its own: own_node.py garlicfarm.toml"""

import json
import os
import sys
from pathlib import Path

import trio

from garlicfarm.application import Application, Origin
from garlicfarm.config import load
from garlicfarm.errors import EntryRefused
from garlicfarm.node import serve


class KeyValueState(Application):
    """A dict of text; entries are ``key=value``."""

    def __init__(self, farm: str) -> None:
        self.data: dict[str, str] = {}

    def check(self, entry: bytes, origin: Origin) -> None:
        if not is_valid(entry):
            raise EntryRefused("", "not key=value in UTF-8")

    def apply(self, index: int, term: int, entry: bytes) -> None:
        if is_valid(entry):  # the same judgement on every node, and never an error
            key, _, value = entry.decode().partition("=")
            self.data[key] = value

    def snapshot(self) -> bytes:
        return json.dumps(self.data, sort_keys=True).encode()  # equal states, equal bytes

    def restore(self, data: bytes) -> None:
        self.data = json.loads(data)


def is_valid(entry: bytes) -> bool:
    try:
        return "=" in entry.decode()
    except UnicodeDecodeError:
        return False


async def main(path: Path) -> None:
    await serve(load(path, os.environ), applications={"log": KeyValueState})


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[-1]))
