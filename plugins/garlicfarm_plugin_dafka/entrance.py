"""Where others connect to a node or a tower: `Entrance`, a listener that cannot be flooded.

ZeroMQ's own listener accepts whoever comes, until the process has no descriptors left. This one knows
three stages of a connection, and a new one always gets a place: where there are too many strangers, the least
advanced is closed for it, of these the oldest::

    CONNECTED --(ZeroMQ's signature)--> GREETED --(the ZAP handler admits its key)--> ADMITTED

Only from GREETED on does ZeroMQ hear of it. Who is admitted has places of its own, so many for each key.
"""

from __future__ import annotations

import logging
import resource
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from enum import IntEnum
from ipaddress import IPv6Address, ip_address
from typing import Any, Final

import trio
import zmq

from garlicfarm.errors import ConfigError
from garlicfarm.logs import EventLogger
from garlicfarm.net.tcp import serve_listeners
from garlicfarm_plugin_dafka.codec import format_endpoint, is_host
from garlicfarm_plugin_dafka.config import Keys
from garlicfarm_plugin_dafka.relay import FRAME_BYTES, Allowance, Flow, relay
from garlicfarm_plugin_dafka.sockets import HANDSHAKE_S, Context, Socket, open_context, user_of
from garlicfarm_plugin_dafka.zap import open_zap, serve_zap

MAX_STRANGERS: Final = 64
MAX_STRANGERS_OF_HOST: Final = 16
MAX_GUESTS: Final = 512
MAX_GUESTS_OF_KEY: Final = 32
MAX_SUBSCRIPTIONS: Final = 1024
"""Of one key; without keys, of one connection."""
MAX_UNTAKEN_BYTES: Final = 128 << 10
"""Of one connection: what comes in by an entrance are subscriptions and beacons."""
_BACKLOG: Final = 128
_SIGNATURE_BYTES: Final = 10
_ENDS: Final = (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, OSError)
"""How a connection can end; it concerns nothing else."""


@asynccontextmanager
async def open_entrances(
    keys: Keys | None, host: str, *places: tuple[int, Callable[[Context], Socket]]
) -> AsyncIterator[tuple[trio.Nursery, list[Entrance]]]:
    """Listen at ports of an address of this machine, for the block; port 0: any free one. Each leads to the
    socket that its function makes.

    :returns: a nursery that is cancelled at the end of the block, and the entrances.
    :raises ConfigError: it cannot listen: a port is taken, or the address is not of this machine.
    """
    # Before any nursery, so that what is wrong is raised as it is; the handler before all that need it.
    with ExitStack() as stack:
        listeners = [stack.enter_context(_listen(host, port)) for port, _ in places]
        async with open_context() as context:
            zap = open_zap(context)
            guests = Guests(Counter())
            entrances = []
            for listener, (_, make) in zip(listeners, places, strict=True):
                zmq_socket = make(context)
                if keys is not None:
                    zmq_socket.be_curve_server(keys.own)
                entrances.append(Entrance(context, guests, zmq_socket, listener))
            async with trio.open_nursery() as nursery:
                known = None if keys is None else keys.known
                nursery.start_soon(serve_zap, zap, known, guests.admit, guests.refuse)
                for entrance in entrances:
                    nursery.start_soon(entrance.serve)
                yield nursery, entrances
                nursery.cancel_scope.cancel()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, address = _resolve(host, port)
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError([f"cannot listen at {format_endpoint(host, port)}: {error.strerror}"]) from None
    listener.setblocking(False)
    return listener


