"""The administrators' decisions for a farm: the parameters of its fold, and the user who set each.

An order is an administrative entry of the log (D16). Each value comes from the newest committed entry that
set it, else it is the constant of the algorithm. ``orders`` records the user, date and index of each
entry in force, since compaction removes the entry itself.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from garlicfarm.errors import EntryRefused
from garlicfarm.i2p.encoding import encode
from garlicfarm.publishing import clients
from garlicfarm.publishing.administration import (
    LEAST_MEMBERS,
    ControlMs,
    LifetimeMs,
    Margin,
    MinMembers,
    Percent,
)
from garlicfarm.publishing.documents import U63, IntervalMs, PublishConfig, Staleness
from garlicfarm.publishing.entries import Administrative, Leaf
from garlicfarm.publishing.scoring import WEIGHTS

DEFAULT_INTERVAL_MS = 30_000
DEFAULT_R = 3
MARGIN = 50_000
CONSECUTIVE_LEADS = 3
"""at how many counted statuses in a row a challenger has to lead by the margin"""
LIFETIME_MS = 3_600_000
MAX_EXCLUDED = 1024
CONTROL_MS = 60_000
"""T of D25: a control that was reached longer ago shows nothing"""


class Order(msgspec.Struct, frozen=True):
    """The user who set a value, the date (ms, of the accepting member) and the index."""

    by: str
    date: U63
    index: U63


class Forget(msgspec.Struct, frozen=True, kw_only=True):
    """Members that have been silent for ``after_ms`` are removed while there are more than ``min_members``
    (D28). The order's own bounds are those of `garlicfarm.publishing.administration`."""

    after_ms: U63
    min_members: MinMembers = LEAST_MEMBERS


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """Values that hold whatever the log sets, for a `replay`; None: as the log says."""

    margin: Margin | None = None
    R: Staleness | None = None
    weights: dict[str, Percent] | None = None
    """of all parts; they add up to 100"""


class Policy(msgspec.Struct, kw_only=True):
    """The values in force. Part of the snapshot."""

    interval_ms: IntervalMs = DEFAULT_INTERVAL_MS
    R: Staleness = DEFAULT_R
    margin: Margin = MARGIN
    lifetime_ms: LifetimeMs = LIFETIME_MS
    """for how long after farm time a leaf is listed"""
    weights: dict[str, Percent] = msgspec.field(default_factory=WEIGHTS.copy)
    overrides: dict[int, PublishConfig] = {}
    excluded: tuple[str, ...] = ()
    """hashes of leaves, I2P base64, ascending"""
    orders: dict[str, Order] = {}
    """``interval``, ``staleness``, ``weights``, ``publisher``, ``override ID``, ``exclude HASH``,
    ``publish``, ``remove ID``, ``level N``, ``lease``, ``control``, ``forget``"""
    control_ms: ControlMs | msgspec.UnsetType = msgspec.UNSET
    """since the first order ``control``, at level 3 or above"""
    clients: clients.Clients | msgspec.UnsetType = msgspec.UNSET
    """since the first order for clients, at level 3 or above; ``orders`` has none of those"""
    forget: Forget | msgspec.UnsetType = msgspec.UNSET
    """while an order says so, at level 4 or above"""

    def check(self, entry: Administrative, members: Collection[object]) -> None:
        """Whether it can be carried out in this state. Raises `EntryRefused`: an override or a removal names
        none of ``members``, or too many leaves would be excluded."""
        action, args = entry.admin.action, entry.admin.args
        if action in ("override", "remove") and args["member"] not in members:
            raise EntryRefused("config.admin.args.member", "not a member")
        if action == "exclude" and len({*self.excluded, args["hash"]}) > MAX_EXCLUDED:
            raise EntryRefused("config.admin.args.hash", "too many")

    def apply(self, index: int, entry: Administrative, farm_time_ms: int) -> None:
        """Carry out a checked entry at ``index``."""
        admin, args = entry.admin, entry.admin.args
        if admin.action in clients.ACTIONS:
            listed = clients.Listed(admin.by, entry.date, index)
            lists = self.clients or clients.NOBODY
            self.clients = lists.after(admin.action, args, farm_time_ms, listed)
            return
        key, in_force = admin.action, True  # of ``publish`` the state keeps no more
        match admin.action:
            case "interval":
                self.interval_ms = msgspec.convert(args["ms"], int)
            case "staleness":
                self.R = msgspec.convert(args["R"], int)
            case "weights":
                self.weights = {name: msgspec.convert(args[name], int) for name in WEIGHTS}
            case "publisher":
                for name in ("margin", "lifetime_ms"):
                    if args.get(name) is not None:
                        setattr(self, name, args[name])
            case "override":
                member, mode = msgspec.convert(args["member"], int), args.get("mode")
                key, in_force = f"override {member}", mode is not None
                self.overrides.pop(member, None)
                if in_force:
                    self.overrides[member] = msgspec.convert(mode, PublishConfig)
            case "control":
                self.control_ms = msgspec.convert(args["ms"], int)
            case "forget":
                given = {name: value for name, value in args.items() if value is not None}
                in_force = "after_ms" in given
                self.forget = msgspec.convert(given, Forget) if in_force else msgspec.UNSET
            case "remove":
                key = f"remove {args['member']}"
            case "level":
                key = f"level {args['to']}"
            case "exclude" | "include":
                hash_ = str(args["hash"])
                key, in_force = f"exclude {hash_}", admin.action == "exclude"
                rest = {*self.excluded} - {hash_}
                self.excluded = tuple(sorted(rest | {hash_} if in_force else rest))
        self.orders.pop(key, None)
        if in_force:
            self.orders[key] = Order(admin.by, entry.date, index)

    def pin(self, pinned: Pinned) -> None:
        """Set what is pinned. ``orders`` stay those of the log."""
        if pinned.margin is not None:
            self.margin = pinned.margin
        if pinned.R is not None:
            self.R = pinned.R
        if pinned.weights is not None:
            self.weights = pinned.weights.copy()

    def retain(self, members: Collection[object]) -> None:
        """Keep the overrides of ``members`` and drop all others."""
        for member in [one for one in self.overrides if one not in members]:
            del self.overrides[member], self.orders[f"override {member}"]

    def without_excluded(self, leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
        """The leaves that are not excluded."""
        if not self.excluded:
            return leaves
        return tuple(leaf for leaf in leaves if encode(leaf.hash) not in self.excluded)
