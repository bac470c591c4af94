"""The router interface: what a node learns from its I2P router (docs/reference/protocol.md, section 7).

Routers measure, publishers publish (D19; `garlicfarm.publisher`). A router plugin is a class found through
the entry point group ``garlicfarm.routers``. Its name is the value of ``plugin =`` in ``[farm.router]``; its
``Config`` checks the remaining keys of that table. Check your plugin with
`garlicfarm.testing.RouterSuite`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import msgspec

from garlicfarm.errors import NotSupported
from garlicfarm.publishing.documents import (
    Bandwidth,
    ConnectTest,
    DestinationStatus,
    RemoteStatus,
    RouterStatus,
    StreamFigures,
    Tunnels,
)

__all__ = [
    "MEASUREMENT_TIMEOUT_S",
    "STATUS_TIMEOUT_S",
    "Bandwidth",
    "ConnectTest",
    "DestinationStatus",
    "OwnLookUp",
    "RemoteStatus",
    "Router",
    "RouterStatus",
    "StreamFigures",
    "Tunnels",
]

STATUS_TIMEOUT_S = 5.0
"""How long a node waits for all figures of one status."""

MEASUREMENT_TIMEOUT_S = 50.0
"""How long a node waits for one measurement of a remote destination: less than the minute between two."""


class OwnLookUp(msgspec.Struct, frozen=True, kw_only=True):
    """What a stranger has found of a destination. ``client``: the 32-byte hash of the destination that it
    asked from, made for this. ``status``: what it measured."""

    client: bytes
    status: RemoteStatus


class Router(ABC):
    """One I2P router. An async context manager: entered by the node, left when it ends. What it opens must
    end when it is left; where that fails, it is entered again later.

    Every method may raise `RouterError` (the router cannot be queried, or its answer is unusable) and
    `NotSupported` (it never can). Any other error is a defect of the plugin, and so is an answer of another
    type, outside its range, or about another destination: the node logs it, and the router counts as one that
    does not answer. The caller sets deadlines. A cancelled query has no effect.
    """

    api_version: ClassVar[int] = 2
    control: bytes | None = None
    """The 32-byte hash of the destination at which `answer_tests` answers now; None: at none."""
    Config: ClassVar[type[msgspec.Struct]]
    origins: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Optional, for `garlicfarm router show`: the source of each figure, in the router's own terms, as
    ``{"router.uptime": …, "destinations.currentTunnels.in": …}``."""

    def __init__(self, config: Any, base_dir: Path) -> None:
        """``config`` is an instance of ``Config``; relative paths in it are relative to ``base_dir``."""
        self.config = config
        self.base_dir = base_dir

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    @property
    def measures_served(self) -> bool:
        """Whether `get_remote_measured_status` asks the network also for a destination that this router
        serves itself. Where that is not certain, False: such a measurement would prove nothing (D25)."""
        return False

    async def answer_tests(self) -> None:
        """Answer `get_remote_measured_status` of other members at a destination of this router that is made
        for it, until cancelled: so they can tell a service that has failed from a router that has (D25).
        Meanwhile ``control`` is its hash. Raises `RouterError` once it cannot go on, and `NotSupported` where
        it never can, as by default."""
        raise NotSupported("this router plugin answers no tests")

    async def look_up_own(self, leaf: bytes) -> OwnLookUp:
        """Measure a destination that this router serves itself, as `get_remote_measured_status` measures a
        remote one, from a destination made for it: it asks the network, so it finds what clients elsewhere
        find. Raises `NotSupported` where the router would answer by itself, as by default."""
        raise NotSupported("this router plugin does not look up what its router serves")

    @abstractmethod
    async def get_local_router_status(self) -> RouterStatus:
        """The router's own figures. A figure that it does not report is ``None``, never invented: it is
        then left out, or counts as the middle of its range (D13)."""

    @abstractmethod
    async def get_local_leaf_status(self, leaf: bytes) -> DestinationStatus:
        """Statistics of a leaf; ``leaf`` is the binary destination (387 bytes and more)."""

    @abstractmethod
    async def get_remote_measured_status(self, master_or_leaf: bytes) -> RemoteStatus | None:
        """Measure a remote destination now: its 32-byte hash, of which its b32 address consists. ``None``:
        there is nothing to report. A few look-ups of its LeaseSet at most, and one connection; the caller
        asks seldom, five times at once at most, and allows 50 s.

        ``fetch_time_ms`` is how long the look-up took, ``connect_test`` how long it took until the service
        behind it answered, and whether it did. A destination that cannot be reached is a measurement:
        `RouterError` is for a router that could not measure."""


def figures(status: RouterStatus | DestinationStatus) -> dict[str, Any]:
    """Every figure of ``status`` by its key in the document, such as ``configuredBandwidth.in``; ``None``
    (once for both directions) if it is not reported."""
    reported = msgspec.to_builtins(status)
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(status):
        key, value = field.encode_name, reported.get(field.encode_name)
        found |= {f"{key}.{way}": value[way] for way in value} if isinstance(value, dict) else {key: value}
    return found
