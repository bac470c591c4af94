"""A transport plugin: streams inside one process. The smallest one that fulfils the contract."""

import itertools
from collections.abc import Awaitable, Callable
from typing import ClassVar, NoReturn

import msgspec
import trio
import trio.testing

from garlicfarm.errors import TransportError, UnreachableError
from garlicfarm.transport import Endpoint, Peer, Transport


class MemoryConfig(msgspec.Struct, kw_only=True):
    """The table [transport.memory] of a configuration."""

    max_waiting: int = 16


class MemoryTransport(Transport):
    scheme = "memory"
    Config = MemoryConfig
    _listeners: ClassVar[dict[tuple[str, int], trio.MemorySendChannel[trio.abc.Stream]]] = {}
    _ports = itertools.count(1)

    async def open_stream(self, endpoint: Endpoint) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        try:
            await self._listeners[endpoint.host, endpoint.port].send(theirs)
        except (KeyError, trio.BrokenResourceError) as error:
            raise UnreachableError(f"{endpoint}: nothing listens there") from error
        return ours

    async def serve(
        self,
        url: Endpoint,
        handler: Callable[[trio.abc.Stream, Peer], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[Endpoint],
    ) -> NoReturn:
        port = url.port or next(self._ports)
        send, receive = trio.open_memory_channel[trio.abc.Stream](self.config.max_waiting)
        if self._listeners.setdefault((url.host, port), send) is not send:
            raise TransportError(f"cannot listen on {url}", "is it in use?")

        async def connection(stream: trio.abc.Stream) -> None:
            async with stream:
                await handler(stream, Peer("this process", False, None))

        try:
            async with receive, trio.open_nursery() as nursery:
                task_status.started(Endpoint(self.scheme, url.host, port))
                async for stream in receive:
                    nursery.start_soon(connection, stream)
        finally:
            del self._listeners[url.host, port]
        raise AssertionError("the channel is never closed")
