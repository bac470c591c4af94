"""Carries out the tests that a member's core orders of what the publisher serves (D25), and answers those of
others at a destination of this node's router.

Source: `garlicfarm.publishing.sensing`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import trio

from garlicfarm.application import ApplicationContext
from garlicfarm.errors import NotSupported, RouterError
from garlicfarm.levels import OUTSIDE
from garlicfarm.node.publisher import clocks
from garlicfarm.publishing.documents import RemoteStatus
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.member_core import MemberCore
from garlicfarm.publishing.sensing import Probe
from garlicfarm.router import MEASUREMENT_TIMEOUT_S

AGAIN_S = 60.0
"""Before a destination that has ended is made anew."""


class OutsideTests:
    """``serve`` comes before all else. ``served``: the hashes of the destinations that this node serves.
    ``count``: counts a request to the router by its outcome; ``record``: takes each measurement."""

    _core: MemberCore
    _on_stepped: Callable[[], None]

    def __init__(
        self,
        context: ApplicationContext,
        fold: PublisherFold,
        served: Callable[[], frozenset[bytes]],
        count: Callable[[str], None],
        record: Callable[[bytes, RemoteStatus | None], None],
    ) -> None:
        self._context = context
        self._fold = fold
        self._served = served
        self._count = count
        self._record = record
        self._can_measure = context.router is not None
        self._ordered = trio.Event()
        self._under_way: dict[int, trio.CancelScope] = {}

    def serve(self, core: MemberCore, on_stepped: Callable[[], None]) -> None:
        """Carry out what ``core`` decides; ``on_stepped`` is called after each answer."""
        self._core, self._on_stepped = core, on_stepped

    def can_test(self, hash_: bytes) -> bool:
        """See `garlicfarm.publishing.member_core.Surroundings`."""
        router = self._context.router
        return (
            router is not None
            and self._can_measure
            and (router.measures_served or hash_ not in self._served())
        )

    def obey(self) -> None:
        """Stop what the core no longer wants, and have what it wants now begun."""
        probes = self._core.sensing.probes
        for number, scope in self._under_way.items():
            if number not in probes:
                scope.cancel()
        if probes.keys() - self._under_way.keys():
            self._ordered.set()

    async def run(self) -> NoReturn:
        """Carry out tests until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._ordered = trio.Event()
                for number, probe in self._core.sensing.probes.items():
                    if number not in self._under_way:
                        self._under_way[number] = trio.CancelScope()
                        nursery.start_soon(self._carry_out, probe)
                await self._ordered.wait()
        raise AssertionError("unreachable: tests have no end")

    async def _carry_out(self, probe: Probe) -> None:
        answered = None
        with self._under_way[probe.number]:
            answered = await self._test(probe)
        self._core.on_tested(probe.number, answered, clocks.now())
        del self._under_way[probe.number]
        self._on_stepped()

    async def _test(self, probe: Probe) -> bool | None:
        router = self._context.router
        assert router is not None, "it can test nothing"
        found = None
        try:
            with trio.fail_after(MEASUREMENT_TIMEOUT_S):
                found = await router.get_remote_measured_status(probe.hash)
        except NotSupported:
            self._can_measure = False
            self._count("not-supported")
            return None
        except (RouterError, trio.TooSlowError) as error:
            self._count("error")
            self._context.log.warning("not-measured", cause=str(error) or "no answer in time")
            return None
        self._count("ok")
        if not probe.is_control:
            self._record(probe.hash, found)
        return None if found is None or found.connect_test is None else found.connect_test.ok

    async def answer(self) -> None:
        """Answer the tests of others while the farm is at a level that has them; return if the router
        cannot."""
        context, router = self._context, self._context.router
        while self._fold.level < OUTSIDE:
            await context.wait_applied(context.applied_index)
        while router is not None:
            try:
                await router.answer_tests()
            except NotSupported:
                return
            except RouterError as error:
                context.log.warning("tests-not-answered", cause=str(error))
            await trio.sleep(AGAIN_S)
