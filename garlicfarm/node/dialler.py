"""Dials the other members of one farm, in this node's name."""

from __future__ import annotations

from garlicfarm.errors import ConfigError, PluginError, TransportError, first_error
from garlicfarm.logs import EventLogger
from garlicfarm.net.dial import DialCredentials, dial
from garlicfarm.net.handshake import Established
from garlicfarm.net.link import CONNECTION_ERRORS
from garlicfarm.node.faults import place_of
from garlicfarm.node.transports import Transports
from garlicfarm.transport import Endpoint, Peer

__all__ = ["MemberDialler"]


class MemberDialler:
    """``default_scheme``: what ``tcp://`` means in an endpoint (D1)."""

    def __init__(
        self, transports: Transports, default_scheme: str, credentials: DialCredentials, log: EventLogger
    ) -> None:
        self._transports = transports
        self._default_scheme = default_scheme
        self._credentials = credentials
        self._log = log

    async def dial(self, member: int, text: str) -> Established:
        """Open an authenticated stream to ``member`` at the endpoint ``text``.

        Raises `garlicfarm.net.link.CONNECTION_ERRORS` only: a member that this node cannot dial must not end
        it, since the others may do without. Cancelled: leaves nothing open.
        """
        try:
            endpoint = Endpoint.parse(text, self._default_scheme)
            transport = self._transports.get(endpoint.scheme)
            established = await dial(transport, endpoint, self._credentials)
            if transport.handshake and (address := transport.peer_address(established.stream)) is not None:
                # A member is there: it may dial us from there.
                self._transports.admission.welcome(Peer(address, True, None))
            return established
        except CONNECTION_ERRORS:
            raise
        except (ConfigError, PluginError) as error:
            raise TransportError(f"member {member} cannot be dialled at {text}: {error}") from error
        except Exception as error:
            # A defect of a transport, or an endpoint that it stumbles over: all members have that in common.
            first = first_error(error)
            where = place_of(first)
            self._log.error("dial-defect", peer=member, error=type(first).__name__, where=where)
            what = f"a defect of the transport {endpoint.scheme}, or of this program"
            raise TransportError(f"member {member} cannot be dialled at {text}: {what} ({where})") from error
