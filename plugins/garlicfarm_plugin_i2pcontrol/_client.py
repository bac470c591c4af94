"""I2PControl, API 1: JSON-RPC 2.0 in HTTPS POSTs, as i2pd answers it. Two questions, no orders.

I2PControl has no read-only form: ``NetworkSetting {"i2p.router.net.bw.in": null}`` asks for the
bandwidth limit, and with any other value, even ``""``, sets it. So nothing here takes a value from a
caller: a `Question` is a method and its keys, and `I2PControlClient.ask` sends null for each of them.
"""

from __future__ import annotations

import ssl
from enum import Enum
from typing import Any, Final

import httpx
import msgspec
import trio

from garlicfarm.certificates import pin_of
from garlicfarm.errors import RouterError

__all__ = ["I2PControlClient", "Question"]

TIMEOUT_S: Final = 5.0
MAX_RESPONSE_BYTES: Final = 65_536

METHOD_NOT_FOUND: Final = -32601
PASSWORD_REFUSED: Final = -32001
TOKEN_REFUSED: Final = frozenset({-32002, -32003, -32004})  # none sent, unknown, expired


class Question(Enum):
    """Everything that this client can ask: (method, keys)."""

    ROUTER_INFO = (
        "RouterInfo",
        (
            "i2p.router.uptime",
            "i2p.router.net.tunnels.participating",
            "i2p.router.net.bw.inbound.15s",
            "i2p.router.net.bw.outbound.15s",
        ),
    )
    NETWORK_SETTING = ("NetworkSetting", ("i2p.router.net.bw.in", "i2p.router.net.bw.out"))


class _Error(msgspec.Struct, frozen=True):
    code: int
    message: str = ""


class _Response(msgspec.Struct, frozen=True):
    result: dict[str, Any] | None = None
    error: _Error | None = None


class I2PControlClient:
    """One I2PControl server. `ask` may be called by several tasks at once.

    ``pin`` is ``sha256-…`` of the server's certificate; empty: any certificate is accepted, which is
    for loopback only, and the caller's to see to.
    """

    def __init__(self, url: str, password: str, pin: str) -> None:
        self._url = url
        self._password = password
        self._token: str | None = None
        # No proxy from the environment may see the password. i2pd closes after each answer.
        self._http = httpx.AsyncClient(verify=_tls_context(pin), trust_env=False, timeout=None)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def ask(self, question: Question) -> dict[str, Any]:
        """The answer's keys and values; what the router does not know is not among them.

        Authenticates first, and once more if the token is refused. Raises `RouterError`: nobody
        answers within 5 s a step, wrong certificate, password refused, not an I2PControl answer.
        Cancelled, it has no effect: nothing that it sends changes the router.
        """
        method, keys = question.value
        for _ in range(2):
            if self._token is None:
                self._token = await self._authenticate()
            # The token comes last: i2pd 2.45.1 puts a stray comma before the first known key otherwise.
            response = await self._call(method, dict.fromkeys(keys) | {"Token": self._token})
            if response.error is None:
                return response.result or {}
            if response.error.code == METHOD_NOT_FOUND:
                return {}
            if response.error.code not in TOKEN_REFUSED:
                raise RouterError(f"I2PControl at {self._url} refused {method}: {response.error.message}")
            self._token = None
        raise RouterError(f"I2PControl at {self._url} refuses the token that it has just given")

    async def _authenticate(self) -> str:
        response = await self._call("Authenticate", {"API": 1, "Password": self._password})
        token = (response.result or {}).get("Token")
        if isinstance(token, str):
            return token
        # i2pd answers a wrong password with an empty result, Java I2P with an error.
        if response.error is None or response.error.code == PASSWORD_REFUSED:
            raise RouterError(f"I2PControl at {self._url} refused the password; check password_file")
        raise RouterError(f"I2PControl at {self._url} refused to authenticate: {response.error.message}")

    async def _call(self, method: str, params: dict[str, Any]) -> _Response:
        body = msgspec.json.encode({"id": 1, "method": method, "params": params, "jsonrpc": "2.0"})
        try:
            with trio.fail_after(TIMEOUT_S):
                return msgspec.json.decode(await self._post(body), type=_Response)
        except trio.TooSlowError:
            raise RouterError(f"I2PControl at {self._url} did not answer within {TIMEOUT_S:.0f} s") from None
        except httpx.HTTPError as error:
            raise RouterError(f"I2PControl at {self._url} cannot be reached: {error!r}") from None
        except msgspec.MsgspecError as error:
            raise RouterError(f"what answers at {self._url} is not I2PControl: {error}") from None

    async def _post(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        async with self._http.stream("POST", self._url, content=body, headers=headers) as response:
            if response.status_code != 200:
                raise RouterError(f"what answers at {self._url} said HTTP {response.status_code}")
            received = bytearray()
            async for chunk in response.aiter_raw():
                received += chunk
                if len(received) > MAX_RESPONSE_BYTES:
                    raise RouterError(f"the answer of {self._url} exceeds {MAX_RESPONSE_BYTES} bytes")
            return bytes(received)


def _tls_context(pin: str) -> ssl.SSLContext:
    """i2pd's certificate is self-signed and names nobody: it is known by its pin or not at all."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    class PinnedObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            if (found := pin_of(self.getpeercert(binary_form=True) or b"")) != pin:
                raise RouterError(f"the router's certificate has the pin {found}, not the configured one")

    if pin:
        context.sslobject_class = PinnedObject
    return context
