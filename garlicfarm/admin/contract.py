"""The node and its farms as the admin listener sees them; the node implements these Protocols.

This room does not import the node, and needs nothing else of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from garlicfarm.application import AdminEndpoint
from garlicfarm.errors import EntryRefused
from garlicfarm.feed.source import EntrySource

if TYPE_CHECKING:
    from garlicfarm.credentials.users import UserStore
    from garlicfarm.metrics import NodeMetrics


class RankingsView(Protocol):
    """Rankings of a farm that queries store at this node: the newest of each. A call that is cancelled may or
    may not take effect. What waits raises `RankingNotStored`: this node's disk refuses."""

    async def put(self, query: str, batch: int, body: bytes, *, asof: int, run: str, user: str) -> bool:
        """Store the ranking of a batch durably, as of the index ``asof``; whether it is new: False if these
        bytes are stored for that batch already.

        `LocalProtocolError`: ``body`` is no ranking as of that index. `RankingConflict`: it contradicts the
        run's last one, or there are too many queries. Nothing was changed.
        """
        ...

    @property
    def unusable(self) -> int:
        """How many stored rankings are damaged or cannot be read; the node's log names the first."""
        ...

    def queries(self) -> list[dict[str, Any]]:
        """A row for each query: its newest ranking, and the newest that was compared with the node's own."""
        ...

    async def body(self, query: str) -> bytes | None:
        """The stored ranking of a query, as it was sent; None: there is none."""
        ...

    async def delete(self, query: str) -> bool:
        """Delete the ranking of a query; whether there was one."""
        ...


class FarmView(EntrySource, Protocol):
    """One farm of this node. The caller sets the deadlines of all waits."""

    @property
    def application(self) -> str: ...
    @property
    def farm_id(self) -> bytes: ...
    @property
    def node_id(self) -> int: ...
    @property
    def rankings(self) -> RankingsView: ...
    @property
    def endpoints(self) -> Sequence[AdminEndpoint]:
        """The application's endpoints."""

    @property
    def disk_hangs_s(self) -> float | None:
        """How long this node's disk has not answered, if that is too long; else None."""

    def status(self) -> dict[str, Any]:
        """The body of ``GET …/status``, ``"schema": "garlicfarm.status/1"`` included."""

    async def wait_commit(self, beyond: int) -> int:
        """Return `commit_index` once it is > ``beyond``."""

    async def wait_change(self) -> None:
        """Return when something is committed and applied here, or the leader or the state of the disk
        changes."""

    async def post(self, entry: bytes, user: str) -> tuple[int, int]:
        """Append an entry on behalf of ``user``; (index, term) once it is committed, and applied here too
        unless this node is cut off from the leader meanwhile.

        `EntryRefused`, `NotLeader`, `NoQuorum`, `ProposalDropped`, `DiskHangs`: certainly not appended.
        `OutcomeUnknown`, or cancelled: it may or may not be.
        """

    async def post_batch(
        self, entries: Sequence[bytes], user: str
    ) -> Sequence[tuple[int, int] | EntryRefused]:
        """Append entries on behalf of ``user``, one after another; what became of each, once all are
        committed. Those that are refused are left out, and the others appended all or none.

        Raises what `post` raises: then that became of all of them.
        """

    async def administer(self, action: str, args: dict[str, Any], user: str) -> tuple[int, int]:
        """Append an administrative entry (D16: it orders, and names its user) for the admin ``user``; like
        `post`."""

    async def read_index(self) -> int:
        """Return an index that is applied here, once a majority has confirmed the leader that named it: a
        read now sees everything acknowledged before.

        `NotLeader` (the leader gave this node none), `NoQuorum` (no majority in time), `DiskHangs`,
        `ProposalDropped` (too many wait). It always ends.
        """

    def state(self) -> tuple[int, bytes]:
        """The application's snapshot, and the index up to which entries are in it."""

    async def oldest_state(self) -> tuple[int, bytes]:
        """The same of the oldest state that the kept entries continue; 0 and no bytes: they begin at index 1.

        Raises `StorageError`.
        """

    async def saved_snapshot(self) -> Sequence[bytes]:
        """The parts of a saved snapshot of the farm (`garlicfarm.storage.snapshots`), as it is now.

        Raises `StorageError`: the state is too large.
        """

    def ranking(self, *, statuses: bool = False) -> dict[str, Any]:
        """The body of ``GET …/ranking``; ``statuses``: each row with the member's newest status, as it was
        posted, and its age."""

    def policy(self) -> dict[str, Any]:
        """The body of ``GET …/policy``."""

    def leader(self) -> tuple[int, str] | None:
        """Id and endpoint of the leader, if one is known."""

    def leader_url(self) -> str | None:
        """The leader's admin URL, if its status names one (D15: a node reports on itself)."""

    def members(self) -> dict[str, Any]:
        """The body of ``GET …/members``."""

    async def change_member(
        self, change: str, member: int, endpoint: str, force: bool, user: str
    ) -> tuple[int, int]:
        """``add``, ``remove`` or ``set`` a member on behalf of ``user``; (index, term) of the
        Configuration once it is committed. A leader that is to be removed hands over first.

        `NotLeader`, `NoQuorum`, `ProposalDropped`: certainly not done. `OutcomeUnknown`, or cancelled: it
        may be done, now or later.
        """

    async def raise_level(self, level: int, user: str) -> tuple[int, int]:
        """Raise the farm's level on behalf of ``user``; (index, term) of the Configuration once it is
        committed. Raises as `change_member`."""

    async def step_down(self, to: int, user: str) -> int:
        """Transfer the leadership to the member ``to`` (0: the one best placed) on behalf of ``user``; the
        new leader's id.

        `NotLeader`, `ProposalDropped`: nothing was done. `NoQuorum`: no member took over in time.
        """

    async def repair(self, user: str) -> int:
        """Have this member take the leader's state and the end of its log in place of its own, on behalf of
        ``user``; the index up to which that reaches.

        `ProposalDropped`: nothing was done. `NoQuorum`: nothing came in time; all is as before.
        """


class DrainingView(Protocol):
    """Whether this node lets go of its part in its farms."""

    async def set(self, drained: bool) -> None:
        """Have it let go, or take part again; the mark outlasts a restart. Raises `StorageError`: this node's
        disk refuses; nothing was changed."""

    def report(self) -> dict[str, Any]:
        """``drained``, ``safe`` (it may be stopped now), and ``holds``: why not, a sentence each."""
        ...


class NodeView(Protocol):
    """This node."""

    @property
    def node_id(self) -> int: ...
    @property
    def version(self) -> str: ...
    @property
    def started_monotonic(self) -> float:
        """When the node started, on Trio's clock."""

    @property
    def transports(self) -> Sequence[str]: ...
    @property
    def farms(self) -> Mapping[str, FarmView]: ...
    @property
    def users(self) -> UserStore: ...
    @property
    def metrics(self) -> NodeMetrics: ...

    @property
    def draining(self) -> DrainingView: ...

    def ready(self) -> bool:
        """Whether every farm knows a leader, and its disk answers."""

    def collect(self) -> None:
        """Bring the gauges of `metrics` up to date; called at each scrape."""
