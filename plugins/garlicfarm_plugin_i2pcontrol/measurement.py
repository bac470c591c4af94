"""Measures a remote destination through the router's SAM, as a client of its service would find it.

Each measurement has a session of its own, with a destination made for it, so the router has to fetch the
LeaseSet anew: i2pd answers NAMING LOOKUP from what it has ever found. i2pd also reports a stream as open as
soon as it has the LeaseSet, whether or not anything answers. Only a byte from the service shows that it does,
so this asks it for one: ``HEAD / HTTP/1.1``.

i2pd looks every few seconds (2.45: 20) whether a session has tunnels, and says only then that it is ready. It
is asked for the stream before that, again and again: without tunnels it refuses at once.
"""

from __future__ import annotations

from base64 import b32encode
from hashlib import sha256

import trio

from garlicfarm.credentials.router_login import RouterLogin
from garlicfarm.errors import RemoteProtocolError, RouterError, UnreachableError, first_error
from garlicfarm.i2p.encoding import encode
from garlicfarm.i2p.session_options import tunnel_options
from garlicfarm.net.sam import NOT_FOUND, NOT_READY, SamRefused, SamSession
from garlicfarm.router import ConnectTest, OwnLookUp, RemoteStatus
from garlicfarm.transport import Endpoint

ANSWER_TIMEOUT_S = 15.0
ASK_EACH_S = 1.0


async def measure(sam: Endpoint, login: RouterLogin | None, hash_: bytes, hops: int) -> RemoteStatus:
    """Look up the destination with this 32-byte hash, connect to it, and ask for a byte.

    ``fetch_time_ms``: until the router had its LeaseSet (i2pd), or had also connected (Java I2P); None if it
    found none. The connection test succeeds with the first byte from the service, and fails if there is no
    LeaseSet once the session is ready, no answer within 15 s, or only the end of the stream. ``hops``: of the
    session's tunnels.

    Raises `RouterError`: the router's SAM did not do its part, so nothing was measured. Cancellation ends the
    session; nothing is left. With a router that hangs, that takes up to 5 s.
    """
    status, _ = await _measure(sam, login, hash_, hops, tells_client=False)
    return status


async def measure_own(sam: Endpoint, login: RouterLogin | None, hash_: bytes, hops: int) -> OwnLookUp:
    """`measure` a destination, and say which one has asked."""
    status, client = await _measure(sam, login, hash_, hops, tells_client=True)
    return OwnLookUp(client=client, status=status)


async def _measure(
    sam: Endpoint, login: RouterLogin | None, hash_: bytes, hops: int, *, tells_client: bool
) -> tuple[RemoteStatus, bytes]:
    address = b32encode(hash_).decode().rstrip("=").lower() + ".b32.i2p"
    options = tunnel_options(hops, 1) | {"i2cp.leaseSetEncType": "4"}
    ready = trio.Event()
    try:
        async with SamSession(sam, None, options, login) as session, trio.open_nursery() as nursery:
            nursery.start_soon(_tell_ready, session, ready)
            fetched_ms, test = await _test(session, address, ready)
            client = b""
            if tells_client:
                await ready.wait()
                client = sha256(await session.destination()).digest()
            nursery.cancel_scope.cancel()
    except (UnreachableError, RemoteProtocolError) as error:
        raise RouterError(str(error)) from error
    except ExceptionGroup as group:
        cause = first_error(group)
        if isinstance(cause, UnreachableError | RemoteProtocolError):
            raise RouterError(str(cause)) from cause
        raise
    return RemoteStatus(hash=encode(hash_), fetch_time_ms=fetched_ms, connect_test=test), client


async def _test(session: SamSession, address: str, ready: trio.Event) -> tuple[int | None, ConnectTest]:
    while True:
        is_last, begun = ready.is_set(), trio.current_time()
        try:
            async with session.connect(address) as stream:
                fetched_ms = _ms_since(begun)
                is_reached = await _answers(stream, address)
                test = ConnectTest(ms=_ms_since(begun), ok=is_reached)
            return fetched_ms, test
        except SamRefused as refused:
            if is_last and refused.result in NOT_FOUND:
                return None, ConnectTest(ms=_ms_since(begun), ok=False)
            if is_last or refused.result not in NOT_FOUND | NOT_READY:
                raise
        with trio.move_on_after(ASK_EACH_S):
            await ready.wait()


async def _tell_ready(session: SamSession, ready: trio.Event) -> None:
    await session.wait_ready()
    ready.set()


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
