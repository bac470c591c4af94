"""SAM 3.1: sessions of destinations of ours at an I2P router, their streams, and look-ups of names.

One TCP connection carries one command line and its reply, ``TOPIC TYPE KEY=VALUE …``, then belongs to what
the command began::

    HELLO VERSION MIN=3.0 MAX=3.1               HELLO REPLY RESULT=OK VERSION=3.1
    SESSION CREATE STYLE=STREAM ID=… …          SESSION STATUS RESULT=OK DESTINATION=…   tunnels are built
    STREAM FORWARD ID=… PORT=… SILENT=true      STREAM STATUS RESULT=OK
    STREAM CONNECT ID=… DESTINATION=…           STREAM STATUS RESULT=OK   and the bytes of the stream
    NAMING LOOKUP NAME=…                        NAMING REPLY RESULT=OK NAME=… VALUE=…

A session lives as long as the connection that created it: it ends with this process. SAM does not encrypt,
and its commands carry private keys, so the router must be on this machine. Errors never quote a key.

Deadlines are the caller's. Every function here raises `UnreachableError` (nothing answers, or the router
closed the connection), `RemoteProtocolError` (it does not speak SAM) or `SamRefused` (it refused the
command). Source: https://geti2p.net/en/docs/api/samv3.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from socket import MSG_PEEK
from types import TracebackType
from typing import NoReturn, Self

import trio

from garlicfarm.credentials.router_login import RouterLogin
from garlicfarm.errors import (
    ConfigError,
    LocalProtocolError,
    RemoteProtocolError,
    UnreachableError,
    first_error,
)
from garlicfarm.i2p.destination import decode_destination
from garlicfarm.transport import Endpoint

MAX_LINE_BYTES = 8192
MAX_QUOTED_CHARACTERS = 200
END_TIMEOUT_S = 5.0
"""A router on this machine closes an ended stream within milliseconds, unless it hangs."""

NOT_READY = frozenset({"INVALID_ID", "I2P_ERROR"})
"""How i2pd and Java I2P refuse a stream of a session that is still being created. I2P_ERROR has other causes,
too, so it means that only until `SamSession.wait_ready` returns."""
NOT_FOUND = frozenset({"CANT_REACH_PEER", "PEER_NOT_FOUND", "KEY_NOT_FOUND", "TIMEOUT", "INVALID_KEY"})
"""How routers refuse a stream to a b32 address that they do not find, or not reach; Java I2P: INVALID_KEY."""

_TOPIC = re.compile(r"[A-Z]+ [A-Z]+(?= |\Z)")
_PAIR = re.compile(r' +([^ ="]+)(?:=(?:"((?:[^"\\]|\\.)*)"|([^ "]*)))?(?= |\Z)')
_VALUE = re.compile(r"[!#-~]+")
_LONG_WORD = re.compile(r"\S{40,}")


class SamRefused(RemoteProtocolError):
    """The router refused a command. ``result``: its word, such as INVALID_KEY."""

    def __init__(self, command: str, result: str, message: str, address: Endpoint) -> None:
        self.result = result
        # A router may repeat the command, and that may have held a key.
        quoted = "".join(each for each in _LONG_WORD.sub("…", message) if each.isprintable())
        detail = f": {quoted[:MAX_QUOTED_CHARACTERS]}" if quoted else ""
        super().__init__(f"the router at {address.authority} refused {command}: {result}{detail}")


def sam_endpoint(text: str) -> Endpoint:
    """The address of a router's SAM, ``HOST:PORT``.

    :raises ConfigError: not of this form, or not on loopback.
    """
    endpoint = Endpoint.parse(f"sam://{text}")
    if not endpoint.is_loopback or not endpoint.port or endpoint.params:
        raise ConfigError(
            [
                f"the SAM address {text!r} must be HOST:PORT on loopback, such as 127.0.0.1:7656: SAM does "
                "not encrypt, and private keys pass there"
            ]
        )
    return endpoint


def parse_reply(line: str) -> tuple[str, dict[str, str]]:
    """``TOPIC TYPE`` and the pairs of a reply. A quoted value may contain spaces, and ``\\"`` and ``\\\\``; a
    key without ``=`` has the value "". Raises `ValueError`, which quotes nothing."""
    topic = _TOPIC.match(line)
    if topic is None:
        raise ValueError("not a SAM reply")
    pairs: dict[str, str] = {}
    position, line = topic.end(), line.rstrip(" ")
    while position < len(line):
        found = _PAIR.match(line, position)
        if found is None or found[1] in pairs:
            raise ValueError("not a SAM reply")
        quoted = found[2]
        pairs[found[1]] = (found[3] or "") if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        position = found.end()
    return topic[0], pairs


class SamConnection:
    """One connection that has exchanged HELLO; see `open_sam`."""

    def __init__(self, stream: trio.SocketStream, address: Endpoint) -> None:
        self.stream = stream
        self.address = address

    def close(self) -> None:
        """Close it at once."""
        self.stream.socket.close()

    async def end(self) -> None:
        """Send EOF, wait for the router's, and close."""
        try:
            await self.stream.send_eof()
            await self.wait_closed()
        except (trio.BrokenResourceError, UnreachableError):
            return
        finally:
            self.close()

    async def send(self, command: str, arguments: Mapping[str, str]) -> None:
        """Send one command line; `receive` its reply.

        :raises LocalProtocolError: a value contains spaces, quotes or control characters.
        """
        words = [command]
        for key, value in arguments.items():
            if not _VALUE.fullmatch(value):
                raise LocalProtocolError(f"SAM {command}: {key} contains characters that SAM cannot carry")
            words.append(f"{key}={value}")
        try:
            await self.stream.send_all(f"{' '.join(words)}\n".encode("ascii"))
        except trio.BrokenResourceError:
            raise self._closed() from None

    async def receive(self, command: str, expected: str) -> dict[str, str]:
        """The pairs of the reply to ``command``, whose topic is ``expected``; raises `SamRefused` unless
        its RESULT is OK. No byte after the line is taken from the stream."""
        try:
            topic, pairs = parse_reply(await self._read_line())
        except ValueError:
            raise self._nonsense(command) from None
        result = pairs.get("RESULT", "")
        if result != "OK" and re.fullmatch("[A-Z0-9_]{1,40}", result):
            raise SamRefused(command, result, pairs.get("MESSAGE", ""), self.address)
        if result != "OK" or topic != expected:
            raise self._nonsense(command)
        return pairs

    async def lookup(self, name: str) -> bytes | None:
        """The binary destination of a name or b32 address; None: the router does not know it.

        i2pd answers from its address book where it can, and keeps there what it has ever found: an answer
        does not mean that a LeaseSet exists now. `SamSession.connect` shows that. Before 2.54, without its
        address book (``addressbook.enabled``), i2pd crashes when it is asked for a b32 address.
        """
        await self.send("NAMING LOOKUP", {"NAME": name})
        try:
            pairs = await self.receive("NAMING LOOKUP", "NAMING REPLY")
        except SamRefused as refused:
            if refused.result in ("KEY_NOT_FOUND", "INVALID_KEY"):
                return None
            raise
        try:
            return decode_destination(pairs.get("VALUE", ""))
        except ValueError:
            raise self._nonsense("NAMING LOOKUP") from None

    async def wait_closed(self) -> NoReturn:
        """Read until the router closes the connection, which raises `UnreachableError`."""
        while True:
            await self._receive(MAX_LINE_BYTES)

    async def _read_line(self) -> str:
        line = bytearray()
        while not line.endswith(b"\n"):
            # What follows the line belongs to the stream, so it is only looked at.
            seen = await self._receive(MAX_LINE_BYTES, MSG_PEEK)
            end = seen.find(b"\n") + 1
            line += await self._receive(end or len(seen))
            if len(line) > MAX_LINE_BYTES:
                raise ValueError("line too long")
        return line.decode().rstrip("\r\n")

    async def _receive(self, size: int, flags: int = 0) -> bytes:
        try:
            data = await self.stream.socket.recv(size, flags)
        except OSError:
            data = b""
        if not data:
            raise self._closed()
        return data

    def _closed(self) -> UnreachableError:
        return UnreachableError(
            f"the router at {self.address.authority} closed the SAM connection", "did it stop? see its log"
        )

    def _nonsense(self, command: str) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"the answer of {self.address.authority} to {command} is not SAM's: "
            "is that the router's SAM port?"
        )


