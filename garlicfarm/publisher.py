"""The publisher interface: how the member that a farm has named publishes (docs/reference/protocol.md,
section 7, D19: routers measure, publishers publish).

A publisher plugin is a class found through the entry point group ``garlicfarm.publishers``. Its name is the
value of ``plugin =`` in ``[[farm.publisher]]``; its ``Config`` checks the keys of that table that are not the
node's own (`garlicfarm.config.PublisherSection`). Check your plugin with
`garlicfarm.testing.PublisherSuite`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import msgspec

from garlicfarm.i2p.router_kind import RouterKind
from garlicfarm.publishing.orders import (
    ClientRules,
    ClockReading,
    KeyReport,
    Published,
    PublisherStatus,
    PublishOrder,
)

__all__ = [
    "ClientRules",
    "ClockReading",
    "KeyReport",
    "MasterSession",
    "PublishOrder",
    "Published",
    "Publisher",
    "PublisherSite",
    "PublisherStatus",
]


class MasterSession(Protocol):
    """What a publisher gets of the keys of the master destination: never a key itself."""

    @property
    def destination(self) -> bytes:
        """The binary master destination."""

    def session_configuration(
        self, options: Mapping[str, str], now_ms: int, *, kind: RouterKind = "i2pd"
    ) -> bytes:
        """A signed I2CP SessionConfig for the master destination. ``options``: those that the caller wants;
        where the keys are a bundle, its own take their place, since they were signed with it. ``now_ms``:
        wall clock, ms since 1970. ``kind``: of the router."""
        ...


class PublisherSite(msgspec.Struct, frozen=True, kw_only=True):
    """Where a publisher works. ``directory``: a directory of its own for what must survive a restart; it may
    not exist yet. ``master``: None where this node has no keys of the farm's master destination."""

    farm: str
    node_id: int
    directory: Path
    master: MasterSession | None = None


class Publisher(ABC):
    """One way to publish. An async context manager, entered and left by one task of the node; what it opens
    must end when it is left. It may be entered again later.

    The constructor reads its files and checks everything that it can: `ConfigError`. It does nothing else.
    `standby`, `publish` and `retire` are never called two at once; `status` and `wait_changed` may be called
    during them, and `status` answers at once. The caller sets deadlines by cancelling. They raise
    `PublisherError`, with a sentence for the operator, where the router or what else they need fails them.
    Any other error is a defect of the plugin: the node leaves the publisher, logs the error, and enters it
    again later. So is an answer of another type or outside its range, and a `status` that takes 10 s.
    """

    api_version: ClassVar[int] = 1
    is_auxiliary: ClassVar[bool] = False
    """Whether it only accompanies others: beside one that is not auxiliary it is not required by default."""
    Config: ClassVar[type[msgspec.Struct]]

    def __init__(self, config: Any, base_dir: Path, site: PublisherSite) -> None:
        """``config`` is an instance of ``Config``; relative paths in it are relative to ``base_dir``."""
        self.config = config
        self.base_dir = base_dir
        self.site = site

    @property
    def destination(self) -> bytes | None:
        """The binary destination whose LeaseSet it publishes; None if it publishes none. One that is not the
        master destination is a leaf of this member."""
        return None

    @property
    def targets(self) -> tuple[str, ...]:
        """Where the service listens that it publishes, HOST:PORT each. The node tests them, unless ``check``
        names something else, and publishes while one of them accepts connections."""
        return ()

    @property
    def key(self) -> KeyReport | None:
        """Its offline keys; None: it has none of its own, or they are long-term keys."""
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    @abstractmethod
    async def standby(self) -> None:
        """Get ready to publish, and publish nothing: when it returns, nothing of an earlier process is
        published either. A member whose required publishers are not on standby cannot publish. May be called
        again at any time; cancelled, it may be called again. What `retire` left open to serve its clients
        stays open. Called after each `retire`, and when `status` says that it is not ready."""

    @abstractmethod
    async def publish(self, order: PublishOrder) -> Published:
        """Publish, or publish anew. Returns when a router has taken it. Calls with equal ``due_index`` and
        ``published_ms`` are one order. Cancelled, it may or may not be published: `retire` follows."""

    @abstractmethod
    async def retire(self, successor: bytes | None) -> None:
        """Stop publishing; returns when nothing is published any more. May be called when nothing is
        published.

        The node calls it twice where it can: first with None, at once; then once with the LeaseSet that the
        next member has published. Only a publisher with a `destination` gets that, after the node has
        verified it: it is of this destination, it has not expired, and it is newer than what this publisher
        published. It may come when the publisher is on standby again, which does not end then, or cancel
        `standby`.

        ``successor``: the LeaseSet, None where it is not known yet."""

    @abstractmethod
    async def status(self) -> PublisherStatus:
        """What is published now."""

    def restrict_clients(self, rules: ClientRules) -> bool:
        """From now on serve only the clients that ``rules`` admits, and end what is open of others. Returns
        whether that is done; False, as here, where this publisher does not see the clients. Called at once
        when the rules change, whatever else is under way, and before the first ``async with``; it must not
        wait. They hold until they change, also where it is left and entered again."""
        return False

    def has_met(self, client: bytes) -> bool | None:
        """Whether a stream of the client with this hash of its destination (32 bytes) has come to what it
        publishes, within the last minute at least; None: it cannot tell. The node asks of clients of its own,
        once they were served. Answers at once."""
        return None

    async def wait_changed(self) -> None:
        """Return when `status` has another answer than before this call. The node asks at once then, and
        every second anyway, so a publisher that cannot tell waits forever, as this one does."""
        import trio  # listing plugins must not cost the import of Trio

        await trio.sleep_forever()
