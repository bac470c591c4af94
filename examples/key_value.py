"""A key-value store on the log of a farm: whoever folds the log has the same one."""

import trio

from garlicfarm.client import AdminClient


class KeyValue:
    """Entries are ``key=value``; ``data`` holds those up to ``index``. Any number may use one farm."""

    def __init__(self, admin: AdminClient) -> None:
        self.admin, self.index, self.moved = admin, 0, trio.Event()
        self.data: dict[bytes, bytes] = {}

    async def follow(self) -> None:
        """Fold the log for ever; to be run beside whoever calls `get`."""
        async for entry in self.admin.log("farm", after=self.index, wait_s=25):
            key, _, value = entry.value.partition(b"=")
            self.data[key], self.index = value, entry.index
            self.moved.set()
            self.moved = trio.Event()

    async def put(self, key: bytes, value: bytes) -> int:
        """The index of the entry, once it is committed."""
        return (await self.admin.post("farm", key + b"=" + value))[0]

    async def get(self, key: bytes) -> bytes | None:
        """The newest value: what anybody put before this call is seen, since it lies before our entry."""
        barrier = await self.put(b"", b"")
        while self.index < barrier:
            await self.moved.wait()
        return self.data.get(key)
