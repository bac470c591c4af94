"""The application `publisher` as a node runs it: the fold, and the tasks beside it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import trio

from garlicfarm.application import Application, ApplicationContext, LeaseUser, MemberReport, Origin
from garlicfarm.config import Config, FarmSection
from garlicfarm.config.model import PRESET_RETIRE_TIMEOUTS_S
from garlicfarm.digests import Contradicted, Digests
from garlicfarm.errors import StorageError
from garlicfarm.leases import LeaseGranter
from garlicfarm.levels import OUTSIDE
from garlicfarm.metrics import FarmMetrics
from garlicfarm.node.publisher.forgetter import Forgetter
from garlicfarm.node.publisher.handover import HandOver
from garlicfarm.node.publisher.member_task import MemberTask
from garlicfarm.node.publisher.published_record import PublishedRecord, next_boot
from garlicfarm.node.publisher.publishers import (
    check_publishers,
    make_publishers,
    publisher_directory,
    read_master_keys,
)
from garlicfarm.publishing import granting
from garlicfarm.publishing.entries import Note, encode_admin, observe
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.lease import least_lease_ms, least_R
from garlicfarm.round_trips import RoundTrips
from garlicfarm.trouble import Trouble
from garlicfarm.wire.messages import Configuration, Grant


class PublisherApplication(Application, LeaseUser):
    """``fold`` names the publisher; the tasks report this node's status, publish, hand over the leadership,
    and remove members that stay silent."""

    def __init__(self, farm: str) -> None:
        self.fold = PublisherFold(farm)
        self._part: MemberTask | None = None  # while the application runs
        self._section: FarmSection | None = None  # the same
        self._node_id = 0  # the same
        self._is_drained = False

    # ------------------------------------------------------------------ the state machine

    def apply(self, index: int, term: int, entry: bytes) -> None:
        self.fold.apply(index, term, entry)

    def configure(self, index: int, members: Configuration) -> None:
        self.fold.configure(index, members)

    def snapshot(self) -> bytes:
        return self.fold.snapshot()

    def restore(self, data: bytes) -> None:
        self.fold.restore(data)

    def check(self, entry: bytes, origin: Origin) -> None:
        self.fold.check_posted(entry, origin.member, origin.user, origin.now_ms)

    def is_needed(self, entry: bytes) -> bool:
        """Statuses and orders; not the notes of users."""
        return not isinstance(observe(entry, self.fold.farm, self.fold.level, 0), Note)

    def check_configuration(self, section: FarmSection, config: Config) -> None:
        check_publishers(section, config)

    def agreed_index(self) -> int:
        return self.fold.agreed_index

    def claimed(self, member: int) -> Digests | None:
        claim = self.fold.claim(member)
        return None if claim is None else Digests(claim.index, claim.state, claim.chain, claim.origin or 0)

    def confirmed(self, member: int) -> bool:
        return self.fold.is_confirmed(member)

    def contradicted(self, member: int) -> Contradicted:
        found = self.fold.contradicted(member)
        return "" if found is None else found.what

    # ------------------------------------------------------------------ the tasks

    async def run(self, context: ApplicationContext) -> None:
        """Report, hand over, publish, and log what the fold decides."""
        fold, section, node_id = self.fold, context.section, context.node_id
        self._section, self._node_id = section, node_id
        keys = read_master_keys(section, node_id)
        plugins = make_publishers(section, node_id, context.base_dir, context.data_dir, keys)
        directory = publisher_directory(context.data_dir, section.name)
        record = PublishedRecord(directory / "published.json")
        boot = await self._next_boot(directory / "boot") if plugins else 1
        self._part = MemberTask(context, fold, keys, plugins, record, boot)
        self._part.drain(self._is_drained)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._log_decisions, context, fold.publisher, dict(fold.skipped))
            nursery.start_soon(self._part.run)
            nursery.start_soon(HandOver(context, fold).run)
            nursery.start_soon(Forgetter(context, fold).run)

    async def _next_boot(self, path: Path) -> int:
        try:
            return await trio.to_thread.run_sync(next_boot, path)
        except OSError as error:
            raise StorageError(f"{path}: the number of this process cannot be kept: {error}") from error

    async def _log_decisions(
        self, context: ApplicationContext, publisher: int | None, skipped: dict[str, int]
    ) -> NoReturn:
        """Log and count each new publisher, and the entries that the fold skipped; ``publisher`` and
        ``skipped``: the values already logged. Warn of a lease that does not suit this node."""
        log, metrics, fold = context.log, context.metrics, self.fold
        judged: dict[str, int] | None = None
        while True:
            if context.applied_index and judged != (figures := self._lease_figures(context.section)):
                judged = figures
                has, needs = ("lease_ordered_ms", "least_lease_ms") if fold.has_leases else ("R", "least_R")
                if figures[has] < figures[needs]:
                    log.warning("lease-too-short", **figures)
            if self.fold.publisher != publisher:
                publisher = self.fold.publisher
                metrics.farm_publisher_changes.inc()
                log.info("publisher", publisher=publisher or "none")
            for reason, count in self.fold.skipped.items():
                new = count - skipped.get(reason, 0)
                if new:
                    skipped[reason] = count
                    metrics.count_skipped(reason, new)
                    if reason == "repeated":  # one of two posts of an unknown outcome (D17): no fault
                        log.info("entry-skipped", reason=reason, count=count)
                    else:
                        log.warning("entry-skipped", reason=reason, count=count)
            await context.wait_applied(context.applied_index)

    # ------------------------------------------------------------------ leases on heartbeats

    def lease_user(self) -> LeaseUser:
        return self

    def tell_leases(self, granter: LeaseGranter, now_ms: int) -> None:
        granting.tell(granter, self.fold, now_ms)

    def findings(
        self, granter: LeaseGranter, trips: RoundTrips, node_id: int, now_ms: int
    ) -> list[granting.Finding]:
        return granting.findings(granter, trips, self.fold, node_id, now_ms, self._least_lease_of_all_ms)

    def election_timeout_ms(self) -> int:
        return self.fold.election_timeout_ms

    def on_own_lease(self, index: int, end_ms: int) -> None:
        if self._part is not None:
            self._part.on_own_lease(index, end_ms)

    def on_grant(self, grant: Grant) -> None:
        if self._part is not None:
            self._part.on_grant(grant)

    # ------------------------------------------------------------------ letting go

    def drain(self, drained: bool) -> None:
        self._is_drained = drained
        if self._part is not None:
            self._part.drain(drained)

    def holds(self) -> str:
        return "" if self._part is None else self._part.core.holds()

    async def let_go(self, bound_s: float) -> None:
        if self._part is not None:
            await self._part.stop(bound_s)

    # ------------------------------------------------------------------ figures of the farm

    def collect(self, metrics: FarmMetrics) -> None:
        metrics.farm_publisher_id.set(self.fold.publisher or 0)
        for member, score in self.fold.scores().items():
            metrics.set_score(member, score)
        for member, expires_ms in self.fold.key_expiries().items():
            metrics.set_key_expiry(member, expires_ms)
        for publisher in [] if self._part is None else self._part.core.publishers:
            metrics.set_publishing(publisher.traits.name, publisher.state in ("publishing", "renewing"))
        if self._part is not None:
            clock = self._part.core.clock
            metrics.set_clock_offset("farm", clock.farm_ms)
            metrics.set_clock_offset("router", clock.router_ms)
        clients = self.fold.clients.lasting(time.time_ns() // 1_000_000)
        metrics.set_clients("banned", len(clients.banned))
        metrics.set_clients("allowed", len(clients.allowed))
        publishers = self._describe()
        for number, row in enumerate(publishers):
            name = f"{number}-{row['plugin']}"
            if row["streams"] is not None:
                metrics.set_streams(name, row["streams"]["open"], row["streams"]["most"])
            metrics.count_publisher_refused(name, row["refused"])
            for target, is_up in row["targets"].items():
                metrics.set_target_up(name, target, is_up)
        metrics.set_contradicted(map(self.contradicted, self.fold.members), self.fold.disagreeing)
        metrics.farm_problems.set(len(self._problems(self._troubles(publishers))))

    def _describe(self) -> list[dict[str, Any]]:
        return [] if self._part is None else self._part.describe()

    def _problems(self, troubles: Iterable[Trouble]) -> list[str]:
        """What operators should see to, a sentence each."""
        found = [trouble.text for trouble in troubles]
        return found if self._part is None else [*found, *self._part.problems()]

    def _troubles(self, publishers: Sequence[Mapping[str, Any]]) -> list[Trouble]:
        """``publishers``: rows of the status."""
        ends = [
            row["until_ms"]
            for row in publishers
            if row["state"] == "publishing" and row["until_ms"] is not None
        ]
        own = {self._node_id: min(ends)} if ends else {}
        clock = "" if self._part is None else self._part.core.clock.problem
        return self.fold.troubles(time.time_ns() // 1_000_000, own, {self._node_id: clock} if clock else {})

    def status(self) -> Mapping[str, Any]:
        publishers = self._describe()
        troubles = self._troubles(publishers)
        return {
            "publisher": self.fold.publisher,
            "publishers": publishers,
            "clock": None if self._part is None else self._part.core.clock.figures(),
            "key_expiries": {str(member): ms for member, ms in self.fold.key_expiries().items()},
            "published_leaves": self.fold.published_leaves(),
            "measured": {str(member): percent for member, percent in self.fold.measured().items()},
            "events": self.fold.events(),
            "problems": self._problems(troubles),
            "troubles": msgspec.to_builtins(troubles),
        }

    def member_report(self, member: int) -> MemberReport:
        newest = self.fold.newest(member)
        if newest is None:
            return MemberReport()
        node = self.fold.report(member)
        age_s = max(0.0, time.time() - newest[1].date / 1000)
        return MemberReport(
            term=node.term,
            commit=node.commit,
            applied=node.applied,
            version=node.version,
            admin_url=node.admin_url,
            age_s=round(age_s, 1),
            is_silent=not self.fold.is_recent(member),
            is_drained=self.fold.is_draining(member),
        )

    def ranking(self, *, statuses: bool = False) -> dict[str, Any]:
        body: dict[str, Any] = self.fold.ranking()
        if statuses:
            for row in body["members"]:
                row["status"] = self.fold.newest_entry(row["id"])
                row["age_s"] = self.member_report(row["id"]).age_s
        return body

    def policy(self) -> dict[str, Any]:
        body: dict[str, Any] = msgspec.to_builtins(self.fold.policy, str_keys=True)
        if self.fold.level >= OUTSIDE:
            body["control_ms"] = self.fold.control_ms
            body["clients"] = msgspec.to_builtins(self.fold.clients)
        return body if self._section is None else {**body, **self._lease_figures(self._section)}

    def _lease_figures(self, section: FarmSection) -> dict[str, int]:
        """How long a lease lasts, or the interval and R that it rests on below level 2, and the least that
        suits this node's timings."""
        fold, raft = self.fold, section.raft
        if fold.has_leases:
            least_ms = _least_lease_ms(section, raft.timeouts.election_max_ms, _retire_s(section))
            return {**fold.lease_figures(), "least_lease_ms": least_ms}
        least = least_R(
            fold.interval_ms,
            election_timeout_max_s=raft.election_timeout_max_s,
            rpc_timeout_s=raft.rpc_timeout_s,
            retire_timeout_s=_retire_s(section),
        )
        return {"interval_ms": fold.interval_ms, "R": fold.R, "least_R": least}

    def _least_lease_of_all_ms(self, election_ms: int) -> int:
        """The least lease that suits all members with this upper election time-out, also those whose
        publishers may stop more slowly than this node's."""
        assert self._section is not None
        retire_s = max(_retire_s(self._section), *PRESET_RETIRE_TIMEOUTS_S.values())
        return _least_lease_ms(self._section, election_ms, retire_s)

    # ------------------------------------------------------------------ orders of administrators

    def administer(self, action: str, args: dict[str, Any], origin: Origin) -> bytes:
        # No sequence: that belongs to the statuses of this member, which are being repeated.
        return encode_admin(self.fold.farm, origin.now_ms, origin.member, None, action, origin.user, args)

    def level_entry(self, level: int, origin: Origin) -> bytes:
        return self.administer("level", {"to": level}, origin)  # the log names the user

    def removal_entry(self, member: int, origin: Origin) -> bytes:
        return self.administer("remove", {"member": member}, origin)  # the log names the user


def _least_lease_ms(section: FarmSection, election_ms: int, retire_s: float) -> int:
    return least_lease_ms(
        election_timeout_max_s=election_ms / 1000,
        heartbeat_s=section.raft.heartbeat_s,
        retire_timeout_s=retire_s,
    )


def _retire_s(section: FarmSection) -> float:
    """How long this node's publishers may take to stop."""
    return max((each.retire_timeout_s for each in section.publisher), default=0.0)
