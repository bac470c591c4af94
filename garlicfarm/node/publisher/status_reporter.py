"""Posts this node's status once every interval of the farm, and keeps the clock of its lease."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NoReturn, Protocol

import trio

from garlicfarm._version import __version__
from garlicfarm.application import ApplicationContext
from garlicfarm.errors import EntryRefused, GarlicFarmError, RouterError
from garlicfarm.i2p.destination import destination_hash
from garlicfarm.i2p.encoding import encode
from garlicfarm.node.publisher import boot_clock
from garlicfarm.node.publisher.leaf_figures import LeafFigures, ServedLeaves
from garlicfarm.node.publisher.remote_sensing import RemoteSensing
from garlicfarm.publisher import KeyReport
from garlicfarm.publishing.application import PublisherApplication
from garlicfarm.publishing.documents import (
    FAILED,
    MAX_TRANSIENTS,
    MemberTest,
    MetaStatus,
    NodeReport,
    RouterStatus,
    StatusDocument,
)
from garlicfarm.publishing.entries import encode_status
from garlicfarm.publishing.lease import Lease, lease_ms
from garlicfarm.router import STATUS_TIMEOUT_S

__all__ = ["PublishingReport", "StatusReporter"]

RETRY_PAUSE_S = 0.5


class PublishingReport(ServedLeaves, Protocol):
    """What a status says of this node's publishers.

    ``publishing_to_report``: ``meta.publishing``; None: leave it out. ``last_published_ms``: the
    ``published`` date of what a router took last, ms since 1970, 0: never. ``last_published_ls``: its bytes,
    where they are known.
    """

    @property
    def publishing_to_report(self) -> bool | None: ...
    @property
    def last_published_ms(self) -> int | None: ...
    @property
    def last_published_ls(self) -> bytes | None: ...

    def keys(self) -> Sequence[KeyReport]:
        """The offline keys that this node signs with."""
        ...

    async def wait_confirmed(self) -> None:
        """Return when every publisher has confirmed that nothing of an earlier process is published."""


class StatusReporter:
    """One member's statuses.

    A status that may or may not have been committed is posted again, the same bytes, until its outcome
    is known. Its ``sequence`` makes the repetition harmless (D17: repetitions are skipped).
    """

    def __init__(
        self,
        context: ApplicationContext,
        fold: PublisherApplication,
        publishing: PublishingReport,
        lease: Lease,
    ) -> None:
        self._context = context
        self._fold = fold
        self._publishing = publishing
        self._lease = lease
        self._leaves = LeafFigures(context, publishing)
        self._remote = RemoteSensing(context, fold, self._served)
        self._sequence = 0
        self._reported = trio.Event()
        self._tried: frozenset[int] = frozenset()  # silent members that were tried since they fell silent

    async def run(self) -> NoReturn:
        """Post until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._try_silent)
            nursery.start_soon(self._remote.run)
            await self._report_all()
        raise AssertionError("unreachable: it posts until cancelled")

    async def _try_silent(self) -> NoReturn:
        """After each status, test which of the silent members this node reaches; if it reaches one, test all
        others too. A connection may be up only because nothing was sent on it, and a member that reaches
        more than the leader is made leader (`garlicfarm.node.publisher.handover`)."""
        peers, fold = self._context.peers, self._fold
        while True:
            await self._reported.wait()
            self._reported = trio.Event()
            others = frozenset(fold.members) - {self._context.node_id}
            silent = frozenset(member for member in others if not fold.is_recent(member))
            # An idle connection outlives a failed test; only another test shows whether the path is broken.
            doubted = frozenset(
                member
                for member in others
                if peers.is_connected(member) and (test := peers.handshake(member)) and not test[1]
            )
            await peers.try_handshakes(silent | doubted)
            if any((test := peers.handshake(member)) and test[1] for member in silent):
                await peers.try_handshakes(others - silent)
            self._tried = silent

    async def _report_all(self) -> NoReturn:
        while self._context.applied_index == 0:  # the farm is unknown before it has a leader
            await self._context.wait_applied(0)
        # Its first status lets others publish. So it waits while a router may still publish for an earlier
        # process, for a silent router as long as the farm waits for a dead node.
        with trio.move_on_after(lease_ms(self._fold.interval_ms, self._fold.R) / 1000):
            await self._publishing.wait_confirmed()
        due = trio.current_time()
        while True:
            begun_ms = boot_clock.boot_ms()
            named_ms = self._fold.interval_ms
            self._lease.begin(begun_ms, named_ms, self._fold.R)
            try:
                entry = encode_status(await self._status())
                await self._post(entry)
                # The fold skips a status whose sequence is not above the last, as after the clock was set
                # back. It does not count, so no lease rests on it.
                if self._fold.last_sequence(self._context.node_id) == self._sequence:
                    self._lease.committed(begun_ms)
            except EntryRefused as error:
                self._context.log.error("status-refused", cause=str(error))
            self._reported.set()
            due = await self._next_turn(due, named_ms)

    async def _next_turn(self, last_due: float, named_ms: int) -> float:
        """Wait an interval, never less. A shorter interval takes effect at once, a longer one with the next
        status: the lease rests on ``named_ms``, named by the last status, and would end long before. Returns
        the time at which the status was due."""
        begun = trio.current_time()
        while True:
            interval_ms = self._fold.interval_ms
            due = max(last_due + min(interval_ms, named_ms) / 1000, begun)
            with trio.move_on_at(due):
                while self._fold.interval_ms == interval_ms:
                    await self._context.wait_applied(self._context.applied_index)
                continue
            return due

    async def _post(self, entry: bytes) -> None:
        """Returns once the entry is committed and applied here."""
        while True:
            try:
                index, _ = await self._context.post(entry)
            except EntryRefused:
                raise
            except GarlicFarmError as error:
                self._context.log.warning("status-not-posted", cause=str(error))
                await trio.sleep(RETRY_PAUSE_S)
            else:
                break
        while self._context.applied_index < index:
            await self._context.wait_applied(self._context.applied_index)

    async def _status(self) -> StatusDocument:
        context, fold = self._context, self._fold
        now_ms = time.time_ns() // 1_000_000
        self._sequence = max(fold.last_sequence(context.node_id) + 1, now_ms)
        status = context.raft_status()
        others = [member for member in fold.members if member != context.node_id]
        tests = tuple(test for member in others if (test := self._test(member)) is not None)
        keys = self._publishing.keys()
        node = NodeReport(
            version=__version__,
            term=status.term,
            role=status.role.value,
            commit=status.commit,
            applied=context.applied_index,
            interval_ms=fold.interval_ms,
            R=fold.R,
            admin_url=context.admin_url,
            tests=tests or None,
            transients=tuple(key.transient for key in keys)[:MAX_TRANSIENTS] or None,
            key_expires=min((key.expires_ms for key in keys), default=None),
        )
        deadline = trio.current_time() + STATUS_TIMEOUT_S
        router = await self._router_status(deadline)
        return StatusDocument(
            cluster=context.farm,
            date=now_ms,
            id=context.node_id,
            sequence=self._sequence,
            config={"node": node},
            meta=self._meta(),
            router=router,
            destinations=tuple(await self._leaves.collect(deadline)),
            remote_destinations=self._remote.destinations or None,
            remote_meta=self._remote.meta,
        )

    def _test(self, member: int) -> MemberTest | None:
        """This node's last handshake with the other member; for a silent member, only one made since it fell
        silent."""
        handshake = self._context.peers.handshake(member)
        if handshake is None or (member not in self._tried and not self._fold.is_recent(member)):
            return None
        took_s, is_reached = handshake
        return MemberTest(member, round(took_s * 1000) if is_reached else FAILED)

    def _meta(self) -> MetaStatus:
        meta, publishing = self._context.section.meta, self._publishing
        lease_set = publishing.last_published_ls
        return MetaStatus(
            destination=meta.destination or None,
            publish_config=meta.publish,
            last_published_ls=encode(lease_set) if lease_set else None,
            last_published_time=publishing.last_published_ms,
            publishing=publishing.publishing_to_report,
        )

    async def _router_status(self, deadline: float) -> RouterStatus | None:
        router = self._context.router
        if router is None:
            return None
        try:
            with trio.fail_at(deadline):
                status = await router.get_local_router_status()
        except (RouterError, trio.TooSlowError) as error:
            self._count("error")
            self._context.log.warning("router-silent", cause=str(error) or "no answer in time")
            return None
        self._count("ok")
        return status

    def _served(self) -> frozenset[bytes]:
        """The hashes of the destinations that this node's router serves itself."""
        section, publishing = self._context.section, self._publishing
        own = [leaf.destination for leaf in section.leaf]
        if publishing.publishing_to_report:
            own += [leaf.destination for leaf in publishing.leaves()]
            own += [section.meta.destination] if section.meta.destination else []
        return frozenset(map(destination_hash, own))

    def _count(self, outcome: str) -> None:
        self._context.metrics.count_router_request(
            str(self._context.section.router.get("plugin", "")), outcome
        )
