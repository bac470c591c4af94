"""A network in memory, with hosts that can be killed and parted, and a transport plugin upon it.

    network = MemoryNetwork()
    transport = network.transport("one")        # of the host "one": a `garlicfarm.transport.Transport`

Endpoints are ``memory://HOST:PORT``. Bytes sent across a partition arrive when it heals, as with TCP, unless
one side closed the stream by then. Killing a host breaks all its streams.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import ClassVar, NoReturn

import msgspec
import trio
from trio.testing import MemoryReceiveStream, MemorySendStream

from garlicfarm.errors import TransportError, UnreachableError
from garlicfarm.transport import Endpoint, Peer, Transport

_Handler = Callable[[trio.abc.Stream, Peer], Awaitable[None]]
CLOSE_TIMEOUT_S = 1.0


class _Pipe:
    """One direction of a stream."""

    def __init__(self, network: MemoryNetwork, source: str, destination: str) -> None:
        self._network = network
        self.source = source
        self.destination = destination
        self.sender = MemorySendStream(self._sent, close_hook=self.pump)
        self.receiver = MemoryReceiveStream()
        self.done = False

    async def _sent(self) -> None:
        self.pump()
        if self.done:
            raise trio.BrokenResourceError(f"{self.destination} closed the stream")

    def pump(self) -> None:
        """Deliver the sent bytes, unless the path is blocked."""
        while not self.done and (self.source, self.destination) not in self._network.blocked:
            try:
                data = self.sender.get_data_nowait()
                if data:
                    self.receiver.put_data(data)
                else:
                    self.receiver.put_eof()
                    self.done = True
            except trio.WouldBlock:
                return
            except trio.ClosedResourceError:  # the reader closed it; the sender learns that when it sends
                self.done = True

    def destroy(self) -> None:
        """As when the host at one end is gone."""
        self.done = True
        self.sender.close()
        self.receiver.put_eof()


class MemoryNetwork:
    """Hosts by name; ``blocked`` holds the pairs (from, to) that are cut at the moment."""

    def __init__(self) -> None:
        self.blocked: set[tuple[str, str]] = set()
        self._handlers: dict[tuple[str, int], Callable[[str, trio.abc.Stream], None]] = {}
        self._pipes: list[_Pipe] = []
        self._healed = trio.Event()

    def transport(self, host: str) -> MemoryTransport:
        """The transport that programs on ``host`` use."""
        return MemoryTransport(MemoryTransport.Config(), Path(), network=self, host=host)

    def partition(self, *sides: Collection[str]) -> None:
        """Cut all paths between different sides until `heal`."""
        for side in sides:
            for other in sides:
                if side is not other:
                    self.blocked |= {(a, b) for a in side for b in other}

    def heal(self) -> None:
        """Open all paths, and deliver the kept bytes first."""
        self.blocked.clear()
        for pipe in self._pipes:
            pipe.pump()
        self._healed.set()
        self._healed = trio.Event()

    def kill(self, host: str) -> None:
        """Break all streams of ``host``."""
        for pipe in self._pipes:
            if host in (pipe.source, pipe.destination) and not pipe.done:
                pipe.destroy()

    # For the transport.

    async def connect(self, host: str, endpoint: Endpoint) -> trio.abc.Stream:
        """See `Transport.open_stream`; waits as long as a partition lasts."""
        while {(host, endpoint.host), (endpoint.host, host)} & self.blocked:
            await self._healed.wait()
        await trio.lowlevel.checkpoint()
        accept = self._handlers.get((endpoint.host, endpoint.port))
        if accept is None:
            raise UnreachableError(f"no listener at {endpoint}")
        there, back = _Pipe(self, host, endpoint.host), _Pipe(self, endpoint.host, host)
        self._pipes = [pipe for pipe in self._pipes if not pipe.done] + [there, back]
        accept(host, trio.StapledStream(back.sender, there.receiver))
        return trio.StapledStream(there.sender, back.receiver)

    def listen(self, host: str, port: int, accept: Callable[[str, trio.abc.Stream], None]) -> int:
        """Call ``accept(client host, stream)`` for each connection; returns the port, a free one for 0."""
        if not port:
            port = max((used for _, used in self._handlers), default=0) + 1
        if (host, port) in self._handlers:
            raise TransportError(f"{host}:{port} is taken")
        self._handlers[host, port] = accept
        return port

    def unlisten(self, host: str, port: int) -> None:
        """End `listen`."""
        del self._handlers[host, port]


class MemoryTransport(Transport):
    """Made by `MemoryNetwork.transport`."""

    scheme: ClassVar[str] = "memory"

    class Config(msgspec.Struct):
        """Nothing to configure."""

    def __init__(self, config: Config, base_dir: Path, *, network: MemoryNetwork, host: str) -> None:
        super().__init__(config, base_dir)
        self._network = network
        self._host = host

    async def open_stream(self, endpoint: Endpoint) -> trio.abc.Stream:
        return await self._network.connect(self._host, endpoint)

    async def serve(
        self, url: Endpoint, handler: _Handler, *, task_status: trio.TaskStatus[Endpoint]
    ) -> NoReturn:
        async with trio.open_nursery() as nursery:

            def accept(host: str, stream: trio.abc.Stream) -> None:
                nursery.start_soon(_serve_stream, handler, stream, Peer(host, True, None))

            port = self._network.listen(url.host, url.port, accept)
            try:
                task_status.started(Endpoint(self.scheme, url.host, port))
                await trio.sleep_forever()
            finally:
                self._network.unlisten(url.host, port)
        raise AssertionError("unreachable: it sleeps for ever")


async def _serve_stream(handler: _Handler, stream: trio.abc.Stream, peer: Peer) -> None:
    try:
        await handler(stream, peer)
    finally:
        with trio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            await stream.aclose()
