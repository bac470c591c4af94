"""A member's part in publishing, without I/O: what it reports, holds, publishes and retires, and when.

It is given the committed state (`fold`), both clocks with every call, what its publishers and its router
answer, and the wish to end; and it says what each publisher is to do by when (`PublisherCore.call`), which
status to measure for or to post (`turns`), what to log (`take_notes`), and when to call again (`wake_ms`). It
decides everything that a node does as a publisher: the node carries it out, and so does the simulator.

It publishes while this member is named, and the only holder, within its lease. It also says what of its
publishers cannot wait for the next status: that this member can no longer publish, that it has let the role
go, that it publishes, with the LeaseSet that its predecessor passes on to its clients, and that it is
drained.

Each part is a table of named states: `publisher_core.STATES` and `doubt.STATES` for each publisher,
`own_clock.STATES`, `offer.STATES`, `status_turns.STATES` and `ending.STATES`.

Source: docs/reference/protocol.md, D19, D22 and "The common algorithm", points 3 and 6.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol

import msgspec

from garlicfarm.errors import EntryRefused, PublisherError
from garlicfarm.i2p.encoding import decode, encode
from garlicfarm.i2p.lease_set import MetaLease, verify_lease_set
from garlicfarm.leases import LeaseHolder
from garlicfarm.levels import OUTSIDE
from garlicfarm.publishing.documents import (
    MAX_LEASE_SET_BYTES,
    MAX_TRANSIENTS,
    DestinationStatus,
    MetaStatus,
    NodeReport,
    PublishConfig,
    RemoteStatus,
    RouterStatus,
    SensingReport,
    StatusDocument,
)
from garlicfarm.publishing.ending import JAVA_LINGER_MS, LINGER_MS, Ending, Situation
from garlicfarm.publishing.entries import DATE_END_MS, encode_status
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.lease import Lease, lease_ms
from garlicfarm.publishing.offer import Offer
from garlicfarm.publishing.orders import ClockReading, KeyReport, Published, PublisherStatus, PublishOrder
from garlicfarm.publishing.own_clock import DEFAULT_LIMIT_MS, OwnClock
from garlicfarm.publishing.publisher_core import Note, PublisherCore, Traits
from garlicfarm.publishing.sensing import Sensing, Turn
from garlicfarm.publishing.status_turns import News, StatusTurns
from garlicfarm.wire.messages import Grant

MAX_EXPIRES_S = 65_535
"""A LeaseSet's header has 16 bits for it."""
WATCH_MS = 1_000
"""Services, keys and the wall clock change without an event."""
_ROUNDS = 20


