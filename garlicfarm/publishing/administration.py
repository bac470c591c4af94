"""Administrative entries (D16): how an operator's decision enters the replicated log.

An entry is administrative iff its ``config`` has the key ``admin``; it is never a status::

    {"cluster": "farm", "date": 1800000000000, "id": 2, "sequence": 1800000000001,
     "config": {"admin": {"action": "override", "by": "alice", "args": {"member": 3, "mode": "off"}}}}

``id`` is the member that accepted it (there the user's role was checked; at apply it is not), and that
member is its poster: status and administrative entries of one member share one ``sequence`` (D17).
``by`` says who asked, 1 … 64 characters. The actions, and their ``args``:

* ``interval``: ``{"ms": 1000 … 3600000}``, how often statuses are posted.
* ``staleness``: ``{"R": 3 … 1000}``, after how many statuses of others a silent member is not recent.
* ``override``: ``{"member": id, "mode": "off" | "on" | "auto" | null}``, what counts instead of that
  member's ``meta.publishConfig``; null takes the override back. It goes with the member.
* ``exclude`` and ``include``: ``{"hash": I2P base64}``, a leaf that is not usable, whoever reports it; and
  one that is again. At most 1,024 are excluded.
* ``weights``: ``{"router_uptime": 20, …}``, percent of every part of the score; they add up to 100.
* ``publisher``: ``{"margin": 0 … 1000000, "lifetime_ms": 600000 … 64800000}``, one of them or both: by
  how much a challenger has to lead, and how long a leaf is listed for.
* ``remove``: ``{"member": id}``, who asked for its removal, which is RemoveServer's; nothing follows from
  the entry itself.

Any other action is refused where it is posted, and skipped and counted if committed. Any other argument is
refused where it is posted, and ignored if committed.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from garlicfarm.errors import EntryRefused
from garlicfarm.publishing.documents import IntervalMs, MemberId, PublishConfig, Staleness
from garlicfarm.publishing.i2p_base64 import decode_hash
from garlicfarm.publishing.scoring import WEIGHTS
from garlicfarm.publishing.validation import at, checker

__all__ = [
    "ACTIONS",
    "MAX_BY_CHARS",
    "Admin",
    "LifetimeMs",
    "Margin",
    "Percent",
    "check_arguments",
    "check_by",
    "parse_admin",
]

MAX_BY_CHARS = 64


class Admin(msgspec.Struct, frozen=True):
    """A checked value of ``config.admin``. ``args`` suit the action."""

    action: str
    by: str
    args: dict[str, object]


class _Interval(msgspec.Struct):
    ms: IntervalMs


class _Override(msgspec.Struct):
    member: MemberId
    mode: PublishConfig | None = None


class _Remove(msgspec.Struct):
    member: MemberId


class _Staleness(msgspec.Struct):
    R: Staleness


class _Leaf(msgspec.Struct):
    hash: str


Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
Margin = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
LifetimeMs = Annotated[int, msgspec.Meta(ge=600_000, le=64_800_000)]
_Weights = msgspec.defstruct("_Weights", [(part, Percent) for part in WEIGHTS])


class _Publisher(msgspec.Struct):
    margin: Margin | None = None
    lifetime_ms: LifetimeMs | None = None


ACTIONS: dict[str, type[msgspec.Struct]] = {
    "interval": _Interval,
    "staleness": _Staleness,
    "override": _Override,
    "exclude": _Leaf,
    "include": _Leaf,
    "weights": _Weights,
    "publisher": _Publisher,
    "remove": _Remove,
}
"""Each action with the type of its ``args``."""


def check_by(name: str) -> None:
    """A user's name in an entry. Raises `ValueError` unless it has 1 … 64 characters."""
    if not 1 <= len(name) <= MAX_BY_CHARS:
        raise ValueError("not a name of 1 … 64 characters")


_check_admin = checker(Admin, {"by": check_by})
_CHECK_ARGS = {action: checker(kind, {"hash": decode_hash}) for action, kind in ACTIONS.items()}


def parse_admin(value: object) -> Admin:
    """The value of ``config.admin``, checked. Raises `EntryRefused` with the path below it."""
    _check_admin(value)
    admin = msgspec.convert(value, Admin)
    if admin.action not in _CHECK_ARGS:
        raise EntryRefused("action", "unknown action")
    at("args", _CHECK_ARGS[admin.action], admin.args)
    if admin.action == "weights" and sum(msgspec.convert(admin.args[part], int) for part in WEIGHTS) != 100:
        raise EntryRefused("args", "do not add up to 100")
    if admin.action == "publisher" and all(
        admin.args.get(name) is None for name in ("margin", "lifetime_ms")
    ):
        raise EntryRefused("args", "nothing to set")
    return admin


def check_arguments(admin: Admin) -> None:
    """Refuse arguments that the action does not have, where an order is posted. Raises `EntryRefused`."""
    unknown = admin.args.keys() - ACTIONS[admin.action].__struct_fields__
    for name in sorted(unknown):
        raise EntryRefused(f"config.admin.args.{name[:64]}", "unknown argument")
