"""Where a member stands in publishing: what the committed state, both clocks and its publishers come to.

Questions only: whether the role is this member's, whether it can publish, whether it may end, and what its
status says of that. What they are asked of is kept in `garlicfarm.publishing.member_core`, which acts on the
answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import msgspec

from garlicfarm.errors import PublisherError
from garlicfarm.i2p.encoding import encode
from garlicfarm.i2p.lease_set import MetaLease
from garlicfarm.leases import LeaseHolder
from garlicfarm.publishing.documents import MAX_LEASE_SET_BYTES, DestinationStatus, PublishConfig
from garlicfarm.publishing.ending import Ending, Situation
from garlicfarm.publishing.entries import DATE_END_MS
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.lease import Lease, lease_ms
from garlicfarm.publishing.offer import Offer
from garlicfarm.publishing.orders import KeyReport, Published, PublishOrder
from garlicfarm.publishing.own_clock import DEFAULT_LIMIT_MS, OwnClock
from garlicfarm.publishing.publisher_core import PublisherCore
from garlicfarm.publishing.sensing import Sensing
from garlicfarm.publishing.status_turns import News, StatusTurns

MAX_EXPIRES_S = 65_535
"""A LeaseSet's header has 16 bits for it."""


class Now(msgspec.Struct, frozen=True):
    """A moment. ``boot_ms``: the clock of leases, which counts suspended time; ``wall_ms``: ms since 1970."""

    boot_ms: int
    wall_ms: int


class MemberSetup(msgspec.Struct, frozen=True, kw_only=True):
    """``boot``: of this process, ≥ 1, and higher than that of any before as far as its disk knows (D24).
    ``master``: the farm's master destination in I2P base64, "": none; ``signs_for``: it in binary, where
    this node has its keys, whose report is ``master_key`` if they were made offline. ``publish_config``: this
    node's. ``last_published``: what a router has taken last, in earlier processes. ``max_clock_offset_ms``:
    by how much this node's wall clock may differ from the farm's or its router's while it offers itself."""

    node_id: int
    boot: int = 1
    master: str = ""
    signs_for: bytes | None = None
    master_key: KeyReport | None = None
    publish_config: PublishConfig | None = None
    last_published: Published | None = None
    max_clock_offset_ms: int = DEFAULT_LIMIT_MS


