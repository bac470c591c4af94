"""Leases that ride on heartbeats, without I/O: how long a member may use a role that the log gives it (D24).

The log *names* a member: from the entry at some index on it has a role that only one member may use at a
time. Another one may be given the role only when the first one certainly does not use it any more. While the
first one lives, it says so itself. If it is dead or cut off, the leader finds that it is *lost*, and says so
in an entry. The first one must have stopped by then, without having heard anything.

**Granting.** The leader sends the named member a `Grant`, again and again, one at a time. The member notes
when each one arrived, and answers. The next grant says which one was answered last. From the arrival of that
one on, the lease lasts as long as the grant says, less the *age*: how long ago the leader sent the newest
requests of this term that a majority has answered, itself included.

**Losing.** A leader finds the member lost when it has heard no answer from it, and has led, for as long as a
lease lasts. Then it grants nothing more for this naming.

**Why no two members use the role at once.** Let q be when the leader of a term sent what a majority has
answered, and m the newest grant whose answer it has read.

1. A lease ends before arrival(m) + D, and before q + D. For the age is taken when the grant is sent, which
   is after m has arrived: arrival(m) − age ≤ q.
2. The same leader finds the member lost no sooner than D after it has read the answer to m, so after
   arrival(m) + D.
3. A later leader was elected after q: of the majority that answered, one member has voted for it, and a
   member that has voted answers in no earlier term. It finds the member lost no sooner than D after its
   election, so after q + D.
4. An entry of an earlier leader that finds the member lost is either in the log of a later one, which grants
   only after it has applied all that is before its own first entry; or it will never be committed, as that
   first entry has to be committed before anything is granted.
5. A grant names the index since which its member has the role. A member that has the role since another
   index, as its log says, has no lease by it.

6. A leader that is no longer named gives itself no lease from then on, and finds itself lost D later.

Only durations are compared, never two clocks. Clocks have to count the time while a machine is suspended and
to run at nearly the same rate: ``lasts_ms`` and ``waits_ms`` allow for the difference. Every ``now_ms`` is
read from the clock for that call: before what it dates is sent, and after what it dates has been received.

Source: docs/reference/protocol.md, D24.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from garlicfarm.wire.messages import Grant


class Holding(msgspec.Struct, frozen=True):
    """A member that has the role, or has not been released from it. ``index``: since which it is named, or
    which took the role from it."""

    member: int
    index: int
    is_named: bool


class LeaseGranter:
    """The leader's side, for one term. ``holdings``: those of the last `on_applied`."""

    def __init__(self, node_id: int, term: int, now_ms: int) -> None:
        """``now_ms``: after the votes of a majority have been received."""
        self.term = term
        self.holdings: tuple[Holding, ...] = ()
        self._node_id = node_id
        self._elected_ms = now_ms
        self._lasts_ms = 0
        self._waits_ms = 0
        # member → a request that waits for its answer, and when it was sent
        self._samples: dict[int, tuple[int, int]] = {}
        self._reached_ms: dict[int, int] = {}  # member → when the newest sample that it answered was sent
        self._number = 0  # of the newest grant
        self._asked = 0  # the member that has yet to answer it, 0: none
        self._heard: dict[int, tuple[int, int]] = {}  # member → its newest answered grant, when that was read
        self._leased: Holding | None = None  # the naming for which a lease was granted last
        self._since_ms: dict[Holding, int] = {}  # since when it is known
        self._lost: frozenset[Holding] = frozenset()
        self._unsettled = 0  # the index of the change after which longer leases may run
        self._unsettled_ms = now_ms  # since when it is known
        self._has_settled = False  # whether the entry that says so is appended

    # ------------------------------------------------------------------ whom the leader reaches

    def is_waiting_for(self, member: int) -> bool:
        """Whether `on_sent` would learn nothing from another request to this member."""
        return member in self._samples

    def on_sent(self, member: int, seq: int, now_ms: int) -> None:
        """A Raft request is about to be sent. One at a time is enough to know when a member was reached."""
        if member not in self._samples:
            self._samples[member] = seq, now_ms

    def on_answered(self, member: int, seq: int, term: int) -> None:
        """The member has answered a Raft request, in ``term``."""
        sample = self._samples.get(member)
        if sample is not None and seq >= sample[0]:
            del self._samples[member]
            if term == self.term:
                self._reached_ms[member] = sample[1]

    def on_unreachable(self, member: int, seq: int) -> None:
        """The request will not be answered."""
        sample = self._samples.get(member)
        if sample is not None and seq >= sample[0]:
            del self._samples[member]

    def _quorum_ms(self, members: Iterable[int], now_ms: int) -> int | None:
        """q, None: no majority of ``members`` has answered in this term."""
        reached_ms = [
            now_ms if member == self._node_id else self._reached_ms.get(member, -1) for member in members
        ]
        reached_ms.sort(reverse=True)
        found_ms = reached_ms[len(reached_ms) // 2] if reached_ms else -1
        return found_ms if found_ms >= 0 else None

    # ------------------------------------------------------------------ the log

    def on_applied(
        self,
        holdings: tuple[Holding, ...],
        *,
        lasts_ms: int,
        waits_ms: int,
        now_ms: int,
        unsettled: int = 0,
    ) -> None:
        """The first entry of this term, and all before it, are applied, and the state says this.
        ``lasts_ms``: how long a lease lasts, on its holder's clock; ``waits_ms``: how long on this one until
        it is over, whichever leader has granted it; ``unsettled``: the index of the change from which on
        ``waits_ms`` is more than ``lasts_ms`` needs, 0: it is not."""
        self._lasts_ms, self._waits_ms = lasts_ms, waits_ms
        if unsettled != self._unsettled:
            self._unsettled, self._unsettled_ms, self._has_settled = unsettled, now_ms, False
        if holdings != self.holdings:
            self.holdings = holdings
            self._since_ms = {each: self._since_ms.get(each, now_ms) for each in holdings}
            self._lost &= {*holdings}

    @property
    def _named(self) -> Holding | None:
        return next((each for each in self.holdings if each.is_named), None)

    # ------------------------------------------------------------------ granting

    @property
    def named(self) -> int:
        """The member that grants are for, 0: there is none."""
        named = self._named
        return 0 if named is None or named.member == self._node_id or named in self._lost else named.member

    @property
    def is_urgent(self) -> bool:
        """Whether that member has no lease yet, and may be sent the next grant."""
        return self.named not in (0, self._asked) and self._leased != self._named

    def grant(self, members: Iterable[int], now_ms: int) -> Grant | None:
        """The next grant for the member `named`; None: there is none to be sent now. ``members``: of the
        Configuration in force."""
        named, member = self._named, self.named
        if named is None or member in (0, self._asked):
            return None
        quorum_ms = self._quorum_ms(members, now_ms)
        if quorum_ms is None:
            return None
        self._number += 1
        self._asked = member
        answered, _ = self._heard.get(member, (0, 0))
        if answered:
            self._leased = named
        return Grant(
            term=self.term,
            number=self._number,
            answered=answered,
            age_ms=now_ms - quorum_ms,
            lasts_ms=self._lasts_ms,
            index=named.index,
        )

    def on_grant_answered(self, member: int, number: int, now_ms: int) -> None:
        """The member has answered this grant, in this term."""
        if member == self._asked and number == self._number:
            self._asked = 0
            self._heard[member] = number, now_ms

    def on_grant_unanswered(self, member: int, number: int) -> None:
        """This grant will not be answered."""
        if member == self._asked and number == self._number:
            self._asked = 0

    def own(self, members: Iterable[int], now_ms: int) -> tuple[int, int] | None:
        """The leader's own lease, if it is the named member: since which index it is named, and when the
        lease ends. None: it has none."""
        named, quorum_ms = self._named, self._quorum_ms(members, now_ms)
        if named is None or named.member != self._node_id or quorum_ms is None:
            return None
        return named.index, quorum_ms + self._lasts_ms

    # ------------------------------------------------------------------ losing

    def lost(self, now_ms: int) -> list[Holding]:
        """Those to be found lost: an entry says so, which this leader appends now, if at all, and `on_lost`
        follows."""
        return [each for each in self._losable() if now_ms >= self._lost_ms(each)]

    def _losable(self) -> list[Holding]:
        """All but the leader itself while it is named."""
        return [
            each
            for each in self.holdings
            if each not in self._lost and not (each.is_named and each.member == self._node_id)
        ]

    def on_lost(self, holding: Holding) -> None:
        """The entry is about to be appended in this term. Nothing more is granted for this naming."""
        self._lost |= {holding}

    def settled(self, now_ms: int) -> int:
        """The index of the change, once no lease runs any more that is longer than those given now: an entry
        says so, which this leader appends now, if at all, and `on_settled` follows. 0: there is none."""
        is_over = now_ms >= self._unsettled_ms + self._waits_ms
        return self._unsettled if is_over and not self._has_settled else 0

    def on_settled(self) -> None:
        """The entry is about to be appended in this term."""
        self._has_settled = True

    def wake_ms(self) -> int | None:
        """When `lost` or `settled` has something to say, if nothing comes in before; None: never."""
        found = [*map(self._lost_ms, self._losable())]
        if self._unsettled and not self._has_settled:
            found.append(self._unsettled_ms + self._waits_ms)
        return min(found, default=None)

    def _lost_ms(self, holding: Holding) -> int:
        """A member that is named has the time of a lease to answer for the first time. The leader's own lease
        grew until it was no longer named. After a change, a lease of the former length may be one that no
        leader has granted."""
        is_own = holding.member == self._node_id
        since_ms = self._since_ms[holding] if holding.is_named or is_own else 0
        _, heard_ms = self._heard.get(holding.member, (0, 0))
        changed_ms = self._unsettled_ms if self._unsettled else 0
        return max(self._elected_ms, changed_ms, since_ms, heard_ms) + self._waits_ms


class LeaseHolder:
    """The named member's side, of one process: a new one has no lease, whatever the log says."""

    def __init__(self) -> None:
        self._term = 0
        self._arrived_ms: dict[int, int] = {}  # number → when it arrived, of this term
        self._newest = 0
        self._index = 0  # of the naming that the lease is for
        self._end_ms = 0

    def on_grant(self, grant: Grant, now_ms: int) -> None:
        """A grant has arrived from the leader of this member's present term; its answer follows. One that is
        late changes nothing."""
        if grant.term > self._term:
            self._term, self._newest, self._arrived_ms = grant.term, 0, {}
        if grant.term < self._term or grant.number <= self._newest:
            return
        self._newest = grant.number
        kept = grant.answered
        arrived_ms = self._arrived_ms.get(kept)
        self._arrived_ms = {grant.number: now_ms}
        if arrived_ms is None:
            return
        self._arrived_ms[kept] = arrived_ms
        self.extend(grant.index, arrived_ms + grant.lasts_ms - grant.age_ms)

    def extend(self, index: int, end_ms: int) -> None:
        """There is a lease for who is named since ``index``. That of an earlier naming is over."""
        if index > self._index:
            self._index, self._end_ms = index, end_ms
        elif index == self._index:
            self._end_ms = max(self._end_ms, end_ms)

    def end_ms(self, index: int) -> int | None:
        """When the lease ends of the member that is named since ``index``; None: it has none."""
        return self._end_ms if index == self._index and index else None

    @property
    def newest_end_ms(self) -> int | None:
        """When the newest lease ends, whether its member is still named or not; None: there never was one."""
        return self._end_ms if self._index else None
