"""The client of the crash test, a process of its own: posts without end, and journals what it was told.

``python -m tests.crash.crash_client SPEC.json`` until its stdin ends. Each task posts entry after entry, each
with a label of its own, ``<writer>-<number>``. The journal has a line per attempt, synced in batches::

    ack      MONOTONIC_S INDEX TERM LABEL     the farm said: committed, there
    unknown  MONOTONIC_S 0     0    LABEL     sent, not answered: it may be in the log, once
    refused  MONOTONIC_S 0     0    LABEL     the farm or the client said: certainly not in the log

With the application ``log`` nothing is posted twice, over the Raft wire. With ``publisher`` the entries are
notes of users with a sequence, posted over the admin API of any node; the same bytes are posted until
they are acknowledged, and some of them once more after that (D17).
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeVar

import msgspec
import trio

from garlicfarm.client import AdminClient
from garlicfarm.client.farm import FarmClient, open_farm_client
from garlicfarm.credentials.certificates import pin_of_file
from garlicfarm.errors import NoQuorum, NotLeader, OutcomeUnknown, ProposalDropped, UnreachableError
from garlicfarm.lab.processes import NodeProcess
from garlicfarm.publishing.documents import StatusDocument
from garlicfarm.publishing.entries import encode_status

PASSWORD = "the crash test's password"
ENTRY_BYTES = 100
CONNECTIONS = 4
REFUSED_PAUSE_S = 0.1
AGAIN = 0.05  # how many acknowledged notes are posted once more


W = TypeVar("W", bound="Writers")


class Spec(msgspec.Struct):
    """What the harness tells: ``directories`` and ``endpoints`` by id, ``writers`` how many at a time,
    ``pause_s`` the mean pause of each between two entries."""

    application: str
    journal: str
    directories: dict[int, str]
    endpoints: dict[int, str]
    farm_id: str
    writers: int
    pause_s: float

    def users(self) -> list[str]:
        """Each writer is a user of its own."""
        return [f"writer{number}" for number in range(self.writers)]


def entry_of(application: str, writer: str, number: int) -> bytes:
    """The entry with the label ``WRITER-NUMBER``."""
    if application == "log":
        return f"{writer}-{number}".encode().ljust(ENTRY_BYTES, b".")
    date_ms = time.time_ns() // 1_000_000
    return encode_status(StatusDocument("farm", date_ms, 0, sequence=number, config={"by": writer}))


class Journal:
    """Lines are durable soon after `write`; all of them when `run` was cancelled."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lines: list[str] = []

    def write(self, what: str, label: str, index: int = 0, term: int = 0) -> None:
        self._lines.append(f"{what} {time.monotonic():.3f} {index} {term} {label}\n")

    async def run(self) -> NoReturn:
        try:
            while True:
                with trio.CancelScope(shield=True):  # what was taken is written
                    await trio.to_thread.run_sync(self._append, self._take())
                await trio.sleep(0.02)
        finally:
            self._append(self._take())

    def _take(self) -> list[str]:
        """In the thread that writes: another one could take the list while a line is put into it."""
        lines, self._lines = self._lines, []
        return lines

    def _append(self, lines: list[str]) -> None:
        if lines:
            self._file.write("".join(lines).encode())
            self._file.flush()
            os.fsync(self._file.fileno())


class Writers:
    def __init__(self, spec: Spec, journal: Journal) -> None:
        self._spec = spec
        self._journal = journal
        self._stopping = False

    async def run(self) -> None:
        """Post until stdin ends, then wait for the outcomes that are outstanding."""
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(self._open()) for _ in range(CONNECTIONS)]
            async with trio.open_nursery() as nursery:
                for number, user in enumerate(self._spec.users()):
                    if self._spec.application == "log":
                        nursery.start_soon(self._post_values, clients[number % CONNECTIONS], user)
                    else:
                        nursery.start_soon(self._post_notes, user)
                async with trio.lowlevel.FdStream(os.dup(0)) as stdin:
                    await stdin.receive_some(1)
                self._stopping = True

    def _open(self) -> AbstractAsyncContextManager[FarmClient]:
        return open_farm_client(
            self._spec.endpoints,
            farm="farm",
            user="writer0",
            password=PASSWORD,
            farm_id=bytes.fromhex(self._spec.farm_id),
        )

    async def _post_values(self, client: FarmClient, writer: str) -> None:
        number = 0
        while not self._stopping:
            number += 1
            label = f"{writer}-{number}"
            try:
                index, term = await client.post([entry_of("log", writer, number)])
            except OutcomeUnknown:
                self._journal.write("unknown", label)
            except (NoQuorum, ProposalDropped):
                self._journal.write("refused", label)
                await trio.sleep(REFUSED_PAUSE_S)
            else:
                self._journal.write("ack", label, index, term)
                await trio.sleep(random.uniform(0, 2 * self._spec.pause_s))

    async def _post_notes(self, user: str) -> None:
        sequence = 0
        nodes = [NodeProcess(id_, Path(path)) for id_, path in self._spec.directories.items()]
        while not self._stopping:
            sequence += 1
            entry = entry_of("publisher", user, sequence)
            await self.post_note(nodes, user, f"{user}-{sequence}", entry)
            if random.random() < AGAIN:
                await self.post_note(nodes, user, f"{user}-{sequence}", entry)
            await trio.sleep(random.uniform(0, 2 * self._spec.pause_s))

    async def post_note(self, nodes: list[NodeProcess], user: str, label: str, entry: bytes) -> None:
        """Post the same bytes to one node after the other until one acknowledges them."""
        random.shuffle(nodes)
        while True:
            for node in nodes:
                if (url := node.url) is not None:  # it is gone again when the node is killed
                    async with admin_client(node, url, user) as client:
                        if await self.attempt(client, label, entry):
                            return
            await trio.sleep(REFUSED_PAUSE_S)

    async def attempt(self, client: AdminClient, label: str, entry: bytes) -> bool:
        """Post once, and journal what the node says: whether it is committed."""
        try:
            index, term = await client.post("farm", entry)
        except OutcomeUnknown:
            self._journal.write("unknown", label)
        except (NoQuorum, NotLeader, ProposalDropped, UnreachableError):
            self._journal.write("refused", label)
        else:
            self._journal.write("ack", label, index, term)
            return True
        return False


def admin_client(node: NodeProcess, url: str, user: str) -> AdminClient:
    pin = pin_of_file(node.directory / "data" / "tls" / "node.crt")
    return AdminClient([url], user=user, password=PASSWORD, pin=pin)


async def main(writers: Writers, journal: Journal) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        await writers.run()
        nursery.cancel_scope.cancel()


def run(spec: Path, make: Callable[[Spec, Journal], W]) -> W:
    """Let writers post as ``spec`` says."""
    given = msgspec.json.decode(spec.read_bytes(), type=Spec)
    with Path(given.journal).open("ab") as file:
        journal = Journal(file)
        writers = make(given, journal)
        trio.run(main, writers, journal)
    return writers


if __name__ == "__main__":
    run(Path(sys.argv[1]), Writers)
