"""A key-value store on the log of a farm: whoever folds the log has the same one."""

import trio

from garlicfarm.client import AdminClient


class KeyValue:
    """Entries are ``key=value``; ``data`` holds those up to ``index``. Any number may use one farm."""

    def __init__(self, admin: AdminClient) -> None:
        self.admin, self.index, self.lock = admin, 0, trio.Lock()
        self.data: dict[bytes, bytes] = {}

    async def put(self, key: bytes, value: bytes) -> int:
        """The index of the entry, once it is committed."""
        return (await self.admin.post("farm", key + b"=" + value))[0]

    async def get(self, key: bytes) -> bytes | None:
        """The newest value: what anybody put before this call is seen."""
        async with self.lock:  # one fold at a time
            async for entry in self.admin.log("farm", after=self.index, linearizable=True):
                name, _, value = entry.value.partition(b"=")
                self.data[name], self.index = value, entry.index
            return self.data.get(key)
