"""A ZeroMQ socket on Trio, without threads of ours: `Socket`.

libzmq's file descriptor signals that something *changed*, not that something is there. Any call on the socket
uses the signal up, also one that sends or sets an option, and it does not come again for what arrived before.
So the socket is asked for its events before every wait and after every such call; a task that waits for the
descriptor and has missed its signal is woken by hand. To wait once and then take what is there makes batches,
which is several times as fast as to wait for each message.

Sending never waits: publishers drop what does not fit into the queue of a slow peer.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import trio
import zmq

from garlicfarm_plugin_dafka.keys import KeyPair
from garlicfarm_plugin_dafka.relay import FRAME_BYTES, Flow

MAX_BATCH: Final = 1000
"""Messages that are taken at a time."""
MAX_FRAMES: Final = 8
"""No more frames of a message are kept: one more than any message has, those of the ZAP handler included."""
DRAIN_S: Final = 0.5
"""For so long the relays pass on what ZeroMQ has sent at the end."""
HANDSHAKE_S: Final = 5.0
"""A connection that lives longer has proved the keys of both ends."""
_NOWAIT: Final = int(zmq.DONTWAIT)
_NOWAIT_MORE: Final = int(zmq.DONTWAIT | zmq.SNDMORE)
_OPTIONS: Final[Mapping[int, int]] = {
    zmq.HANDSHAKE_IVL: int(HANDSHAKE_S * 1000),
    zmq.HEARTBEAT_IVL: 5_000,
    zmq.HEARTBEAT_TIMEOUT: 15_000,  # without any answer, the connection is closed
}


class Context:
    """What the sockets of a node share: a context of ZeroMQ, its ZAP handler, and a nursery. See
    `open_context`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.zmq: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.sockets: set[Socket] = set()
        """Those that are open."""
        self.nursery = nursery
        """Ends with the context."""
        self.relays: set[trio.CancelScope] = set()
        """Shielded ones: they still pass on what is queued when all else has been cancelled."""


@asynccontextmanager
async def open_context() -> AsyncIterator[Context]:
    """A context for the block. At its end its sockets are closed, and it waits for as long as they linger."""
    async with trio.open_nursery() as nursery:
        context = Context(nursery)
        try:
            yield context
        finally:
            nursery.cancel_scope.cancel()
            for each in list(context.sockets):
                each.close()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(context.zmq.term)
            for scope in context.relays:
                scope.deadline = min(scope.deadline, trio.current_time() + DRAIN_S)


class Socket:
    """One socket of ZeroMQ. One task at a time waits for it; any may send.

    :param kind: such as ``zmq.SUB``.
    :param max_message_bytes: the largest frame; a peer that sends a larger one is disconnected.
    :param high_water_mark: how many messages are queued for each peer, in each direction.
    :param linger_ms: how long what is queued at the end is still sent.
    :raises OSError: no descriptor is left.
    """

    def __init__(
        self, context: Context, kind: int, *, max_message_bytes: int, high_water_mark: int, linger_ms: int = 0
    ) -> None:
        self._context = context
        try:
            self._socket = context.zmq.socket(kind)
        except zmq.ZMQError as error:
            raise OSError(error.errno, error.strerror) from None
        context.sockets.add(self)
        self._waiting: trio.CancelScope | None = None
        self.flow: Flow | None = None
        """Of its only connection: what is received makes room in it."""
        for option, value in {
            **_OPTIONS,
            zmq.LINGER: linger_ms,
            zmq.SNDHWM: high_water_mark,
            zmq.RCVHWM: high_water_mark,
            zmq.MAXMSGSIZE: max_message_bytes,
        }.items():
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.IPC_FILTER_PID, os.getpid())  # of the ends of `open_pipe`
        self._fd = self._socket.FD

    def set(self, option: int, value: int | bytes) -> None:
        """Set an option of ZeroMQ."""
        self._socket.setsockopt(option, value)
        self._look()

    def be_curve_server(self, own: KeyPair) -> None:
        """Encrypt, and prove one's key. Call it before `open_pipe`."""
        self.set(zmq.CURVE_SERVER, 1)
        self.set(zmq.CURVE_SECRETKEY, own.secret.encode())

    def be_curve_client(self, own: KeyPair, server_key: str) -> None:
        """Talk only to the holder of this key. Call it before `open_pipe`."""
        self.set(zmq.CURVE_SERVERKEY, server_key.encode())
        self.set(zmq.CURVE_PUBLICKEY, own.public.encode())
        self.set(zmq.CURVE_SECRETKEY, own.secret.encode())

    def bind_inside(self, name: str) -> None:
        """Listen for the other sockets of the context."""
        self._socket.bind(f"inproc://{name}")

    @asynccontextmanager
    async def open_pipe(self, zap_domain: bytes = b"") -> AsyncIterator[trio.SocketStream]:
        """Give ZeroMQ a new connection for the block, and yield its other end, for `relay`.

        :param zap_domain: what the ZAP handler knows it by; without one, ZeroMQ does not ask.
        :raises trio.ClosedResourceError: the socket is closed. :raises OSError: no descriptor is left.
        :raises trio.TooSlowError: ZeroMQ does not take it.
        """
        if self._socket.closed:
            raise trio.ClosedResourceError("this ZeroMQ socket was closed")
        # A listener for one connection, which lasts as long: its end ends the connection. (To have ZeroMQ
        # connect would drop what it has received, in the middle of a message, too.)
        name = f"garlicfarm-dafka-{secrets.token_hex(16)}"
        if zap_domain:
            self._socket.setsockopt(zmq.ZAP_DOMAIN, zap_domain)
            self._socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a handler, admit none
        try:
            self._socket.bind(f"ipc://@{name}")
        except zmq.ZMQError as error:
            raise OSError(error.errno, error.strerror) from None
        try:
            self._look()
            async with trio.SocketStream(trio.socket.socket(socket.AF_UNIX)) as end:
                with trio.fail_after(HANDSHAKE_S):
                    await end.socket.connect(f"\0{name}")
                yield end
        finally:
            if not self._socket.closed:
                self._socket.unbind(f"ipc://@{name}")
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
        taken = 0
        try:
            for _ in range(limit):
                frame = receive(zmq.DONTWAIT)
                taken += len(frame) + FRAME_BYTES
                frames = [frame]
                messages.append(frames)
                while get(zmq.RCVMORE):
                    frame = receive(zmq.DONTWAIT)
                    taken += len(frame) + FRAME_BYTES
                    if len(frames) < MAX_FRAMES:
                        frames.append(frame)
        except zmq.Again:
            pass
        if self.flow is not None:
            self.flow.took(taken)
        return messages

    def take_frames(self) -> Iterator[list[zmq.Frame]]:
        """Up to `MAX_BATCH` messages that are there, with what ZeroMQ knows of their senders (`user_of`).
        Each is taken when it is asked for."""
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

    def has_messages(self) -> bool:
        """Whether there is a message to take."""
        if self._socket.closed:
            return False
        found = self._is_readable()
        self._look()
        return found

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
    """What the ZAP handler has called the sender of a message; "": ZeroMQ has made it, since a peer left."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:  # it has none
        return ""
