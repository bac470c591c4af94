"""What the fold of `state` keeps: as live records, and as the snapshot's JSON."""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

from garlicfarm.farm.documents import StatusDocument
from garlicfarm.farm.policy import DEFAULT_INTERVAL_MS, DEFAULT_R, Policy
from garlicfarm.farm.ranking import ALGORITHM
from garlicfarm.farm.status import Leaf

__all__ = [
    "SCHEMA",
    "Because",
    "FarmState",
    "Header",
    "Member",
    "View",
    "encode_state",
]

Struct = TypeVar("Struct", bound=msgspec.Struct)

SCHEMA = "garlicfarm.farm/1"

Because = Literal["", "vacant", "ineligible", "group", "margin"]


class Member(msgspec.Struct, kw_only=True):
    """What the fold keeps of one member. ``index`` 0: it has no status yet."""

    sequence: int = -1
    index: int = 0
    interval_ms: int = DEFAULT_INTERVAL_MS
    R: int = DEFAULT_R
    counted: dict[int, int] = {}
    """interval in use -> date of its previous status that was counted for that interval"""
    silences: dict[int, int] = {}
    """other member -> its statuses that count against this one, at most R"""
    against: int = 0
    """how many of the other current members have reached R there"""
    cost: int | None = None
    """of its leaves, None before its first status"""
    lead: int = 0
    failures: int = 0
    sanction: int = 0
    status: msgspec.Raw = msgspec.Raw(b"null")


class FarmState(msgspec.Struct, kw_only=True):
    """The fold's state; by `encode_state`, the snapshot (statuses in it verbatim)."""

    schema: str = SCHEMA
    farm: str
    algorithm: int = ALGORITHM
    members: tuple[int, ...] = ()
    policy: Policy = msgspec.field(default_factory=Policy)
    publisher: int | None = None
    since: int = 0
    because: Because = ""
    due_since: int | None = None
    holders: dict[int, int] = {}
    """holder -> index that took the role from it, 0 for the publisher"""
    farm_time_ms: int = 0
    last_published_ms: int = 0
    records: dict[int, Member] = {}
    """the current members, and removed ones that still hold"""
    notes: dict[str, int] = {}
    """user -> last sequence; of more than 1,024 the one with the lowest (then first by name) goes"""
    skipped: dict[str, int] = {}


class Header(msgspec.Struct):
    """What every version of the snapshot begins to be read by."""

    schema: str
    algorithm: int


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What is derived from a member's newest status and the policy, and not part of the snapshot."""

    document: StatusDocument
    reported: tuple[Leaf, ...]
    leaves: tuple[Leaf, ...]
    """those reported that are not excluded"""
    parts: dict[str, int | None]
    score: int
    publishing: bool | None


def encode_state(state: FarmState) -> bytes:
    """The snapshot: JSON, keys of a record in the order above, keys of a map ascending."""
    records = {member: _sorted_maps(record) for member, record in state.records.items()}
    policy = _sorted_maps(state.policy)
    return msgspec.json.encode(_sorted_maps(msgspec.structs.replace(state, records=records, policy=policy)))


def _sorted_maps(record: Struct) -> Struct:
    values = {name: getattr(record, name) for name in record.__struct_fields__}
    maps = {name: dict(sorted(value.items())) for name, value in values.items() if isinstance(value, dict)}
    return msgspec.structs.replace(record, **maps)
