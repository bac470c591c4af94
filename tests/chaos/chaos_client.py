"""The client of the chaos test, a process of its own: posts without end, and journals what it was told.

``chaos_client.py SPEC.json`` until its stdin ends; the journal is the crash test's (`crash_client`).
Every other poster posts over the Raft wire to whom it takes for the leader, the others over the admin
API to any node; nothing is ever posted twice.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import trio
from crash_client import ENTRY_BYTES, PASSWORD, REFUSED_PAUSE_S, Journal, Spec

from garlicfarm.certificates import pin_of_file
from garlicfarm.client import AdminClient
from garlicfarm.client.farm import open_farm_client
from garlicfarm.errors import (
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    ProposalDropped,
    RemoteProtocolError,
    UnreachableError,
)
from garlicfarm.plugins import make_transport
from garlicfarm.testing.processes import NodeProcess

ANSWER_S = 4.0

Post = Callable[[bytes], Awaitable[tuple[int, int]]]


class Posters:
    def __init__(self, spec: Spec, journal: Journal, stack: AsyncExitStack) -> None:
        self._spec = spec
        self._journal = journal
        self._stack = stack
        self._stopping = False

    async def run(self) -> None:
        """Post until stdin ends, then wait for the outcomes that are outstanding."""
        posters = {}
        for number, user in enumerate(self._spec.users()):
            posters[user] = await (self._wire if number % 2 else self._admin)(user)
        async with trio.open_nursery() as nursery:
            for user, post in posters.items():
                nursery.start_soon(self._post_values, user, post)
            async with trio.lowlevel.FdStream(os.dup(0)) as stdin:
                await stdin.receive_some(1)
            self._stopping = True

    async def _wire(self, user: str) -> Post:
        transport = make_transport("ssl", {}, Path())
        client = await self._stack.enter_async_context(
            open_farm_client(
                self._spec.endpoints,
                farm="farm",
                user=user,
                password=PASSWORD,
                transport=lambda scheme: transport,
                farm_id=bytes.fromhex(self._spec.farm_id),
                timeout_s=ANSWER_S,
            )
        )
        return lambda value: client.post([value])

    async def _admin(self, user: str) -> Post:
        clients = []
        for id_, directory in self._spec.directories.items():
            node = NodeProcess(id_, Path(directory))
            assert node.url is not None
            pin = pin_of_file(node.directory / "data" / "tls" / "node.crt")
            client = AdminClient([node.url], user=user, password=PASSWORD, pin=pin)
            clients.append(await self._stack.enter_async_context(client))
        return lambda value: random.choice(clients).post("farm", value)

    async def _post_values(self, poster: str, post: Post) -> None:
        number = 0
        while not self._stopping:
            number += 1
            label = f"{poster}-{number}"
            try:
                with trio.fail_after(2 * ANSWER_S):
                    index, term = await post(label.encode().ljust(ENTRY_BYTES, b"."))
            except (OutcomeUnknown, RemoteProtocolError, trio.TooSlowError):
                self._journal.write("unknown", label)
            except (NoQuorum, NotLeader, ProposalDropped, UnreachableError):
                self._journal.write("refused", label)
                await trio.sleep(REFUSED_PAUSE_S)
            else:
                self._journal.write("ack", label, index, term)
                await trio.sleep(random.uniform(0, 2 * self._spec.pause_s))


async def main(spec: Spec, journal: Journal) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        async with AsyncExitStack() as stack:
            await Posters(spec, journal, stack).run()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    given = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Spec)
    with Path(given.journal).open("ab") as journal_file:
        trio.run(main, given, Journal(journal_file))
