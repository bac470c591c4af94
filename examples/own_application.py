"""An application: a dict of text. Its entries are ``key=value``."""

import json

from garlicfarm.application import Application, Origin
from garlicfarm.errors import EntryRefused


class KeyValueState(Application):
    def __init__(self, farm: str) -> None:
        self.data: dict[str, str] = {}

    def check(self, entry: bytes, origin: Origin) -> None:
        if b"=" not in entry:
            raise EntryRefused("", "not key=value")

    def apply(self, index: int, term: int, entry: bytes) -> None:
        key, equals, value = entry.decode(errors="replace").partition("=")
        if equals:  # the same judgement on every node, and never an error
            self.data[key] = value

    def snapshot(self) -> bytes:
        return json.dumps(self.data, sort_keys=True).encode()  # equal states, equal bytes

    def restore(self, data: bytes) -> None:
        self.data = json.loads(data)
