"""A key-value store on a farm's log: every reader that folds the log gets the same data."""

import trio

from garlicfarm.client import AdminClient


class KeyValue:
    """Entries are ``key=value``; ``data`` holds those up to ``index``. Many instances may share one farm."""

    def __init__(self, admin: AdminClient) -> None:
        self.admin, self.index, self.lock = admin, 0, trio.Lock()
        self.data: dict[bytes, bytes] = {}

    async def put(self, key: bytes, value: bytes) -> int:
        """The index of the entry, once it is committed."""
        return (await self.admin.post("farm", key + b"=" + value))[0]

    async def get(self, key: bytes) -> bytes | None:
        """The newest value, including everything that was put before this call."""
        async with self.lock:  # one fold at a time
            async for entry in self.admin.log("farm", after=self.index, linearizable=True):
                name, _, value = entry.value.partition(b"=")
                self.data[name], self.index = value, entry.index
            return self.data.get(key)
