"""A plain TCP listener, for transports without TLS of their own, and the server's end of TLS."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn, TypeVar

import trio

from garlicfarm.errors import TransportError
from garlicfarm.transport import Endpoint, Peer, Transport

__all__ = ["check_loopback", "serve_tcp", "server_tls"]

CLOSE_TIMEOUT_S = 2.0

_S = TypeVar("_S", bound=trio.abc.Stream)


@contextmanager
def server_tls(stream: _S, context: ssl.SSLContext) -> Iterator[trio.SSLStream[_S]]:
    """TLS over ``stream``, for as long as the context lasts.

    Trio's `SSLStream` refers to itself. Left to the garbage collector, which comes seldom in a program that
    lives long, each would keep some 50 KiB of OpenSSL's: 100 MB after a wave of 2,000 connections.
    """
    secured = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
    try:
        yield secured
    finally:
        vars(secured).clear()


def check_loopback(url: Endpoint, behind: str) -> None:
    """`Transport.check_url` of a transport that listens ``behind`` something that brings what it lacks."""
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
    task_status: trio.TaskStatus[Endpoint],
) -> NoReturn:
    """`Transport.serve` over TCP as it is; a name of several addresses is bound at its first.

    ``address_is_peer``: see `Peer`.

    Raises `TransportError`: ``url`` cannot be listened on. Cancelled: closes everything.
    """
    try:
        first, *others = await trio.open_tcp_listeners(url.port, host=url.host)
    except (OSError, UnicodeError) as exc:
        raise TransportError(
            f"cannot listen on {url}: {exc}", "set `url` of [[listener]] to a free address"
        ) from exc
    for other in others:
        other.socket.close()
    host, port = first.socket.getsockname()[:2]
    task_status.started(Endpoint(transport.scheme, host, port))

    async def connection(stream: trio.SocketStream) -> None:
        try:
            peer = Peer(stream.socket.getpeername()[0], address_is_peer, None)
        except OSError:  # it left while it was queued
            transport.on_drop(Peer("", False, None), "gone")
            return
        with transport.admit(peer) as place:
            await handler(stream, replace(peer, place=place))
            await _end(stream)

    # It closes each stream when its task ends, and survives accept() running out of descriptors.
    await trio.serve_listeners(connection, [first])


async def _end(stream: trio.SocketStream) -> None:
    """Say that this was all, and wait a moment for the peer's end: closing over bytes that were not read
    would reset the connection, and our last ones with it."""
    with trio.move_on_after(CLOSE_TIMEOUT_S):
        try:
            await stream.send_eof()
            while await stream.receive_some():
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
