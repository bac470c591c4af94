"""A ZeroMQ socket on Trio, without threads of ours: `Socket`.

libzmq's file descriptor signals that something *changed*, not that something is there. Any call on the socket
uses the signal up, also one that sends or sets an option, and it does not come again for what arrived before.
So the socket is asked for its events before every wait and after every such call; a task that waits for the
descriptor and has missed its signal is woken by hand. To wait once and then take what is there makes batches,
which is several times as fast as to wait for each message.

Sending never waits: publishers drop what does not fit into the queue of a slow peer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any, Final

import trio
import zmq

from garlicfarm.errors import ConfigError
from garlicfarm_plugin_dafka.codec import format_endpoint, is_host
from garlicfarm_plugin_dafka.keys import KeyPair

__all__ = ["MAX_BATCH", "ZAP_DOMAIN", "Context", "Socket", "host_of", "open_context", "user_of"]

MAX_BATCH: Final = 1000
"""Messages that are taken at a time."""
MAX_FRAMES: Final = 8
"""No more frames of a message are kept: one more than any message has, those of the ZAP handler included."""
ZAP_DOMAIN: Final = b"dafka"
_NOWAIT: Final = int(zmq.DONTWAIT)
_NOWAIT_MORE: Final = int(zmq.DONTWAIT | zmq.SNDMORE)
_OPTIONS: Final[Mapping[int, int]] = {
    zmq.HANDSHAKE_IVL: 5_000,
    zmq.HEARTBEAT_IVL: 5_000,
    zmq.HEARTBEAT_TIMEOUT: 15_000,  # without any answer, the connection is closed
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 2_000,
}


class Context:
    """What the sockets of a node share: a context of ZeroMQ, and its ZAP handler. See `open_context`."""

    def __init__(self) -> None:
        self.zmq: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.sockets: set[Socket] = set()
        """Those that are open."""


@asynccontextmanager
async def open_context() -> AsyncIterator[Context]:
    """A context for the block. At its end its sockets are closed, and it waits for as long as they linger."""
    context = Context()
    try:
        yield context
    finally:
        for socket in list(context.sockets):
            socket.close()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(context.zmq.term)


class Socket:
    """One socket of ZeroMQ. One task at a time waits for it; any may send.

    :param kind: such as ``zmq.SUB``.
    :param max_message_bytes: the largest frame; a peer that sends a larger one is disconnected.
    :param high_water_mark: how many messages are queued for each peer, in each direction.
    :param linger_ms: how long what is queued at the end is still sent.
    """

    def __init__(
        self,
        context: Context,
        kind: int,
        *,
        max_message_bytes: int,
        high_water_mark: int,
        linger_ms: int = 0,
    ) -> None:
        self._context = context
        self._socket = context.zmq.socket(kind)
        context.sockets.add(self)
        self._waiting: trio.CancelScope | None = None
        for option, value in {
            **_OPTIONS,
            zmq.LINGER: linger_ms,
            zmq.SNDHWM: high_water_mark,
            zmq.RCVHWM: high_water_mark,
            zmq.MAXMSGSIZE: max_message_bytes,
        }.items():
            self._socket.setsockopt(option, value)
        self._fd = self._socket.FD

    def set(self, option: int, value: int | bytes) -> None:
        """Set an option of ZeroMQ."""
        self._socket.setsockopt(option, value)
        self._look()

    def be_curve_server(self, own: KeyPair) -> None:
        """Admit only connections that the ZAP handler admits. Call it before `bind`."""
        self.set(zmq.CURVE_SERVER, 1)
        self.set(zmq.CURVE_SECRETKEY, own.secret.encode())
        self.set(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        self.set(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a handler, admit none

    def be_curve_client(self, own: KeyPair, server_key: str) -> None:
        """Connect only to the holder of this key. Call it before `connect`."""
        self.set(zmq.CURVE_SERVERKEY, server_key.encode())
        self.set(zmq.CURVE_PUBLICKEY, own.public.encode())
        self.set(zmq.CURVE_SECRETKEY, own.secret.encode())

    def bind(self, host: str, port: int) -> int:
        """Listen at an address of this machine, and return the port; 0 is any free one.

        :raises ConfigError: it cannot: the port is taken, or the address is not of this machine.
        """
        self._socket.setsockopt(zmq.IPV6, ":" in host)
        endpoint = format_endpoint(host, port)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise ConfigError([f"cannot listen at {endpoint}: {error.strerror}"]) from None
        bound: Any = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        return int(bound.rstrip(b"\0").rpartition(b":")[2])

    def bind_inside(self, name: str) -> None:
        """Listen for the other sockets of the context."""
        self._socket.bind(f"inproc://{name}")

    def connect(self, host: str, port: int) -> None:
        """Connect to an address in the background, and again whenever the connection breaks. Nothing happens
        once the socket is closed."""
        if not self._socket.closed:
            self._socket.setsockopt(zmq.IPV6, ":" in host)
            self._socket.connect(format_endpoint(host, port))
            self._look()

    def disconnect(self, host: str, port: int) -> None:
        """The reverse of `connect`."""
        if not self._socket.closed:
            self._socket.disconnect(format_endpoint(host, port))
            self._look()

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a message without waiting. A publisher drops it for those peers whose queue is full."""
        self.send_all((frames,))

    def send_all(self, messages: Iterable[Sequence[bytes]]) -> None:
        """Send messages, as `send` each."""
        send = self._socket.send  # a third of what `send_multipart` costs
        try:
            for frames in messages:
                for frame in frames[:-1]:
                    send(frame, _NOWAIT_MORE)
                send(frames[-1], _NOWAIT)
        finally:
            self._look()

    async def wait_readable(self) -> None:
        """Wait until there is a message. Cancellation loses none.

        :raises trio.ClosedResourceError: the socket was closed meanwhile.
        """
        await trio.lowlevel.checkpoint()
        while not self._is_readable():
            with trio.CancelScope() as self._waiting:
                try:
                    await trio.lowlevel.wait_readable(self._fd)
                finally:
                    self._waiting = None
            # Who cancels this task may close the socket, too, when the task has its signal already.
            await trio.lowlevel.checkpoint_if_cancelled()

    def receive_nowait(self, limit: int) -> list[list[bytes]]:
        """Up to ``limit`` messages that are there; fewer: that was all."""
        receive, get = self._socket.recv, self._socket.getsockopt
        messages: list[list[bytes]] = []
        try:
            for _ in range(limit):
                frames = [receive(zmq.DONTWAIT)]
                messages.append(frames)
                while get(zmq.RCVMORE):
                    frame = receive(zmq.DONTWAIT)
                    if len(frames) < MAX_FRAMES:
                        frames.append(frame)
        except zmq.Again:
            pass
        return messages

    def take_frames(self) -> Iterator[list[zmq.Frame]]:
        """Up to `MAX_BATCH` messages that are there, with what ZeroMQ knows of their senders (`user_of`,
        `host_of`). Each is taken when it is asked for."""
        try:
            for _ in range(MAX_BATCH):
                frames: list[zmq.Frame] = []
                more = True
                while more:
                    frame: zmq.Frame = self._socket.recv(zmq.DONTWAIT, copy=False)
                    more = frame.more
                    if len(frames) < MAX_FRAMES:
                        frames.append(frame)
                yield frames
        except zmq.Again:
            pass

    async def receive(self) -> list[list[bytes]]:
        """Wait for messages, and take up to `MAX_BATCH`. Cancellation loses none."""
        while True:
            await self.wait_readable()
            if messages := self.receive_nowait(MAX_BATCH):
                return messages

    def close(self) -> None:
        """Close it. A task that waits for it gets `trio.ClosedResourceError`."""
        trio.lowlevel.notify_closing(self._fd)
        self._socket.close()
        self._context.sockets.discard(self)

    def _is_readable(self) -> bool:
        if self._socket.closed:
            raise trio.ClosedResourceError("this ZeroMQ socket was closed")
        events: Any = self._socket.getsockopt(zmq.EVENTS)
        return bool(events & zmq.POLLIN)

    def _look(self) -> None:
        if self._waiting is not None and self._is_readable():
            self._waiting.cancel()


def user_of(frame: zmq.Frame) -> str:
    """The public key of the sender of a message, as the ZAP handler has admitted it; "": without keys."""
    return _property(frame, "User-Id")


def host_of(frame: zmq.Frame) -> str:
    """The address that the sender of a message is connected from; "": unknown."""
    text = _property(frame, "Peer-Address")
    try:
        address = ip_address(text)
    except ValueError:
        return ""
    host = str(getattr(address, "ipv4_mapped", None) or address)
    return host if is_host(host) else ""


def _property(frame: zmq.Frame, name: str) -> str:
    try:
        return str(frame.get(name))
    except zmq.ZMQError:  # it has none
        return ""
