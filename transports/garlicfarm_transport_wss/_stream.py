"""A byte stream in binary frames; frame boundaries have no meaning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from operator import index

import trio
from wsproto import WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Event, Ping
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import ProtocolError

CHUNK_BYTES = 65536
CLOSE_TIMEOUT_S = 1.0


class WebSocketStream(trio.abc.Stream):
    """``web`` is a WebSocket whose handshake over ``stream`` is done."""

    def __init__(self, stream: trio.abc.Stream, web: WSConnection) -> None:
        self._stream = stream
        self._web = web
        self._received = bytearray()
        self._is_closed = False
        self._is_new = True  # bytes received with the handshake are not processed yet
        self._sender, self._receiver = trio.Lock(), trio.Lock()
        self._wire = trio.Lock()  # the receiver answers pings between the sender's frames

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with self._alone(self._sender):
            await trio.lowlevel.checkpoint()
            data = memoryview(data)
            for begin in range(0, len(data), CHUNK_BYTES):
                await self._send(BytesMessage(data=bytes(data[begin : begin + CHUNK_BYTES])))

    async def wait_send_all_might_not_block(self) -> None:
        with self._alone(self._sender):
            async with self._wire:
                await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if max_bytes is not None and index(max_bytes) < 1:
            raise ValueError("max_bytes must be at least 1")
        with self._alone(self._receiver):
            await trio.lowlevel.checkpoint()
            while not self._received and await self._receive():
                pass
            size = len(self._received) if max_bytes is None else max_bytes
            data = bytes(self._received[:size])
            del self._received[:size]
            return data

    async def _receive(self) -> bool:
        """Receive and process the next bytes; False: the peer has closed."""
        if self._has_ended():
            return False
        try:
            if self._is_new:
                self._is_new = False
            else:
                data = await self._stream.receive_some(CHUNK_BYTES)
                self._web.receive_data(bytes(data) or None)
            for event in self._web.events():
                if isinstance(event, BytesMessage):
                    self._received += event.data
                elif isinstance(event, Ping):
                    await self._send(event.response())
                elif isinstance(event, CloseConnection):
                    if event.code == CloseReason.ABNORMAL_CLOSURE:
                        raise trio.BrokenResourceError("the connection broke")
                    if self._web.state is ConnectionState.REMOTE_CLOSING:
                        with suppress(trio.BrokenResourceError):  # the peer need not wait for the response
                            await self._send(event.response())
                else:
                    raise trio.BrokenResourceError(f"{type(event).__name__} is not what a farm sends")
        except ProtocolError as exc:
            raise trio.BrokenResourceError(f"invalid WebSocket frame: {exc}") from exc
        return True

    def _has_ended(self) -> bool:
        return self._web.state in (ConnectionState.CLOSED, ConnectionState.REMOTE_CLOSING)

    async def _send(self, event: Event) -> None:
        async with self._wire:
            if self._is_closed:
                raise trio.ClosedResourceError
            try:
                data = self._web.send(event)
            except ProtocolError as exc:  # the peer has closed
                raise trio.BrokenResourceError(str(exc)) from exc
            await self._stream.send_all(data)

    async def send_close(self) -> None:
        """Send the closing frame if the connection is still open, within a second."""
        if self._web.state is not ConnectionState.OPEN or self._is_closed:
            return
        with (
            trio.move_on_after(CLOSE_TIMEOUT_S),
            suppress(trio.BrokenResourceError, trio.ClosedResourceError),
        ):
            await self._send(CloseConnection(code=CloseReason.NORMAL_CLOSURE))

    async def finish(self) -> None:
        """Close as a server does (RFC 6455, section 7.1.1): send the closing frame, then discard everything
        up to the peer's, for a second. A reverse proxy that is disconnected earlier may still hold unread
        bytes of the peer; it then resets the peer's connection, and our last bytes are lost."""
        await self.send_close()
        with (
            trio.move_on_after(CLOSE_TIMEOUT_S),
            suppress(trio.BrokenResourceError, trio.ClosedResourceError),
        ):
            while await self._receive():
                self._received.clear()

    async def aclose(self) -> None:
        try:
            await self.send_close()
        finally:
            self._is_closed = True
            await self._stream.aclose()

    @contextmanager
    def _alone(self, lock: trio.Lock) -> Iterator[None]:
        """Allow one task at a time, and none after close."""
        if self._is_closed:
            raise trio.ClosedResourceError
        try:
            lock.acquire_nowait()
        except (trio.WouldBlock, RuntimeError):
            raise trio.BusyResourceError("another task is using this stream") from None
        try:
            yield
        finally:
            lock.release()
