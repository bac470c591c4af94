"""What a replicated application is to a node, and what a node is to an application.

A `StateMachine` is the pure part: a deterministic fold over the committed log. An `Application` is a state
machine that a node runs. It may bring more, each part optional: it judges entries where they are posted, has
tasks, metrics and endpoints of its own, and adds to what the node says of the farm. The applications ``log``
(`garlicfarm.log_application`) and ``publisher`` (`garlicfarm.node.publisher`) use this contract and nothing
else, so one of yours is their equal. It is a class found through the entry point group
``garlicfarm.applications``; its name is the value of ``application =`` in ``[[farm]]``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import msgspec

from garlicfarm.config.model import Config, FarmSection
from garlicfarm.credentials.roles import UserRole
from garlicfarm.digests import Contradicted, Digests
from garlicfarm.leases import LeaseGranter
from garlicfarm.logs import EventLogger
from garlicfarm.metrics import FarmMetrics
from garlicfarm.raft import Status
from garlicfarm.round_trips import RoundTrips
from garlicfarm.router import Router
from garlicfarm.wire.messages import Configuration, Grant

__all__ = [
    "AdminEndpoint",
    "AdminRequest",
    "Application",
    "ApplicationContext",
    "Config",
    "Configuration",
    "Contradicted",
    "Digests",
    "EventLogger",
    "FarmMetrics",
    "FarmSection",
    "Grant",
    "LeaseGranter",
    "LeaseUser",
    "MemberReport",
    "Origin",
    "PeerContacts",
    "RoundTrips",
    "StateMachine",
    "Status",
    "UserRole",
]


class StateMachine(Protocol):
    """The state of one farm. Calls come from one task, in index order.

    No method does I/O, reads a clock or uses randomness: on every server the same calls in the same order
    give the same bytes.
    """

    def apply(self, index: int, term: int, entry: bytes) -> None:
        """Fold in the committed Application entry at ``index`` ≥ 1. Never raises on content: an invalid
        entry is skipped, the same way everywhere."""

    def configure(self, index: int, members: Configuration) -> None:
        """A Configuration took force at ``index`` (0 for the genesis one)."""

    def snapshot(self) -> bytes:
        """The whole state. Equal states give equal bytes."""
        ...

    def restore(self, data: bytes) -> None:
        """Replace the state by that of a snapshot.

        Raises `StorageVersion` or `StorageDamaged` if ``data`` is no snapshot that this application
        can restore; the state is unchanged then. Between JRaft peers it is tried first on another object
        of the same factory, in another thread: two objects share nothing that this changes.
        """


class Origin(msgspec.Struct, frozen=True):
    """Where an entry comes from, and when. ``member``: the id of the member that posts it, or forwards it
    for a user of its own; 0 for users and raw clients. ``user``: the name of the user, where this node let
    it in; else "". ``now_ms``: this node's wall clock, ms since 1970."""

    member: int
    user: str
    now_ms: int


class MemberReport(msgspec.Struct, frozen=True):
    """What the application knows of a member from that member's entries; None where it says nothing.
    ``age_s``: how long ago it said so, by this node's clock. ``is_silent``: an entry of it is overdue.
    ``is_drained``: it lets go of what it does for the farm, and may be stopped."""

    term: int | None = None
    commit: int | None = None
    applied: int | None = None
    version: str | None = None
    admin_url: str | None = None
    age_s: float | None = None
    is_silent: bool = False
    is_drained: bool = False


class AdminRequest(msgspec.Struct, frozen=True):
    """A request to an `AdminEndpoint`. ``body``: at most 1 MiB, empty for GET."""

    user: str
    query: Mapping[str, str]
    body: bytes


class AdminEndpoint(msgspec.Struct, frozen=True):
    """An endpoint of the admin API, ``METHOD /v1/farms/{farm}/{path}``, for users with ``role`` or a higher
    one. ``handle`` returns what `msgspec.json` encodes; it may raise the errors of `garlicfarm.errors`,
    which the client gets as from the other endpoints."""

    method: Literal["GET", "POST"]
    path: str
    role: UserRole
    handle: Callable[[AdminRequest], Awaitable[object]]


class PeerContacts(Protocol):
    """How this node reaches the other members, by their ids."""

    def is_connected(self, member: int) -> bool:
        """Whether the connection for Raft requests is up."""
        ...

    def handshake(self, member: int) -> tuple[float, bool] | None:
        """How long the last attempt to connect and to log in took, in seconds, and whether it succeeded;
        None before the first one has ended."""

    def told(self, member: int) -> tuple[int, int, int] | None:
        """What it told as the time when it let this node log in last, and this node's wall clock before it
        was asked and after it had answered; ms since 1970. None: it told none."""
        ...

    def contact_age_s(self, member: int) -> float | None:
        """Seconds since the last sign of life, None if there was none."""
        ...

    async def try_handshakes(self, members: Collection[int]) -> None:
        """Connect to these members once more, each beside the connection that may be up: `handshake`
        then reports these attempts."""


