"""When a display that follows a farm has to ask again: live events say that something has changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient

WATCH_INTERVAL_S = 1.0
"""The shortest time between two of the same."""
LONGEST_S = 5.0
"""After so long without a change it asks all the same: ages and round trips are no events."""
KINDS = ("leader", "publisher", "members", "health", "position")


class FarmWatch:
    """Whether there is something new to ask for: an event of one of the `KINDS` came."""

    def __init__(self) -> None:
        import trio

        self._changed = trio.Event()
        self._asked_s = trio.current_time()

    async def follow(self, client: AdminClient, farm: str) -> None:
        """Note all changes, until cancelled. Raises what `AdminClient.events` does, as soon as a connection
        is lost and cannot be made again; that is a change too."""
        try:
            async with client.events(farm, kinds=KINDS, patience_s=0) as events:
                async for _ in events:
                    self._changed.set()
        finally:
            self._changed.set()

    def take(self) -> bool:
        """Whether to ask now: something has changed since this was last so, or that was long ago."""
        import trio

        now_s = trio.current_time()
        if not self._changed.is_set() and now_s < self._asked_s + LONGEST_S:
            return False
        self._changed = trio.Event()
        self._asked_s = now_s
        return True

    async def wait(self) -> None:
        """Return when `take` is true."""
        import trio

        while not self.take():
            with trio.move_on_at(self._asked_s + LONGEST_S):
                await self._changed.wait()


async def repeat(client: AdminClient, farm: str, show: Callable[[], Awaitable[None]]) -> None:
    """Show something at each change of the farm, at most once a second, until cancelled. Raises what ``show``
    does."""
    import trio

    from garlicfarm.errors import GarlicFarmError, first_error

    watch = FarmWatch()

    async def follow() -> None:
        while True:
            try:
                await watch.follow(client, farm)
            except GarlicFarmError:  # what is shown next says so
                await trio.sleep(LONGEST_S)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            while True:
                await show()
                await trio.sleep(WATCH_INTERVAL_S)
                await watch.wait()
    except* GarlicFarmError as group:
        error = first_error(group)
    raise error
