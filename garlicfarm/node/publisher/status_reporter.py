"""Posts this node's status once every interval of the farm, and keeps the clock of its lease.

What its publishers have to say may not be able to wait that long (`PublishingReport.news`, D22). It is posted
out of turn then, with the figures of the status before, since a router that is gone answers late. Such a
status renews the lease and proves that this node lives, as any other does. It is not counted as a sign that
others are silent, because it follows a counted one too soon; in the last tenth of an interval it takes the
place of the next one, which would follow too soon.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NoReturn, Protocol

import msgspec
import trio

from garlicfarm._version import __version__, revision
from garlicfarm.application import ApplicationContext
from garlicfarm.errors import EntryRefused, GarlicFarmError, RouterError
from garlicfarm.i2p.destination import destination_hash
from garlicfarm.i2p.encoding import encode
from garlicfarm.levels import THIS
from garlicfarm.node.publisher import boot_clock
from garlicfarm.node.publisher.leaf_figures import LeafFigures, ServedLeaves
from garlicfarm.node.publisher.remote_sensing import RemoteSensing
from garlicfarm.publisher import KeyReport
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
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.lease import Lease, lease_ms
from garlicfarm.router import STATUS_TIMEOUT_S

RETRY_PAUSE_S = 0.5


class PublishingReport(ServedLeaves, Protocol):
    """What a status says of this node's publishers.

    ``publishing_to_report``: ``meta.publishing``; None: leave it out. ``last_published_ms``: the
    ``published`` date of what a router took last, ms since 1970, 0: never. ``last_published_ls``: its bytes,
    where they are known. ``lease_set``: the LeaseSet of a service that this node publishes (D22). ``news``:
    what cannot wait for the next status, each item to be posted once; an item ``("released", index)`` only
    by a status that is begun when ``index`` has been applied.
    """

    @property
    def publishing_to_report(self) -> bool | None: ...
    @property
    def last_published_ms(self) -> int | None: ...
    @property
    def last_published_ls(self) -> bytes | None: ...
    @property
    def lease_set(self) -> bytes | None: ...
    @property
    def news(self) -> frozenset[tuple[str, int]]: ...

    async def wait_news(self) -> None:
        """Return when `news` may have changed."""
        ...

    def keys(self) -> Sequence[KeyReport]:
        """The offline keys that this node signs with."""
        ...

    async def wait_confirmed(self) -> None:
        """Return when every publisher has confirmed that nothing of an earlier process is published."""


class _Begun(msgspec.Struct, frozen=True, kw_only=True):
    """What held when a status was begun. ``boot_ms``: the clock of leases."""

    boot_ms: int
    date_ms: int
    applied: int
    interval_ms: int
    R: int


class StatusReporter:
    """One member's statuses.

    A status that may or may not have been committed is posted again, the same bytes, until its outcome
    is known. Its ``sequence`` makes the repetition harmless (D17: repetitions are skipped).
    """

    def __init__(
        self,
        context: ApplicationContext,
        fold: PublisherFold,
        publishing: PublishingReport,
        lease: Lease,
    ) -> None:
        self._context = context
        self._fold = fold
        self._publishing = publishing
        self._lease = lease
        self._leaves = LeafFigures(context, publishing)
        self._remote = RemoteSensing(context, fold, self._served)
        self._router: RouterStatus | None = None
        self._posted_news: frozenset[tuple[str, int]] = frozenset()
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
        due, is_turn = trio.current_time(), True
        while True:
            begun = self._begin()
            if is_turn and not await self._measure():
                begun = self._begin()  # it was interrupted by news
            try:
                await self._post(encode_status(self._status(begun)))
                # The fold skips a status whose sequence is not above the last, as after the clock was set
                # back. It does not count, so no lease rests on it.
                if self._fold.last_sequence(self._context.node_id) == self._sequence:
                    self._lease.committed(begun.boot_ms)
            except EntryRefused as error:
                self._context.log.error("status-refused", cause=str(error))
            if is_turn:
                self._reported.set()
            due, is_turn = await self._next(due, begun.interval_ms)

    def _begin(self) -> _Begun:
        """Begin a status: what it says of time is of now. What is posted with it is no longer news."""
        fold = self._fold
        begun = _Begun(
            boot_ms=boot_clock.boot_ms(),
            date_ms=time.time_ns() // 1_000_000,
            applied=self._context.applied_index,
            interval_ms=fold.interval_ms,
            R=fold.R,
        )
        self._lease.begin(begun.boot_ms, begun.interval_ms, begun.R)
        self._posted_news = self._publishing.news
        return begun

    async def _measure(self) -> bool:
        """Ask the router for its figures; False if there are news before it has answered."""
        is_done = False
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                while not self._has_news:
                    await self._publishing.wait_news()
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            deadline = trio.current_time() + STATUS_TIMEOUT_S
            self._router = await self._router_status(deadline)
            await self._leaves.collect(deadline)
            is_done = not self._has_news
            nursery.cancel_scope.cancel()
        return is_done

    @property
    def _has_news(self) -> bool:
        return bool(self._publishing.news - self._posted_news)

    async def _next(self, last_due: float, named_ms: int) -> tuple[float, bool]:
        """Wait for the next status: an interval, never less, or until there are news. A shorter interval
        takes effect at once, a longer one with the next status: the lease rests on ``named_ms``, named by the
        last status, and would end long before. Returns when the newest status in turn was due, and whether
        the next one is in turn."""
        begun = trio.current_time()
        while True:
            interval_ms = self._fold.interval_ms
            period_s = min(interval_ms, named_ms) / 1000
            due = max(last_due + period_s, begun)
            with trio.move_on_at(due):
                while self._fold.interval_ms == interval_ms and not self._has_news:
                    await self._publishing.wait_news()
                if self._has_news:
                    is_early = trio.current_time() < due - period_s / 10
                    return last_due if is_early else due, False
                continue
            return due, True

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

    def _status(self, begun: _Begun) -> StatusDocument:
        context, fold = self._context, self._fold
        self._sequence = max(fold.last_sequence(context.node_id) + 1, begun.date_ms)
        status = context.raft_status()
        others = [member for member in fold.members if member != context.node_id]
        tests = tuple(test for member in others if (test := self._test(member)) is not None)
        keys = self._publishing.keys()
        lease_set = self._publishing.lease_set
        node = NodeReport(
            version=__version__,
            term=status.term,
            role=status.role.value,
            commit=status.commit,
            applied=begun.applied,
            interval_ms=begun.interval_ms,
            R=begun.R,
            admin_url=context.admin_url,
            tests=tests or None,
            transients=tuple(key.transient for key in keys)[:MAX_TRANSIENTS] or None,
            key_expires=min((key.expires_ms for key in keys), default=None),
            lease_set=encode(lease_set) if lease_set else None,
        )
        return StatusDocument(
            cluster=context.farm,
            date=begun.date_ms,
            id=context.node_id,
            sequence=self._sequence,
            config={"node": node, "program": _program()},
            meta=self._meta(),
            router=self._router,
            destinations=tuple(self._leaves.newest()),
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


def _program() -> dict[str, object]:
    """The key ``config.program``, which the common algorithm does not look at."""
    levels = [THIS.lowest, THIS.highest]
    return {"version": THIS.version, "revision": revision(), "levels": levels}
