"""I2PControl, API 1: JSON-RPC 2.0 in POSTs, for i2pd and Java I2P. Four read-only queries.

I2PControl has no read-only mode: ``NetworkSetting {"i2p.router.net.bw.in": null}`` reads the bandwidth
limit, and any other value, even ``""``, sets it. So nothing here accepts a value from a caller: `Question`
holds every possible request, and only GetRate, which sets nothing, has values.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import trio

from garlicfarm.credentials.certificates import pin_of
from garlicfarm.errors import RouterError, cause_of

TIMEOUT_S: Final = 5.0
MAX_RESPONSE_BYTES: Final = 65_536

METHOD_NOT_FOUND: Final = -32601
PASSWORD_REFUSED: Final = -32001
WHERE_PASSWORD: Final = (
    "in i2pd.conf: password of [i2pcontrol]; Java I2P's is itoopie until it is set in its I2PControl"
)
TOKEN_REFUSED: Final = frozenset({-32002, -32003, -32004})  # none sent, unknown, expired


class Question(Enum):
    """All queries of this client: (method, parameters without the token)."""

    ROUTER_INFO = (
        "RouterInfo",
        dict.fromkeys(
            (
                "i2p.router.uptime",
                "i2p.router.net.tunnels.participating",
                "i2p.router.net.bw.inbound.15s",
                "i2p.router.net.bw.outbound.15s",
            )
        ),
    )
    NETWORK_SETTING = ("NetworkSetting", dict.fromkeys(("i2p.router.net.bw.in", "i2p.router.net.bw.out")))
    # i2pd only. It ignores the values here.
    CLIENT_SERVICES = ("ClientServicesInfo", {"SAM": None})
    # Java I2P creates a requested statistic that it does not keep yet. Each router keeps this one, over a
    # minute. i2pd has no GetRate.
    JOB_LAG = ("GetRate", {"Stat": "jobQueue.jobLag", "Period": 60_000})


class _Error(msgspec.Struct, frozen=True):
    code: int
    message: str = ""


class _Response(msgspec.Struct, frozen=True):
    result: dict[str, Any] | None = None
    error: _Error | None = None


class I2PControlClient:
    """One I2PControl server. Several tasks may call `ask` at once; nothing needs closing.

    ``url`` is https or http. ``pin`` is ``sha256-…`` of the server's certificate; empty: any
    certificate is accepted. The caller must allow http, and https without a pin, only on loopback.
    """

    def __init__(self, url: str, password: str, pin: str) -> None:
        self._url = url
        self._name = urlsplit(url).netloc
        self._password = password
        self._pin = pin
        self._token: str | None = None
        self._not_offered: set[Question] = set()  # by the router that issued the token
        # i2pd's certificate is self-signed and names no host: only its pin can identify it.
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.check_hostname = False
        self._tls.verify_mode = ssl.CERT_NONE

    async def ask(self, question: Question) -> dict[str, Any]:
        """The keys and values of the answer; keys unknown to the router are missing.

        Authenticates first, and again if the token is refused, for instance after a restart of the router.
        Raises `RouterError`: no answer within 5 s per step, wrong certificate, password refused, not an
        I2PControl answer. Cancellation is safe: no request changes the router.
        """
        try:
            return await self._ask(question)
        except RouterError:
            self._token = None  # the next answer may come from a restarted or another router
            raise

    async def _ask(self, question: Question) -> dict[str, Any]:
        method, params = question.value
        for _ in range(2):
            if self._token is None:
                self._token = await self._authenticate()
                self._not_offered.clear()
            if question in self._not_offered:
                return {}
            # The token comes last: i2pd 2.45.1 puts a stray comma before the first known key otherwise.
            response = await self._call(method, params | {"Token": self._token})
            error = response.error
            if error is None:
                return response.result or {}
            if error.code in TOKEN_REFUSED:
                self._token = None
                continue
            if error.code == METHOD_NOT_FOUND:
                self._not_offered.add(question)
            # Routers without this rate report different errors; the other figures are usable without it.
            elif question is not Question.JOB_LAG:
                raise RouterError(f"I2PControl at {self._name} refused {method}: {error.message!r:.200}")
            return {}
        raise RouterError(f"I2PControl at {self._name} refuses the token that it has just issued")

    async def _authenticate(self) -> str:
        response = await self._call("Authenticate", {"API": 1, "Password": self._password})
        result, error = response.result, response.error
        if result and isinstance(token := result.get("Token"), str):
            return token
        # i2pd answers a wrong password with an empty result, Java I2P with an error.
        if result == {} or (error and error.code == PASSWORD_REFUSED):
            raise RouterError(
                f"I2PControl at {self._name} refused the password; put the router's own "
                f"({WHERE_PASSWORD}) into password_file, and start again"
            )
        reason = repr(error.message) if error else "it gave no token"
        raise RouterError(f"I2PControl at {self._name} refused to authenticate: {reason:.200}")

    async def _call(self, method: str, params: Mapping[str, Any]) -> _Response:
        import httpx  # not at the top: a node starts without it

        body = msgspec.json.encode({"id": 1, "method": method, "params": params, "jsonrpc": "2.0"})
        try:
            with trio.fail_after(TIMEOUT_S):
                response = msgspec.json.decode(await self._post(body), type=_Response)
        except trio.TooSlowError:
            raise RouterError(f"I2PControl at {self._name} did not answer within {TIMEOUT_S:.0f} s") from None
        except httpx.TransportError as error:
            raise RouterError(f"I2PControl at {self._name} cannot be reached: {cause_of(error)}") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RouterError(f"the server at {self._name} is not I2PControl: {error}") from None
        if response.result is None and response.error is None:
            raise RouterError(f"the server at {self._name} is not I2PControl: neither result nor error")
        return response

    async def _post(self, body: bytes) -> bytes:
        """One exchange on a new connection, which i2pd requires. By a transport, since a client would add
        headers: i2pd has room for a request of 1024 bytes, and recognizes names only in this spelling."""
        import httpx

        class OnePiece(httpx.AsyncByteStream):
            """Not httpx's own, a generator, which Trio calls leaked where the exchange is cancelled."""

            pieces = iter([body])

            def __aiter__(self) -> OnePiece:
                return self

            async def __anext__(self) -> bytes:
                for piece in self.pieces:
                    return piece
                raise StopAsyncIteration

        request = httpx.Request(
            "POST",
            self._url,
            headers={
                "Host": self._name,
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
            },
            stream=OnePiece(),
            extensions={"trace": self._check_certificate()},
        )
        received = bytearray()
        async with httpx.AsyncHTTPTransport(verify=self._tls) as transport:
            response = await transport.handle_async_request(request)
            if response.status_code != 200:
                raise RouterError(f"I2PControl at {self._name} answered HTTP {response.status_code}")
            with trio.CancelScope() as reading:  # cancelled, and not left: httpx closes its generators then
                async for piece in response.aiter_raw():
                    received += piece
                    if len(received) > MAX_RESPONSE_BYTES:
                        reading.cancel()
        if reading.cancelled_caught:
            raise RouterError(f"the answer of {self._name} exceeds {MAX_RESPONSE_BYTES} bytes")
        return bytes(received)

    def _check_certificate(self) -> Callable[[str, dict[str, Any]], Awaitable[None]]:
        """For httpcore's extension ``trace``: compares the pin before anything is sent. Closes the connection
        of a TLS handshake that has failed, which httpcore leaves to the garbage collector."""
        connection: Any = None

        async def trace(event: str, info: dict[str, Any]) -> None:
            nonlocal connection
            if event == "connection.connect_tcp.complete":
                connection = info["return_value"]
            elif event == "connection.start_tls.failed":
                await trio.aclose_forcefully(connection)
            elif event == "connection.start_tls.complete":
                tls = info["return_value"].get_extra_info("ssl_object")
                found = pin_of(tls.getpeercert(binary_form=True))
                if self._pin and found != self._pin:
                    await trio.aclose_forcefully(connection)
                    raise RouterError(
                        f"{self._name} has the certificate {found}, which does not match the pin; "
                        "if the router has a new certificate (compare i2pcontrol.crt.pem), change pin"
                    )

        return trace
