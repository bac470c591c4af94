"""Dialling a member: the transport's stream, and the handshake where the transport has one."""

from __future__ import annotations

from functools import partial

from garlicfarm.errors import TransportError
from garlicfarm.net.handshake import DialCredentials, Established, initiate, without_handshake
from garlicfarm.transport import Endpoint, Transport

__all__ = ["DialCredentials", "dial"]


async def dial(transport: Transport, endpoint: Endpoint, credentials: DialCredentials) -> Established:
    """Open a stream to the member at ``endpoint``, and log in where ``transport`` has a handshake. The
    deadline is the caller's.

    :raises TransportError: from the transport, or the peer went away; or there is no handshake, and
        ``endpoint`` is not on loopback, where alone that is allowed.
    :raises AuthError, RemoteProtocolError: as `garlicfarm.net.handshake.initiate`.

    Cancelled: leaves nothing open.
    """
    if not transport.handshake:
        if not endpoint.is_loopback:
            wrong = f"{endpoint} is not dialled: {endpoint.scheme} has no handshake"
            raise TransportError(
                wrong, "it is for loopback only; elsewhere use a tunnel, or another transport"
            )
        return without_handshake(await transport.open_stream(endpoint), credentials.farm)
    open_stream = partial(transport.open_stream, endpoint)
    return await initiate(open_stream, credentials, host=endpoint.authority, proxied=endpoint.proxied)
