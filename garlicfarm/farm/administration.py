"""Administrative entries (D16): how an operator's decision enters the replicated log.

An entry is administrative iff its ``config`` has the key ``admin``; it is never a status::

    {"cluster": "farm", "date": 1800000000000, "id": 2, "sequence": 1800000000001,
     "config": {"admin": {"action": "override", "by": "alice", "args": {"member": 3, "mode": "off"}}}}

``id`` is the member that accepted it (there the user's role was checked; at apply it is not), and that
member is its poster: status and administrative entries of one member share one ``sequence`` (D17).
``by`` says who asked, 1 … 64 characters. What is folded:

* ``interval``: ``{"ms": 1000 … 3600000}``, how often statuses are posted.
* ``override``: ``{"member": id, "mode": "off" | "on" | "auto" | null}``, what counts instead of that
  member's ``meta.publishConfig``; null takes the override back. It goes with the member.

Any other action is refused where it is posted, and skipped and counted if committed.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from garlicfarm.errors import EntryRefused
from garlicfarm.farm.documents import PublishConfig
from garlicfarm.farm.schema import at, checker

__all__ = ["MAX_INTERVAL_MS", "MIN_INTERVAL_MS", "Admin", "check_by", "parse_admin"]

MIN_INTERVAL_MS = 1_000
MAX_INTERVAL_MS = 3_600_000

_MAX_BY_CHARS = 64


class Admin(msgspec.Struct, frozen=True):
    """A checked value of ``config.admin``. ``args`` suit the action."""

    action: str
    by: str
    args: dict[str, object]


class _Interval(msgspec.Struct):
    ms: Annotated[int, msgspec.Meta(ge=MIN_INTERVAL_MS, le=MAX_INTERVAL_MS)]


class _Override(msgspec.Struct):
    member: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    mode: PublishConfig | None = None


def check_by(name: str) -> None:
    """A user's name in an entry. Raises `ValueError` unless it has 1 … 64 characters."""
    if not 1 <= len(name) <= _MAX_BY_CHARS:
        raise ValueError("not a name of 1 … 64 characters")


_check_admin = checker(Admin, {"by": check_by})
_CHECK_ARGS = {"interval": checker(_Interval, {}), "override": checker(_Override, {})}


def parse_admin(value: object) -> Admin:
    """The value of ``config.admin``, checked. Raises `EntryRefused` with the path below it."""
    _check_admin(value)
    admin = msgspec.convert(value, Admin)
    if admin.action not in _CHECK_ARGS:
        raise EntryRefused("action", "unknown action")
    at("args", _CHECK_ARGS[admin.action], admin.args)
    return admin
