"""Conversations of a role of ours with other nodes, as lines of JSON: written by a recorder, read by replays.

The first line says what it is. Each other line is an event at ``t`` seconds: ``got`` is a batch of messages
and ``sent`` one message, each a list of frames in hexadecimal; ``subscribed`` is what a peer subscribed to.
Of a farm's member, ``log`` says which entries it can serve (`FarmProducerCore.on_log`), and whether it leads.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import trio

from garlicfarm.feed.contract import FeedSource
from garlicfarm_plugin_dafka.codec import Command, decode, encode, split_prefix, subscription_prefix
from garlicfarm_plugin_dafka.config import MeshConfig
from garlicfarm_plugin_dafka.farm_feed import FarmProducer
from garlicfarm_plugin_dafka.mesh import Mesh, open_mesh
from garlicfarm_plugin_dafka.network import Received, Subscription

BESIDE = "C dafka c2dc88d"


class Recorder:
    """A node that notes what passes it. ``loses`` are records that it does not send."""

    def __init__(self, mesh: Mesh, loses: Sequence[Command] = ()) -> None:
        self._mesh = mesh
        self._loses = loses
        self._begun_s = trio.current_time()
        self.address = mesh.address
        self.subscribe, self.unsubscribe = mesh.subscribe, mesh.unsubscribe
        self.events: list[dict[str, Any]] = []

    @property
    def has_tower(self) -> bool:
        return self._mesh.has_tower

    def send_all(self, commands: Iterable[Command]) -> None:
        for command in commands:
            self.note("sent", _hex(command))
            if command not in self._loses:
                self._mesh.send_all([command])

    async def receive(self) -> list[Received]:
        batch = await self._mesh.receive()
        self.note("got", [_hex(command) for command, _ in batch])
        return batch

    async def subscriptions(self) -> list[Subscription]:
        batch = await self._mesh.subscriptions()
        for each in batch:
            if each.command is not None and each.is_on:
                self.note("subscribed", subscription_prefix(each.command, each.routing).hex())
        return batch

    def note(self, kind: str, what: Any) -> None:
        self.events.append({"t": round(trio.current_time() - self._begun_s, 4), kind: what})

    def save(self, name: str, role: str, **facts: Any) -> None:
        """Write the transcript to the directory that ``DAFKA_TRANSCRIPTS`` names, if it names one."""
        if directory := os.environ.get("DAFKA_TRANSCRIPTS"):
            head = {"conversation": name, "role": role, "address": self.address, **facts, "beside": BESIDE}
            text = "".join(f"{json.dumps(line)}\n" for line in [head, *self.events])
            (Path(directory) / f"{name}.jsonl").write_text(text)


@contextmanager
def recorded(name: str, role: str, mesh: Mesh, loses: Sequence[Command] = ()) -> Iterator[Recorder]:
    """A recorder for the block. It saves its transcript, if ``name`` is not empty."""
    recorder = Recorder(mesh, loses)
    yield recorder
    if name:
        recorder.save(name, role)


class FarmRecorder:
    """Notes what passes the feeds of a farm's members, in place of what `farm_feed` calls `open_mesh` and
    `FarmProducer`. ``leaders`` are the recorders of those that have led, in order."""

    def __init__(self) -> None:
        self.leaders: list[Recorder] = []

    @asynccontextmanager
    async def open_mesh(self, config: MeshConfig, base_dir: Path) -> AsyncIterator[Recorder]:
        async with open_mesh(config, base_dir) as mesh:
            yield Recorder(mesh)

    def producer(self, network: Recorder, topic: str, source: FeedSource) -> FarmProducer:
        return _NotedProducer(network, topic, source, self.leaders)


class _NotedProducer(FarmProducer):
    def __init__(self, network: Recorder, topic: str, source: FeedSource, leaders: list[Recorder]) -> None:
        super().__init__(network, topic, source)
        self._recorder = network
        self._leaders = leaders
        self._noted = (0, 0, False)
        self._tell_core = self._core.on_log
        self._core.on_log = self._on_log

    def _on_log(self, first: int, count: int) -> None:
        self._tell_core(first, count)
        if (seen := (first, count, self._core.is_producer)) != self._noted:
            self._noted = seen
            self._recorder.note("log", seen)
            if seen[-1] and self._recorder not in self._leaders:
                self._leaders.append(self._recorder)


class Event(NamedTuple):
    """One event of a transcript."""

    t: float
    got: list[Command]
    sent: Command | None
    subscribed: tuple[type[Command] | None, str]
    log: tuple[int, int, bool] | None


def read_transcript(path: Path) -> tuple[dict[str, Any], list[Event]]:
    """Its head, and its events."""
    head, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return head, [
        Event(
            line["t"],
            [_command(frames) for frames in line.get("got", ())],
            _command(line["sent"]) if "sent" in line else None,
            split_prefix(bytes.fromhex(line.get("subscribed", ""))),
            tuple(line["log"]) if "log" in line else None,
        )
        for line in lines
    ]


def _hex(command: Command) -> list[str]:
    return [frame.hex() for frame in encode(command)]


def _command(frames: Sequence[str]) -> Command:
    return decode([bytes.fromhex(frame) for frame in frames])
