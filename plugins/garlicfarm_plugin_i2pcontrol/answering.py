"""Answers the tests of other members at a destination of its own, through the router's SAM (D25).

A member that does not reach the publisher's service tests such a destination of another member, to see
whether its own router has lost I2P. The destination is made for one session, serves nothing, and answers each
stream with the head of an empty page.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import NoReturn

import trio

from garlicfarm.credentials.router_login import RouterLogin
from garlicfarm.errors import RemoteProtocolError, RouterError, UnreachableError, first_error
from garlicfarm.i2p.session_options import tunnel_options
from garlicfarm.net.sam import SamSession
from garlicfarm.transport import Endpoint

ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
STREAM_TIMEOUT_S = 30.0
MAX_STREAMS = 16
"""at once; more are closed: whoever finds the destination could hold any number"""
_MAX_REQUEST_BYTES = 4096


async def answer_tests(
    sam: Endpoint, login: RouterLogin | None, hops: int, on_ready: Callable[[bytes], None]
) -> NoReturn:
    """Answer until cancelled; ``on_ready`` is told the hash of the destination.

    Raises `RouterError`: the router's SAM did not do its part, or ended the session.
    """
    try:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(_serve)
            await _forward(sam, login, hops, listeners[0].socket.getsockname()[1], on_ready)
    except ExceptionGroup as group:
        error = first_error(group)
        if isinstance(error, UnreachableError | RemoteProtocolError):
            raise RouterError(str(error)) from error
        raise
    raise AssertionError("unreachable: it answers until the session ends")


async def _forward(
    sam: Endpoint, login: RouterLogin | None, hops: int, port: int, on_ready: Callable[[bytes], None]
) -> NoReturn:
    options = tunnel_options(hops, 1) | {"i2cp.leaseSetEncType": "4"}
    async with SamSession(sam, None, options, login) as session:
        await session.wait_ready()
        hash_ = sha256(await session.destination()).digest()
        await session.forward(port)
        on_ready(hash_)
        await session.wait_ended()


async def _serve(task_status: trio.TaskStatus[list[trio.SocketListener]]) -> None:
    room = trio.Semaphore(MAX_STREAMS)

    async def answer(stream: trio.SocketStream) -> None:
        try:
            room.acquire_nowait()
        except trio.WouldBlock:
            return
        try:
            with trio.move_on_after(STREAM_TIMEOUT_S):
                try:
                    if await stream.receive_some(_MAX_REQUEST_BYTES):
                        await stream.send_all(ANSWER)
                    while await stream.receive_some(_MAX_REQUEST_BYTES):  # who asked ends the stream first
                        pass
                except trio.BrokenResourceError:
                    return
        finally:
            room.release()

    await trio.serve_tcp(answer, 0, host="127.0.0.1", task_status=task_status)
