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

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from garlicfarm.errors import EntryRefused
from garlicfarm.i2p.encoding import decode, encode
from garlicfarm.i2p.lease_set import verify_lease_set
from garlicfarm.leases import LeaseHolder
from garlicfarm.levels import COMPARING, OUTSIDE
from garlicfarm.publishing.documents import (
    MAX_TRANSIENTS,
    ComparingReport,
    DestinationStatus,
    DigestReport,
    MetaStatus,
    NodeReport,
    RemoteStatus,
    RouterStatus,
    StatusDocument,
)
from garlicfarm.publishing.ending import JAVA_LINGER_MS, LINGER_MS, Ending
from garlicfarm.publishing.entries import encode_status
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.lease import Lease
from garlicfarm.publishing.member_standing import MemberSetup, MemberStanding, Now
from garlicfarm.publishing.offer import Offer
from garlicfarm.publishing.orders import ClockReading, KeyReport, Published, PublisherStatus
from garlicfarm.publishing.own_clock import OwnClock
from garlicfarm.publishing.publisher_core import Note, PublisherCore, Traits
from garlicfarm.publishing.sensing import Sensing, Turn
from garlicfarm.publishing.status_turns import StatusTurns
from garlicfarm.wire.messages import Grant

WATCH_MS = 1_000
"""Services, keys and the wall clock change without an event."""
_ROUNDS = 20


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a status says beside the member's part in publishing, when it is posted. ``node``: of the report,
    version, term, role, commit, admin URL and tests. Of the report, too: ``control``, since level 3, and
    ``digests``, since level 4."""

    node: NodeReport = NodeReport()
    program: object = None
    router: RouterStatus | None = None
    destinations: tuple[DestinationStatus, ...] = ()
    remote_destinations: tuple[RemoteStatus, ...] | None = None
    remote_meta: RemoteStatus | None = None
    control: str | None = None
    digests: DigestReport | None = None


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


class MemberCore(MemberStanding):
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

    # ------------------------------------------------------------------ the status

    def _booted(self, node: NodeReport, figures: Figures) -> ComparingReport:
        """With the number of this process: above that of all earlier ones, of which this member may learn
        late. A new number releases what was held before, so it is not taken while something stands. Since
        level 3, with what has been tested; since level 4, with what this member holds."""
        known = self._fold.boot(self._setup.node_id)
        if (not self._boot or known > self._boot) and not (known and self._is_exposed()):
            self._boot = max(self._setup.boot, known + 1)
        report = ComparingReport(**msgspec.structs.asdict(node), boot=self._boot or None)
        if self._fold.level >= OUTSIDE:
            outside, control = self.sensing.report(), figures.control
            report = msgspec.structs.replace(report, outside=outside, control=control)
        if self._fold.level >= COMPARING:
            report = msgspec.structs.replace(report, digests=figures.digests)
        return report

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
        config: dict[str, object] = {"node": self._booted(node, figures) if self._fold.has_leases else node}
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
