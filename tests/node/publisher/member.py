"""Member 1 of a farm, whose part in publishing is run in earnest; what it posts is committed by hand."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import trio

from garlicfarm.application import ApplicationContext
from garlicfarm.config import MetaSection, PublisherSection
from garlicfarm.credentials.watched_keys import WatchedKeys
from garlicfarm.errors import GarlicFarmError
from garlicfarm.levels import LOWEST
from garlicfarm.node.publisher.member_task import MemberTask
from garlicfarm.node.publisher.published_record import PublishedRecord
from garlicfarm.publisher import Publisher, PublisherSite
from garlicfarm.publishing.entries import encode_admin, encode_status
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.router import Router
from garlicfarm_plugin_simulated.publisher import SimulatedPublisher, SimulatedPublisherConfig
from tests.publishing.scripted_log import T0, configuration, destination, status

INTERVAL_S = 30.0  # of a farm that was told nothing else


class FakeContext:
    """Of a farm of these members; commits what it is given, unless ``trouble`` says otherwise."""

    def __init__(self, *members: int, level: int = LOWEST, **section: Any) -> None:
        self.fold = PublisherFold("farm")
        self.fold.configure(0, msgspec.structs.replace(configuration(*members), level=level))
        self.farm = "farm"
        self.node_id = 1
        table = PublisherSection(plugin="simulated", **section)
        self.section = SimpleNamespace(
            meta=MetaSection(),
            leaf=[SimpleNamespace(destination=destination(1))],
            router={},
            publisher=(table,),
        )
        self.raft_status = lambda: SimpleNamespace(term=1, role=SimpleNamespace(value="leader"), commit=1)
        self.digests = None
        self.router: Router | None = None
        self.admin_url: str | None = None
        self.log = SimpleNamespace(warning=self._note, error=self._note, info=self._note)
        self.told: dict[int, tuple[int, int, int]] = {}
        self.handshakes: dict[int, tuple[float, bool]] = {}
        self.now: dict[int, tuple[float, bool]] = {}  # how it is where it is tried anew
        self.tried: list[set[int]] = []
        self.peers = SimpleNamespace(
            handshake=self.handshakes.get,
            try_handshakes=self._try,
            is_connected=lambda member: True,
            told=self.told.get,
        )
        self.metrics = SimpleNamespace(count_router_request=lambda plugin, outcome: None)
        self.applied_index = 1
        self.posted: list[bytes] = []
        self.is_outstanding = False
        self.times: list[float] = []
        self.trouble: list[GarlicFarmError] = []
        self.notes: list[str] = []
        self._applied = trio.Event()

    def _note(self, event: str, **fields: object) -> None:
        self.notes.append(event)

    async def _try(self, members: Collection[int]) -> None:
        self.tried.append(set(members))
        await trio.sleep(1)
        self.handshakes |= {member: self.now[member] for member in members if member in self.now}

    def apply(self, entry: bytes) -> None:
        self.applied_index += 1
        self.fold.apply(self.applied_index, 1, entry)
        self._applied.set()
        self._applied = trio.Event()

    def order(self, action: str, **args: object) -> None:
        """As an administrator."""
        self.apply(encode_admin("farm", T0, 1, None, action, "alice", args))

    def hear(self, *members: int, **changes: Any) -> None:
        """Other members post."""
        for member in members:
            self.apply(encode_status(status(member, T0, **changes)))

    async def post(self, entry: bytes) -> tuple[int, int]:
        assert not self.is_outstanding, "two documents at once"
        self.is_outstanding = True
        self.posted.append(entry)
        self.times.append(trio.current_time())
        await trio.sleep(0.1)
        self.is_outstanding = False
        if self.trouble:
            raise self.trouble.pop(0)
        self.apply(entry)
        return self.applied_index, 1

    async def wait_applied(self, beyond: int) -> None:
        while self.applied_index <= beyond:
            await self._applied.wait()

    def said(self) -> list[dict[str, Any]]:
        return [json.loads(entry) for entry in self.posted]


def plugin(directory: Path, kind: type[SimulatedPublisher] = SimulatedPublisher) -> SimulatedPublisher:
    return kind(
        SimulatedPublisherConfig(), directory, PublisherSite(farm="farm", node_id=1, directory=directory)
    )


def task_of(
    context: FakeContext, directory: Path, *plugins: Publisher, master: WatchedKeys | None = None
) -> MemberTask:
    context.section.publisher = context.section.publisher[:1] * len(plugins)
    record = PublishedRecord(directory / "publisher" / "published.json")
    return MemberTask(cast(ApplicationContext, context), context.fold, master, plugins, record, 1)