class ApplicationContext(Protocol):
    """What a node offers to the application of one of its farms, while that farm's replica runs.

    ``section``: the table ``[[farm]]`` of the configuration; relative paths of plugins in it are relative to
    ``base_dir``. ``data_dir``: the node's data directory; what an application keeps there it keeps below
    ``APPLICATION/FARM``. ``router``: entered; None where the farm has
    none. ``admin_url``: where other machines find this node's admin API, None where they cannot reach it.
    ``metrics``: the farm's metrics; ``metrics.registry`` takes collectors of the application's own, and is
    shared by all farms of the node.
    """

    @property
    def farm(self) -> str: ...
    @property
    def node_id(self) -> int: ...
    @property
    def section(self) -> FarmSection: ...
    @property
    def base_dir(self) -> Path: ...
    @property
    def data_dir(self) -> Path: ...
    @property
    def router(self) -> Router | None: ...
    @property
    def admin_url(self) -> str | None: ...
    @property
    def log(self) -> EventLogger: ...
    @property
    def metrics(self) -> FarmMetrics: ...
    @property
    def peers(self) -> PeerContacts: ...
    @property
    def configuration(self) -> Configuration:
        """The Configuration in force: the members and their endpoints."""

    @property
    def is_leader(self) -> bool:
        """Whether this member leads, as far as it knows."""

    @property
    def is_changing_members(self) -> bool:
        """Whether this member, as the leader, is changing the Configuration."""

    @property
    def applied_index(self) -> int:
        """The index of the last entry that the application has taken."""

    @property
    def digests(self) -> Digests | None:
        """What this member held at the newest agreed index (D26); None: it has nothing to compare."""

    def raft_status(self) -> Status:
        """Role, term and indexes of this member."""
        ...

    async def post(self, entry: bytes) -> tuple[int, int]:
        """Append an entry as this member, here or through the leader; (index, term) after its commit.

        Raises `EntryRefused` (the caller's fault), `ProposalDropped`, `NoQuorum`: certainly not appended;
        `OutcomeUnknown`. Cancelled, it may or may not be appended.
        """
        ...

    async def wait_applied(self, beyond: int) -> None:
        """Return once an entry with an index > ``beyond`` is applied."""

    async def step_down(self, to: int = 0) -> int:
        """Have the member ``to`` lead, 0: the one best placed; the id of the new leader.

        Raises `NotLeader`, `ProposalDropped`: nothing was done; `NoQuorum`: no member took over in time.
        """
        ...

    async def remove_member(self, member: int, by: str) -> tuple[int, int]:
        """As the leader, have another member removed; (index, term) of the Configuration after its commit.
        ``by``: in whose name, for `Application.removal_entry`.

        Raises `NotLeader`, `ProposalDropped` (such as `Refusal.TOO_FEW_MEMBERS_HEARD`), `EntryRefused`,
        `NoQuorum`: it was not removed; `OutcomeUnknown`.
        """
        ...


class LeaseUser(Protocol):
    """An application with a role that one member has at a time, within leases that ride on heartbeats (D24).
    Calls come from the core's task, and answer at once. Clocks: as `garlicfarm.leases` says."""

    def tell_leases(self, granter: LeaseGranter, now_ms: int) -> None:
        """This member leads, and has applied the first entry of its term: call
        `LeaseGranter.on_applied`."""

    def findings(
        self, granter: LeaseGranter, trips: RoundTrips, node_id: int, now_ms: int
    ) -> Sequence[tuple[bytes, Callable[[], None]]]:
        """The entries that this leader has to append in its term, by `LeaseGranter.lost` and ``settled``, and
        by `RoundTrips.wanted_ms`, each with what to call once it is appended. They are not judged by
        `Application.check`."""
        ...

    def election_timeout_ms(self) -> int:
        """The upper election time-out that the state tells members to use, 0: as configured."""
        ...

    def on_own_lease(self, index: int, end_ms: int) -> None:
        """This leader is named since ``index``, and has a lease until ``end_ms``."""

    def on_grant(self, grant: Grant) -> None:
        """The leader of this member's term grants a lease: for `LeaseHolder.on_grant`."""


