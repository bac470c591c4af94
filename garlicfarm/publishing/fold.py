"""The application ``publisher``: which member publishes a Meta LeaseSet, and what that lists.

A deterministic fold over the committed log, in index order, in integers only. Its input is every
Application entry (judged by `entries`) and every Configuration; its whole state is `fold_state.FarmState`,
which is also the snapshot. Same log, same bytes, on every server. It reads no clock and compares no two
members' clocks. Interval (30 s), R (3), margin (50,000), weights, lifetime and excluded
leaves are those of `policy`: set by committed administrative entries, else these constants.

**What one entry does.** An entry is skipped, and counted as such, for the first of these reasons that
applies: it is not valid (`entries`); it is an order that cannot be obeyed (`Policy.check`), or a note, or a
status while at least three members are recent, dated more than ten years past farm time, if that is
past 2020 ("years ahead"); it is a status of a former process (point 8); it comes from no current member
("not a member"); its ``sequence`` is not above the last applied one of its author ("repeated", D17; the
author is the member ``id``, or the user ``by`` of a note); it is a finding that is void (point 8). After
every other entry except notes, and after every Configuration, the points below are evaluated once, in this
order. When a Configuration removes a member, its records are deleted at once, or when it no longer holds
(point 6). From then on its statuses count against no member, even if it returns.

1. *Recent.* A member's newest status is its last one in the log; interval and R of the member are those
   that this status names (else the farm's at that index). For each interval in use by the newest status
   of some member, or removed one that still holds, a status is *counted* for its author if its date
   differs by at least 0.9 of that interval from the author's previously counted one for that interval
   (the first is counted, and so is the first after a status of that author at which that interval was
   not in use). A member is recent unless it has no status, or more than half of the other current members
   have each posted R statuses after its newest one that are counted for its interval and name
   a ``config.node.applied`` ≥ the index of its newest.
2. *Farm time*: the lower median of the recent members' newest dates; unchanged while no member is recent.
3. *Eligible*: recent members whose mode (override, else ``publishConfig``, else ``auto``) is not
   ``off``, provided that some recent member reports a usable leaf that is not excluded. If any of these
   reports ``meta.publishing``, only those that do are eligible.
4. *Score*: `scoring`. Since level 3 a figure counts that the newest status of a recent current member
   reports, for all scores from this entry on. Costs (`meta_leaseset`) still change only with a status of that
   member, by its score after it, and with orders.
5. *Publisher.* Eligible members fall into groups: the sanctioned behind the others, within that mode
   ``on`` before ``auto``; only the foremost group that has members counts. If the incumbent is not in
   it, the member with the highest score is named, the lowest id among equals. If it is, it stays, unless
   the author of this status, another one of the same group, now has led by the margin or more at three
   consecutive statuses of its own that are counted for its own interval (others change nothing): then
   that author is named. A change of publisher sets all leads, and the count of failures below, to 0.
   *Sanction*: a publisher that posts ``publishing=false`` R times in a row, R as in the last of them, is
   sanctioned until its 10 R-th status after that. Statuses that lack the key, or were not begun when it
   was due to start (``applied`` below that index), neither count nor break the row.
6. *Holders*: members named and not yet released. One that is no longer named is released by a status of
   its own without ``publishing=true`` and with ``applied`` ≥ the index that took the role from it, or
   by not being recent; since level 2 not by that, but by point 8. A member removed by a Configuration is
   kept and judged until it is released. The publisher is *due to start* from the index at which it became
   the only holder. The highest ``meta.lastPublishedTime`` is kept, among those at most 10 minutes past farm
   time after their own entry.
7. *Contents*: `meta_leaseset`. The order ``publish`` changes neither them nor the ranking; its index is
   kept, and the publisher publishes once for it.
8. *Leases on heartbeats*, since level 2 (D24). A finding ``lost`` is void unless its index is the one since
   which the member is named, or which took the role from it. It makes the member ineligible until a status
   of its own with ``applied`` ≥ the index of the finding, point 5 follows, and the member is released. A
   status with a higher ``config.node.boot`` than any before of its author, if there was one, releases its
   author if that is not named; one with a lower number, or none, is skipped ("former process"). Numbers count
   since the raise to this level, or since the author became a member. A lease lasts as the order ``lease``
   says; before the first one, as by point 6 with the farm's interval and R at the raise, but at most 600 s;
   until a current member has posted, at the newest Configuration instead.
   A finding ``timeouts`` bounds that from above, and sets the election time-out that members use (D27). The
   longest that it has lasted is kept, if anyone holds when it changes, until a finding ``settled`` names the
   index of the last change. At the raise, if anyone holds, that is the longest by point 6 with the farm's
   interval and R, and with those of each newest status.
9. *What others measure*, since level 3 (D25). A *report* is the ``config.node.outside`` of the newest status
   of another current and recent member, if it names the publisher and the index since which that one is due
   to start. It *fails* if ``failed`` ≥ 3 and it has a ``control``; it *reaches* if ``failed`` is 0. Just
   before point 5, if the publisher is due to start: if the reports that reach are at least two, and more than
   half of all other members, its count of findings returns to 0. If it is eligible, as many fail, and another
   eligible member is not sanctioned, it is found *unreached*: its count rises by 1, to 20 at most, and it is
   sanctioned, unless it is for longer, until its n-th status after that; n is 10 R, times 2 for each finding
   before, but at most an hour of its interval, or 10 R if that is more. R and the interval are those of its
   newest status. From this level on a sanction of point 5, too, never shortens one. A member that is removed
   has no count. While the access list has an entry, there are no reports.
10. *Clients*, since level 3 (D25): `clients`. Their lists are kept apart from the orders in force. Nothing
   else depends on them.
11. *What members hold*, since level 4 (D26): `comparing`. Before point 5, a status's ``config.node.digests``
   at the *agreed* index is kept as its author's *claim*, and the claims at that index are compared. Members
   with equal claims are a majority if they have more votes than half of the current members; a member and the
   one whose snapshot it restored have one vote between them. A member that claims another chain than a
   majority is *contradicted* by its chain, one that claims another state by its state, until more than half
   of the current members, linked or not, claim both as it does, or a Configuration after which at least half
   of the current members are contradicted, which ends it for all. It is not eligible. Once all recent members
   have claims there, they *disagree* if these differ and none of them is a majority's. After every 4 statuses
   for each current member, the index of the last one is the agreed index. A claim at the agreed index is
   *confirmed* while a majority has claimed the same. Nothing here depends on it: a member that has restored a
   snapshot then claims without its origin.
12. *Silence*, since level 4 (D28): `forgetting`. After point 2, the time that the farm has *served* grows by
   the step of farm time since it last grew, but by R intervals of the farm at most. A step back counts as
   nothing; if it is longer than R intervals, the next step is counted from there. For each current member the
   state has the time served at the end of its newest status, before that at the Configuration that made it a
   member, or at the raise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from garlicfarm.errors import EntryRefused, StorageDamaged, StorageVersion
from garlicfarm.levels import LOWEST, OUTSIDE, algorithm_of, unknown_algorithm
from garlicfarm.publishing import (
    comparing,
    forgetting,
    heartbeat_leases,
    meta_leaseset,
    outside,
    publication,
    ranking,
    scoring,
)
from garlicfarm.publishing.administration import FINDINGS, Admin, Lost, Settled, Timeouts
from garlicfarm.publishing.admission import check_entry, check_posted, check_state
from garlicfarm.publishing.candidates import Candidate, Candidates
from garlicfarm.publishing.entries import (
    Administrative,
    Entry,
    Observation,
    Refused,
    Status,
    observe,
    parse_entry,
)
from garlicfarm.publishing.events import EventLog
from garlicfarm.publishing.farm_queries import FarmQueries
from garlicfarm.publishing.fold_state import (
    MAX_UNREACHED,
    SCHEMA,
    Because,
    FarmState,
    Header,
    MemberRecord,
    OutsideState,
    ScoredStatus,
    encode_state,
    is_consistent,
)
from garlicfarm.publishing.policy import CONSECUTIVE_LEADS, Pinned, Policy
from garlicfarm.publishing.silences import Silences
from garlicfarm.publishing.troubles import Troubles
from garlicfarm.trouble import Trouble
from garlicfarm.wire.messages import Configuration

_PUBLISHED_AHEAD_MS = 600_000
_MAX_NOTE_AUTHORS = 1024


def _as_recorded(index: int, status: Status) -> bool | None:
    return status.publishing


def _always(index: int) -> bool:
    return True


def _as_found(index: int, is_right: bool) -> bool:
    return is_right


def _scored_status(status: Status, policy: Policy, publishing: bool | None) -> ScoredStatus:
    return ScoredStatus(
        document=status.document,
        node=status.node,
        reported=status.leaves,
        leaves=policy.without_excluded(status.leaves),
        figures=status.figures,
        parts=status.parts,
        score=scoring.score(status.parts, policy.weights),
        publishing=publishing,
        outside=status.outside,
        control=status.control,
    )


def _restored_status(state: FarmState, member: int) -> ScoredStatus:
    record, policy = state.records[member], state.policy
    # A status is valid at any level, but what level 3 reads may stand in an earlier one as an unknown key.
    # What level 4 reads of it is kept as a claim.
    is_newer = state.outside and record.index > state.outside.since
    status = parse_entry(bytes(record.status), state.farm, OUTSIDE if is_newer else LOWEST)
    if not isinstance(status, Status) or status.document.id != member:
        raise EntryRefused("", f"not a status of member {member}")
    return _scored_status(status, policy, status.publishing)


class PublisherFold(FarmQueries):
    """The fold of one farm, a `garlicfarm.application.StateMachine`."""

    def __init__(
        self,
        farm: str,
        pinned: Pinned | None = None,
        publishing: Callable[[int, Status], bool | None] = _as_recorded,
        is_recorded: Callable[[int], bool] = _always,
        is_found: Callable[[int, bool], bool] = _as_found,
    ) -> None:
        """``farm``: its name, the ``cluster`` of its entries.

        A node gives no others, a `replay` does. ``pinned``: parameters that hold whatever the log says.
        ``publishing``: what counts as ``meta.publishing`` of the status at an index. ``is_recorded``: whether
        the leader of the log looked for the holders that this fold has at an index; else who is not recent is
        released. ``is_found``: whether the finding ``lost`` at an index counts, which is about the present
        naming of its member or not.
        """
        self._pinned = pinned or Pinned()
        self._publishing = publishing
        self._is_recorded = is_recorded
        self._is_found = is_found
        self._state = FarmState(farm=farm)
        self._state.policy.pin(self._pinned)
        self._statuses: dict[int, ScoredStatus] = {}
        self._sensing: set[int] = set()  # members whose newest status has a report
        self._silences = Silences()
        self._candidates = Candidates()
        self._counted: int | None = None  # the figures that count; None: below level 3
        self._events = EventLog(self._state, [])
        self._troubles = Troubles()

    # Queries

    def ranking(self) -> dict[str, object]:
        """All members, best first, with score parts and why: ready for JSON, see `ranking`."""
        return ranking.ranking(self)

    def published_leaves(self) -> list[dict[str, Any]]:
        """What other members saw of the publisher's leaves: ready for JSON, see `publication`."""
        return publication.published_leaves(self)

    def events(self) -> list[dict[str, object]]:
        """The newest events, oldest first: ready for JSON, see `events`. They are no part of the state."""
        return [msgspec.to_builtins(event) for event in self._events.events()]

    def troubles(
        self,
        now_ms: int,
        own_until_ms: Mapping[int, int] = MappingProxyType({}),
        own_clock: Mapping[int, str] = MappingProxyType({}),
    ) -> list[Trouble]:
        """What operators should see to: `Troubles.found`. They are no part of the state."""
        return self._troubles.found(self, now_ms, own_until_ms, own_clock)

    # Application

    def check(self, entry: bytes, author: int) -> None:
        """`admission.check_entry`. Raises `EntryRefused`."""
        check_entry(self, entry, author)

    def check_posted(self, entry: bytes, author: int, user: str, now_ms: int) -> None:
        """`admission.check_posted`. Raises `EntryRefused`."""
        check_posted(self, entry, author, user, now_ms)

    def apply(self, index: int, term: int, entry: bytes) -> None:
        """Fold in the committed entry at ``index``; never raises on content."""
        self.fold(index, observe(entry, self.farm, self.level, term))

    def fold(self, index: int, observation: Observation) -> None:
        """Fold in what the committed entry at ``index`` says (`entries.observe`, of this farm, level and the
        entry's term)."""
        if isinstance(observation, Refused):
            self._skip(observation.reason)
            return
        try:
            self._fold(index, observation)
        except EntryRefused as error:
            self._skip(error.reason)

    def configure(self, index: int, members: Configuration) -> None:
        """The servers of ``members`` are the current members from ``index`` on, at its level."""
        state = self._state
        state.algorithm = max(state.algorithm, algorithm_of(members.level))
        state.members = tuple(sorted({server.id for server in members.servers}))
        kept = {*state.members, *state.holders}
        state.records = {id_: state.records.get(id_) or MemberRecord() for id_ in sorted(kept)}
        state.policy.retain(state.members)
        heartbeat_leases.configure(state, index)
        self._configure_outside(index)
        comparing.configure(state)
        forgetting.configure(state)
        self._statuses = {id_: scored for id_, scored in self._statuses.items() if id_ in kept}
        self._sensing &= kept
        self._silences.retain(state.members, kept)
        for id_, record in state.records.items():
            record.against = self._silences.judges(id_)
        self._find_candidates()
        self._count_figures()
        self._evaluate(index)

    def snapshot(self) -> bytes:
        """The state as JSON."""
        for member, record in self._state.records.items():
            record.silences = self._silences.against(member)
        return encode_state(self._state)

    def restore(self, data: bytes) -> None:
        """Replace the state by a snapshot of this farm.

        Raises `StorageVersion` for another schema or algorithm, `StorageDamaged` for another farm's
        snapshot or no snapshot at all; the state is then unchanged.
        """
        try:
            header = msgspec.json.decode(data, type=Header)
            if header.schema != SCHEMA or unknown_algorithm(header.algorithm):
                raise StorageVersion(f"this is a snapshot of {header.schema}, algorithm {header.algorithm}")
            state = msgspec.json.decode(data, type=FarmState)
            state.policy.pin(self._pinned)
            if state.farm != self.farm:
                raise StorageDamaged(f"this is a snapshot of the farm {state.farm}, not of {self.farm}")
            silences = Silences()
            if not (is_consistent(state) and silences.restore(state.records, state.members)):
                raise StorageDamaged(f"this snapshot of the farm {self.farm} contradicts itself")
            statuses = {id_: _restored_status(state, id_) for id_, one in state.records.items() if one.index}
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, EntryRefused) as error:
            raise StorageDamaged(f"this is not a snapshot of the farm {self.farm}: {error}") from error
        self._state, self._statuses, self._silences = state, statuses, silences
        self._counted = None
        self._sensing = {id_ for id_, one in statuses.items() if one.outside is not None}
        self._find_candidates()
        self._count_figures()
        self._events = EventLog(state, self._candidates.recent)
        self._troubles = Troubles()

    # The fold

    def _skip(self, reason: str) -> None:
        self._state.skipped[reason] = self._state.skipped.get(reason, 0) + 1

    def _fold(self, index: int, parsed: Entry) -> None:
        check_state(self, parsed)
        if isinstance(parsed, Status):
            if heartbeat_leases.is_former(self._state, parsed.document.id, parsed.boot):
                raise EntryRefused("config.node.boot", "former process")
            record = self._accept(parsed.document.id, parsed.document.sequence)
            self._fold_status(index, record, parsed)
        elif isinstance(parsed, Administrative):
            self._fold_admin(index, parsed)
        elif parsed.sequence is not None:
            self._fold_note(parsed.by, parsed.sequence)

    def _accept(self, member: int, sequence: int | None) -> MemberRecord:
        if member not in self._state.members:
            raise EntryRefused("id", "not a member")
        record = self._state.records[member]
        if sequence is not None:
            if sequence <= record.sequence:
                raise EntryRefused("sequence", "repeated")
            record.sequence = sequence
        return record

    def _fold_note(self, by: str, sequence: int) -> None:
        notes = self._state.notes
        if sequence <= notes.get(by, -1):
            raise EntryRefused("sequence", "repeated")
        notes[by] = sequence
        if len(notes) > _MAX_NOTE_AUTHORS:
            del notes[min(notes, key=lambda name: (notes[name], name))]

    def _fold_admin(self, index: int, entry: Administrative) -> None:
        state, policy = self._state, self._state.policy
        # Before the first Configuration there are only the orders that the farm was founded with.
        if state.members:
            self._accept(entry.id, entry.sequence)
        if entry.admin.action in FINDINGS:
            self._fold_finding(index, entry.admin)
            return
        policy.apply(index, entry, self.farm_time_ms)
        if entry.admin.action == "lease":
            ordered_ms = msgspec.convert(entry.admin.args["ms"], int)
            heartbeat_leases.change(state, index, ordered_ms=ordered_ms)
        policy.pin(self._pinned)
        for member, scored in self._statuses.items():
            rescored = self._rescored(scored)
            self._statuses[member] = msgspec.structs.replace(
                rescored, leaves=policy.without_excluded(scored.reported)
            )
            record = self._state.records[member]
            record.cost = meta_leaseset.cost(rescored.score, record.cost)
        self._find_candidates()
        self._evaluate(index)

    def _fold_status(self, index: int, record: MemberRecord, status: Status) -> None:
        state, node, author = self._state, status.node, status.document.id
        record.index, record.status = index, msgspec.Raw(status.entry)
        record.interval_ms = node.interval_ms or self.interval_ms
        record.R = self._pinned.R or node.R or self.R
        record.against = 0
        self._silences.on_newest(author, record)
        scored = _scored_status(status, state.policy, self._publishing(index, status))
        self._statuses[author] = self._rescored(scored)
        (self._sensing.discard if status.outside is None else self._sensing.add)(author)

        intervals = self._count(record, status.document.date)
        if node.applied is not None:
            for other in self._silences.on_counted(author, min(node.applied, index - 1), intervals):
                state.records[other].against += 1
                self._find_candidate(other)

        began = index - 1 if node.applied is None else node.applied
        record.sanction = max(record.sanction - 1, 0)
        if author == state.publisher and state.due_since is not None and began >= state.due_since:
            self._judge_failure(record, scored)
        if state.leases and node.applied is not None and node.applied >= state.leases.lost.get(author, index):
            state.leases.lost.pop(author, None)
        self._find_candidate(author)
        for member in comparing.on_status(state, index, author, status.digests, self._candidates.recent):
            self._find_candidate(member)
        self._count_figures()
        record.cost = meta_leaseset.cost(self._statuses[author].score, record.cost)

        if node.role == "leader":
            self._events.on_leader(node.term or 0, author)
        counted = record.interval_ms in intervals
        gone = author if heartbeat_leases.is_next(state, author, status.boot) else 0
        self._evaluate(index, author, counted=counted, applied=node.applied, gone=gone)

        forgetting.on_status(state, author)
        self._troubles.on_status(author, scored, self)

        published = None if status.document.meta is None else status.document.meta.last_published_time
        if published is not None and published <= state.farm_time_ms + _PUBLISHED_AHEAD_MS:
            state.last_published_ms = max(state.last_published_ms, published)

    def _count(self, record: MemberRecord, date: int) -> set[int]:
        """Return the intervals in use for which a status of this date is counted."""
        in_use = self._silences.intervals
        previous = record.counted
        counted = {
            interval
            for interval in in_use
            if interval not in previous or 10 * abs(date - previous[interval]) >= 9 * interval
        }
        record.counted = {
            interval: date if interval in counted else previous[interval] for interval in in_use
        }
        return counted

    def _judge_failure(self, publisher: MemberRecord, scored: ScoredStatus) -> None:
        if scored.publishing is None:
            return
        publisher.failures = 0 if scored.publishing else publisher.failures + 1
        if publisher.failures >= publisher.R:
            publisher.failures = 0
            least = publisher.sanction if self._state.outside else 0
            publisher.sanction = max(outside.BEHIND_RS * publisher.R, least)

    # Leases on heartbeats (point 8)

    def _fold_finding(self, index: int, admin: Admin) -> None:
        state, leases = self._state, self._state.leases
        assert leases
        if admin.action == "timeouts":
            timeouts = msgspec.convert(admin.args, Timeouts)
            leases.election_ms = timeouts.election_ms
            heartbeat_leases.change(state, index, bound_ms=timeouts.lease_ms)
            return
        if admin.action == "settled":
            settled = msgspec.convert(admin.args, Settled)
            if settled.index != leases.changed or not leases.before_ms:
                raise EntryRefused("config.admin.args.index", "another change")
            leases.before_ms = 0
            return
        lost = msgspec.convert(admin.args, Lost)
        member, named = lost.member, self.holding_index(lost.member)
        if not self._is_found(index, named == lost.index) or named is None:
            raise EntryRefused("config.admin.args.index", "another naming")
        if member in state.members:
            leases.lost[member] = index
            self._find_candidate(member)
        self._evaluate(index, gone=member)

    # What others measure (point 9)

    def _configure_outside(self, index: int) -> None:
        state = self._state
        if state.outside:
            kept = {id_: times for id_, times in state.outside.unreached.items() if id_ in state.members}
            state.outside.unreached = kept
        elif self.level >= OUTSIDE:
            # Founders know the level before the first entry, members that join learn it later.
            has_statuses = any(record.index for record in state.records.values())
            state.outside = OutsideState(since=index if has_statuses else 0)

    def _judge_from_outside(self) -> bool:
        """Whether the publisher is found unreached now."""
        state, publisher = self._state, self._state.publisher
        if not (state.outside and self._sensing and publisher is not None and state.due_since is not None):
            return False
        reports, members = outside.reports(self, self._sensing).values(), len(state.members)
        if outside.are_most(sum(map(outside.reaches, reports)), members):
            state.outside.unreached.pop(publisher, None)
        if not (
            outside.are_most(sum(map(outside.fails, reports)), members)
            and self._candidates.is_eligible(publisher)
            and self._candidates.has_other_unsanctioned(publisher)
        ):
            return False
        record = state.records[publisher]
        times = min(state.outside.unreached.get(publisher, 0) + 1, MAX_UNREACHED)
        state.outside.unreached[publisher] = times
        behind = outside.statuses_behind(times, record.R, record.interval_ms)
        record.sanction = max(record.sanction, behind)
        self._find_candidate(publisher)
        return True

    def _evaluate(
        self,
        index: int,
        author: int = 0,
        *,
        counted: bool = False,
        applied: int | None = None,
        gone: int = 0,
    ) -> None:
        """Points 2, 3, 5, 6, 8 and 9, after a status of ``author`` or (0) something else at ``index``. The
        process of the member ``gone`` that held before holds nothing any more."""
        state = self._state
        middle_date = self._candidates.middle_date()
        if middle_date is not None:
            state.farm_time_ms = middle_date
        forgetting.on_farm_time(state)
        is_unreached = self._judge_from_outside()
        chosen, because = self._choose(author if counted else 0)
        because = "unreached" if is_unreached else because
        if chosen != state.publisher:
            if state.publisher is not None:
                state.holders[state.publisher] = index
            if chosen is not None:
                state.holders[chosen] = 0
            state.publisher, state.since, state.because, state.due_since = chosen, index, because, None
            for record in state.records.values():
                record.lead = record.failures = 0
        for holder, taken in list(state.holders.items()):
            if holder == state.publisher:
                continue
            lets_go = holder == author and self._statuses[holder].publishing is not True
            has_ended = holder == gone or (
                not self.is_recent(holder) and not (state.leases and self._is_recorded(index))
            )
            if has_ended or (lets_go and applied is not None and applied >= taken):
                self._release(holder)
        if state.publisher is not None and state.due_since is None and len(state.holders) == 1:
            state.due_since = index
        self._events.on_evaluated(index, state, self._candidates.recent)

    def _release(self, holder: int) -> None:
        del self._state.holders[holder]
        if holder not in self._state.members:
            del self._state.records[holder]
            self._statuses.pop(holder, None)
            self._sensing.discard(holder)
            self._silences.forget(holder)

    def _find_candidates(self) -> None:
        self._candidates = Candidates()
        for member in self._state.members:
            self._find_candidate(member)

    def _find_candidate(self, member: int) -> None:
        """Note what has become of a member, or of a removed one that still holds, which is no candidate."""
        if not (member in self._state.members and self.is_recent(member)):
            self._candidates.set(member, None)
            return
        scored = self._statuses[member]
        candidate = Candidate(
            date=scored.document.date,
            has_leaves=bool(scored.leaves),
            is_willing=self.mode(member) != "off"
            and not self.is_lost(member)
            and self.contradicted(member) is None,
            can_publish=scored.publishing is not None,
            group=self.group(member),
            score=scored.score,
            reported=scoring.reported(scored.figures),
        )
        self._candidates.set(member, candidate)

    # The score (point 4)

    def _count_figures(self) -> None:
        """Since level 3: score all anew if other figures count than before. The candidates have to be up to
        date but for their scores."""
        if self.level < OUTSIDE or self._counted == self._candidates.reported():
            return
        self._counted = self._candidates.reported()
        self._statuses = {member: self._rescored(scored) for member, scored in self._statuses.items()}
        self._find_candidates()

    def _rescored(self, scored: ScoredStatus) -> ScoredStatus:
        counted = self._counted
        parts = scored.parts if counted is None else scoring.counted_parts(scored.figures, counted)
        score = scoring.score(parts, self._state.policy.weights)
        return msgspec.structs.replace(scored, parts=parts, score=score)

    def _choose(self, author: int) -> tuple[int | None, Because]:
        """Choose the publisher, after a counted status of ``author`` (0: after something else)."""
        publisher, candidates = self._state.publisher, self._candidates
        is_kept = candidates.is_in_front(publisher)
        leads = (
            publisher is not None
            and is_kept
            and candidates.is_in_front(author)
            and author != publisher  # at a margin of 0 it would lead over itself
            and self._statuses[author].score - self._statuses[publisher].score >= self._state.policy.margin
        )
        if author:
            record = self._state.records[author]
            record.lead = record.lead + 1 if leads else 0
            if record.lead >= CONSECUTIVE_LEADS:
                return author, "margin"
        if is_kept:
            return publisher, ""
        best = candidates.best()
        if best is None:
            return None, "ineligible"
        if publisher is None:
            return best, "vacant"
        if candidates.is_eligible(publisher):
            return best, "group"
        if self.is_lost(publisher):
            return best, "lost"
        return best, "contradicted" if self.contradicted(publisher) else "ineligible"