def _resolve(host: str, port: int) -> tuple[int, Any]:
    try:
        return (socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET), (host, port)
    except ValueError:
        found = socket.getaddrinfo(
            None if host == "*" else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = min(found, key=lambda each: each[0])  # IPv4 first
        return family, address


def share_of_descriptors(most: int, share: int) -> int:
    """So many connections, or as many as one in ``share`` of the descriptors of this process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if limit == resource.RLIM_INFINITY else max(4, min(most, limit // share))


class Stage(IntEnum):
    """How far a connection has come."""

    CONNECTED = 0
    GREETED = 1
    ADMITTED = 2


class Guest:
    """A connection from outside. ``host``: the address it comes from. ``key``: the proved one, "" without
    keys."""

    def __init__(self, number: int, host: str) -> None:
        self.number = number
        self.host = host
        self.key = ""
        self.stage = Stage.CONNECTED
        self.subscriptions: set[bytes] = set()
        self.flow = Flow(Allowance(MAX_UNTAKEN_BYTES))
        self.scope = trio.CancelScope(shield=True)


class Guests:
    """The connections from outside of all entrances of a context. ``dropped`` counts those that were closed
    or refused, by reason."""

    def __init__(self, dropped: Counter[str]) -> None:
        self.dropped = dropped
        self._log = EventLogger(logging.getLogger("garlicfarm.dafka"), clock=trio.current_time)
        self._guests: dict[str, Guest] = {}
        self._number = 0
        self._max_strangers = share_of_descriptors(MAX_STRANGERS, 16)
        self._max_guests = share_of_descriptors(MAX_GUESTS, 16)

    def __len__(self) -> int:
        return len(self._guests)

    def find(self, number: str) -> Guest | None:
        """The one with this number, if it is still there."""
        return self._guests.get(number)

    def enter(self, host: str) -> Guest:
        """A new connection gets a place."""
        strangers = [each for each in self._guests.values() if each.stage < Stage.ADMITTED]
        near = [each for each in strangers if _network(each.host) == _network(host)]
        if len(near) >= min(MAX_STRANGERS_OF_HOST, self._max_strangers):
            self._cut(near)
        elif len(strangers) >= self._max_strangers:
            self._cut(strangers)
        self._number += 1
        guest = self._guests[str(self._number)] = Guest(self._number, host)
        return guest

    def leave(self, guest: Guest) -> None:
        """A connection has ended."""
        self._guests.pop(str(guest.number), None)

    def admit(self, number: str, key: str) -> bool:
        """The ZAP handler knows its key (or there are no keys); whether there is a place."""
        guest = self.find(number)
        if guest is None:
            return False
        admitted = [each for each in self._guests.values() if each.stage is Stage.ADMITTED]
        if key and len([each for each in admitted if each.key == key]) >= MAX_GUESTS_OF_KEY:
            self._drop("too many connections of one key", guest.host)
            return False
        if len(admitted) >= self._max_guests:
            self._drop("too many connections", guest.host)
            return False
        guest.stage, guest.key = Stage.ADMITTED, key
        guest.scope.deadline = float("inf")
        return True

    def subscriptions(self, guest: Guest) -> int:
        """How many prefixes all connections of a guest's key are subscribed to."""
        same = [each for each in self._guests.values() if each.key == guest.key] if guest.key else [guest]
        return sum([len(each.subscriptions) for each in same])

    def close(self, guest: Guest, reason: str) -> None:
        """End a connection that passes a limit."""
        self._drop(reason, guest.host)
        self.leave(guest)
        guest.scope.cancel()

    def refuse(self, number: str, key: str) -> None:
        """The ZAP handler knows no such key."""
        guest = self.find(number)
        self.dropped["connection without a known key"] += 1
        self._log.warning("connection-refused", host="" if guest is None else guest.host, key=key)

    def _drop(self, reason: str, host: str) -> None:
        self.dropped[reason] += 1
        self._log.warning("connection-closed", reason=reason, host=host)

    def _cut(self, strangers: list[Guest]) -> None:
        self.close(min(strangers, key=lambda each: (each.stage, each.number)), "too many strangers")


class Entrance:
    """Passes the connections of ``listener`` on to ``zmq_socket``, whose messages come from `messages`.
    ``dropped`` is that of ``guests``."""

    def __init__(self, context: Context, guests: Guests, zmq_socket: Socket, listener: socket.socket) -> None:
        self.context = context
        self.socket = zmq_socket
        self.dropped = guests.dropped
        self._guests = guests
        self._listener = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
        self.port: int = listener.getsockname()[1]

    async def serve(self) -> None:
        """The task that accepts connections, until cancelled."""
        await serve_listeners(self._enter, [self._listener], handler_nursery=self.context.nursery)

    def messages(self) -> Iterator[tuple[Guest | None, list[zmq.Frame]]]:
        """Messages that are there, and who sent each; None: one that has left, or ZeroMQ itself."""
        for frames in self.socket.take_frames():
            guest = self._guests.find(user_of(frames[0]))
            if guest is not None:
                guest.flow.took(sum([len(frame) + FRAME_BYTES for frame in frames]))
            yield guest, frames

    def subscribed(self, guest: Guest, prefix: bytes, *, is_on: bool) -> bool:
        """A connection has subscribed or unsubscribed; False: it has passed the limit, and is closed."""
        if not is_on:
            guest.subscriptions.discard(prefix)
            return True
        guest.subscriptions.add(prefix)
        if self._guests.subscriptions(guest) <= MAX_SUBSCRIPTIONS:
            return True
        self._guests.close(guest, "too many subscriptions")
        return False

    async def _enter(self, stream: trio.SocketStream) -> None:
        guest = self._guests.enter(_host(stream))
        guest.scope.deadline = trio.current_time() + HANDSHAKE_S
        self.context.relays.add(guest.scope)
        try:
            with guest.scope, suppress(*_ENDS):
                async with stream:
                    await self._serve(guest, stream)
        finally:
            self.context.relays.discard(guest.scope)
            self._guests.leave(guest)

    async def _serve(self, guest: Guest, stream: trio.SocketStream) -> None:
        signature = b""
        while len(signature) < _SIGNATURE_BYTES:
            data = await stream.receive_some(_SIGNATURE_BYTES - len(signature))
            if not data:
                return
            signature += data
            if signature[0] != 0xFF:
                return
        if signature[-1] != 0x7F:
            return
        guest.stage = Stage.GREETED
        async with self.socket.open_pipe(b"dafka/%d" % guest.number) as pipe:
            await pipe.send_all(signature)
            await relay(stream, pipe, guest.flow, self.socket.has_messages, lambda: self._on_stuck(guest))

    def _on_stuck(self, guest: Guest) -> None:
        self._guests.close(guest, "a message without an end")


def _host(stream: trio.SocketStream) -> str:
    """The address of the other end; "": unknown, or none that a beacon could name."""
    try:
        address = ip_address(stream.socket.getpeername()[0])
    except (OSError, ValueError):
        return ""
    host = str(getattr(address, "ipv4_mapped", None) or address)
    return host if is_host(host) else ""


def _network(host: str) -> str:
    """What counts as one address: of IPv6, a /64."""
    address = ip_address(host) if host else None
    return host if not isinstance(address, IPv6Address) else address.exploded[:19]
