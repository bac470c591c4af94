"""Dials the other members of one farm, logged in as this node."""

from __future__ import annotations

from garlicfarm.errors import (
    ConfigError,
    NotListening,
    PluginError,
    TransportError,
    UnreachableError,
    first_error,
)
from garlicfarm.logs import EventLogger, place_of
from garlicfarm.net.handshake import DialCredentials, Established, dial
from garlicfarm.net.link import CONNECTION_ERRORS
from garlicfarm.node.transports import Transports
from garlicfarm.transport import Endpoint, Peer


async def dial_member(
    transports: Transports,
    default_scheme: str,
    credentials: DialCredentials,
    log: EventLogger,
    member: int,
    text: str,
) -> Established:
    """Open an authenticated stream to ``member`` at the endpoint ``text``. ``default_scheme``: the transport
    of an endpoint ``tcp://…`` (D1: the scheme names the transport).

    Raises `garlicfarm.net.link.CONNECTION_ERRORS` only: failing to dial one member must not end this node,
    since the farm may work without that member. `NotListening` is about the member itself, never about a
    proxy before it. Cancelled: leaves nothing open.
    """
    try:
        endpoint = Endpoint.parse(text, default_scheme)
        transport = transports.get(endpoint.scheme)
        try:
            established = await dial(transport, endpoint, credentials)
        except NotListening as error:
            if endpoint.proxied:  # it is the proxy that does not run
                raise UnreachableError(error.cause, error.hint) from error
            raise
        if transport.handshake and (address := transport.peer_address(established.stream)) is not None:
            # A member answered there: it may dial us from that address.
            transports.admission.welcome(Peer(address, True, None))
        return established
    except CONNECTION_ERRORS:
        raise
    except (ConfigError, PluginError) as error:
        raise TransportError(f"member {member} cannot be dialled at {text}: {error}") from error
    except Exception as error:
        # A defect of a transport, or an endpoint that triggers one. All members share both.
        first = first_error(error)
        where = place_of(first)
        log.error("dial-defect", peer=member, error=type(first).__name__, where=where)
        what = f"a defect of the transport {endpoint.scheme}, or of this program"
        raise TransportError(f"member {member} cannot be dialled at {text}: {what} ({where})") from error
