"""Dialling a member: the transport's stream, and the handshake where the transport has one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from garlicfarm.errors import TransportError
from garlicfarm.http.digest import ChallengeCache
from garlicfarm.net.handshake import Established, initiate, without_handshake
from garlicfarm.transport import Endpoint, Transport

__all__ = ["DialCredentials", "dial"]


@dataclass(frozen=True, slots=True)
class DialCredentials:
    """The login of a dialler: its identity and the farm; see `garlicfarm.http.upgrade.Initiator`.

    ``farm_id``: the farm that is meant, None: any of that name. ``extensions``: what is offered, name and
    version. ``challenges`` are remembered from one stream to the next.
    """

    farm: str
    user: str
    password: str = field(repr=False)
    challenges: ChallengeCache = field(repr=False)
    farm_id: bytes | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)


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
    return await initiate(
        partial(transport.open_stream, endpoint),
        host=endpoint.authority,
        proxied=endpoint.proxied,
        farm=credentials.farm,
        user=credentials.user,
        password=credentials.password,
        cache=credentials.challenges,
        farm_id=credentials.farm_id,
        extensions=credentials.extensions,
    )
