"""Nodes in memory for the Trio shells of the roles: what one sends, the others have at once, if they
subscribe to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import trio

from garlicfarm_plugin_dafka.codec import Command, decode, encode, split_prefix
from garlicfarm_plugin_dafka.network import Peer, Received, Subscription


class MemoryNetwork:
    """``loses``: whether a command from one address to another gets lost."""

    def __init__(self) -> None:
        self.nodes: list[MemoryNode] = []
        self.loses: Callable[[str, str, Command], bool] = lambda sender, recipient, command: False

    def node(self, address: str, limit: int = 10_000) -> MemoryNode:
        """A new node. It holds as many commands that were not received yet, and loses others."""
        node = MemoryNode(self, address, limit)
        for other in self.nodes:
            node.changes += [Subscription(*split_prefix(prefix), True) for prefix in other.prefixes]
        self.nodes.append(node)
        return node

    def remove(self, node: MemoryNode) -> None:
        self.nodes.remove(node)


class MemoryNode:
    def __init__(self, network: MemoryNetwork, address: str, limit: int) -> None:
        self.address = address
        self.prefixes: set[bytes] = set()
        self.changes: list[Subscription] = []
        self.sent: list[Command] = []
        self._network = network
        self._limit = limit
        self._inbox: deque[Received] = deque()
        self._wakeup = trio.Event()

    def subscribe(self, prefix: bytes) -> None:
        self.prefixes.add(prefix)
        for other in self._network.nodes:
            if other is not self:
                other.changes.append(Subscription(*split_prefix(prefix), True))
                other.wake()

    def unsubscribe(self, prefix: bytes) -> None:
        self.prefixes.discard(prefix)

    def send(self, command: Command) -> None:
        frames = encode(command)
        self.sent.append(command)
        for node in self._network.nodes:
            if node is self or self._network.loses(self.address, node.address, command):
                continue
            if any(frames[0].startswith(prefix) for prefix in node.prefixes):
                node.put(decode(frames), Peer(self.address, self.address))

    def send_all(self, commands: Iterable[Command]) -> None:
        for command in commands:
            self.send(command)

    def put(self, command: Command, sender: Peer) -> None:
        if len(self._inbox) < self._limit:
            self._inbox.append(Received(command, sender))
            self.wake()

    def wake(self) -> None:
        self._wakeup.set()
        self._wakeup = trio.Event()

    async def receive(self) -> list[Received]:
        while not self._inbox:
            await self._wakeup.wait()
        batch = [self._inbox.popleft() for _ in range(min(len(self._inbox), 1000))]
        await trio.lowlevel.checkpoint()
        return batch

    async def subscriptions(self) -> list[Subscription]:
        while not self.changes:
            await self._wakeup.wait()
        await trio.lowlevel.checkpoint()
        batch, self.changes = self.changes, []
        return batch
