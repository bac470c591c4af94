"""Accepting connections; a listener for transports without TLS of their own; the server side of TLS."""

from __future__ import annotations

import errno
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import NoReturn, TypeVar

import trio

from garlicfarm import descriptors
from garlicfarm.errors import TransportError
from garlicfarm.logs import EventLogger
from garlicfarm.transport import Endpoint, Peer, Transport

CLOSE_TIMEOUT_S = 2.0
PAUSE_S = 0.1
_OVERLOADED = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}
_log = EventLogger(logging.getLogger("garlicfarm.net"))

_S = TypeVar("_S", bound=trio.abc.Stream)


class WrappedStream(trio.abc.Stream):
    """Hands everything on to another stream; a subclass changes a part of that."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


@contextmanager
def server_tls(stream: _S, context: ssl.SSLContext) -> Iterator[trio.SSLStream[_S]]:
    """TLS over ``stream`` while the context lasts.

    Trio's `SSLStream` refers to itself. The garbage collector runs rarely in a long-lived program, so each
    stream would keep some 50 KiB of OpenSSL's memory: 100 MB after a wave of 2,000 connections.
    """
    secured = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
    try:
        yield secured
    finally:
        vars(secured).clear()


def check_loopback(url: Endpoint, behind: str) -> None:
    """`Transport.check_url` of a transport that needs TLS from something in front of it, ``behind``."""
    if not url.is_loopback:
        raise TransportError(
            f"cannot listen on {url}: without TLS, only loopback is allowed",
            f"listen on {url.scheme}://127.0.0.1:{url.port}, behind {behind}",
        )


async def serve_tcp(
    transport: Transport,
    url: Endpoint,
    handler: Callable[[trio.SocketStream, Peer], Awaitable[None]],
    *,
    address_is_peer: bool = True,
    every_address: bool = False,
    params: Mapping[str, str] = MappingProxyType({}),
    task_status: trio.TaskStatus[Endpoint],
) -> NoReturn:
    """`Transport.serve` over TCP; what ``handler`` speaks on top of that, as TLS, is its own.

    ``address_is_peer``: see `Peer`. ``every_address``: a name with several addresses is bound at each unless
    the port is 0; else at the first only. ``params``: of the bound address.

    Raises `TransportError`: cannot listen on ``url``. Cancelled: closes everything.
    """
    transport.check_url(url)
    try:
        listeners = await trio.open_tcp_listeners(url.port, host=url.host)
    except (OSError, UnicodeError) as exc:
        hint = "set the url of the [[listener]] to an address of this machine and a free port"
        raise TransportError(
            f"cannot listen on {url}: {getattr(exc, 'strerror', None) or exc}", hint
        ) from exc
    if url.port == 0 or not every_address:
        for other in listeners[1:]:
            other.socket.close()
        del listeners[1:]
    host, port = listeners[0].socket.getsockname()[:2]
    task_status.started(Endpoint(transport.scheme, host, port, params))

    async def connection(stream: trio.SocketStream) -> None:
        try:
            peer = Peer(stream.socket.getpeername()[0], address_is_peer, None)
        except OSError:  # it disconnected while it was queued
            transport.on_drop(Peer("", False, None), "gone")
            return
        with transport.admit(peer) as slot:
            await handler(stream, replace(peer, slot=slot))
            await _end(stream)

    await serve_listeners(connection, listeners)


async def serve_listeners(
    handler: Callable[[trio.SocketStream], Awaitable[None]],
    listeners: Sequence[trio.SocketListener],
    *,
    handler_nursery: trio.Nursery | None = None,
    task_status: trio.TaskStatus[Sequence[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """`trio.serve_listeners`, except that incoming connections leave descriptors for everything else
    (`garlicfarm.descriptors`). While there are too few, it accepts ten connections a second, and closes them.

    ``handler(stream)`` must not raise; the stream is closed when it returns.
    """
    async with trio.open_nursery() as nursery:
        for listener in listeners:
            nursery.start_soon(_accept, listener, handler, handler_nursery or nursery)
        task_status.started(listeners)
    raise AssertionError("unreachable: accepting only ends by an error")


async def _accept(
    listener: trio.SocketListener,
    handler: Callable[[trio.SocketStream], Awaitable[None]],
    nursery: trio.Nursery,
) -> NoReturn:
    async def serve(stream: trio.SocketStream) -> None:
        try:
            await handler(stream)
        finally:
            await trio.aclose_forcefully(stream)

    async with listener:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in _OVERLOADED:
                    raise
                cause = error.strerror
            else:
                if stream.socket.fileno() < descriptors.ceiling():
                    nursery.start_soon(serve, stream)
                    continue
                stream.socket.close()
                cause = "the descriptors that are left are for files"
            host, port = listener.socket.getsockname()[:2]
            _log.warning("listener-pauses", listener=f"{host}:{port}", cause=cause, limit=descriptors.limit())
            await trio.sleep(PAUSE_S)


async def _end(stream: trio.SocketStream) -> None:
    """Send EOF and wait briefly for the peer's. Closing with unread bytes would reset the connection, and the
    peer might lose our last ones."""
    with trio.move_on_after(CLOSE_TIMEOUT_S):
        try:
            await stream.send_eof()
            while await stream.receive_some():
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
