"""Administrative entries (D16): how an operator's decision enters the replicated log.

An entry is administrative iff its ``config`` has the key ``admin``; it is never a status::

    {"cluster": "farm", "date": 1800000000000, "id": 2, "sequence": 1800000000001,
     "config": {"admin": {"action": "override", "by": "alice", "args": {"member": 3, "mode": "off"}}}}

``id`` is the member that accepted it. That member checked the user's role (at apply it is not checked again)
and is the entry's author: its statuses and administrative entries share one ``sequence`` (D17). ``by`` is the
user's name, 1 … 64 characters. The actions and their ``args``:

* ``interval``: ``{"ms": 1000 … 3600000}``, how often statuses are posted.
* ``staleness``: ``{"R": 3 … 1000}``, after how many statuses of others a silent member is not recent.
* ``override``: ``{"member": id, "mode": "off" | "on" | "auto" | null}`` replaces that member's
  ``meta.publishConfig``; null ends the override. Removing the member ends it, too.
* ``exclude`` and ``include``: ``{"hash": I2P base64}`` makes a leaf unusable, regardless of which member
  reports it, or usable again. At most 1,024 are excluded.
* ``weights``: ``{"router_uptime": 20, …}``, the percentage of every part of the score; they add up to 100.
* ``publisher``: ``{"margin": 0 … 1000000, "lifetime_ms": 600000 … 64800000}``, one or both: by how much a
  challenger must lead, and for how long a leaf is listed.
* ``publish``: ``{}``, the publisher publishes now: once for the index of the entry.
* ``remove``: ``{"member": id}`` records the user who asked for its removal. The removal itself is
  RemoveServer's; the entry has no effect.
* ``level``: ``{"to": 1 … }`` records the user who raised the farm's level. The raise itself is the
  Configuration's before it; the entry has no effect. Since level 1.
* ``lease``: ``{"ms": 1000 … 600000}``, how long a lease lasts (D24). Since level 2.
* ``lost``: ``{"member": id, "index": 1 …, "term": 1 …}``, the leader of that term finds that member lost,
  which is named since that index, or has lost the role by the entry there (D24). Since level 2.
* ``settled``: ``{"index": 1 …, "term": 1 …}``, no lease runs any more that is as long as before the change at
  that index (D24). Since level 2.
* ``timeouts``: ``{"election_ms": 10 … 3600000, "lease_ms": 1000 … 600000, "term": 1 …}``, from here on
  members use this upper election time-out, and a lease lasts so long at most (D27). Since level 2.
* ``control``: ``{"ms": 10000 … 3600000}``, for how long a control counts that was reached (D25). Since
  level 3.
* ``ban``: ``{"hash": I2P base64, "until_ms": ms since 1970 | null}``, the farm's services do not serve the
  client with this hash of its destination, until then or until ``unban``, ``{"hash": I2P base64}``. Since
  level 3.
* ``allow`` and ``disallow``: ``{"hash": I2P base64}`` puts a client on the access list, or takes it off.
  Unless that is empty, only its clients are served. At most 4,096 are on it or banned. Since level 3.
* ``forget``: ``{"after_ms": 3600000 … 31536000000 | null, "min_members": 3 … 1000}``, the farm removes
  members that have been silent for so long, while it has more than ``min_members`` (3 if absent); null ends
  that (D28). Since level 4.

``lost``, ``settled`` and ``timeouts`` are *findings*: the leader's node appends them itself, under ``by``
`LEADER` and without a ``sequence``, and they are refused where they are posted. One whose ``term`` is not
that of its log entry is skipped.

An action is known from its level on (`SINCE`). An unknown one is refused where it is posted; if committed, it
is skipped and counted. An unknown argument is refused where it is posted; if committed, it is ignored.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from garlicfarm.errors import EntryRefused
from garlicfarm.i2p.encoding import decode_hash
from garlicfarm.levels import FORGETTING, LEASES, LOWEST, OUTSIDE
from garlicfarm.publishing import clients
from garlicfarm.publishing.documents import IntervalMs, MemberId, PublishConfig, Staleness
from garlicfarm.publishing.scoring import WEIGHTS
from garlicfarm.publishing.validation import at, checker

MAX_BY_CHARS = 64
LEADER = "leader"
FORGET_BY = "order forget"
"""In ``by`` of a ``remove`` that follows from the order ``forget``. No user has such a name."""


class Admin(msgspec.Struct, frozen=True):
    """A checked value of ``config.admin``; ``args`` match the action."""

    action: str
    by: str
    args: dict[str, object]


class _Interval(msgspec.Struct):
    ms: IntervalMs


class _Override(msgspec.Struct):
    member: MemberId
    mode: PublishConfig | None = None


class _Publish(msgspec.Struct):
    pass


class _Remove(msgspec.Struct):
    member: MemberId


class _Level(msgspec.Struct):
    to: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]


class _Staleness(msgspec.Struct):
    R: Staleness


class _Hash(msgspec.Struct):
    hash: str


Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
Margin = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
LifetimeMs = Annotated[int, msgspec.Meta(ge=600_000, le=64_800_000)]
_Weights = msgspec.defstruct("_Weights", [(part, Percent) for part in WEIGHTS])


MIN_LEASE_MS, MAX_LEASE_MS = 1_000, 600_000
LeaseMs = Annotated[int, msgspec.Meta(ge=MIN_LEASE_MS, le=MAX_LEASE_MS)]
ElectionMs = Annotated[int, msgspec.Meta(ge=10, le=3_600_000)]
_Place = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class _Lease(msgspec.Struct):
    ms: LeaseMs


MIN_CONTROL_MS, MAX_CONTROL_MS = 10_000, 3_600_000
ControlMs = Annotated[int, msgspec.Meta(ge=MIN_CONTROL_MS, le=MAX_CONTROL_MS)]


class _Control(msgspec.Struct):
    ms: ControlMs


MIN_FORGET_MS, MAX_FORGET_MS = 3_600_000, 31_536_000_000
LEAST_MEMBERS = 3
"""``min_members`` is at least that. A farm of three that loses a dead member can lose no more members than
before: both of the other two are needed with and without it."""
ForgetMs = Annotated[int, msgspec.Meta(ge=MIN_FORGET_MS, le=MAX_FORGET_MS)]
MinMembers = Annotated[int, msgspec.Meta(ge=LEAST_MEMBERS, le=1000)]


class _Forget(msgspec.Struct):
    after_ms: ForgetMs | None = None
    min_members: MinMembers | None = None


class _Ban(msgspec.Struct):
    hash: str
    until_ms: clients.EndMs | None = None


class Lost(msgspec.Struct):
    """``args`` of ``lost``."""

    member: MemberId
    index: _Place
    term: _Place


class Settled(msgspec.Struct):
    """``args`` of ``settled``."""

    index: _Place
    term: _Place


class Timeouts(msgspec.Struct):
    """``args`` of ``timeouts``."""

    election_ms: ElectionMs
    lease_ms: LeaseMs
    term: _Place


class _Publisher(msgspec.Struct):
    margin: Margin | None = None
    lifetime_ms: LifetimeMs | None = None


ACTIONS: dict[str, type[msgspec.Struct]] = {
    "interval": _Interval,
    "staleness": _Staleness,
    "override": _Override,
    "exclude": _Hash,
    "include": _Hash,
    "weights": _Weights,
    "publisher": _Publisher,
    "publish": _Publish,
    "remove": _Remove,
    "level": _Level,
    "lease": _Lease,
    "lost": Lost,
    "settled": Settled,
    "timeouts": Timeouts,
    "control": _Control,
    "forget": _Forget,
    "ban": _Ban,
    "unban": _Hash,
    "allow": _Hash,
    "disallow": _Hash,
}
"""Each action with the type of its ``args``."""

FINDINGS = ("lost", "settled", "timeouts")
"""What only a leader finds."""

SINCE = {"level": 1, "lease": LEASES, "control": OUTSIDE, "forget": FORGETTING}
SINCE |= dict.fromkeys(FINDINGS, LEASES) | dict.fromkeys(clients.ACTIONS, OUTSIDE)
"""The level from which on an action is known, if that is not the lowest."""


def check_by(name: str) -> None:
    """A user's name in an entry. Raises `ValueError` unless it has 1 … 64 characters."""
    if not 1 <= len(name) <= MAX_BY_CHARS:
        raise ValueError("not a name of 1 … 64 characters")


