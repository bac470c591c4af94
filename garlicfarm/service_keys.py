"""What publishers of a service share: the keys of its destination, and where it listens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import trio

from garlicfarm.credentials.watched_keys import WATCH_S, WatchedKeys
from garlicfarm.errors import ConfigError, PublisherError
from garlicfarm.publisher import KeyReport, PublisherSite
from garlicfarm.transport import Endpoint

CONNECT_TIMEOUT_S = 5.0


class ServiceKeys(WatchedKeys):
    """The long-term key of a service, or this node's bundle, from the file ``path``.

    Raises `ConfigError`, when it is made, as `WatchedKeys` does, and: they are those of the master
    destination.
    """

    def __init__(self, path: Path, site: PublisherSite) -> None:
        super().__init__(path, node_id=site.node_id)
        if site.master is not None and site.master.destination == self.keys.destination:
            raise ConfigError(
                [
                    f"{path} holds the master destination; a service needs one of its own: make it with "
                    "garlicfarm keys create"
                ]
            )

    @property
    def report(self) -> KeyReport | None:
        """What `garlicfarm.publisher.Publisher.key` reports of them."""
        keys = self.keys
        if keys.transient is None or keys.expires_ms is None:
            return None
        return KeyReport(transient=keys.transient, expires_ms=keys.expires_ms)

    @property
    def problems(self) -> list[str]:
        """What to tell operators of the file, a sentence each."""
        new = f"{self._path} holds new keys: they are used once another member publishes, or this one anew"
        return [*([self.problem] if self.problem else []), *([new] if self.has_new else [])]

    async def watch(self, on_changed: Callable[[], None]) -> NoReturn:
        """Look at the file every 10 s, until cancelled. ``on_changed`` is called when it has other keys, or
        another problem."""
        while True:
            await trio.sleep(WATCH_S)
            before = self.problems
            await trio.to_thread.run_sync(self.look, abandon_on_cancel=True)
            if self.problems != before:
                on_changed()

    def check_expiry(self, now_ms: int, *, by_router: bool = False) -> None:
        """Raises `PublisherError`: they have expired at ``now_ms``, ms since 1970: the router's clock if
        ``by_router``, else this node's. Some routers do not mind, but no client uses what they publish
        then."""
        if self.keys.expires_ms is not None and self.keys.expires_ms <= now_ms:
            clock = " by the router's clock" if by_router else ""
            raise PublisherError(
                f"the keys in {self._path} have expired{clock}: make new bundles with garlicfarm keys "
                "offline, and copy this node's there; it is read without a restart"
            )


def parse_target(text: str) -> Endpoint:
    """Where a service listens, ``HOST:PORT``. Raises `ConfigError`."""
    target = Endpoint.parse(f"tcp://{text}", "tcp")
    if not target.port or target.params:
        raise ConfigError([f"target {text!r} must be HOST:PORT, where the service listens"])
    return target


async def check_targets(targets: Sequence[Endpoint]) -> None:
    """Raises `PublisherError`: nothing accepts connections at any of them within 5 s."""
    listening = trio.Event()

    async def check(target: Endpoint) -> None:
        with suppress(OSError):
            await (await trio.open_tcp_stream(target.host, target.port)).aclose()
            listening.set()
            nursery.cancel_scope.cancel()

    with trio.move_on_after(CONNECT_TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            for target in targets:
                nursery.start_soon(check, target)
    if not listening.is_set():
        where = " or ".join(target.authority for target in targets)
        raise PublisherError(f"nothing listens at the target {where}: is the service running?")
