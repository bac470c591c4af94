"""The addresses at which a service listens: which of them the connection of a stream goes to.

A connection that fails goes to the next address, and the one that failed is left out until it accepts
connections again. That is tested after a second, and after twice as long each time, a minute at most; sooner
again only for one that has been up for a minute. Where all are left out, all are tried for each stream.

The node tests the addresses, too, perhaps by a page of each. One that it finds down is left out until it
finds it up.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import suppress
from hashlib import sha256

import trio

from garlicfarm.errors import PublisherError, cause_of
from garlicfarm.i2p.encoding import b32_address
from garlicfarm.transport import Endpoint
from garlicfarm_plugin_i2cp.config import Balance

CONNECT_TIMEOUT_S = 10.0
"""For all addresses together."""
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0

_FIRST_CLIENT, _CLIENTS = 0x7F01_0000, 0xFE_FFFF
"""127.1.0.0 and all that follow, but the last."""


class _Target:
    """``name``: what the node tests. ``is_down``: by these tests. ``problem``: why it is left out for itself,
    "" if it is not. ``retry_s``: how long after that it is tested."""

    def __init__(self, endpoint: Endpoint, check_path: str) -> None:
        self.endpoint = endpoint
        self.name = f"http://{endpoint.authority}{check_path}" if check_path else endpoint.authority
        self.is_down = False
        self.problem = ""
        self.retry_s = FIRST_RETRY_S
        self.up_since_s = float("-inf")
        self.failed = trio.Event()

    async def connect(self, timeout_s: float, local_address: str | None) -> trio.SocketStream:
        """Raises `PublisherError`; it is left out then."""
        endpoint = self.endpoint
        try:
            with trio.fail_after(timeout_s):
                service = await trio.open_tcp_stream(
                    endpoint.host, endpoint.port, local_address=local_address
                )
        except trio.TooSlowError:
            self._leave_out(f"no answer within {timeout_s:.0f} s")
        except OSError as error:
            self._leave_out(cause_of(error))
        else:
            if self.problem:
                self.problem, self.up_since_s, self.failed = "", trio.current_time(), trio.Event()
            return service
        raise PublisherError(f"the service at {endpoint.authority} cannot be reached: {self.problem}")

    def _leave_out(self, cause: str) -> None:
        is_stable = not self.problem and trio.current_time() - self.up_since_s > LAST_RETRY_S
        self.retry_s = FIRST_RETRY_S if is_stable else min(2 * self.retry_s, LAST_RETRY_S)
        self.problem = cause
        self.failed.set()

    async def retry(self) -> None:
        """Until it is cancelled: test it while it is left out."""
        while True:
            await self.failed.wait()
            await trio.sleep(self.retry_s)
            with suppress(PublisherError):
                await trio.aclose_forcefully(await self.connect(CONNECT_TIMEOUT_S, None))


class Targets:
    """See the module.

    :param endpoints: at least one, in the order in which they are tried
    :param check_path: of the page of each that says whether it is up; "": it is if it accepts connections
    :param balance: ``turn``: each stream begins with the next one; ``order``: all begin with the first
    :param has_client_addresses: whether connections come from `client_address`
    :param webirc_password: what a connection begins with tells an IRC server the client, with this password;
        "": it does not
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        check_path: str = "",
        balance: Balance = "turn",
        has_client_addresses: bool = False,
        webirc_password: str = "",
    ) -> None:
        self._targets = [_Target(endpoint, check_path) for endpoint in endpoints]
        self._balance = balance
        self._has_client_addresses = has_client_addresses
        self._webirc_password = webirc_password
        self._first = 0

    @property
    def names(self) -> tuple[str, ...]:
        """What the node tests: HOST:PORT, or the URL of a page, for each."""
        return tuple(target.name for target in self._targets)

    def leave_out(self, names: Container[str]) -> None:
        """The node's tests have found those with these names down, and no others."""
        for target in self._targets:
            target.is_down = target.name in names

    @property
    def problems(self) -> list[str]:
        """Which addresses are left out while others are not, a sentence each."""
        out = [target for target in self._targets if target.problem]
        if len(out) == len(self._targets):
            return []
        return [
            f"the service at {target.endpoint.authority} is left out until it accepts connections: "
            f"{target.problem}"
            for target in out
        ]

    async def run(self) -> None:
        """Test those that are left out, until cancelled."""
        if len(self._targets) > 1:
            async with trio.open_nursery() as nursery:
                for target in self._targets:
                    nursery.start_soon(target.retry)

    async def connect(self, peer: bytes) -> tuple[trio.SocketStream, str]:
        """A connection for a stream of the binary destination ``peer``, and HOST:PORT where it leads. Raises
        `PublisherError`: there is none."""
        local_address = client_address(peer) if self._has_client_addresses else None
        deadline_s = trio.current_time() + CONNECT_TIMEOUT_S
        problems = []
        targets = self._in_turn()
        for tried, target in enumerate(targets):
            timeout_s = (deadline_s - trio.current_time()) / (len(targets) - tried)
            try:
                service = await target.connect(timeout_s, local_address)
            except PublisherError as error:
                problems.append(str(error))
                continue
            await self._introduce(service, peer)
            return service, target.endpoint.authority
        raise PublisherError("; ".join(problems))

    def _in_turn(self) -> list[_Target]:
        """All; those that are left out come last."""
        first = self._first
        if self._balance == "turn":
            self._first = (first + 1) % len(self._targets)
        in_turn = self._targets[first:] + self._targets[:first]
        return sorted(in_turn, key=lambda target: (bool(target.problem), target.is_down))

    async def _introduce(self, service: trio.SocketStream, peer: bytes) -> None:
        """Source: IRCv3, WebIRC; i2pd, ``I2PTunnelConnectionIRC``."""
        if self._webirc_password:
            address = str(service.socket.getsockname()[0])
            address = f"0{address}" if address.startswith(":") else address
            line = f"WEBIRC {self._webirc_password} cgiirc {b32_address(peer)} {address}\r\n"
            with suppress(trio.BrokenResourceError):  # which the stream's task sees, too
                await service.send_all(line.encode())


def client_address(peer: bytes) -> str:
    """An IPv4 address of loopback for a binary destination: always the same one, that others seldom have."""
    number = _FIRST_CLIENT + int.from_bytes(sha256(peer).digest()[:8], "big") % _CLIENTS
    return ".".join(str(byte) for byte in number.to_bytes(4, "big"))
