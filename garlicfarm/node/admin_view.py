"""A farm as the admin listener sees it (`garlicfarm.admin.contract.FarmView`)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import trio

from garlicfarm.errors import ConfigError, EntryRefused
from garlicfarm.feed.pages import PageReader
from garlicfarm.feed.source import EntryStream
from garlicfarm.node.proposals import check_user
from garlicfarm.node.replica import Replica
from garlicfarm.publishing.application import PublisherApplication
from garlicfarm.publishing.documents import NodeReport
from garlicfarm.publishing.entries import encode_admin
from garlicfarm.raft import Change, ConfChange, Entry, Role
from garlicfarm.transport import Endpoint
from garlicfarm.wire.messages import ClusterServer

__all__ = ["FarmAdminView"]


class FarmAdminView:
    """See the contract."""

    def __init__(self, farm: Replica, pages: PageReader) -> None:
        self._farm = farm
        self._pages = pages
        self.farm = farm.name
        self.application = farm.section.application
        self.farm_id = farm.store.genesis.farm_id
        self.node_id = farm.node_id

    @property
    def first_index(self) -> int:
        return self._farm.store.first_index()

    @property
    def commit_index(self) -> int:
        """What is committed, durable here and applied: what readers may see."""
        return self._farm.applied_index

    @property
    def is_leader(self) -> bool:
        return self._farm.is_leader

    @property
    def disk_hangs_s(self) -> float | None:
        disk = self._farm.disk
        return round(disk.silent_s, 1) if disk.hangs else None

    def entries(
        self, after: int, max_bytes: int, *, upto: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        return EntryStream(self._pages.read, self.wait_commit, after, max_bytes, upto)

    async def wait_commit(self, beyond: int) -> int:
        await self._farm.wait_applied(beyond)
        return self.commit_index

    async def post(self, entry: bytes, user: str) -> tuple[int, int]:
        check_user(self._farm, entry, user)
        return await self._here(await self._farm.post_entry(entry, 0))

    async def administer(self, action: str, args: dict[str, object], user: str) -> tuple[int, int]:
        application = self._farm.application
        if not isinstance(application, PublisherApplication):
            raise EntryRefused(
                "", f"farm {self.farm}: the application {self.application} has nothing to administer"
            )
        now_ms = time.time_ns() // 1_000_000
        # No sequence: that belongs to the statuses of this member, which are being repeated.
        entry = encode_admin(self.farm, now_ms, self.node_id, None, action, user, args)
        index, term = await self._farm.post_entry(entry, self.node_id)
        self._farm.log.info("administered", action=action, user=user, index=index)
        return await self._here((index, term))

    async def read_index(self) -> int:
        return await self._farm.reads.index()

    async def _here(self, done: tuple[int, int]) -> tuple[int, int]:
        """What was committed is applied here too before it is answered: who asks this node next finds it.
        A node that is cut off just then answers without: committed it is."""
        with trio.move_on_after(self._farm.section.raft.rpc_timeout_s):
            await self._farm.wait_applied(done[0] - 1)
        return done

    def policy(self) -> dict[str, Any]:
        application = self._farm.application
        head = {"schema": "garlicfarm.policy/1", "farm": self.farm, "index": self._farm.applied_index}
        if isinstance(application, PublisherApplication):
            return {**head, **msgspec.to_builtins(application.policy, str_keys=True)}
        return head

    def state(self) -> tuple[int, bytes]:
        return self._farm.applied_index, self._farm.application.snapshot()

    def ranking(self, *, statuses: bool = False) -> dict[str, Any]:
        application = self._farm.application
        if not isinstance(application, PublisherApplication):
            return {"index": self._farm.applied_index, "publisher": None, "members": []}
        body: dict[str, Any] = {"index": self._farm.applied_index, **application.ranking()}
        if statuses:
            for row in body["members"]:
                row["status"] = application.newest_entry(row["id"])
                row["age_s"] = self._report(row["id"])[1]
        return body

    def leader(self) -> tuple[int, str] | None:
        leader = self._farm.leader_id
        for server in self._farm.configuration.servers:
            if server.id == leader:
                return leader, server.endpoint
        return None

    def leader_url(self) -> str | None:
        return self._report(self._farm.leader_id)[0].admin_url

    # ------------------------------------------------------------------ members

    def members(self) -> dict[str, Any]:
        status, ever = self.status(), self._farm.membership.ever
        rows = [{key: row[key] for key in ("id", "endpoint", "role")} for row in status["members"]]
        same = ("farm", "leader", "quorum", "fault_tolerance")
        return {
            "schema": "garlicfarm.members/1",
            **{key: status[key] for key in same},
            "members": rows,
            "joining": self._joining(),
            "used_ids": sorted(ever),
        }

    def _joining(self) -> dict[str, Any] | None:
        """A server that this leader brings in."""
        core, servers = self._farm.raw.status(), self._farm.raw.servers
        members = {server.id for server in core.configuration.servers}
        for server in servers:
            if server.id not in members and server.id in core.peers:
                match = core.peers[server.id].match_index
                row = {"id": server.id, "endpoint": server.endpoint}
                return {**row, "match": match, "last_index": core.last_index}
        return None

    async def change_member(
        self, change: str, member: int, endpoint: str, force: bool, user: str
    ) -> tuple[int, int]:
        self._farm.log.info("member-change-asked", change=change, peer=member, user=user)
        wanted = ConfChange(Change(change), ClusterServer(member, endpoint), force)
        if wanted.change is Change.SET:  # all else any member asks the leader for
            self._farm.membership.must_lead()
        if wanted.change is Change.REMOVE and isinstance(self._farm.application, PublisherApplication):
            await self.administer("remove", {"member": member}, user)  # who asked stays in the log (D16)
        return await self._here(await self._farm.membership.change(wanted))

    async def step_down(self, to: int, user: str) -> int:
        self._farm.log.info("step-down-asked", to=to, user=user)
        return await self._farm.membership.step_down(to)

    # ------------------------------------------------------------------ status

    def status(self) -> dict[str, Any]:
        farm = self._farm
        core = farm.raw.status()
        reachable = sum(self._reachable(s.id) for s in core.configuration.servers)
        majority = len(core.configuration.servers) // 2 + 1
        publisher, events = None, []
        if isinstance(farm.application, PublisherApplication):
            publisher, events = farm.application.publisher, farm.application.events()
        return {
            "schema": "garlicfarm.status/1",
            "farm": self.farm,
            "farm_id": self.farm_id.hex(),
            "node": self.node_id,
            "application": self.application,
            "role": core.role.value,
            "leader": core.leader or None,
            "publisher": publisher,
            "term": core.term,
            "commit": core.commit,
            "applied": farm.applied_index,
            "leader_commit": farm.leader_commit,
            "first_index": core.first_index,
            "last_index": core.last_index,
            "quorum": bool(core.leader) and reachable >= majority,
            "fault_tolerance": max(0, reachable - majority),
            "needed": max(0, majority - reachable),
            "disk_hangs_s": self.disk_hangs_s,
            "events": events,
            "members": [
                self._member(server.id, server.endpoint, publisher) for server in core.configuration.servers
            ],
        }

    def _reachable(self, member: int) -> bool:
        """Our connection to it is up, and it gives signs of life: between a leader and its followers it was
        heard from within the longest election timeout; of the others it is known from what they post."""
        if member == self.node_id:
            return True
        if not self._farm.peers.connected(member):
            return False
        if self._farm.is_leader or member == self._farm.leader_id:
            age_s = self._farm.peers.contact_age_s(member)
            return age_s is not None and age_s <= self._farm.section.raft.election_timeout_max_s
        application = self._farm.application
        if not isinstance(application, PublisherApplication) or application.newest(member) is None:
            return True  # it posts nothing
        return application.is_recent(member)

    def _member(self, member: int, endpoint: str, publisher: int | None) -> dict[str, Any]:
        farm = self._farm
        core = farm.raw.status()
        report, age_s = self._report(member)
        progress = core.peers.get(member)
        us = member == self.node_id
        hangs_s = self.disk_hangs_s
        own_error = None if hangs_s is None else f"its disk has not answered for {hangs_s:.0f} s"
        age = 0.0 if us else farm.peers.contact_age_s(member)
        commit = core.commit if us else report.commit
        match = core.stable if us else (progress.match_index if progress else None)
        if us:
            role = core.role.value
        elif not self._reachable(member):
            role = "unreachable"
        elif member == core.leader:
            role = Role.LEADER.value
        else:
            role = Role.FOLLOWER.value
        return {
            "id": member,
            "endpoint": endpoint,
            "transport": _scheme(endpoint, farm.section.default_transport),
            "role": role,
            "term": core.term if us else report.term,
            "commit": commit,
            "applied": farm.applied_index if us else report.applied,
            "match": match,
            "lag": None if match is None else max(0, core.last_index - match),
            "last_contact_s": None if age is None else round(age, 3),
            "rtt_s": farm.peers.rtt_s(member),
            "publisher": member == publisher,
            "version": report.version,
            "age_s": age_s,
            "error": own_error if us else farm.peers.error(member),
        }

    def _report(self, member: int) -> tuple[NodeReport, float | None]:
        """What a member said of itself in its newest status, and how long ago by our clock."""
        application = self._farm.application
        if isinstance(application, PublisherApplication):
            newest = application.newest(member)
            if newest is not None:
                document = newest[1]
                node = (document.config or {}).get("node") or {}
                age_s = time.time() - document.date / 1000
                return msgspec.convert(node, NodeReport), round(max(0.0, age_s), 1)
        return NodeReport(), None

    # ------------------------------------------------------------------ metrics

    def collect(self) -> None:
        """Bring the farm's gauges up to date."""
        farm, metrics, core = self._farm, self._farm.metrics, self._farm.raw.status()
        metrics.set_role(core.role.value)
        metrics.raft_term.set(core.term)
        metrics.raft_leader_id.set(core.leader)
        metrics.raft_commit_index.set(core.commit)
        metrics.raft_applied_index.set(farm.applied_index)
        metrics.raft_first_index.set(core.first_index)
        metrics.raft_last_index.set(core.last_index)
        metrics.storage_bytes.set(farm.store.size_bytes())
        metrics.storage_hangs_seconds.set(self.disk_hangs_s or 0)
        for server in core.configuration.servers:
            if server.id == self.node_id:
                continue
            progress = core.peers.get(server.id)
            state = "unreachable" if not self._reachable(server.id) else progress.state if progress else ""
            metrics.set_peer(
                server.id,
                state=state,
                match_index=progress.match_index if progress else None,
                rtt_s=farm.peers.rtt_s(server.id),
                last_contact_s=farm.peers.contact_age_s(server.id),
            )
        if isinstance(farm.application, PublisherApplication):
            metrics.farm_publisher_id.set(farm.application.publisher or 0)
            for member, score in farm.application.scores().items():
                metrics.set_score(member, score)


def _scheme(endpoint: str, default: str) -> str | None:
    """The transport of a member; None: the Configuration holds any text, and this is no endpoint."""
    try:
        return Endpoint.parse(endpoint, default).scheme
    except ConfigError:
        return None