class Now(msgspec.Struct, frozen=True):
    """A moment. ``boot_ms``: the clock of leases, which counts suspended time; ``wall_ms``: ms since 1970."""

    boot_ms: int
    wall_ms: int


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a status says beside the member's part in publishing, when it is posted. ``node``: of the report,
    version, term, role, commit, admin URL and tests. ``control``: of the report, since level 3."""

    node: NodeReport = NodeReport()
    program: object = None
    router: RouterStatus | None = None
    destinations: tuple[DestinationStatus, ...] = ()
    remote_destinations: tuple[RemoteStatus, ...] | None = None
    remote_meta: RemoteStatus | None = None
    control: str | None = None


class Surroundings(Protocol):
    """What is asked. Calls answer at once."""

    def figures(self) -> Figures:
        """For the status that is being composed."""
        ...

    def clocks(self) -> Mapping[int, ClockReading]:
        """What other members told when they let this one log in last."""
        ...

    def can_test(self, hash_: bytes) -> bool:
        """Whether a test of the destination with this hash, through this member's router, asks the network
        (D25)."""
        ...


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


class MemberCore:
    """``lease``: of this process, that rests on its statuses; ``leases``: those that leaders grant it (D24).
    ``clock``: what is known of this node's wall clock. ``last_published``: what is to be reported as such,
    and kept in a file. ``master_key``: of the master destination's keys, if they were made offline.
    ``sensing``: what is to be tested of what others publish. It is the `publisher_core.Role` of its
    publishers."""

    def __init__(
        self,
        fold: PublisherFold,
        setup: MemberSetup,
        publishers: Sequence[Traits],
        surroundings: Surroundings,
        now: Now,
    ) -> None:
        self.lease = Lease()
        self.leases = LeaseHolder()
        self.offer = Offer()
        self.clock = OwnClock(setup.max_clock_offset_ms)
        self.ending = Ending()
        self.sensing = Sensing()
        self.turns = StatusTurns(fold, setup.node_id, self.lease)
        self.publishers = [PublisherCore(traits, now.boot_ms) for traits in publishers]
        self.last_published = setup.last_published
        self.master_key = setup.master_key
        self._fold = fold
        self._setup = setup
        self._surroundings = surroundings
        self._now = now
        self._applied = 0
        self._boot = 0  # as its statuses say, once there was one
        self._notes: list[Note] = []
        self._announced_since: int | None = None  # the turn of the successor that was announced last
        self._linger_ms = 0  # for its clients, which were told of it
        self._held_since_stop = False
        self._drains = 0  # how often what it says of draining has changed
        self._said = (False, False)
        self._has_quorum = True

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

    # ------------------------------------------------------------------ what comes in

    def on_done(
        self,
        publisher: PublisherCore,
        number: int,
        now: Now,
        published: Published | None = None,
        meta: bytes | None = None,
    ) -> None:
        """A call of a publisher has done what it should. ``published``: by ``publish``, whose order had the
        Meta LeaseSet ``meta``."""
        if published is not None and publisher.call is not None and publisher.call.number == number:
            is_meta = published.lease_set == meta
            self._record(published if is_meta else msgspec.structs.replace(published, lease_set=None))
        publisher.on_done(number, now.boot_ms, self, published)
        self.step(now)

    def on_refused(self, publisher: PublisherCore, number: int, now: Now, cause: str) -> None:
        """A call of a publisher has failed."""
        publisher.on_refused(number, now.boot_ms, self, cause)
        self.step(now)

    def on_defect(self, publisher: PublisherCore, now: Now, cause: str) -> None:
        """See `PublisherCore.on_defect`."""
        publisher.on_defect(now.boot_ms, self, cause)
        self.step(now)

    def on_left(self, publisher: PublisherCore, now: Now) -> None:
        """See `PublisherCore.on_left`."""
        publisher.on_left(now.boot_ms, self)
        self.step(now)

    def on_status(
        self,
        publisher: PublisherCore,
        asked: int,
        status: PublisherStatus,
        key: KeyReport | None,
        now: Now,
    ) -> None:
        """See `PublisherCore.on_status`."""
        publisher.on_status(asked, status, key, now.boot_ms, self)
        self.step(now)

    def on_check(self, publisher: PublisherCore, now: Now, *, is_up: bool, problem: str | None) -> None:
        """Whether the service behind a publisher answers, and a sentence if it does not."""
        publisher.is_up, publisher.check_problem = is_up, problem
        self.step(now)

    def on_node_ends(self, publisher: PublisherCore, now: Now) -> None:
        """See `PublisherCore.on_node_ends`: no more is possible than that."""
        publisher.on_node_ends(now.boot_ms, self)

    def on_measured(self, number: int, now: Now) -> None:
        """The figures for the status are there."""
        self._now = now
        if number == self.turns.number and self.turns.go("measured", now.boot_ms):
            self._compose()
        self.step(now)

    def on_committed(self, number: int, index: int, now: Now) -> None:
        """The status is committed at ``index``."""
        self._has_quorum = True
        self.turns.on_committed(number, index, now.boot_ms)
        self.step(now)

    def on_status_refused(self, number: int, now: Now, cause: str) -> None:
        """The farm would not take the status."""
        if number == self.turns.number:
            self._now = now
            self._on_refused(cause)
        self.step(now)

    def on_status_failed(self, number: int, now: Now, cause: str, *, has_quorum: bool) -> None:
        """The status may or may not have been committed, or certainly was not. ``has_quorum``: False where
        no majority was to be had."""
        self._has_quorum = has_quorum
        if number == self.turns.number and self.turns.go("failed", now.boot_ms):
            self._notes.append(Note("status-not-posted", {"cause": cause}, is_warning=True))
        self.step(now)

    def on_grant(self, grant: Grant, now: Now) -> bool:
        """See `LeaseHolder.on_grant`. Whether anything may follow from it."""
        has_lease = self._has_lease(now)
        self.leases.on_grant(grant, now.boot_ms)
        return self._on_longer_lease(has_lease, now)

    def on_own_lease(self, index: int, end_ms: int, now: Now) -> bool:
        """This member leads, and is named since ``index``: see `LeaseGranter.own`. Whether anything may
        follow from it."""
        has_lease = self._has_lease(now)
        self.leases.extend(index, end_ms)
        return self._on_longer_lease(has_lease, now)

    def _has_lease(self, now: Now) -> bool:
        return all(publisher.may_publish(now.boot_ms, self) for publisher in self.publishers)

    def _on_longer_lease(self, had_one: bool, now: Now) -> bool:
        """Leases are granted several times a second: nothing is due because one that lasts is longer now."""
        if not had_one:
            self.step(now)
        return not had_one

    def on_tested(self, number: int, answered: bool | None, now: Now) -> None:
        """See `Sensing.on_tested`."""
        self.sensing.on_tested(number, answered, now.boot_ms)
        self.step(now)

    def drain(self, drained: bool, now: Now) -> None:
        """Set or remove the mark that lets another member take over."""
        self.ending.drain(drained)
        self.step(now)

    def stop(self, now: Now, bound_ms: int) -> None:
        """Let go within ``bound_ms``: then ``ending.state`` is ``over``."""
        self.ending.stop(now.boot_ms, bound_ms)
        self.step(now)

    # ------------------------------------------------------------------ what follows

    def step(self, now: Now, applied: int | None = None) -> None:
        """Do all that is due. ``applied``: the index of the last entry that was applied, None: as before."""
        self._now = now
        if applied is not None:
            self._applied = applied
        self._compare_clocks()
        for _ in range(_ROUNDS):
            before = self._states()
            self._step()
            if self._states() == before:
                return
        raise AssertionError(f"this member comes to no rest: {self._states()}")

    def wake_ms(self) -> int:
        """When to call `step` again, if nothing comes in before; boot clock."""
        now_ms = self._now.boot_ms
        found = self.turns.wake_ms() + self.sensing.wake_ms()
        for publisher in self.publishers:
            found += publisher.wake_ms(self)
        if self.ending.until_ms is not None:
            found.append(self.ending.until_ms)
        return min([now_ms + WATCH_MS, *(ms for ms in found if ms > now_ms)])

    def take_notes(self) -> list[tuple[str, Note]]:
        """What to log since the last call: the publisher's name, or "", and what happened."""
        notes = []
        for publisher in self.publishers:
            notes += [(publisher.traits.name, note) for note in publisher.notes]
            publisher.notes.clear()
        notes += [("", note) for note in self._notes]  # what follows from them
        self._notes.clear()
        return notes

    def _states(self) -> tuple[object, ...]:
        states = [publisher.state for publisher in self.publishers]
        own = self.clock.state, self.offer.state, self.ending.state, self.turns.state
        return *states, *own, self.turns.number, self._said

    def _step(self) -> None:
        now_ms = self._now.boot_ms
        self._announce_successor()
        turn, own = self._turn_of_publisher(), self._setup.node_id
        if turn is not None and own in self._fold.statuses:
            self.sensing.can_judge |= self._fold.statuses[own].outside is not None  # of an earlier process
        self.sensing.step(now_ms, turn)
        for publisher in self.publishers:
            publisher.step(now_ms, self)
        if self.offer.step(
            now_ms, can_publish=self.can_publish, others_can=self._others_publish(), pause_ms=self.pause_ms
        ):
            if self.offer.is_withdrawn:
                problems = [problem for publisher in self.publishers for problem in publisher.problems()]
                if self.clock_problem:
                    problems.insert(0, f"this node's clock {self.clock_problem}")
                cause = "; ".join(problems) or "for no known reason"
                self._notes.append(Note("cannot-publish", {"cause": cause}, is_warning=True))
            else:
                self._notes.append(Note("can-publish", {}, is_warning=False))
        self._held_since_stop = self.ending.is_draining and (self._held_since_stop or not self._is_free())
        self.ending.step(now_ms, self._situation())
        said = self.ending.is_draining, self.ending.is_aside
        self._drains += said != self._said
        self._said = said
        news = self.news()
        event = self.turns.due(now_ms, self._applied, news, is_confirmed=not self._is_exposed())
        if event is not None:
            if event in ("confirmed", "due", "news"):
                self.turns.begin(now_ms, self._now.wall_ms, self._applied, news)
            self.turns.go(event, now_ms)
            if event == "news":
                self._compose()

    def _compare_clocks(self) -> None:
        """With what has been applied since, and with the time that has passed."""
        fold, own, now_ms = self._fold, self._setup.node_id, self._now.boot_ms
        newest, begun = fold.newest(own), self.turns.begun
        is_of_begun = newest is not None and begun is not None and newest[1].date == begun.date_ms
        if is_of_begun and bytes(fold.newest_entry(own)) == self.turns.entry:
            assert newest is not None
            assert begun is not None
            self.clock.on_own_status(newest[0], begun.boot_ms)
        others = [member for member in fold.recent() if member != own]
        for member in others:
            if (theirs := fold.newest(member)) is not None:
                applied = fold.report(member).applied
                self.clock.on_status(member, theirs[0], theirs[1].date, applied, now_ms)
        for member, told in self._surroundings.clocks().items():
            self.clock.on_login(member, told, now_ms, self._now.wall_ms)
        self.clock.retain({*fold.members})
        for number, publisher in enumerate(self.publishers):
            self.clock.on_router(number, publisher.status.router_date, now_ms, self._now.wall_ms)
        self.clock.step(now_ms, self._now.wall_ms, others)

    def _on_refused(self, cause: str) -> None:
        if self.turns.go("refused", self._now.boot_ms):
            self._notes.append(Note("status-refused", {"cause": cause}, is_warning=True))

    def _record(self, published: Published) -> None:
        """A Meta LeaseSet replaces anything else, and nothing else replaces one, whose bytes are known."""
        last = self.last_published
        if last is None or last.lease_set is None or published.lease_set is not None:
            self.last_published = published

    def _announce_successor(self) -> None:
        """Once this member has stopped, tell its clients of the LeaseSet that the next publisher has
        published; once for each."""
        fold = self._fold
        if fold.publisher is None or self.is_named or fold.due_since in (None, self._announced_since):
            return
        report = fold.report(fold.publisher)
        if report.lease_set is None or (report.applied or 0) < (fold.due_since or 0):
            return
        self._announced_since = fold.due_since
        data = decode(report.lease_set)
        try:
            lease_set = verify_lease_set(data, self._now.wall_ms // 1000)
        except ValueError as error:
            fields = {"member": fold.publisher, "cause": str(error)}
            self._notes.append(Note("successor-refused", fields, is_warning=True))
            return
        for publisher in self.publishers:
            last = publisher.published
            is_its = publisher.traits.destination == lease_set.destination
            if is_its and last is not None and lease_set.published_s * 1000 > last.published_ms:
                publisher.announce(data)
                is_java = publisher.status.router_kind == "java"
                self._linger_ms = max(self._linger_ms, JAVA_LINGER_MS if is_java else LINGER_MS)

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

    # ------------------------------------------------------------------ what others publish

    def _turn_of_publisher(self) -> Turn | None:
        """What there is to test of another member that is due to publish (D25)."""
        fold, publisher, due_since = self._fold, self._fold.publisher, self._fold.due_since
        if fold.level < OUTSIDE or self.is_named or publisher is None or due_since is None:
            return None
        if fold.clients.allowed:  # those who test are strangers
            return None
        scored = fold.statuses[publisher]
        leaves = {leaf.hash for leaf in scored.leaves}
        controls: set[bytes] = set()
        for member in fold.recent():
            if member not in (publisher, self._setup.node_id):
                other = fold.statuses[member]
                controls |= {leaf.hash for leaf in other.leaves}
                controls |= set() if other.control is None else {other.control}
        return Turn(
            publisher=publisher,
            since=due_since,
            leaves=self._testable(leaves if scored.publishing else set()),
            controls=self._testable(controls - leaves),
            control_ms=fold.control_ms,
        )

    def _testable(self, hashes: set[bytes]) -> tuple[bytes, ...]:
        return tuple(sorted(hash_ for hash_ in hashes if self._surroundings.can_test(hash_)))

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

    def _booted(self, node: NodeReport, control: str | None) -> SensingReport:
        """With the number of this process: above that of all earlier ones, of which this member may learn
        late. A new number releases what was held before, so it is not taken while something stands. Since
        level 3, with what has been tested."""
        known = self._fold.boot(self._setup.node_id)
        if (not self._boot or known > self._boot) and not (known and self._is_exposed()):
            self._boot = max(self._setup.boot, known + 1)
        report = SensingReport(**msgspec.structs.asdict(node), boot=self._boot or None)
        if self._fold.level < OUTSIDE:
            return report
        return msgspec.structs.replace(report, outside=self.sensing.report(), control=control)

    def _compose(self) -> None:
        """Make the entry of the status that was begun."""
        begun, figures = self.turns.begun, self._surroundings.figures()
        assert begun is not None
        keys, lease_set = self.keys(), self.lease_set
        node = msgspec.structs.replace(
            figures.node,
            applied=begun.applied,
            interval_ms=begun.interval_ms,
            R=begun.R,
            transients=tuple(key.transient for key in keys)[:MAX_TRANSIENTS] or None,
            key_expires=min((key.expires_ms for key in keys), default=None),
            lease_set=encode(lease_set) if lease_set else None,
        )
        last = None if self.last_published is None else self.last_published.lease_set
        meta = MetaStatus(
            destination=self._setup.master or None,
            publish_config="off" if self.ending.is_aside else self._setup.publish_config,
            last_published_ls=encode(last) if last else None,
            last_published_time=self.last_published_ms,
            publishing=self.publishing,
        )
        config: dict[str, object] = {
            "node": self._booted(node, figures.control) if self._fold.has_leases else node
        }
        if figures.program is not None:
            config["program"] = figures.program
        if self.ending.is_draining:
            config["draining"] = True
        document = StatusDocument(
            cluster=self._fold.farm,
            date=begun.date_ms,
            id=self._setup.node_id,
            sequence=self.turns.next_sequence(begun.date_ms),
            config=config,
            meta=meta,
            router=figures.router,
            destinations=figures.destinations,
            remote_destinations=figures.remote_destinations,
            remote_meta=figures.remote_meta,
        )
        try:
            self.turns.entry = encode_status(document)
        except EntryRefused as error:
            self._on_refused(str(error))
