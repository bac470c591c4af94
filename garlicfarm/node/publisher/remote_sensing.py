"""Remote sensing (D20): this node measures, through its own router, what the other members publish.

The leaves of the other members and the master destination are measured in turn, at most one look-up and one
connection test in the longer of an interval and a minute. A destination that this node's router serves is
left out: that router would answer without asking any other. Once another publisher is due, its leaves are
measured anew, before all others: what was seen of them until then was its predecessor's.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import trio

from garlicfarm.application import ApplicationContext
from garlicfarm.errors import NotSupported, RouterError
from garlicfarm.i2p.destination import destination_hash
from garlicfarm.levels import OUTSIDE
from garlicfarm.node.publisher import clocks
from garlicfarm.publishing.documents import RemoteStatus
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.router import MEASUREMENT_TIMEOUT_S, Router

MIN_PERIOD_S = 60.0
MAX_REPORTED = 64  # measurements in a status


class RemoteSensing:
    """``served``: the 32-byte hashes of the destinations that this node's router serves now."""

    def __init__(
        self,
        context: ApplicationContext,
        fold: PublisherFold,
        served: Callable[[], frozenset[bytes]],
    ) -> None:
        self._context = context
        self._fold = fold
        self._served = served
        master = context.section.meta.destination
        self._master = destination_hash(master) if master else None
        self._asked: dict[bytes, int] = {}  # hash → number of the query that last asked for it
        self._found: dict[bytes, RemoteStatus] = {}
        self._queries = 0
        self._due_since = fold.due_since  # the publisher's turn in which all was measured

    @property
    def destinations(self) -> tuple[RemoteStatus, ...]:
        """The last measurement of each of the other members' leaves: at most 64, the newest ones."""
        self._forget_last_turn()
        newest = sorted(self._found.keys() - {self._master}, key=lambda hash_: -self._asked[hash_])
        return tuple(self._found[hash_] for hash_ in sorted(newest[:MAX_REPORTED]))

    @property
    def meta(self) -> RemoteStatus | None:
        """The last measurement of the master destination: how long it took to fetch what is published under
        it. Nothing connects to it, so it has no connection test."""
        found = None if self._master is None else self._found.get(self._master)
        return None if found is None else msgspec.structs.replace(found, connect_test=None)

    def record(self, target: bytes, found: RemoteStatus | None) -> None:
        """What a test of the publisher's leaf has found (D25). It comes last in the next round."""
        self._forget_last_turn()
        self._queries += 1
        self._asked[target] = self._queries
        self._keep(target, found)

    async def run(self) -> None:
        """Measure until cancelled; return if the router can measure nothing."""
        router = self._context.router
        if router is None:
            return
        while True:
            begun = trio.current_time()
            self._forget_last_turn()
            targets = self._targets()
            for known in (self._asked, self._found):
                for gone in known.keys() - targets:
                    del known[gone]
            if targets:
                self._queries += 1
                target = min(targets, key=lambda hash_: (self._asked.get(hash_, 0), hash_))
                self._asked[target] = self._queries
                try:
                    await self._measure(router, target)
                except NotSupported:
                    return
            await trio.sleep_until(begun + max(self._fold.interval_ms / 1000, MIN_PERIOD_S))

    async def _measure(self, router: Router, target: bytes) -> None:
        """Ask the router once. A query that fails leaves no measurement: what was seen before may no longer
        be so."""
        found, due_since = None, self._fold.due_since
        try:
            with trio.fail_after(MEASUREMENT_TIMEOUT_S):
                found = await router.get_remote_measured_status(target)
        except NotSupported:
            self._count("not-supported")
            raise
        except (RouterError, trio.TooSlowError) as error:
            self._count("error")
            self._context.log.warning("not-measured", cause=str(error) or "no answer in time")
        else:
            self._count("ok")
        self._keep(target, found if self._fold.due_since == due_since else None)

    def _keep(self, target: bytes, found: RemoteStatus | None) -> None:
        if found is None:
            self._found.pop(target, None)
        else:
            date_ms = clocks.now().wall_ms if self._fold.level >= OUTSIDE else None
            self._found[target] = msgspec.structs.replace(found, date=date_ms)

    def _forget_last_turn(self) -> None:
        fold = self._fold
        if fold.due_since == self._due_since:
            return
        self._due_since = fold.due_since
        newest = None if fold.publisher is None else fold.newest(fold.publisher)
        for leaf in () if newest is None else newest[1].destinations or ():
            hash_ = destination_hash(leaf.destination)
            self._asked.pop(hash_, None)
            self._found.pop(hash_, None)

    def _targets(self) -> frozenset[bytes]:
        """The hashes to measure: of the leaves of the other recent members, unless an access list keeps
        strangers away, and of the master destination."""
        fold = self._fold
        others = [id_ for id_ in fold.members if id_ != self._context.node_id and fold.is_recent(id_)]
        newest = [status[1] for member in others if (status := fold.newest(member)) is not None]
        leaves = {
            destination_hash(leaf.destination)
            for status in newest
            for leaf in status.destinations or ()
            if not fold.clients.allowed
        }
        return frozenset(leaves | ({self._master} if self._master else set())) - self._served()

    def _count(self, outcome: str) -> None:
        plugin = str(self._context.section.router.get("plugin", ""))
        self._context.metrics.count_router_request(plugin, outcome)
