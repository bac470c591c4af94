"""Conversations of a role of ours with other nodes, as lines of JSON: written by a recorder, read by replays.

The first line says what it is. Each other line is an event at ``t`` seconds: ``got`` is a batch of messages
and ``sent`` one message, each a list of frames in hexadecimal; ``subscribed`` is what a peer subscribed to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import trio

from garlicfarm_plugin_dafka.codec import Command, decode, encode, split_prefix, subscription_prefix
from garlicfarm_plugin_dafka.mesh import Mesh, Received, Subscription

__all__ = ["Event", "Recorder", "read_transcript", "recorded"]


class Recorder:
    """A node that notes what passes it. ``loses`` are records that it does not send."""

    def __init__(self, mesh: Mesh, loses: Sequence[Command] = ()) -> None:
        self._mesh = mesh
        self._loses = loses
        self._begun_s = trio.current_time()
        self.address = mesh.address
        self.events: list[dict[str, Any]] = []

    def subscribe(self, prefix: bytes) -> None:
        self._mesh.subscribe(prefix)

    def send(self, command: Command) -> None:
        self._note("sent", _hex(command))
        if command not in self._loses:
            self._mesh.send(command)

    def send_all(self, commands: Iterable[Command]) -> None:
        for command in commands:
            self.send(command)

    async def receive(self) -> list[Received]:
        batch = await self._mesh.receive()
        self._note("got", [_hex(command) for command, _ in batch])
        return batch

    async def subscriptions(self) -> list[Subscription]:
        batch = await self._mesh.subscriptions()
        for each in batch:
            if each.command is not None and each.is_on:
                self._note("subscribed", subscription_prefix(each.command, each.routing).hex())
        return batch

    def _note(self, kind: str, what: Any) -> None:
        self.events.append({"t": round(trio.current_time() - self._begun_s, 4), kind: what})


@contextmanager
def recorded(name: str, role: str, mesh: Mesh, loses: Sequence[Command] = ()) -> Iterator[Recorder]:
    """A recorder for the block. Its transcript goes to the directory that ``DAFKA_TRANSCRIPTS`` names, if it
    names one and ``name`` is not empty."""
    recorder = Recorder(mesh, loses)
    yield recorder
    if name and (directory := os.environ.get("DAFKA_TRANSCRIPTS")):
        head = {"conversation": name, "role": role, "address": mesh.address, "beside": "C dafka c2dc88d"}
        text = "".join(f"{json.dumps(line)}\n" for line in [head, *recorder.events])
        (Path(directory) / f"{name}.jsonl").write_text(text)


class Event(NamedTuple):
    """One event of a transcript."""

    t: float
    got: list[Command]
    sent: Command | None
    subscribed: tuple[type[Command] | None, str]


def read_transcript(path: Path) -> tuple[dict[str, str], list[Event]]:
    """Its head, and its events."""
    head, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return head, [
        Event(
            line["t"],
            [_command(frames) for frames in line.get("got", ())],
            _command(line["sent"]) if "sent" in line else None,
            split_prefix(bytes.fromhex(line.get("subscribed", ""))),
        )
        for line in lines
    ]


def _hex(command: Command) -> list[str]:
    return [frame.hex() for frame in encode(command)]


def _command(frames: Sequence[str]) -> Command:
    return decode([bytes.fromhex(frame) for frame in frames])
