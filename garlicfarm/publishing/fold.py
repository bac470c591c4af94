"""The application ``publisher``, version 2: which member publishes a Meta LeaseSet, and what that lists.

A deterministic fold over the committed log, in index order, in integers only. Its input is every
Application entry (judged by `entries`) and every Configuration; its whole state is `fold_state.FarmState`,
which is also the snapshot. Same log, same bytes, on every server. It reads no clock and compares no two
members' clocks. Interval (30 s), R (3), margin (50,000), weights, lifetime and excluded
leaves are those of `policy`: set by committed administrative entries, else these constants.

**What one entry does.** An entry is skipped, and counted as such, for the first of these reasons that
applies: it is not valid (`entries`); it is an order that cannot be obeyed (`Policy.check`), or a note, or a
status while at least three members are recent, dated more than ten years past farm time, if that is
past 2020 ("years ahead"); it comes from no current member ("not a member"); its ``sequence`` is not
above the last applied one of its author ("repeated", D17; the author is the member ``id``, or the user
``by`` of a note). After every other entry except notes, and after every Configuration, the points below are
evaluated once, in this order. When a Configuration removes a member, its records are deleted at once, or
when it no longer holds (point 6). From then on its statuses count against no member, even if it returns.

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
4. *Score*: `scoring`.
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
   by not being recent. A member removed by a Configuration is kept and judged until it is released. The
   publisher is *due to start* from the index at which it became the only holder. The highest
   ``meta.lastPublishedTime`` is kept, among those at most 10 minutes past farm time after their own entry.
7. *Contents*: `meta_leaseset`. The order ``publish`` changes neither them nor the ranking; its index is
   kept, and the publisher publishes once for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from garlicfarm.agreed import ALGORITHM_VERSION
from garlicfarm.errors import EntryRefused, StorageDamaged, StorageVersion
from garlicfarm.i2p.lease_set import MetaLease
from garlicfarm.publishing import meta_leaseset, publication, ranking, scoring
from garlicfarm.publishing.administration import check_arguments
from garlicfarm.publishing.candidates import Candidate, Candidates
from garlicfarm.publishing.documents import NodeReport, PublishConfig, StatusDocument
from garlicfarm.publishing.entries import (
    Administrative,
    Entry,
    Note,
    Observation,
    Refused,
    Status,
    check_author,
    observe,
    parse_entry,
)
from garlicfarm.publishing.events import EventLog
from garlicfarm.publishing.fold_state import (
    SCHEMA,
    Because,
    FarmState,
    Header,
    MemberRecord,
    ScoredStatus,
    encode_state,
    is_consistent,
)
from garlicfarm.publishing.policy import CONSECUTIVE_LEADS, Pinned, Policy
from garlicfarm.publishing.silences import Silences
from garlicfarm.publishing.strict_json import NO_OBJECT, check_values
from garlicfarm.publishing.troubles import Troubles
from garlicfarm.wire.messages import Configuration

__all__ = ["PublisherFold"]

_SANCTION_RS = 10
_PUBLISHED_AHEAD_MS = 600_000
_MAX_NOTE_AUTHORS = 1024
_YEAR_2020_MS = 1_577_836_800_000
_TEN_YEARS_MS = 315_576_000_000
_DOCUMENTS_ONLY = "this farm takes status documents; a farm of the application log takes any bytes"


def _as_recorded(index: int, status: Status) -> bool | None:
    return status.publishing


def _score_status(status: Status, policy: Policy, publishing: bool | None) -> ScoredStatus:
    return ScoredStatus(
        document=status.document,
        node=status.node,
        reported=status.leaves,
        leaves=policy.without_excluded(status.leaves),
        parts=status.parts,
        score=scoring.score(status.parts, policy.weights),
        publishing=publishing,
    )


def _restored_status(entry: bytes, farm: str, policy: Policy, member: int) -> ScoredStatus:
    status = parse_entry(entry, farm)
    if not isinstance(status, Status) or status.document.id != member:
        raise EntryRefused("", f"not a status of member {member}")
    return _score_status(status, policy, status.publishing)


class PublisherFold:
    """The fold of one farm, a `garlicfarm.application.StateMachine`."""

    def __init__(
        self,
        farm: str,
        pinned: Pinned | None = None,
        publishing: Callable[[int, Status], bool | None] = _as_recorded,
    ) -> None:
        """``farm``: its name, the ``cluster`` of its entries.

        A node gives no others, a `replay` does. ``pinned``: parameters that hold whatever the log says.
        ``publishing``: what counts as ``meta.publishing`` of the status at an index.
        """
        self._pinned = pinned or Pinned()
        self._publishing = publishing
        self._state = FarmState(farm=farm)
        self._state.policy.pin(self._pinned)
        self._statuses: dict[int, ScoredStatus] = {}
        self._silences = Silences()
        self._candidates = Candidates()
        self._events = EventLog(self._state, [])
        self._troubles = Troubles()

    # Queries

    @property
    def farm(self) -> str:
        """The farm's name."""
        return self._state.farm

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

    @property
    def due_since(self) -> int | None:
        """The index from which the publisher is the only holder; None while another one holds too."""
        return self._state.due_since

    @property
    def policy(self) -> Policy:
        """The administrators' decisions in force; read-only."""
        return self._state.policy

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
        return publication.clock_problem(date_ms, self.farm_time_ms)

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

    def may_publish(self, member: int, now_ms: int, expires_ms: int | None) -> bool:
        """Whether ``member`` may publish at ``now_ms``, with a `Lease` that ends at ``expires_ms``, both
        on a clock of its own that counts suspended time."""
        only_holder = self.publisher == member and self.due_since is not None
        return only_holder and expires_ms is not None and now_ms < expires_ms

    def ranking(self) -> dict[str, object]:
        """All members, best first, with score parts and why: ready for JSON, see `ranking`."""
        return ranking.ranking(self, self._state, self._statuses)

    def published_leaves(self) -> list[dict[str, Any]]:
        """What other members saw of the publisher's leaves: ready for JSON, see `publication`."""
        return publication.published_leaves(self, self._state, self._statuses)

    def events(self) -> list[dict[str, object]]:
        """The newest events, oldest first: ready for JSON, see `events`. They are no part of the state."""
        return [msgspec.to_builtins(event) for event in self._events.events()]

    def troubles(self) -> list[str]:
        """What operators should see to, a sentence each, see `troubles`. They are no part of the state."""
        return self._troubles.sentences(self, self._state, self._statuses)

    # Application

    def check(self, entry: bytes, author: int) -> None:
        """Check an entry before it is proposed. Refuses what would be skipped if committed (`entries`,
        `Policy.check`), and too many values or unknown arguments. Raises `EntryRefused`."""
        self._check(entry, author)

    def check_posted(self, entry: bytes, author: int, user: str, now_ms: int) -> None:
        """The same where the entry is posted, at ``now_ms`` of the wall clock there. Also refuses a note in
        the name of another user than ``user`` ("": not known; D18: a note names its user), and a ``sequence``
        more than ten years above both its author's last one and this date (one before 2020 counts as 2020):
        it would block its author for as long. Raises `EntryRefused`."""
        try:
            posted = self._check(entry, author)
        except EntryRefused as refused:
            if refused.field or refused.reason not in NO_OBJECT:
                raise
            raise EntryRefused("", refused.reason, _DOCUMENTS_ONLY) from None
        if isinstance(posted, Note) and user not in ("", posted.by):
            raise EntryRefused("config.by", f"not {user}, who posts it")
        sequence = posted.document.sequence if isinstance(posted, Status) else posted.sequence
        last = self.last_sequence(posted.by if isinstance(posted, Note) else author)
        newest = max(last, now_ms, _YEAR_2020_MS)
        if sequence is not None and sequence > newest + _TEN_YEARS_MS:
            raise EntryRefused("sequence", "years ahead")

    def _check(self, entry: bytes, author: int) -> Entry:
        check_values(entry)
        parsed = parse_entry(entry, self.farm)
        self._check_state(parsed)
        check_author(parsed, author)
        if isinstance(parsed, Administrative):
            check_arguments(parsed.admin)
        return parsed

    def apply(self, index: int, term: int, entry: bytes) -> None:
        """Fold in the committed entry at ``index``; never raises on content."""
        self.fold(index, observe(entry, self.farm))

    def fold(self, index: int, observation: Observation) -> None:
        """Fold in what the committed entry at ``index`` says (`entries.observe`, of this farm)."""
        if isinstance(observation, Refused):
            self._skip(observation.reason)
            return
        try:
            self._fold(index, observation)
        except EntryRefused as error:
            self._skip(error.reason)

    def configure(self, index: int, members: Configuration) -> None:
        """The servers of ``members`` are the current members from ``index`` on."""
        state = self._state
        state.members = tuple(sorted({server.id for server in members.servers}))
        kept = {*state.members, *state.holders}
        state.records = {id_: state.records.get(id_) or MemberRecord() for id_ in sorted(kept)}
        state.policy.retain(state.members)
        self._statuses = {id_: scored for id_, scored in self._statuses.items() if id_ in kept}
        self._silences.retain(state.members, kept)
        for id_, record in state.records.items():
            record.against = self._silences.judges(id_)
        self._find_candidates()
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
            if (header.schema, header.algorithm) != (SCHEMA, ALGORITHM_VERSION):
                raise StorageVersion(f"this is a snapshot of {header.schema}, algorithm {header.algorithm}")
            state = msgspec.json.decode(data, type=FarmState)
            state.policy.pin(self._pinned)
            if state.farm != self.farm:
                raise StorageDamaged(f"this is a snapshot of the farm {state.farm}, not of {self.farm}")
            silences = Silences()
            if not (is_consistent(state) and silences.restore(state.records, state.members)):
                raise StorageDamaged(f"this snapshot of the farm {self.farm} contradicts itself")
            statuses = {
                id_: _restored_status(bytes(one.status), self.farm, state.policy, id_)
                for id_, one in state.records.items()
                if one.index
            }
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, EntryRefused) as error:
            raise StorageDamaged(f"this is no snapshot of the farm {self.farm}: {error}") from error
        self._state, self._statuses, self._silences = state, statuses, silences
        self._find_candidates()
        self._events = EventLog(state, self._candidates.recent)
        self._troubles = Troubles()

    # The fold

    def _skip(self, reason: str) -> None:
        self._state.skipped[reason] = self._state.skipped.get(reason, 0) + 1

    def _check_state(self, parsed: Entry) -> None:
        """Raises `EntryRefused`: this state does not allow a valid entry."""
        if isinstance(parsed, Administrative):
            self._state.policy.check(parsed, self.members)
        elif _YEAR_2020_MS < self.farm_time_ms < parsed.date - _TEN_YEARS_MS and (
            # Two wrong clocks must not exclude a correct one, nor one that began in 1970.
            isinstance(parsed, Note) or len(self.recent()) >= 3
        ):
            raise EntryRefused("date", "years ahead")

    def _fold(self, index: int, parsed: Entry) -> None:
        self._check_state(parsed)
        if isinstance(parsed, Status):
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
        policy = self._state.policy
        # Before the first Configuration there are only the orders that the farm was founded with.
        if self._state.members:
            self._accept(entry.id, entry.sequence)
        policy.apply(index, entry)
        policy.pin(self._pinned)
        for member, scored in self._statuses.items():
            score = scoring.score(scored.parts, policy.weights)
            self._statuses[member] = msgspec.structs.replace(
                scored, score=score, leaves=policy.without_excluded(scored.reported)
            )
            record = self._state.records[member]
            record.cost = meta_leaseset.cost(score, record.cost)
        self._find_candidates()
        self._evaluate(index)

    def _fold_status(self, index: int, record: MemberRecord, status: Status) -> None:
        state, node, author = self._state, status.node, status.document.id
        record.index, record.status = index, msgspec.Raw(status.entry)
        record.interval_ms = node.interval_ms or self.interval_ms
        record.R = self._pinned.R or node.R or self.R
        record.against = 0
        self._silences.on_newest(author, record)
        scored = self._statuses[author] = _score_status(status, state.policy, self._publishing(index, status))
        record.cost = meta_leaseset.cost(scored.score, record.cost)

        intervals = self._count(record, status.document.date)
        if node.applied is not None:
            for other in self._silences.on_counted(author, min(node.applied, index - 1), intervals):
                state.records[other].against += 1
                self._find_candidate(other)

        began = index - 1 if node.applied is None else node.applied
        record.sanction = max(record.sanction - 1, 0)
        if author == state.publisher and state.due_since is not None and began >= state.due_since:
            self._judge_failure(record, scored)
        self._find_candidate(author)

        if node.role == "leader":
            self._events.on_leader(node.term or 0, author)
        counted = record.interval_ms in intervals
        self._evaluate(index, author, counted=counted, applied=node.applied)

        self._troubles.on_status(
            author,
            status.document.date,
            scored.publishing,
            farm_time_ms=state.farm_time_ms,
            recent=len(self._candidates.recent),
        )

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
            publisher.sanction = _SANCTION_RS * publisher.R

    def _evaluate(
        self, index: int, author: int = 0, *, counted: bool = False, applied: int | None = None
    ) -> None:
        """Points 2, 3, 5 and 6, after a status of ``author`` or (0) something else at ``index``."""
        state = self._state
        middle_date = self._candidates.middle_date()
        if middle_date is not None:
            state.farm_time_ms = middle_date
        chosen, because = self._choose(author if counted else 0)
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
            if not self.is_recent(holder) or (lets_go and applied is not None and applied >= taken):
                self._release(holder)
        if state.publisher is not None and state.due_since is None and len(state.holders) == 1:
            state.due_since = index
        self._events.on_evaluated(index, state, self._candidates.recent)

    def _release(self, holder: int) -> None:
        del self._state.holders[holder]
        if holder not in self._state.members:
            del self._state.records[holder]
            self._statuses.pop(holder, None)
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
            is_willing=self.mode(member) != "off",
            can_publish=scored.publishing is not None,
            group=self.group(member),
            score=scored.score,
        )
        self._candidates.set(member, candidate)

    def group(self, member: int) -> tuple[bool, bool]:
        """Point 5: members of the lowest group go first."""
        return self._state.records[member].sanction > 0, self.mode(member) != "on"

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
        return best, "group" if candidates.is_eligible(publisher) else "ineligible"
