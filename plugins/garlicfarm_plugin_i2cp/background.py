"""Tasks that run for as long as a publisher is entered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import trio


class Background:
    """`begin` and `end` may be called in turn, again and again, by one task."""

    def __init__(self) -> None:
        self._manager: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._scope = trio.CancelScope()

    async def begin(self, *tasks: Callable[[], Awaitable[object]]) -> None:
        """Start tasks that do not end by themselves."""
        self._manager = trio.open_nursery()
        nursery = await self._manager.__aenter__()
        self._scope = nursery.cancel_scope
        for task in tasks:
            nursery.start_soon(task)

    async def end(self) -> None:
        """Cancel them; returns when they have ended. Raises what they have raised."""
        manager, self._manager = self._manager, None
        assert manager is not None, "left without being entered"
        self._scope.cancel()
        # An error of the caller's is not put into a group: it leaves as it is, after this.
        await manager.__aexit__(None, None, None)