_check_admin = checker(Admin, {"by": check_by})
_CHECK_ARGS = {action: checker(kind, {"hash": decode_hash}) for action, kind in ACTIONS.items()}


def parse_admin(value: object, level: int) -> Admin:
    """The value of ``config.admin``, checked by the rule of a level. Raises `EntryRefused` with the path
    below it."""
    _check_admin(value)
    admin = msgspec.convert(value, Admin)
    if admin.action not in _CHECK_ARGS or level < SINCE.get(admin.action, LOWEST):
        raise EntryRefused("action", "unknown action")
    at("args", _CHECK_ARGS[admin.action], admin.args)
    if admin.action == "weights" and sum(msgspec.convert(admin.args[part], int) for part in WEIGHTS) != 100:
        raise EntryRefused("args", "do not add up to 100")
    if admin.action == "publisher" and all(
        admin.args.get(name) is None for name in ("margin", "lifetime_ms")
    ):
        raise EntryRefused("args", "nothing to set")
    given = {name for name, value in admin.args.items() if value is not None}
    if admin.action == "forget" and "min_members" in given and "after_ms" not in given:
        raise EntryRefused("args.after_ms", "missing")
    return admin


def check_arguments(admin: Admin) -> None:
    """Refuse unknown arguments, where an entry is posted. Raises `EntryRefused`."""
    unknown = admin.args.keys() - ACTIONS[admin.action].__struct_fields__
    for name in sorted(unknown):
        raise EntryRefused(f"config.admin.args.{name[:64]}", "unknown argument")
