"""Measures a remote destination through the router's SAM, as a client of its service would find it.

Each measurement has a session of its own, with a destination made for it, so the router has to fetch the
LeaseSet anew: i2pd answers NAMING LOOKUP from what it has ever found. i2pd also reports a stream as open as
soon as it has the LeaseSet, whether or not anything answers. Only a byte from the service shows that it does,
so this asks it for one: ``HEAD / HTTP/1.1``.
"""

from __future__ import annotations

from base64 import b32encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256

import trio

from garlicfarm.errors import RemoteProtocolError, RouterError, UnreachableError
from garlicfarm.i2p.encoding import encode
from garlicfarm.i2p.session_options import tunnel_options
from garlicfarm.net.sam import SamRefused, SamSession
from garlicfarm.router import ConnectTest, OwnLookUp, RemoteStatus
from garlicfarm.transport import Endpoint

ANSWER_TIMEOUT_S = 15.0
UNREACHABLE = frozenset({"CANT_REACH_PEER", "PEER_NOT_FOUND", "KEY_NOT_FOUND", "TIMEOUT"})


async def measure(sam: Endpoint, hash_: bytes, hops: int) -> RemoteStatus:
    """Look up the destination with this 32-byte hash, connect to it, and ask for a byte.

    ``fetch_time_ms``: until the router had its LeaseSet (i2pd), or had also connected (Java I2P); None if it
    found none. The connection test succeeds with the first byte from the service, and fails if there is no
    LeaseSet, no answer within 15 s, or only the end of the stream. ``hops``: of the session's tunnels.

    Raises `RouterError`: the router's SAM did not do its part, so nothing was measured. Cancellation ends the
    session; nothing is left. With a router that hangs, that takes up to 5 s.
    """
    async with _session(sam, hops) as session:
        return await _measure(session, hash_)


async def measure_own(sam: Endpoint, hash_: bytes, hops: int) -> OwnLookUp:
    """`measure` a destination, and say which one has asked."""
    async with _session(sam, hops) as session:
        client = sha256(await session.destination()).digest()
        return OwnLookUp(client=client, status=await _measure(session, hash_))


@asynccontextmanager
async def _session(sam: Endpoint, hops: int) -> AsyncIterator[SamSession]:
    options = tunnel_options(hops, 1) | {"i2cp.leaseSetEncType": "4"}
    try:
        async with SamSession(sam, None, options) as session:
            await session.wait_ready()
            yield session
    except (UnreachableError, RemoteProtocolError) as error:
        raise RouterError(str(error)) from error


async def _measure(session: SamSession, hash_: bytes) -> RemoteStatus:
    address = b32encode(hash_).decode().rstrip("=").lower() + ".b32.i2p"
    begun = trio.current_time()
    fetched_ms = None
    is_reached = False
    try:
        async with session.connect(address) as stream:
            fetched_ms = _ms_since(begun)
            is_reached = await _answers(stream, address)
            tested_ms = _ms_since(begun)
    except SamRefused as refused:
        if refused.result not in UNREACHABLE:
            raise
        tested_ms = _ms_since(begun)
    test = ConnectTest(ms=tested_ms, ok=is_reached)
    return RemoteStatus(hash=encode(hash_), fetch_time_ms=fetched_ms, connect_test=test)


async def _answers(stream: trio.SocketStream, address: str) -> bool:
    # No "Connection: close": i2pd may also mishandle a stream that the service ends right behind its bytes
    # (see `SamSession.connect`). So this end goes first.
    request = f"HEAD / HTTP/1.1\r\nHost: {address}\r\n\r\n"
    with trio.move_on_after(ANSWER_TIMEOUT_S):
        try:
            await stream.send_all(request.encode("ascii"))
            return bool(await stream.receive_some(1))
        except trio.BrokenResourceError:
            return False
    return False


def _ms_since(begun: float) -> int:
    return round((trio.current_time() - begun) * 1000)