class Application(ABC):
    """The application of one farm of a node: a `StateMachine`, and what it brings beside that.

    The methods of the state machine keep its rules. The others may read clocks; none but `run` and the
    handlers of `endpoints` may block. It is made with the farm's name.
    """

    api_version: ClassVar[int] = 1

    @abstractmethod
    def apply(self, index: int, term: int, entry: bytes) -> None:
        """See `StateMachine`."""

    def configure(self, index: int, members: Configuration) -> None:  # noqa: B027 - it may not care
        """See `StateMachine`; by default members are no part of the state."""

    @abstractmethod
    def snapshot(self) -> bytes:
        """See `StateMachine`."""

    @abstractmethod
    def restore(self, data: bytes) -> None:
        """See `StateMachine`."""

    def check(self, entry: bytes, origin: Origin) -> None:  # noqa: B027 - most take anything
        """Judge an entry before it is proposed; by default all are accepted.

        Called on the node that was asked, and for forwarded entries on the leader too, where the origin is
        the member that forwards. Raises `EntryRefused` (the author's fault) with the field and the reason.
        """

    def is_needed(self, entry: bytes) -> bool:
        """Whether the farm needs this entry, which `check` has let pass, to go on. Such entries are appended
        also where only a reserve is left on the leader's disk; all others are refused there. By default none
        is."""
        return False

    def check_configuration(self, section: FarmSection, config: Config) -> None:  # noqa: B027 - most need none
        """Raises `ConfigError`: the table ``[[farm]]``, ``section`` of ``config``, is of no use to this
        application. Called before the node listens."""

    async def run(self, context: ApplicationContext) -> None:  # noqa: B027 - most have no tasks
        """The application's own tasks, from before the first entry is applied until cancelled; by default
        there are none. It may return early. An error that leaves it ends the node."""

    def drain(self, drained: bool) -> None:  # noqa: B027 - most do nothing that another member could do
        """From now on let go of what this member does for the farm, if another one can do it, and take
        nothing new on; or take part again. Called again and again with the same value, also before `run`."""

    def holds(self) -> str:
        """What this member still does for the farm that would be missing if its node ended now, as a
        sentence; "": nothing, and it has nothing to tell the farm either."""
        return ""

    async def let_go(self, bound_s: float) -> None:  # noqa: B027 - as `drain`
        """The node is about to end: let go as `drain` says, and return once another member does what this one
        did, or after ``bound_s``. Cancelled then; `run` is cancelled after that."""

    def lease_user(self) -> LeaseUser | None:
        """What takes leases on heartbeats; by default nothing. Asked once, before `run`."""
        return None

    def endpoints(self, context: ApplicationContext) -> Sequence[AdminEndpoint]:
        """The application's own endpoints of the admin API; by default none. Asked once. Where the admin
        API has the same method and path, its own comes first."""
        return ()

    def agreed_index(self) -> int:
        """The index of the last entry after which every member digests its state (D26), by the log alone; 0,
        the default: none. Asked after each entry; it answers at once."""
        return 0

    def claimed(self, member: int) -> Digests | None:
        """What a member said last that it held at an agreed index (D26); None, the default: nothing."""
        return None

    def confirmed(self, member: int) -> bool:
        """Whether a majority holds what a member said last that it held (D26); by default nothing is
        compared. Asked after entries were applied, of this member; it answers at once."""
        return False

    def contradicted(self, member: int) -> Contradicted:
        """What most others hold otherwise than a member (D26); by default nothing is compared. Asked after
        entries were applied, of this member; it answers at once."""
        return ""

    def collect(self, metrics: FarmMetrics) -> None:  # noqa: B027 - most have none
        """Bring the application's metrics up to date; called at each scrape."""

    def status(self) -> Mapping[str, Any]:
        """What to add to ``GET …/status``; by default nothing."""
        return {}

    def member_report(self, member: int) -> MemberReport:
        """What is known of a member from its entries; by default nothing."""
        return MemberReport()

    def ranking(self, *, statuses: bool = False) -> dict[str, Any]:
        """The body of ``GET …/ranking`` but for ``index``; by default nothing is ranked. ``statuses``: each
        row with the member's newest status. A ranking with members has the keys of
        `garlicfarm.publishing.ranking`, and the entries are that package's documents: the dashboard shows
        them so."""
        return {"publisher": None, "members": []}

    def policy(self) -> dict[str, Any]:
        """What administrators have decided, for ``GET …/policy``; by default nothing."""
        return {}

    def administer(self, action: str, args: dict[str, Any], origin: Origin) -> bytes | None:
        """The entry that carries an order of the administrator ``origin.user``, accepted by the member
        ``origin.member``; None: there is nothing to administer, which is the default.

        Raises `EntryRefused` (the administrator's fault): there is no such action, or its arguments are
        wrong.
        """
        return None

    def level_entry(self, level: int, origin: Origin) -> bytes | None:
        """The entry to append after ``origin.user`` has raised the farm's level; None, the default: none."""
        return None

    def removal_entry(self, member: int, origin: Origin) -> bytes | None:
        """The entry to append before ``origin.user`` has a member removed; None, the default: none."""
        return None
