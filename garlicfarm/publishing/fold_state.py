"""The state of the fold in `application`: as live records, and as the snapshot's JSON."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec

from garlicfarm.levels import COMPARING, FIRST_ALGORITHM, FORGETTING, LEASES, OUTSIDE, level_of
from garlicfarm.publishing.administration import MAX_LEASE_MS, LeaseMs
from garlicfarm.publishing.clients import MAX_LISTED, NOBODY
from garlicfarm.publishing.documents import (
    U63,
    DigestReport,
    IntervalMs,
    NodeReport,
    OutsideReport,
    Staleness,
    StatusDocument,
)
from garlicfarm.publishing.entries import DATE_END_MS, Leaf
from garlicfarm.publishing.meta_leaseset import COSTS
from garlicfarm.publishing.policy import DEFAULT_INTERVAL_MS, DEFAULT_R, Policy
from garlicfarm.publishing.scoring import WEIGHTS, Figures

Struct = TypeVar("Struct", bound=msgspec.Struct)

SCHEMA = "garlicfarm.farm/1"

MAX_UNREACHED = 20

_ServerId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_Date = Annotated[int, msgspec.Meta(ge=0, lt=DATE_END_MS)]

Because = Literal["", "vacant", "ineligible", "group", "margin", "lost", "unreached", "contradicted"]


class MemberRecord(msgspec.Struct, kw_only=True):
    """The fold's record of one member. ``index`` 0: it has no status yet."""

    sequence: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)] = -1
    index: U63 = 0
    interval_ms: IntervalMs = DEFAULT_INTERVAL_MS
    R: Staleness = DEFAULT_R
    counted: dict[IntervalMs, _Date] = {}
    """interval in use -> date of its last status that was counted for that interval"""
    silences: dict[_ServerId, U63] = {}
    """other member -> its statuses that count against this one, at most R; up to date in a snapshot, between
    snapshots `garlicfarm.publishing.silences` has them"""
    against: U63 = 0
    """how many of the other current members have reached R in ``silences``"""
    cost: Annotated[int, msgspec.Meta(ge=0, lt=COSTS)] | None = None
    """cost of its leaves, None before its first status"""
    lead: U63 = 0
    failures: U63 = 0
    sanction: U63 = 0
    status: msgspec.Raw = msgspec.Raw(b"null")


class LeaseState(msgspec.Struct, kw_only=True):
    """What leases on heartbeats need (D24)."""

    lasts_ms: LeaseMs
    ordered_ms: LeaseMs
    """``lasts_ms`` without the bound"""
    bound_ms: LeaseMs = MAX_LEASE_MS
    """of ``lasts_ms``, by the last finding ``timeouts``"""
    election_ms: Annotated[int, msgspec.Meta(ge=0, le=3_600_000)] = 0
    """the upper election time-out by that, 0: as each member has it configured"""
    before_ms: U63 = 0
    """how long a lease lasted before the last change, while one may still run; else 0"""
    changed: U63 = 0
    """the index of that change"""
    boots: dict[_ServerId, U63] = {}
    """member → the highest ``config.node.boot`` of its statuses"""
    lost: dict[_ServerId, U63] = {}
    """member → the index that found it lost, until a status of its own follows"""


class OutsideState(msgspec.Struct, kw_only=True):
    """What is needed so that what others measure decides (D25)."""

    since: U63
    """the index of the raise, 0 if no member had posted until then: statuses after it may have
    ``config.node.outside``"""
    unreached: dict[_ServerId, Annotated[int, msgspec.Meta(ge=1, le=MAX_UNREACHED)]] = {}
    """member → how often it was found unreached, since others reached what it published"""


class Contradiction(msgspec.Struct, frozen=True):
    """A majority holds something else than a member does: ``what``, first found at the agreed ``index``."""

    index: U63
    what: Literal["state", "chain"]


class ComparedState(msgspec.Struct, kw_only=True):
    """What members say that they hold (D26)."""

    agreed: U63 = 0
    """the newest index at which members digest what they hold, 0: none yet"""
    statuses: U63 = 0
    """how many followed it"""
    claims: dict[_ServerId, DigestReport] = {}
    """member → the digests of its newest status that names those at the index agreed then"""
    contradicted: dict[_ServerId, Contradiction] = {}
    disagreeing: tuple[tuple[_ServerId, ...], ...] = ()
    """the members by what they hold, where no majority says which is right"""


class ServedState(msgspec.Struct, kw_only=True):
    """How long the farm has served, and since when each member is silent (D28)."""

    ms: U63 = 0
    """for how long it has, since the raise to level 4"""
    until_ms: _Date = 0
    """the farm time up to which that is counted"""
    heard: dict[_ServerId, U63] = {}
    """member → ``ms`` at its newest status; before its first one, at the Configuration that made it a member,
    or at the raise"""


