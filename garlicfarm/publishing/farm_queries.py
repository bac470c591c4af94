"""What the committed state of a farm says: the rules of `garlicfarm.publishing.fold`, for its readers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from garlicfarm.i2p.destination import destination_hash
from garlicfarm.i2p.encoding import encode
from garlicfarm.i2p.lease_set import MetaLease
from garlicfarm.leases import Holding
from garlicfarm.levels import level_of
from garlicfarm.publishing import comparing, meta_leaseset
from garlicfarm.publishing.candidates import Candidates
from garlicfarm.publishing.clients import NOBODY, Clients
from garlicfarm.publishing.documents import DigestReport, NodeReport, PublishConfig, StatusDocument
from garlicfarm.publishing.fold_state import Contradiction, FarmState, ScoredStatus
from garlicfarm.publishing.lease import lease_ms
from garlicfarm.publishing.policy import CONTROL_MS, Policy
from garlicfarm.publishing.scoring import ALL, measured

_DAY_MS = 86_400_000


class FarmQueries:
    """The points are those of `garlicfarm.publishing.fold`."""

    _state: FarmState
    _statuses: dict[int, ScoredStatus]
    _candidates: Candidates
    _counted: int | None

    @property
    def state(self) -> FarmState:
        """The whole state; read-only."""
        return self._state

    @property
    def statuses(self) -> Mapping[int, ScoredStatus]:
        """The newest status of each member that has one."""
        return self._statuses

    @property
    def farm(self) -> str:
        """The farm's name."""
        return self._state.farm

    @property
    def level(self) -> int:
        """The farm's level (`garlicfarm.levels`)."""
        return level_of(self._state.algorithm)

    @property
    def members(self) -> tuple[int, ...]:
        """Ids of the current members, ascending."""
        return self._state.members

    @property
    def publisher(self) -> int | None:
        """The member that is named to publish, if any."""
        return self._state.publisher

    @property
    def holders(self) -> tuple[int, ...]:
        """Members named and not yet released, ascending."""
        return tuple(sorted(self._state.holders))

    def taken_index(self, holder: int) -> int | None:
        """The index that took the role from a member which has not been released since; None for any
        other."""
        return self._state.holders.get(holder) or None

    def holding_index(self, holder: int) -> int | None:
        """The index since which a member is named, or which took the role from a member that has not been
        released since; None for any other."""
        return self._state.since if holder == self._state.publisher else self.taken_index(holder)

    def holdings(self) -> tuple[Holding, ...]:
        """All holders, ascending, as `LeaseGranter.on_applied` takes them (D24)."""
        return tuple(
            Holding(holder, self.holding_index(holder) or 0, holder == self._state.publisher)
            for holder in self.holders
        )

    def lost_index(self, member: int) -> int | None:
        """The index at which a leader found it lost, until a status of its own shows that it knows; None for
        any other."""
        leases = self._state.leases
        return leases.lost.get(member) if leases else None

    def is_lost(self, member: int | None) -> bool:
        """Whether it is such a member."""
        return member is not None and self.lost_index(member) is not None

    @property
    def has_leases(self) -> bool:
        """Whether leases ride on heartbeats (D24)."""
        return bool(self._state.leases)

    def boot(self, member: int) -> int:
        """The highest number of a process that a member's statuses had (D24); 0: none."""
        leases = self._state.leases
        return leases.boots.get(member, 0) if leases else 0

    @property
    def lease_lasts_ms(self) -> int:
        """How long a lease lasts that is given now (point 6, or 8), in ms."""
        leases = self._state.leases
        return leases.lasts_ms if leases else lease_ms(self.interval_ms, self.R)

    @property
    def election_timeout_ms(self) -> int:
        """The upper election time-out that members use (D27), 0: as each has it configured."""
        leases = self._state.leases
        return leases.election_ms if leases else 0

    @property
    def lease_waits_ms(self) -> int:
        """How long any lease may last that was given before now, in ms (point 8)."""
        leases = self._state.leases
        return max(leases.lasts_ms, leases.before_ms) if leases else self.lease_lasts_ms

    def lease_figures(self) -> dict[str, int]:
        """What administrators see of it since level 2: ``lease_ms``, how long a lease lasts that is given
        now; ``lease_ordered_ms``, what an order allows; while a longer one may still run that was given
        before, ``lease_before_ms``; and since a leader told one, ``election_timeout_ms``."""
        leases = self._state.leases
        if not leases:
            return {}
        longer = {"lease_before_ms": leases.before_ms} if leases.before_ms > leases.lasts_ms else {}
        told = {"election_timeout_ms": leases.election_ms} if leases.election_ms else {}
        return {"lease_ms": leases.lasts_ms, "lease_ordered_ms": leases.ordered_ms, **longer, **told}

    @property
    def unsettled_index(self) -> int:
        """The index of the last change of the lease, while a longer one may still run; else 0."""
        leases = self._state.leases
        return leases.changed if leases and leases.before_ms else 0

    @property
    def due_since(self) -> int | None:
        """The index from which the publisher is the only holder; None while another one holds too."""
        return self._state.due_since

    @property
    def policy(self) -> Policy:
        """The administrators' decisions in force; read-only."""
        return self._state.policy

    @property
    def control_ms(self) -> int:
        """T of D25, in ms."""
        return self._state.policy.control_ms or CONTROL_MS

    @property
    def clients(self) -> Clients:
        """Which clients are banned, and which are on the access list."""
        return self._state.policy.clients or NOBODY

    def own_destinations(self) -> set[str]:
        """Hashes in I2P base64 of what the members' newest statuses name as the farm's own: leaves, master
        destinations, and those at which they answer tests."""
        found: set[bytes] = set()
        for scored in self._statuses.values():
            meta = scored.document.meta
            leaves = [one.destination for one in scored.document.destinations or ()]
            master = [meta.destination] if meta is not None and meta.destination is not None else []
            found |= {*map(destination_hash, leaves + master)}
            found |= set() if scored.control is None else {scored.control}
        return {*map(encode, found)}

    @property
    def interval_ms(self) -> int:
        """How often a member posts its status, in ms."""
        return self._state.policy.interval_ms

    @property
    def R(self) -> int:
        """After how many statuses of others a silent member is no longer recent."""
        return self._state.policy.R

    @property
    def publish_index(self) -> int:
        """The index of the last order to publish now, 0: none. It is to be obeyed once."""
        order = self._state.policy.orders.get("publish")
        return 0 if order is None else order.index

    @property
    def farm_time_ms(self) -> int:
        """Farm time (point 2), 0 before the first status."""
        return self._state.farm_time_ms

    @property
    def skipped(self) -> Mapping[str, int]:
        """How many committed entries were skipped, by reason."""
        return self._state.skipped

    def newest(self, member: int) -> tuple[int, StatusDocument] | None:
        """Index and document of a member's newest status."""
        scored = self._statuses.get(member)
        return None if scored is None else (self._state.records[member].index, scored.document)

    def report(self, member: int) -> NodeReport:
        """The ``config.node`` of a member's newest status; without any figure if it has none."""
        scored = self._statuses.get(member)
        return NodeReport() if scored is None else scored.node

    def is_draining(self, member: int) -> bool:
        """Whether its newest status says that it is being drained: ``config.draining``, which the common
        algorithm does not look at."""
        newest = self.newest(member)
        return newest is not None and (newest[1].config or {}).get("draining") is True

    def key_expiries(self) -> dict[int, int]:
        """When the offline keys of each current member that names some expire, ms since 1970 (D21)."""
        expiries = ((member, self.report(member).key_expires) for member in self.members)
        return {member: expires_ms for member, expires_ms in expiries if expires_ms is not None}

    def has_duplicate_transients(self, member: int) -> bool:
        """Whether a current member with a lower id names one of the transient keys that this one names (D21).
        Each key is one node's; this member must not publish."""
        own = {*(self.report(member).transients or ())}
        lower = (one for one in self._state.members if one < member)
        return bool(own) and any(not own.isdisjoint(self.report(one).transients or ()) for one in lower)

    def clock_problem(self, date_ms: int) -> str:
        """Why a member whose wall clock shows ``date_ms`` must not publish, as the rest of a sentence; "" if
        that is less than a day from farm time, or if fewer than three members are recent: of two clocks, it
        is not known which one is wrong."""
        if len(self.recent()) < 3:
            return ""
        return clock_problem(date_ms, self.farm_time_ms)

    def newest_entry(self, member: int) -> msgspec.Raw:
        """The same status as it was posted, JSON with every key; ``null``: none."""
        return self._state.records[member].status

    def last_sequence(self, author: int | str) -> int:
        """The last ``sequence`` applied of a member, or of a user's notes; −1 if none. Entries up to it are
        repetitions (D17)."""
        if isinstance(author, str):
            return self._state.notes.get(author, -1)
        record = self._state.records.get(author)
        return -1 if record is None else record.sequence

    def mode(self, member: int) -> PublishConfig:
        """Whether a member may be named: override, else its ``publishConfig``, else ``auto``."""
        scored = self._statuses.get(member)
        own = None if scored is None or scored.document.meta is None else scored.document.meta.publish_config
        return self._state.policy.overrides.get(member) or own or "auto"

    def is_recent(self, member: int) -> bool:
        """Point 1, for current members and removed ones that still hold."""
        record = self._state.records.get(member)
        if record is None or not record.index:
            return False
        return 2 * record.against <= len(self._state.members) - (member in self._state.members)

    def eligible(self) -> list[int]:
        """Point 3: ids of the members that may be named, ascending."""
        return self._candidates.eligible()

    def recent(self) -> list[int]:
        """Point 1: ids of the current members that are recent, ascending."""
        return self._candidates.recent

    def order(self) -> list[int]:
        """Ids of all current members: the eligible ones, best first, then the others, ascending."""
        best_first = self._candidates.best_first()
        if len(best_first) == len(self._state.members):
            return best_first
        eligible = {*best_first}
        return [*best_first, *(member for member in self._state.members if member not in eligible)]

    def scores(self) -> dict[int, int]:
        """Point 4: the score of each current member that has a status, 0 … 1,000,000."""
        return {id_: self._statuses[id_].score for id_ in self.members if id_ in self._statuses}

    def measured(self) -> dict[int, int]:
        """Point 4: how much of the score of each current member that has a status is measured, 0 … 100."""
        counted, weights = self.counted_figures, self._state.policy.weights
        known = ((id_, self._statuses[id_]) for id_ in self.members if id_ in self._statuses)
        return {id_: measured(scored.figures, counted, weights) for id_, scored in known}

    @property
    def counted_figures(self) -> int:
        """Point 4: the figures that count, a set as in `garlicfarm.publishing.scoring`; below level 3 all."""
        return ALL if self._counted is None else self._counted

    def leases(self) -> tuple[MetaLease, ...]:
        """Point 7: what the Meta LeaseSet lists. Republish when hashes or costs differ; the end dates
        move with farm time."""
        recent = [member for member in self._state.members if self.is_recent(member)]
        costs = {member: self._state.records[member].cost or 0 for member in recent}
        leaves = ((leaf, costs[member]) for member in recent for leaf in self._statuses[member].leaves)
        return meta_leaseset.choose(leaves, self.farm_time_ms, self._state.policy.lifetime_ms)

    def contents(self) -> bytes:
        """The same as ``num u8`` and MetaLease entries."""
        return meta_leaseset.encode_contents(self.leases())

    def published_ms(self, own_ms: int) -> int:
        """The ``published`` date of a Meta LeaseSet that is made at ``own_ms``, wall clock (point 6)."""
        return meta_leaseset.published_ms(own_ms, self._state.last_published_ms)

    def was_unreached(self, member: int) -> bool:
        """Whether a member was found unreached (point 9) since others reached what it published."""
        outside = self._state.outside
        return bool(outside and member in outside.unreached)

    def contradicted(self, member: int) -> Contradiction | None:
        """What a majority holds otherwise than this member (point 11); None: nothing that is known."""
        compared = self._state.compared
        return compared.contradicted.get(member) if compared else None

    def is_confirmed(self, member: int) -> bool:
        """Point 11: whether a majority holds what a member has claimed last."""
        return comparing.is_confirmed(self._state, member)

    def claim(self, member: int) -> DigestReport | None:
        """Point 11: what a member has claimed last."""
        compared = self._state.compared
        return compared.claims.get(member) if compared else None

    @property
    def disagreeing(self) -> tuple[tuple[int, ...], ...]:
        """Point 11: members that hold different things, where no majority says which is right; grouped by
        what they hold."""
        compared = self._state.compared
        return compared.disagreeing if compared else ()

    @property
    def agreed_index(self) -> int:
        """Point 11: the newest index at which members digest what they hold, 0: none."""
        compared = self._state.compared
        return compared.agreed if compared else 0

    def group(self, member: int) -> tuple[bool, bool]:
        """Point 5: members of the lowest group go first."""
        return self._state.records[member].sanction > 0, self.mode(member) != "on"


def clock_problem(date_ms: int, farm_time_ms: int) -> str:
    """What to do about a clock that shows ``date_ms``, as the rest of a sentence; "" if that is less than a
    day from farm time; both ms since 1970."""
    days = abs(date_ms - farm_time_ms) // _DAY_MS
    if not days:
        return ""
    word = "ahead of" if date_ms > farm_time_ms else "behind"
    return f"is {days} day{'s' if days > 1 else ''} {word} the farm's: correct it"
