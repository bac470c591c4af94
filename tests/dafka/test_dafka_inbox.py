"""The inbox on sockets that count: how often it waits for what it takes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from garlicfarm_plugin_dafka.codec import Head, encode
from garlicfarm_plugin_dafka.inbox import MAX_TURN, Inbox
from garlicfarm_plugin_dafka.network import Peer
from garlicfarm_plugin_dafka.sockets import MAX_BATCH


class CountingSocket:
    """A socket with so many messages. ``waits`` and ``turns`` are how often it was waited for and read."""

    def __init__(self, name: str, messages: int) -> None:
        self.name = name
        self.left = messages
        self.waits = 0
        self.turns: list[int] = []

    async def wait_readable(self) -> None:
        self.waits += 1
        if not self.left:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()

    def receive_nowait(self, limit: int) -> list[list[bytes]]:
        number = min(limit, self.left)
        self.left -= number
        self.turns.append(number)
        return [encode(Head("t", self.name, 0))] * number

    def close(self) -> None:
        pass


@asynccontextmanager
async def inbox_of(*sockets: Any) -> AsyncIterator[Inbox]:
    async with trio.open_nursery() as nursery:
        inbox = Inbox(nursery, lambda reason, peer: None)
        for socket in sockets:
            inbox.add(Peer(socket.name, socket.name), socket, None)
        await trio.testing.wait_all_tasks_blocked()
        yield inbox
        nursery.cancel_scope.cancel()


async def test_much_of_one_peer_is_taken_after_one_wait() -> None:
    socket = CountingSocket("a", 10 * MAX_BATCH)
    async with inbox_of(socket) as inbox:
        batches = [len(await inbox.receive()) for _ in range(10)]
        assert batches == [MAX_BATCH] * 10
        assert socket.turns == [MAX_TURN] * (10 * MAX_BATCH // MAX_TURN)
        assert socket.waits == 1


async def test_what_several_peers_have_is_one_batch_and_each_has_its_turn() -> None:
    much, little = CountingSocket("much", 10 * MAX_BATCH), CountingSocket("little", 10)
    async with inbox_of(much, little) as inbox:
        batch = await inbox.receive()
        assert len(batch) >= MAX_BATCH
        names = [received.sender.address for received in batch]
        assert names.count("little") == 10
        assert names.index("little") <= MAX_TURN, "a peer with much holds up the other for a turn"
        assert much.waits == 1


async def test_a_peer_that_was_emptied_is_waited_for_again() -> None:
    socket = CountingSocket("a", MAX_TURN - 1)
    async with inbox_of(socket) as inbox:
        assert len(await inbox.receive()) == MAX_TURN - 1
        await trio.testing.wait_all_tasks_blocked()
        assert (socket.waits, socket.turns) == (2, [MAX_TURN - 1])