class MemberStanding:
    """The questions. What they are asked of is `garlicfarm.publishing.member_core.MemberCore`'s."""

    lease: Lease
    leases: LeaseHolder
    offer: Offer
    clock: OwnClock
    ending: Ending
    sensing: Sensing
    turns: StatusTurns
    publishers: list[PublisherCore]
    last_published: Published | None
    master_key: KeyReport | None
    _fold: PublisherFold
    _setup: MemberSetup
    _now: Now
    _boot: int
    """as its statuses say, once there was one"""
    _linger_ms: int
    """for its clients, which were told of it"""
    _held_since_stop: bool
    _drains: int
    """how often what it says of draining has changed"""
    _has_quorum: bool

    # ------------------------------------------------------------------ the role

    @property
    def is_named(self) -> bool:
        """Whether the farm has named this member."""
        return self._fold.publisher == self._setup.node_id

    @property
    def is_due(self) -> bool:
        """See `Role`. Nothing new is due once the node ends, nor by the lease of an earlier naming, nor
        before the farm knows of this process: the status that tells it releases what the one before held."""
        fold, status_end_ms = self._fold, self.lease.expires_ms
        is_known = fold.boot(self._setup.node_id) == self._boot
        has_lease = (
            not fold.has_leases
            or (is_known and self.leases.end_ms(fold.state.since) is not None)
            or (status_end_ms is not None and self._now.boot_ms < status_end_ms)
        )
        return (
            self.is_named
            and fold.due_since is not None
            and has_lease
            and self.may_sign
            and not self.ending.is_final
        )

    @property
    def lease_ms(self) -> int:
        """See `Role`."""
        return self._fold.lease_lasts_ms

    @property
    def doubt_ms(self) -> int:
        """See `Role`: an earlier process may have begun its lease before leases became shorter."""
        if self._fold.has_leases:
            return self._fold.lease_waits_ms
        newest = self._fold.report(self._setup.node_id)
        return max(self.lease_ms, lease_ms(newest.interval_ms or 0, newest.R or 0))

    @property
    def lease_end_ms(self) -> int | None:
        """See `Role`."""
        ends_ms = self.lease.expires_ms, self.leases.newest_end_ms
        return max((end_ms for end_ms in ends_ms if end_ms is not None), default=None)

    @property
    def listed(self) -> Hashable:
        """See `Role`."""
        return self.master_key, tuple((lease.hash, lease.cost) for lease in self._fold.leases())

    @property
    def forced_index(self) -> int:
        """See `Role`."""
        return self._fold.publish_index

    def order(self) -> tuple[PublishOrder, tuple[MetaLease, ...]]:
        """See `Role`."""
        fold = self._fold
        published_ms = fold.published_ms(self._now.wall_ms)
        if published_ms >= DATE_END_MS:
            raise PublisherError(
                "this node's clock shows a date after 2106-02-07, which no LeaseSet can have"
            )
        published_s = published_ms // 1000
        leases = fold.leases()
        lifetime_s = fold.policy.lifetime_ms // 1000
        end_s = max((lease.end_date for lease in leases), default=published_s + lifetime_s)
        expires_s = min(max(end_s - published_s, 1), MAX_EXPIRES_S)
        assert fold.due_since is not None
        order = PublishOrder(
            due_index=fold.due_since,
            published_ms=published_ms,
            expires_ms=published_ms + expires_s * 1000,
        )
        return order, leases if self._setup.signs_for is not None else ()

    # ------------------------------------------------------------------ whether it can publish

    @property
    def can_publish(self) -> bool:
        """Whether all required publishers are ready, their services up and their keys valid, this node's
        clock right, and no other member with a lower id signs with the same transient key."""
        required = [publisher for publisher in self.publishers if publisher.traits.is_required]
        return (
            bool(self.publishers)
            and all(publisher.row.is_ready for publisher in required)
            and all(publisher.is_up for publisher in self.publishers)
            and not self.clock.is_off
            and self.may_sign
        )

    @property
    def may_sign(self) -> bool:
        """Whether this node's clock can be right, and all keys are valid, and no other member's. If no member
        can publish, the farm names one that cannot."""
        now_ms = self._now.wall_ms
        is_shared = self._fold.has_duplicate_transients(self._setup.node_id)
        is_valid = not is_shared and all(key.expires_ms > now_ms for key in self.keys())
        return is_valid and not self._fold.clock_problem(now_ms)

    @property
    def clock_problem(self) -> str:
        """What is wrong with this node's clock, and what to do, as the rest of a sentence; "" if nothing is
        known to be."""
        return self._fold.clock_problem(self._now.wall_ms) or self.clock.problem

    @property
    def pause_ms(self) -> int:
        """How long a member that has withdrawn has to be able to publish before it offers itself again."""
        return self._fold.R * self._fold.interval_ms

    def keys(self) -> list[KeyReport]:
        """The offline keys that this node signs with, each once."""
        found = [*(publisher.key for publisher in self.publishers), self.master_key]
        return list({key.transient: key for key in found if key is not None}.values())

    def _others_publish(self) -> bool:
        """Whether another eligible member offers to publish."""
        return any(self._offers(member) for member in self._others(self._fold.eligible()))

    def _others_can(self) -> bool:
        """Whether another member could take over, if this one lets go. Where this one cannot publish either,
        it is enough that one could be named."""
        others = self._others(self._fold.eligible())
        return any(self._offers(member) or not self.can_publish for member in others)

    def _offers(self, member: int) -> bool:
        newest = self._fold.newest(member)
        return newest is not None and newest[1].meta is not None and newest[1].meta.publishing is not None

    def _others(self, members: Sequence[int]) -> list[int]:
        """Those that are not drained."""
        fold, own = self._fold, self._setup.node_id
        return [member for member in members if member != own and not fold.is_draining(member)]

    # ------------------------------------------------------------------ letting go

    def holds(self) -> str:
        """What would be missing if a drained member ended now, as a sentence; "": nothing."""
        now, what = self._situation(), "it publishes" if self._is_exposed() else "it is the publisher"
        if not now.is_free:
            return (
                f"{what}, until another member does" if now.others_can else f"{what}, and no other member can"
            )
        if not now.is_told:
            return "the farm has not been told yet"
        return "" if now.is_followed else "the next publisher does not publish yet"

    def _is_exposed(self) -> bool:
        return any(publisher.is_exposed for publisher in self.publishers)

    def _is_free(self) -> bool:
        is_held = self.is_named or self._fold.taken_index(self._setup.node_id) is not None
        return not (is_held or self._is_exposed())

    def _situation(self) -> Situation:
        fold = self._fold
        return Situation(
            is_told=self.turns.begun is None or ("drained", self._drains) in self.turns.told,
            is_free=self._is_free(),
            others_can=self._has_quorum and self._others_can(),
            others_drain=not (self._has_quorum and self._others(fold.recent())),
            is_followed=not self._held_since_stop or self._is_followed(),
            linger_ms=self._linger_ms,
        )

    def _is_followed(self) -> bool:
        """Whether the member that is named now has published: it says that it publishes even before, and
        dates what it publishes later than all that the farm knows. One that only ranks has nothing more to
        say."""
        fold = self._fold
        if fold.publisher is None or fold.due_since is None or self.is_named:
            return False
        newest = fold.newest(fold.publisher)
        if newest is None or newest[1].meta is None or newest[1].meta.publishing is None:
            return not self._offers(fold.publisher)
        is_begun = newest[1].meta.publishing and (fold.report(fold.publisher).applied or 0) >= fold.due_since
        published_ms, own_ms = newest[1].meta.last_published_time or 0, self.last_published_ms or 0
        is_wrong = own_ms >= fold.published_ms(0)  # a date that the farm does not believe
        return is_begun and (published_ms > own_ms or is_wrong)

    # ------------------------------------------------------------------ what to report

    @property
    def publishing(self) -> bool | None:
        """The value of ``meta.publishing`` in the status; None: leave the key out.

        After this member has lost the role, the next publisher starts once this one reports false. So it
        reports true until every publisher has confirmed that it stopped.
        """
        is_able = self.can_publish and not self.offer.is_withdrawn and not self.ending.is_aside
        if self.is_named:
            return any(publisher.row.reports for publisher in self.publishers) if is_able else None
        if self._is_exposed():
            return True
        return False if is_able else None

    def news(self) -> News:
        """What cannot wait for the next status: ``withdrawn``, ``released``, ``published``, ``lease set``,
        ``drained``, ``found`` (lost) and ``outside``, what it has tested. An item ``("released", index)``, or
        ``found``, is said only by a status that is begun after ``index`` was applied."""
        found: set[tuple[str, int]] = set()
        if self.offer.is_withdrawn:
            found.add(("withdrawn", self.offer.count))
        taken = self._fold.taken_index(self._setup.node_id)
        if taken is not None and not self._is_exposed():
            found.add(("released", taken))
        required = [each for each in self.publishers if each.traits.is_required] or self.publishers
        stands = [each.state in ("publishing", "renewing") for each in required]
        if self.is_named and stands and all(stands):
            found.add(("published", self._fold.due_since or 0))
        if self.lease_set is not None:
            found.add(("lease set", self._fold.due_since or 0))
        if self._drains:
            found.add(("drained", self._drains))
        lost = self._fold.lost_index(self._setup.node_id)
        if lost is not None:
            found.add(("found", lost))
        if self.sensing.changes:
            found.add(("outside", self.sensing.changes))
        return frozenset(found)

    @property
    def lease_set(self) -> bytes | None:
        """The LeaseSet of a service, as this member has given it to its router; None unless it publishes one
        that a status can carry."""
        for publisher in self.publishers if self.is_named else ():
            stands = publisher.state in ("publishing", "renewing")
            published = publisher.published if stands else None
            if published is not None and publisher.traits.destination not in (None, self._setup.signs_for):
                data = published.lease_set
                if data is not None and len(data) <= MAX_LEASE_SET_BYTES:
                    return data
        return None

    @property
    def last_published_ms(self) -> int | None:
        """When a router has last taken something, wall clock, 0: never; None without publishers."""
        if not self.publishers:
            return None
        last = self.last_published
        recorded_ms = 0 if last is None else last.published_ms
        if last is not None and last.lease_set is not None:
            return recorded_ms  # of the Meta LeaseSet, which is reported beside it
        return max([recorded_ms, *(publisher.status.published_ms or 0 for publisher in self.publishers)])

    def leaves(self) -> list[DestinationStatus]:
        """The leaves that publishers serve, with the figures that their sessions give."""
        return [
            publisher.status.leaf or DestinationStatus(destination=encode(destination))
            for publisher in self.publishers
            if (destination := publisher.traits.destination) not in (None, self._setup.signs_for)
        ]

    def is_backend_up(self, destination: bytes) -> bool:
        """Whether the service behind a leaf answers; True where nothing checks it."""
        return all(each.is_up for each in self.publishers if each.traits.destination == destination)
