"""Commands from the other nodes: one subscribing socket per peer, so that the sender of each is known.

The sender is the node that holds the key of the connection, whatever it says about itself. A task per peer
waits until its socket has messages, and puts it into a queue; `Inbox.receive` takes the messages. Until then
they stay in the socket, whose own queue is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio
import zmq

from garlicfarm.errors import RemoteProtocolError
from garlicfarm_plugin_dafka.codec import Command, decode
from garlicfarm_plugin_dafka.network import Peer, Received
from garlicfarm_plugin_dafka.sockets import MAX_BATCH, Socket

MAX_TURN: Final = 250
"""Messages that are taken from one peer before the next one has its turn."""


class _Link:
    def __init__(self, peer: Peer, socket: Socket, allowed: frozenset[type[Command]] | None) -> None:
        self.peer = peer
        self.socket = socket
        self.allowed = allowed
        self.drained = trio.Event()
        self.scope = trio.CancelScope()


class Inbox:
    """The peers that this node is subscribed to. ``on_dropped`` gets a reason and what the peer is called."""

    def __init__(self, nursery: trio.Nursery, on_dropped: Callable[[str, str], None]) -> None:
        self._nursery = nursery
        self._on_dropped = on_dropped
        self._prefixes: set[bytes] = set()
        self._links: dict[Peer, _Link] = {}
        self._ready: deque[_Link] = deque()
        self._has_ready = trio.Event()

    def add(self, peer: Peer, socket: Socket, allowed: frozenset[type[Command]] | None) -> None:
        """Subscribe to a peer over a socket that is the inbox's from now on. ``allowed``: the commands that
        the peer may send; None: all."""
        link = self._links[peer] = _Link(peer, socket, allowed)
        for prefix in self._prefixes:
            socket.set(zmq.SUBSCRIBE, prefix)
        self._nursery.start_soon(self._watch, link)

    def remove(self, peer: Peer) -> None:
        """Disconnect a peer. What has arrived from it and was not taken yet is lost."""
        link = self._links.pop(peer)
        link.scope.cancel()
        link.socket.close()
        if link in self._ready:
            self._ready.remove(link)

    def subscribe(self, prefix: bytes) -> None:
        """Receive the commands that begin so (`codec.subscription_prefix`), from all peers and those to come.
        Once is enough."""
        if prefix not in self._prefixes:
            self._prefixes.add(prefix)
            for link in self._links.values():
                link.socket.set(zmq.SUBSCRIBE, prefix)

    def unsubscribe(self, prefix: bytes) -> None:
        """End a subscription, if there is one."""
        if prefix in self._prefixes:
            self._prefixes.remove(prefix)
            for link in self._links.values():
                link.socket.set(zmq.UNSUBSCRIBE, prefix)

    async def receive(self) -> list[Received]:
        """Wait for commands, and take up to about a thousand. Cancellation loses none."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            while not self._ready:
                self._has_ready = trio.Event()
                await self._has_ready.wait()
            batch: list[Received] = []
            taken = 0
            while self._ready and taken < MAX_BATCH:
                taken += self._take(self._ready.popleft(), batch)
            if batch:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return batch
            await trio.lowlevel.checkpoint()

    def _take(self, link: _Link, batch: list[Received]) -> int:
        """Take a turn's messages of a peer; returns how many there were."""
        messages = link.socket.receive_nowait(MAX_TURN)
        if len(messages) == MAX_TURN:
            self._ready.append(link)
        else:
            link.drained.set()
        peer, allowed = link.peer, link.allowed
        name = peer.name or peer.endpoint
        for frames in messages:
            try:
                command = decode(frames)
            except RemoteProtocolError as error:
                self._on_dropped(error.what, name)
                continue
            if allowed is None or type(command) in allowed:
                batch.append(Received(command, peer))
            else:
                self._on_dropped("not allowed to its sender", name)
        return len(messages)

    async def _watch(self, link: _Link) -> None:
        with link.scope:
            while True:
                await link.socket.wait_readable()
                link.drained = trio.Event()
                self._ready.append(link)
                self._has_ready.set()
                await link.drained.wait()
