"""The turns of a core. One turn takes all input, ticks the core, and carries out its `Ready`.

Long work is spread over turns: entries are checked (`garlicfarm.node.incoming_requests`) and applied
(`garlicfarm.node.applier`) a slice at a time, and sending to members far behind gets only a share of the
time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import trio

from garlicfarm.node.applier import Applier
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.node.incoming_requests import IncomingRequests
from garlicfarm.raft import Ready

STALL_S = 0.05
BUSY_SHARE = 6  # time for all other work, per time spent sending to members far behind


class Turns:
    """Runs the turns of one core, never two at a time.

    They belong to the farm's task `run`. But while that task only waits, whatever has brought input runs the
    turn itself, by `run_now`: to wake a task costs more than a small turn. An error in such a turn ends `run`
    like any other, and so the farm; the caller never gets it. ``carry_out(ready)`` must not wait.
    """

    def __init__(
        self,
        core: CoreInbox,
        requests: IncomingRequests,
        applier: Applier,
        carry_out: Callable[[Ready], None],
    ) -> None:
        self._core = core
        self._requests = requests
        self._applier = applier
        self._carry_out = carry_out
        self._spare_at = trio.current_time()
        self._waiting: trio.CancelScope | None = None  # the wait of `run` for the next turn
        self._error: Exception | None = None  # of a turn that `run` did not run
        self._restoring: Ready | None = None  # the core waits for its snapshot to be restored

    async def run(self) -> NoReturn:
        """Run turns until cancelled. Raises what a turn raises."""
        core = self._core
        while True:
            if self._has_work:
                await trio.lowlevel.checkpoint()
            else:
                at = self._next_at
                with trio.CancelScope(deadline=at) as scope:
                    self._waiting = scope
                    try:
                        await core.wait_awake()
                    finally:
                        self._waiting = None
                if self._was_stalled(scope):
                    # First read the messages that arrived meanwhile: the leader's may be among them.
                    await trio.sleep(0 if core.has_input else STALL_S)
            if self._error is not None:
                raise self._error
            if self._restoring is None:
                self._turn()
            if self._restoring is not None:
                ready = self._restoring
                assert ready.restore is not None
                await self._applier.restore(ready.restore)
                self._restoring = None
                self._carry_out(ready)

    def run_now(self) -> None:
        """Run a turn now if `run` waits, else have `run` do it soon. Never raises."""
        scope = self._waiting
        if scope is None or self._core.is_awake or self._was_stalled(scope):
            self._core.wake()
            return
        self._waiting = None
        try:
            self._turn()
        except Exception as error:  # noqa: BLE001 - `run` raises it
            self._error = error
        if self._error is not None or self._restoring is not None or self._has_work:
            self._core.wake()
            return
        at = self._next_at
        if at < scope.deadline:  # if it is later, `run` wakes early once and waits again
            scope.deadline = at
        self._waiting = scope

    def _was_stalled(self, wait: trio.CancelScope) -> bool:
        """Whether this process, or its loop, stood still when ``wait`` should have ended."""
        return trio.current_time() - wait.deadline > STALL_S

    @property
    def _has_work(self) -> bool:
        """Whether the next turn has something to do even if nothing else happens."""
        core = self._core
        return (
            core.has_input
            or self._requests.has_unchecked
            or self._applier.has_entries
            or core.raw.has_more_committed
        )

    @property
    def _next_at(self) -> float:
        """When the next turn has to run at the latest, on Trio's clock."""
        raw = self._core.raw
        deadline_ms = raw.deadline_ms
        at = min(float("inf") if deadline_ms is None else deadline_ms / 1000, self._requests.next_delayed_at)
        return min(at, self._spare_at) if raw.has_more_catch_up else at

    def _turn(self) -> None:
        raw, begun = self._core.raw, trio.current_time()
        self._core.take_input()
        self._requests.check_posts()
        raw.tick(round(begun * 1000))
        self._requests.send_delayed(begun)
        is_spare = begun >= self._spare_at
        ready = raw.ready(catch_up=is_spare, committed=not self._applier.has_entries)
        if ready.restore is not None:
            self._restoring = ready
            return
        self._carry_out(ready)
        if is_spare:
            now = trio.current_time()
            self._spare_at = now + BUSY_SHARE * (now - begun)