class FarmState(msgspec.Struct, kw_only=True):
    """The fold's state; by `encode_state`, the snapshot (statuses in it verbatim)."""

    schema: str = SCHEMA
    farm: str
    algorithm: int = FIRST_ALGORITHM
    """that of the farm's level"""
    members: tuple[_ServerId, ...] = ()
    policy: Policy = msgspec.field(default_factory=Policy)
    publisher: int | None = None
    since: U63 = 0
    because: Because = ""
    due_since: U63 | None = None
    holders: dict[_ServerId, U63] = {}
    """holder -> index that took the role from it, 0 for the publisher"""
    farm_time_ms: _Date = 0
    last_published_ms: U63 = 0
    records: dict[_ServerId, MemberRecord] = {}
    """the current members, and removed ones that still hold"""
    notes: dict[str, U63] = {}
    """user -> last sequence; beyond 1,024 the one with the lowest (then first by name) is dropped"""
    skipped: dict[str, U63] = {}
    leases: LeaseState | msgspec.UnsetType = msgspec.UNSET
    """since level 2"""
    outside: OutsideState | msgspec.UnsetType = msgspec.UNSET
    """since level 3"""
    compared: ComparedState | msgspec.UnsetType = msgspec.UNSET
    """since level 4"""
    served: ServedState | msgspec.UnsetType = msgspec.UNSET
    """since level 4"""


class Header(msgspec.Struct):
    """The fields by which a snapshot of any version is recognised."""

    schema: str
    algorithm: int


class ScoredStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A member's newest status, with its score under the policy; not part of the snapshot."""

    document: StatusDocument
    node: NodeReport
    """its ``config.node``"""
    reported: tuple[Leaf, ...]
    leaves: tuple[Leaf, ...]
    """``reported`` without the excluded ones"""
    figures: Figures
    parts: dict[str, int | None]
    """those that are not left out"""
    score: int
    publishing: bool | None
    outside: OutsideReport | None
    control: bytes | None
    """the hash of a destination at which its author answers tests"""


def is_consistent(state: FarmState) -> bool:
    """Whether the parts of a decoded state are consistent, as the fold leaves them after each entry."""
    members, holders, policy = {*state.members}, state.holders, state.policy
    return (
        state.members == tuple(sorted(members))
        and state.records.keys() == members | holders.keys()
        and [member for member, taken in holders.items() if not taken]
        == ([] if state.publisher is None else [state.publisher])
        and (
            state.publisher is None
            or (state.publisher in members and state.records[state.publisher].index > 0)
        )
        and policy.weights.keys() == WEIGHTS.keys()
        and policy.overrides.keys() <= members
        and {f"override {member}" for member in policy.overrides} <= policy.orders.keys()
        and isinstance(state.leases, LeaseState) == (level_of(state.algorithm) >= LEASES)
        and (not state.leases or state.leases.lasts_ms == min(state.leases.ordered_ms, state.leases.bound_ms))
        and (not state.leases or state.leases.boots.keys() | state.leases.lost.keys() <= members)
        and isinstance(state.outside, OutsideState) == (level_of(state.algorithm) >= OUTSIDE)
        and (not state.outside or state.outside.unreached.keys() <= members)
        and (bool(state.outside) or (not policy.control_ms and policy.clients is msgspec.UNSET))
        and len(policy.clients or NOBODY) <= MAX_LISTED
        and isinstance(state.compared, ComparedState) == (level_of(state.algorithm) >= COMPARING)
        and (not state.compared or state.compared.claims.keys() <= members)
        and (not state.compared or state.compared.contradicted.keys() <= state.compared.claims.keys())
        and isinstance(state.served, ServedState) == (level_of(state.algorithm) >= FORGETTING)
        and (not state.served or state.served.heard.keys() == members)
        and (not state.served or max(state.served.heard.values(), default=0) <= state.served.ms)
        and (bool(state.served) or policy.forget is msgspec.UNSET)
    )


def encode_state(state: FarmState) -> bytes:
    """The snapshot: JSON, keys of a record in the order above, keys of a map ascending."""
    records = {member: _sorted_maps(record) for member, record in state.records.items()}
    policy = _sorted_maps(state.policy)
    since_levels = {
        "leases": _sorted_maps(state.leases) if state.leases else msgspec.UNSET,
        "outside": _sorted_maps(state.outside) if state.outside else msgspec.UNSET,
        "compared": _sorted_maps(state.compared) if state.compared else msgspec.UNSET,
        "served": _sorted_maps(state.served) if state.served else msgspec.UNSET,
    }
    return msgspec.json.encode(
        _sorted_maps(msgspec.structs.replace(state, records=records, policy=policy, **since_levels))
    )


def _sorted_maps(record: Struct) -> Struct:
    values = {name: getattr(record, name) for name in record.__struct_fields__}
    maps = {name: dict(sorted(value.items())) for name, value in values.items() if isinstance(value, dict)}
    return msgspec.structs.replace(record, **maps)
