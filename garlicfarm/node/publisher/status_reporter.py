"""Measures for this member's statuses and posts them, when the member's core says so, and adds what the core
does not know: figures of the router, the leaves and the other members.

Source: `garlicfarm.publishing.status_turns`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import msgspec
import trio

from garlicfarm._version import __version__, revision
from garlicfarm.application import ApplicationContext
from garlicfarm.digests import Digests
from garlicfarm.errors import EntryRefused, GarlicFarmError, NoQuorum, RouterError
from garlicfarm.i2p.destination import destination_hash
from garlicfarm.i2p.encoding import encode
from garlicfarm.levels import OUTSIDE, THIS
from garlicfarm.node.publisher import clocks
from garlicfarm.node.publisher.leaf_figures import LeafFigures
from garlicfarm.node.publisher.outside_tests import OutsideTests
from garlicfarm.node.publisher.remote_sensing import RemoteSensing
from garlicfarm.publishing.documents import (
    FAILED,
    DestinationStatus,
    DigestReport,
    MemberTest,
    NodeReport,
    RouterStatus,
    Tunnels,
)
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.member_core import Figures, MemberCore
from garlicfarm.publishing.orders import ClockReading
from garlicfarm.router import STATUS_TIMEOUT_S


class StatusReporter:
    """One member's statuses. It is the core's `garlicfarm.publishing.member_core.Surroundings`; ``serve``
    comes before all else."""

    _core: MemberCore
    _on_stepped: Callable[[], None]
    _leaves: LeafFigures

    def __init__(self, context: ApplicationContext, fold: PublisherFold) -> None:
        self._context = context
        self._fold = fold
        self._remote = RemoteSensing(context, fold, self._served)
        self._tests = OutsideTests(context, fold, self._may_serve, self._count, self._remote.record)
        self._router: RouterStatus | None = None
        self._number = 0  # of what is measured or posted
        self._turns = 0
        self._measuring = trio.CancelScope()
        self._ordered = trio.Event()
        self._reported = trio.Event()
        self._tried: frozenset[int] = frozenset()  # silent members that were tried since they fell silent

    def serve(self, core: MemberCore, on_stepped: Callable[[], None]) -> None:
        """Carry out what ``core`` decides; ``on_stepped`` is called after each answer."""
        self._core, self._on_stepped = core, on_stepped
        self._tests.serve(core, on_stepped)
        self._leaves = LeafFigures(self._context, core)

    def obey(self) -> None:
        """Stop what the core no longer wants, and have what it wants now begun."""
        self._tests.obey()
        turns = self._core.turns
        if turns.number != self._number:
            self._measuring.cancel()
            self._ordered.set()
        if turns.turns != self._turns:
            self._turns = turns.turns
            self._reported.set()

    async def run(self) -> NoReturn:
        """Post until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._try_silent)
            nursery.start_soon(self._remote.run)
            nursery.start_soon(self._tests.run)
            nursery.start_soon(self._tests.answer)
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
        core, turns = self._core, self._core.turns
        while True:
            while turns.number == self._number or turns.state not in ("measuring", "posting"):
                self._ordered = trio.Event()
                await self._ordered.wait()
            self._number = turns.number
            if turns.state == "measuring":
                with trio.CancelScope() as self._measuring:
                    await self._measure()
                core.on_measured(self._number, clocks.now())
            else:
                await self._post(turns.entry)
            self._on_stepped()

    async def _measure(self) -> None:
        """Ask the router for its figures."""
        deadline = trio.current_time() + STATUS_TIMEOUT_S
        self._router = await self._router_status(deadline)
        await self._leaves.collect(deadline)

    async def _post(self, entry: bytes) -> None:
        core, number = self._core, self._number
        try:
            index, _ = await self._context.post(entry)
        except EntryRefused as error:
            core.on_status_refused(number, clocks.now(), str(error))
        except GarlicFarmError as error:
            core.on_status_failed(
                number, clocks.now(), str(error), has_quorum=not isinstance(error, NoQuorum)
            )
        else:
            core.on_committed(number, index, clocks.now())

    def figures(self) -> Figures:
        """See `Surroundings`."""
        context, fold, router = self._context, self._fold, self._context.router
        status = context.raft_status()
        others = [member for member in fold.members if member != context.node_id]
        tests = tuple(test for member in others if (test := self._test(member)) is not None)
        node = NodeReport(
            version=__version__,
            term=status.term,
            role=status.role.value,
            commit=status.commit,
            admin_url=context.admin_url,
            tests=tests or None,
        )
        return Figures(
            node=node,
            program=_program(),
            router=self._router,
            destinations=tuple(map(self._as_valid, self._leaves.newest())),
            remote_destinations=self._remote.destinations or None,
            remote_meta=self._remote.meta,
            control=None if router is None or router.control is None else encode(router.control),
            digests=None if context.digests is None else _digest_report(context.digests),
        )

    def can_test(self, hash_: bytes) -> bool:
        """See `Surroundings`."""
        return self._tests.can_test(hash_)

    def _as_valid(self, leaf: DestinationStatus) -> DestinationStatus:
        """Without what only level 3 knows, below it."""
        if self._fold.level >= OUTSIDE:
            return leaf
        tunnels = {
            "configured_tunnels": _both_ways(leaf.configured_tunnels),
            "current_tunnels": _both_ways(leaf.current_tunnels),
        }
        return msgspec.structs.replace(leaf, lease_ends=None, streams=None, **tunnels)

    def clocks(self) -> dict[int, ClockReading]:
        """See `Surroundings`."""
        found = {}
        for member in self._fold.members:
            if (told := self._context.peers.told(member)) is not None:
                date_ms, asked_ms, answered_ms = told
                found[member] = ClockReading(date_ms=date_ms, asked_ms=asked_ms, answered_ms=answered_ms)
        return found

    def _test(self, member: int) -> MemberTest | None:
        """This node's last handshake with the other member; for a silent member, only one made since it fell
        silent."""
        handshake = self._context.peers.handshake(member)
        if handshake is None or (member not in self._tried and not self._fold.is_recent(member)):
            return None
        took_s, is_reached = handshake
        return MemberTest(member, round(took_s * 1000) if is_reached else FAILED)

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
        section = self._context.section
        own = [leaf.destination for leaf in section.leaf]
        if self._core.publishing:
            return self._may_serve()
        return frozenset(map(destination_hash, own))

    def _may_serve(self) -> frozenset[bytes]:
        """The same, and what it serves while this member is on standby or retires."""
        section = self._context.section
        own = [leaf.destination for leaf in section.leaf]
        own += [leaf.destination for leaf in self._core.leaves()]
        own += [section.meta.destination] if section.meta.destination else []
        return frozenset(map(destination_hash, own))

    def _count(self, outcome: str) -> None:
        self._context.metrics.count_router_request(
            str(self._context.section.router.get("plugin", "")), outcome
        )


def _both_ways(tunnels: Tunnels | None) -> Tunnels | None:
    return None if tunnels is None or None in (tunnels.in_, tunnels.out) else tunnels


def _digest_report(held: Digests) -> DigestReport:
    return DigestReport(index=held.index, state=held.state, chain=held.chain, origin=held.origin or None)


def _program() -> dict[str, object]:
    """The key ``config.program``, which the common algorithm does not look at."""
    levels = [THIS.lowest, THIS.highest]
    return {"version": THIS.version, "revision": revision(), "levels": levels}
