"""The services that a node gives to a replica, and those that the replica's application may use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from garlicfarm.config import FarmSection
from garlicfarm.logs import EventLogger
from garlicfarm.metrics import FarmMetrics
from garlicfarm.net.handshake import Established
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.node.leadership import step_down
from garlicfarm.node.membership import Membership
from garlicfarm.node.peers import Peers
from garlicfarm.node.proposals import Proposals, origin_now
from garlicfarm.raft import Status
from garlicfarm.router import Router
from garlicfarm.wire.messages import Configuration

__all__ = ["ReplicaContext", "ReplicaHost"]


class ReplicaHost(msgspec.Struct, frozen=True):
    """The node's services for one of its replicas.

    ``base_dir`` and ``data_dir``: see `garlicfarm.application.ApplicationContext`. ``dial(id, endpoint)``
    opens an authenticated stream to another member. ``router``: the farm's, entered.
    ``note_leave_order(term)`` keeps for the next start that the leader of ``term`` told this member to leave,
    and forgets it with None; blocking, durable on return. ``admin_url()``: the node's admin URL as other
    machines reach it, None if they cannot.
    """

    node_id: int
    base_dir: Path
    data_dir: Path
    dial: Callable[[int, str], Awaitable[Established]]
    metrics: FarmMetrics
    log: EventLogger
    router: Router | None = None
    note_leave_order: Callable[[int | None], None] | None = None
    admin_url: Callable[[], str | None] = lambda: None


class ReplicaContext:
    """The `garlicfarm.application.ApplicationContext` of one replica."""

    def __init__(
        self,
        section: FarmSection,
        host: ReplicaHost,
        core: CoreInbox,
        peers: Peers,
        proposals: Proposals,
        membership: Membership,
    ) -> None:
        self.farm = section.name
        self.node_id = host.node_id
        self.base_dir = host.base_dir
        self.data_dir = host.data_dir
        self.section = section
        self.router = host.router
        self.log = host.log
        self.metrics = host.metrics
        self.peers = peers
        self._admin_url = host.admin_url
        self._core = core
        self._proposals = proposals
        self._membership = membership

    @property
    def admin_url(self) -> str | None:
        return self._admin_url()

    @property
    def configuration(self) -> Configuration:
        return self._core.configuration

    @property
    def is_leader(self) -> bool:
        return self._core.is_leader

    @property
    def is_changing_members(self) -> bool:
        return self._membership.is_changing

    @property
    def applied_index(self) -> int:
        return self._core.applied_index

    def raft_status(self) -> Status:
        return self._core.raw.status()

    async def post(self, entry: bytes) -> tuple[int, int]:
        return await self._proposals.post(entry, origin_now(self.node_id))

    async def wait_applied(self, beyond: int) -> None:
        await self._core.wait_applied(beyond)

    async def step_down(self, to: int = 0) -> int:
        return await step_down(self._core, to)
