"""A TCP connection at the cost of one system call for each of many small pieces.

`trio.SocketStream` lets all other tasks have a turn after each piece, even one that the socket has taken at
once, and tries to receive before it waits. Where peers' packets pass one by one, that costs more than all
that is done with them.
"""

from __future__ import annotations

import os
from typing import NoReturn

import trio

RECEIVE_BYTES = 1 << 16


class PromptStream(trio.abc.HalfCloseableStream):
    """``stream``: a connection, which belongs to this from now on. One task may send and another receive.

    `send_all` is no turn of other tasks where the socket takes all at once: a loop around it must end, or
    wait for something else. `receive_some` is one, as ever.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._socket = stream.socket
        self._is_drained = False
        """The last piece was shorter than it might have been: now there is nothing, most likely."""

    def send_now(self, data: bytes | bytearray | memoryview) -> int:
        """Send what the socket takes without waiting: how many bytes that was. This is no checkpoint. Raises
        `trio.BrokenResourceError`: the peer has closed the connection."""
        try:
            return os.write(self._socket.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._break(error)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        rest = memoryview(data)
        while rest := rest[self.send_now(rest) :]:
            await trio.lowlevel.wait_writable(self._socket)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Cancelled: nothing is lost."""
        most = RECEIVE_BYTES if max_bytes is None else max_bytes
        await trio.lowlevel.checkpoint_if_cancelled()
        has_waited = False
        while True:
            if self._is_drained:
                await trio.lowlevel.wait_readable(self._socket)
                has_waited = True
            try:
                data = os.read(self._socket.fileno(), most)
            except BlockingIOError:
                self._is_drained = True
                continue
            except OSError as error:
                self._break(error)
            self._is_drained = len(data) < most
            if not has_waited:
                await trio.lowlevel.cancel_shielded_checkpoint()
            return data

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _break(self, error: OSError) -> NoReturn:
        if self._socket.fileno() < 0:
            raise trio.ClosedResourceError("this side has closed the connection") from None
        raise trio.BrokenResourceError(f"the connection is broken: {error.strerror}") from error


async def open_prompt_stream(host: str, port: int) -> PromptStream:
    """A connection to HOST:PORT. Raises `OSError`: there is none."""
    return PromptStream(await trio.open_tcp_stream(host, port))
