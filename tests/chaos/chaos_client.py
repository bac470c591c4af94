"""The client of the chaos test, a process of its own: posts and reads without end, and journals what it was
told.

``python -m tests.chaos.chaos_client SPEC.json`` until its stdin ends; the journal is the crash test's
(`crash_client`), and ``history`` beside it has every operation with its invocation and completion, for
`linearizable`. Every other writer posts over the Raft wire to the member that it takes for the leader, the
others over the admin API to any node; nothing is ever posted twice. With the application ``publisher`` all
post notes, over the admin API. Readers ask any node for linearizable reads, and follow it to the leader where
it names one.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import trio

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
from garlicfarm.lab.processes import NodeProcess
from tests.chaos.linearizable import Operation, Post, Read
from tests.crash.crash_checks import posted
from tests.crash.crash_client import PASSWORD, REFUSED_PAUSE_S, Journal, Spec, admin_client, entry_of

ANSWER_S = 4.0
READERS = 3

Way = Callable[[bytes], Awaitable[tuple[int, int]]]


class History(Journal):
    """The operations, in the order of their completion."""

    def add(self, operation: Operation) -> None:
        self._lines.append(msgspec.json.encode(operation).decode() + "\n")


class Clients:
    def __init__(self, spec: Spec, journal: Journal, history: History, stack: AsyncExitStack) -> None:
        self._spec = spec
        self._journal = journal
        self._history = history
        self._stack = stack
        self._stopping = False

    async def run(self) -> None:
        """Post and read until stdin ends, then wait for the outcomes that are outstanding."""
        writers, users = {}, self._spec.users()
        for number, user in enumerate(users):
            is_wired = number % 2 and self._spec.application == "log"
            writers[user] = await (self._wire if is_wired else self._admin)(user)
        async with trio.open_nursery() as nursery:
            for user, post in writers.items():
                nursery.start_soon(self._post_values, user, post)
            for user in users[:READERS]:
                nursery.start_soon(self._read, await self._open(user))
            async with trio.lowlevel.FdStream(os.dup(0)) as stdin:
                await stdin.receive_some(1)
            self._stopping = True

    async def _wire(self, user: str) -> Way:
        client = await self._stack.enter_async_context(
            open_farm_client(
                self._spec.endpoints,
                farm="farm",
                user=user,
                password=PASSWORD,
                farm_id=bytes.fromhex(self._spec.farm_id),
                timeout_s=ANSWER_S,
            )
        )
        return lambda value: client.post([value])

    async def _admin(self, user: str) -> Way:
        clients = await self._open(user)
        return lambda value: random.choice(clients).post("farm", value)

    async def _open(self, user: str) -> list[AdminClient]:
        """A client of each node."""
        clients = []
        for id_, directory in self._spec.directories.items():
            node = NodeProcess(id_, Path(directory))
            assert node.url is not None
            client = admin_client(node, node.url, user)
            clients.append(await self._stack.enter_async_context(client))
        return clients

    async def _post_values(self, writer: str, post: Way) -> None:
        number = 0
        while not self._stopping:
            number += 1
            label = f"{writer}-{number}"
            begun_s = time.monotonic()
            try:
                with trio.fail_after(2 * ANSWER_S):
                    index, term = await post(entry_of(self._spec.application, writer, number))
            except (OutcomeUnknown, RemoteProtocolError, trio.TooSlowError):
                self._journal.write("unknown", label)
                self._history.add(Post(label, begun_s))
            except (NoQuorum, NotLeader, ProposalDropped, UnreachableError):
                self._journal.write("refused", label)
                self._history.add(Post(label, begun_s, refused=True))
                await trio.sleep(REFUSED_PAUSE_S)
            else:
                self._history.add(Post(label, begun_s, time.monotonic(), index))
                self._journal.write("ack", label, index, term)
                await trio.sleep(random.uniform(0, 2 * self._spec.pause_s))

    async def _read(self, clients: list[AdminClient]) -> None:
        """Read the log on from where the last read ended, or ask how far the state goes."""
        after = 0
        while not self._stopping:
            client, begun_s = random.choice(clients), time.monotonic()
            try:
                with trio.fail_after(2 * ANSWER_S):
                    if random.random() < 0.3:
                        upto, _ = await client.state("farm", linearizable=True)
                        read = Read(begun_s, time.monotonic(), upto)
                    else:
                        page, upto = await client.page("farm", after, linearizable=True)
                        shown = posted(page.entries, self._spec.application)
                        read = Read(begun_s, time.monotonic(), upto, after, page.next_after, shown)
                        after = page.next_after
            except (NoQuorum, NotLeader, ProposalDropped, RemoteProtocolError, UnreachableError):
                await trio.sleep(REFUSED_PAUSE_S)
            except trio.TooSlowError:
                pass
            else:
                self._history.add(read)
                await trio.sleep(random.uniform(0, self._spec.pause_s))


async def main(spec: Spec, journal: Journal, history: History) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        nursery.start_soon(history.run)
        async with AsyncExitStack() as stack:
            await Clients(spec, journal, history, stack).run()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    given = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Spec)
    own = Path(given.journal)
    with own.open("ab") as journal_file, own.with_name("history").open("ab") as history_file:
        trio.run(main, given, Journal(journal_file), History(history_file))