@asynccontextmanager
async def open_sam(address: Endpoint, login: RouterLogin | None = None) -> AsyncIterator[SamConnection]:
    """A connection to the SAM of a router, after HELLO. It is closed at the end."""
    connection = await _connect(address, login)
    try:
        yield connection
    finally:
        connection.close()


async def _connect(address: Endpoint, login: RouterLogin | None) -> SamConnection:
    try:
        stream = await trio.open_tcp_stream(address.host, address.port)
    except OSError:
        raise UnreachableError(
            f"nothing listens at the SAM address {address.authority}",
            "is the router running, and its SAM enabled (in i2pd.conf: enabled = true of [sam]; in Java "
            "I2P's clients.config: startOnLoad=true of net.i2p.sam.SAMBridge)?",
        ) from None
    connection = SamConnection(stream, address)
    try:
        words = {} if login is None else {"USER": login.user, "PASSWORD": login.password}
        await connection.send("HELLO VERSION", {"MIN": "3.0", "MAX": "3.1"} | words)
        await connection.receive("HELLO", "HELLO REPLY")
    except BaseException:
        connection.close()
        raise
    return connection


class SamSession:
    """A session of one destination with STYLE=STREAM; an async context manager.

    ``private_key``: in SAM's base64; None: a destination made by the router for this session alone.
    ``options``: of I2CP and of tunnels, such as ``inbound.length``. Entering asks the router to create it;
    `wait_ready` waits until it has. Leave the streams of `connect` first. Leaving closes everything.

    Never open a destination a second time at the same router, nor within 10 s after its last session was
    closed there: i2pd 2.45 then serves neither, or crashes.
    """

    def __init__(
        self,
        address: Endpoint,
        private_key: str | None = None,
        options: Mapping[str, str] | None = None,
        login: RouterLogin | None = None,
    ) -> None:
        self._address = address
        self._login = login
        self._arguments = {
            "STYLE": "STREAM",
            "ID": f"garlicfarm-{secrets.token_hex(8)}",
            "DESTINATION": private_key or "TRANSIENT",
            **({} if private_key else {"SIGNATURE_TYPE": "EdDSA_SHA512_Ed25519"}),
            **(options or {}),
        }
        self._connections: list[SamConnection] = []

    def __repr__(self) -> str:  # no key
        return f"SamSession({self._address.authority}, {self._arguments['ID']})"

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def open(self) -> None:
        """What entering does. `aclose` or `close` it."""
        self._connections.append(await _connect(self._address, self._login))
        try:
            await self._connections[0].send("SESSION CREATE", self._arguments)
        except BaseException:
            self.close()
            raise

    async def aclose(self) -> None:
        """End the session, and wait until the router has ended it too. Cancelled: closed, but the router may
        not have read that yet."""
        try:
            for each in self._connections[1:]:
                each.close()
            if self._connections:
                await self._connections[0].end()
        finally:
            self.close()

    def close(self) -> None:
        """End the session at once. May be called again."""
        for each in self._connections:
            each.close()
        self._connections.clear()

    async def wait_ready(self) -> None:
        """Wait for the router's answer, which comes when tunnels are built, often after 20 s. Not yet
        published then. Call it once."""
        await self._connections[0].receive("SESSION CREATE", "SESSION STATUS")

    async def destination(self) -> bytes:
        """After `wait_ready`: the session's destination."""
        found = await self._connections[0].lookup("ME")
        if found is None:
            raise RemoteProtocolError(
                f"the router at {self._address.authority} does not know its own session"
            )
        return found

    async def wait_ended(self) -> NoReturn:
        """After `wait_ready`: wait until the router ends the session, or its forwarding, which raises
        `UnreachableError`."""
        try:
            async with trio.open_nursery() as nursery:
                for each in self._connections:
                    nursery.start_soon(each.wait_closed)
        except ExceptionGroup as group:
            raise first_error(group) from None
        raise AssertionError("unreachable: a session has a connection")

    async def forward(self, port: int) -> None:
        """Have the router open a TCP connection to ``port`` for each stream that arrives, at the address
        from which this process has connected: loopback. i2pd ignores any other host. Allowed before
        `wait_ready`, except that a router may then refuse it (`NOT_READY`). Refused, it may be called
        again."""
        connection = await _connect(self._address, self._login)
        try:
            await connection.send("STREAM FORWARD", {"ID": self._id, "PORT": str(port), "SILENT": "true"})
            await connection.receive("STREAM FORWARD", "STREAM STATUS")
        except BaseException:
            connection.close()
            raise
        self._connections.append(connection)

    @asynccontextmanager
    async def connect(self, name: str) -> AsyncIterator[trio.SocketStream]:
        """A stream to ``name``, which is usually a b32 address. i2pd answers as soon as it has found a
        LeaseSet, so that the stream may still lead nowhere; `SamRefused` with one of `NOT_FOUND`: it found
        none, or Java I2P has connected to nothing. (i2pd would keep a destination in base64 in its address
        book, or crash: see `SamConnection.lookup`.)

        Java I2P keeps each destination that it has ever found, and delivers by itself what is for a session
        of its own: only the first stream to one shows that floodfills have its LeaseSet.

        Leaving ends the stream and waits until the router has, even if cancelled; at most 5 s, for a router
        that hangs. Do not close it yourself.
        """
        connection = await _connect(self._address, self._login)
        try:
            arguments = {"ID": self._id, "DESTINATION": name, "SILENT": "false"}
            await connection.send("STREAM CONNECT", arguments)
            await connection.receive("STREAM CONNECT", "STREAM STATUS")
        except BaseException:
            connection.close()
            raise
        try:
            yield connection.stream
        finally:
            # The session must not end before the router has ended its streams. i2pd (2.45 to 2.58 at least)
            # may otherwise begin to read from a stream that it has just terminated, where bytes have arrived
            # at that moment. It frees the session's destination 5 s later and uses it 20 s later: a crash.
            # (A peer that closes right behind its bytes may cause the same; nothing here can prevent that.)
            with trio.move_on_after(END_TIMEOUT_S, shield=True):
                await connection.end()

    @property
    def _id(self) -> str:
        return self._arguments["ID"]
