"""A farm as the admin listener sees it (`garlicfarm.admin.contract.FarmView`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import trio

from garlicfarm.application import AdminEndpoint, Origin
from garlicfarm.errors import ConfigError, EntryRefused, NoQuorum, OutcomeUnknown, ProposalDropped
from garlicfarm.feed.pages import PageReader
from garlicfarm.node.backups import Backups, saved_snapshot
from garlicfarm.node.committed_entries import CommittedEntries
from garlicfarm.node.hosted_feed import HostedFeed
from garlicfarm.node.proposals import origin_now
from garlicfarm.node.replica import Replica
from garlicfarm.node.scrub import Scrub
from garlicfarm.node.stored_rankings import StoredRankings
from garlicfarm.raft import Change, ConfChange, Role
from garlicfarm.refusals import Refusal
from garlicfarm.storage import RankingStore, encode_snapshot
from garlicfarm.transport import Endpoint
from garlicfarm.trouble import Trouble
from garlicfarm.wire.messages import ClusterServer


class FarmAdminView(CommittedEntries):
    """Implements `garlicfarm.admin.contract.FarmView`. ``directory``: where it keeps the rankings of
    queries."""

    def __init__(
        self,
        replica: Replica,
        pages: PageReader,
        directory: Path,
        feeds: Sequence[HostedFeed] = (),
        backups: Backups | None = None,
        scrub: Scrub | None = None,
    ) -> None:
        super().__init__(replica.core, replica.store, pages)
        self.replica = replica
        self._application = replica.application
        self._feeds = feeds
        self._backups = backups
        self._scrub = scrub
        self.application = replica.section.application
        self.farm_id = replica.store.genesis.farm_id
        self.node_id = replica.node_id
        self.endpoints: Sequence[AdminEndpoint] = self._application.endpoints(replica)
        self._snapshot_turn = trio.CapacityLimiter(1)  # a state may have megabytes
        store = RankingStore(directory)
        self.rankings = StoredRankings(store, self.ranking, replica.core, replica.log)

    @property
    def disk_hangs_s(self) -> float | None:
        disk = self.replica.disk
        return round(disk.silent_s, 1) if disk.is_hanging else None

    async def wait_change(self) -> None:
        await self._core.wait_progress()

    async def post(self, entry: bytes, user: str) -> tuple[int, int]:
        return await self._applied_here(await self.replica.proposals.post(entry, origin_now(0, user)))

    async def post_batch(
        self, entries: Sequence[bytes], user: str
    ) -> Sequence[tuple[int, int] | EntryRefused]:
        proposals, origin = self.replica.proposals, origin_now(0, user)
        outcomes: list[tuple[int, int] | EntryRefused] = []
        accepted: list[tuple[int, bytes]] = []
        for position, entry in enumerate(entries):
            outcomes.append((0, 0))
            try:
                proposals.check(entry, origin)
            except EntryRefused as refused:
                outcomes[position] = refused
            else:
                accepted.append((position, entry))
        if accepted:
            done = await proposals.post_checked([entry for _, entry in accepted])
            index, term = await self._applied_here(done)
            for at, (position, _) in enumerate(accepted, index - len(accepted) + 1):
                outcomes[position] = (at, term)
        return outcomes

    async def administer(self, action: str, args: dict[str, object], user: str) -> tuple[int, int]:
        origin = origin_now(self.node_id, user)
        entry = self._application.administer(action, args, origin)
        if entry is None:
            nothing = f"the application {self.application} has nothing to administer"
            raise EntryRefused("", f"farm {self.farm}: {nothing}")
        try:
            return await self._post_order(action, entry, origin)
        except EntryRefused as error:
            if error.field != "config.admin.args.member":
                raise
            raise ProposalDropped(Refusal.NO_SUCH_MEMBER) from error

    async def _post_order(self, action: str, entry: bytes, origin: Origin) -> tuple[int, int]:
        done = await self.replica.proposals.post(entry, origin)
        self.replica.log.info("administered", action=action, user=origin.user, index=done[0])
        return await self._applied_here(done)

    async def read_index(self) -> int:
        return await self.replica.reads.read_index()

    async def _applied_here(self, done: tuple[int, int]) -> tuple[int, int]:
        """Wait until a committed entry is applied here too, so that a later request to this node finds it. A
        node that is cut off meanwhile answers without: the entry is committed all the same."""
        with trio.move_on_after(self._core.raft.rpc_timeout_s):
            await self._core.wait_applied(done[0] - 1)
        return done

    def policy(self) -> dict[str, Any]:
        head = {"schema": "garlicfarm.policy/1", "farm": self.farm, "index": self._core.applied_index}
        return {**head, **self._application.policy()}

    def state(self) -> tuple[int, bytes]:
        return self._core.applied_index, self._application.snapshot()

    async def oldest_state(self) -> tuple[int, bytes]:
        if self.first_index == 1:
            return 0, b""
        found = await trio.to_thread.run_sync(self._store.oldest_state, limiter=self._snapshot_turn)
        return self.state() if found is None else (found.index, found.state)

    async def saved_snapshot(self) -> Sequence[bytes]:
        snapshot, _ = saved_snapshot(self.replica)
        return await trio.to_thread.run_sync(encode_snapshot, snapshot, limiter=self._snapshot_turn)

    def ranking(self, *, statuses: bool = False) -> dict[str, Any]:
        return {"index": self._core.applied_index, **self._application.ranking(statuses=statuses)}

    def leader(self) -> tuple[int, str] | None:
        leader = self._core.leader()
        return None if leader is None else (leader.id, leader.endpoint)

    def leader_url(self) -> str | None:
        return self._application.member_report(self._core.leader_id).admin_url

    # ------------------------------------------------------------------ members

    def members(self) -> dict[str, Any]:
        status, all_members = self.status(), self.replica.membership.all_members
        rows = [{key: row[key] for key in ("id", "endpoint", "role")} for row in status["members"]]
        same = ("farm", "leader", "quorum", "fault_tolerance")
        return {
            "schema": "garlicfarm.members/1",
            **{key: status[key] for key in same},
            "level": self._core.configuration.level,
            "was_removed": self.replica.membership.was_removed,
            "members": rows,
            "joining": self._joining(),
            "used_ids": sorted(all_members),
        }

    def _joining(self) -> dict[str, Any] | None:
        """The server that this leader is adding."""
        core, servers = self._core.raw.status(), self._core.raw.servers
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
        self.replica.log.info("member-change-asked", change=change, peer=member, user=user)
        if change == Change.REMOVE.value:
            done = await self.replica.remove_member(member, user, force=force, asks_leader=True)
            return await self._applied_here(done)
        wanted = ConfChange(Change(change), ClusterServer(member, endpoint), force)
        if wanted.change is Change.SET:  # any member asks the leader for the other changes
            self._core.must_lead()
        return await self._applied_here(await self.replica.membership.change(wanted))

    async def raise_level(self, level: int, user: str) -> tuple[int, int]:
        self.replica.log.info("level-raise-asked", to=level, user=user)
        raised = ConfChange(Change.RAISE, level=level)
        done = await self._applied_here(await self.replica.membership.change(raised))
        origin = origin_now(self.node_id, user)
        entry = self._application.level_entry(level, origin)
        if entry is not None:
            try:
                await self._post_order("level", entry, origin)
            except (EntryRefused, NoQuorum, ProposalDropped, OutcomeUnknown) as error:
                # It is raised all the same. Refused: this member has not applied that in time.
                self.replica.log.warning("level-not-recorded", to=level, user=user, cause=str(error))
        return done

    async def step_down(self, to: int, user: str) -> int:
        self.replica.log.info("step-down-asked", to=to, user=user)
        return await self._core.step_down(to)

    async def repair(self, user: str) -> int:
        self.replica.log.info("repair-asked", user=user)
        return await self.replica.repair()

    # ------------------------------------------------------------------ letting go

    def drain(self, drained: bool) -> None:
        """See `Application.drain`."""
        self._application.drain(drained)

    def holds(self) -> str:
        """See `Application.holds`."""
        return self._application.holds()

    async def let_go(self, bound_s: float) -> None:
        """See `Application.let_go`."""
        await self._application.let_go(bound_s)

    def others(self) -> tuple[frozenset[int], frozenset[int]]:
        """The other members, and those of them that are there and not drained."""
        others = frozenset(server.id for server in self._core.configuration.servers) - {self.node_id}
        is_drained = {member: self._application.member_report(member).is_drained for member in others}
        return others, frozenset(one for one in others if self._keeps_up(one) and not is_drained[one])

    # ------------------------------------------------------------------ status

    def status(self) -> dict[str, Any]:
        core = self._core.raw.status()
        reachable = sum(self._keeps_up(s.id) for s in core.configuration.servers)
        majority = len(core.configuration.servers) // 2 + 1
        more = self._application.status()
        body = {
            "schema": "garlicfarm.status/1",
            "farm": self.farm,
            "farm_id": self.farm_id.hex(),
            "node": self.node_id,
            "application": self.application,
            "role": core.role.value,
            "leader": core.leader or None,
            "leader_lost": lost._asdict() if (lost := self._core.leader_lost) else None,
            "publisher": more.get("publisher"),
            "level": self.replica.programs.describe(),
            "term": core.term,
            "commit": core.commit,
            "applied": self._core.applied_index,
            "leader_commit": self.replica.requests.leader_commit,
            "first_index": core.first_index,
            "last_index": core.last_index,
            "application_entries": self._core.applied.application_entries,
            "epoch_length": self._store.genesis.epoch_length,
            "quorum": bool(core.leader) and reachable >= majority,
            "fault_tolerance": max(0, reachable - majority),
            "needed": max(0, majority - reachable),
            "events": list(more.get("events", ())),
            "disk_hangs_s": self.disk_hangs_s,
            "feeds": [feed.describe() for feed in self._feeds],
            "members": [
                self._member(server.id, server.endpoint, more.get("publisher"))
                for server in core.configuration.servers
            ],
        }
        own = self._own_troubles()
        problems = [trouble.text for trouble in own]
        if self._backups is not None and self._backups.problem:
            problems.append(self._backups.problem)
        if problems:
            body["problems"] = [*more.get("problems", ()), *problems]
        if own:
            body["troubles"] = [*more.get("troubles", ()), *msgspec.to_builtins(own)]
        return body | {name: value for name, value in more.items() if name not in body}

    def _own_troubles(self) -> list[Trouble]:
        """Those of this node's own files."""
        scrub = self._scrub
        found = self.replica.space.trouble(self.node_id), None if scrub is None else scrub.trouble
        return [each for each in found if each is not None]

    def _is_reachable(self, member: int) -> bool:
        """Whether our connection to it is up and it is alive: a leader and its followers hear from each other
        within the longest election timeout; other followers show it by their entries."""
        if member == self.node_id:
            return True
        peers = self.replica.peers
        if not peers.is_connected(member):
            return False
        if self._core.is_leader or member == self._core.leader_id:
            age_s = peers.contact_age_s(member)
            return age_s is not None and age_s <= self._core.raft.election_timeout_max_s
        return not self._application.member_report(member).is_silent

    def _keeps_up(self, member: int) -> bool:
        return self._is_reachable(member) and self.replica.hindrances.of(member) is None

    def _member(self, member: int, endpoint: str, publisher: int | None) -> dict[str, Any]:
        peers, core = self.replica.peers, self._core.raw.status()
        report = self._application.member_report(member)
        progress = core.peers.get(member)
        us = member == self.node_id
        hangs_s = self.disk_hangs_s
        own_error = None if hangs_s is None else f"its disk has not answered for {hangs_s:.0f} s"
        trouble = self.replica.hindrances.of(member)
        program = self.replica.programs.of(member)
        age = 0.0 if us else peers.contact_age_s(member)
        commit = core.commit if us else report.commit
        match = core.stable if us else (progress.match_index if progress else None)
        if us:
            role = core.role.value
        elif not self._is_reachable(member):
            role = "unreachable"
        elif member == core.leader:
            role = Role.LEADER.value
        else:
            role = Role.FOLLOWER.value
        return {
            "id": member,
            "endpoint": endpoint,
            "transport": _scheme(endpoint, self.replica.section.default_transport),
            "role": role,
            "term": core.term if us else report.term,
            "commit": commit,
            "applied": self._core.applied_index if us else report.applied,
            "match": match,
            "lag": None if match is None else max(0, core.last_index - match),
            "last_contact_s": None if age is None else round(age, 3),
            "rtt_s": peers.rtt_s(member, self._core.raft.election_timeout_max_s),
            "publisher": member == publisher,
            "drained": report.is_drained,
            "version": (program and program.version) or report.version,
            "revision": (program and program.revision) or None,
            "levels": program and [program.lowest, program.highest],
            "age_s": report.age_s,
            "trouble": trouble and trouble.text,
            "trouble_since_ms": trouble and trouble.since_ms,
            "error": (trouble and trouble.text) or (own_error if us else peers.error(member)),
        }

    # ------------------------------------------------------------------ metrics

    def collect(self) -> None:
        """Bring the farm's gauges up to date."""
        replica, metrics, core = self.replica, self.replica.metrics, self._core.raw.status()
        metrics.set_role(core.role.value)
        metrics.raft_term.set(core.term)
        metrics.raft_leader_id.set(core.leader)
        metrics.raft_commit_index.set(core.commit)
        metrics.raft_applied_index.set(self._core.applied_index)
        metrics.raft_first_index.set(core.first_index)
        metrics.raft_last_index.set(core.last_index)
        metrics.storage_bytes.set(replica.store.size_bytes())
        metrics.storage_hangs_seconds.set(self.disk_hangs_s or 0)
        for server in core.configuration.servers:
            if server.id == self.node_id:
                continue
            progress = core.peers.get(server.id)
            state = "unreachable" if not self._is_reachable(server.id) else progress.state if progress else ""
            metrics.set_peer(
                server.id,
                state=state,
                match_index=progress.match_index if progress else None,
                rtt_s=replica.peers.rtt_s(server.id, self._core.raft.election_timeout_max_s),
                last_contact_s=replica.peers.contact_age_s(server.id),
            )
        for query, equal in self.rankings.equality().items():
            metrics.set_ranking_equal(query, equal)
        for feed in self._feeds:
            feed.collect()
        self._application.collect(metrics)


def _scheme(endpoint: str, default: str) -> str | None:
    """The transport of a member; None if the text in the Configuration is not an endpoint."""
    try:
        return Endpoint.parse(endpoint, default).scheme
    except ConfigError:
        return None
