"""What operators should see to in a farm that has a majority: the one list that the status, its readers and
the metrics show.

*Nothing is published.* A member is configured to publish, none reports that it does, and some member has
posted `PATIENCE_RS` times R statuses since one last did: R to notice a death, the rest for the next member to
start. A member is configured to publish if its newest status has ``meta.publishing`` or
``meta.lastPublishedTime``; one whose publishers are not ready reports only the latter.

*What is published has expired.* By the statuses: a member reports that it publishes, names the LeaseSet, and
for `STARTING_MS` the date of what it published last has been further behind farm time than the lifetime in
force when that was new. (A publisher that names no LeaseSet, such as ``sam``, may leave it to its router to
publish again, and its date may stay.) By the publishers of the node that is asked: what it publishes expired
`MOST_SKEW_MS` ago, in which the clock of a router may differ. Both are known of ``i2cp`` only: SAM does not
say until when the router's LeaseSets last, and ``hooks`` not what its commands do. Where such a publisher
fails to publish again, nothing is published, as above.

*The publisher is not reached.* By the reports of most other members (`outside`), and the role stays, since
nobody else may be named.

*Members differ.* Most others contradict what a member holds, or members hold different things and no majority
says which is right (`comparing`).

*Silence.* A member that will be removed if it stays silent (`forgetting`).

*Keys.* A member's offline keys have expired, or will soon (`publication.expiry_problem`).

*Clocks.* Of three recent members or more, one whose statuses contradict farm time by more than `MOST_SKEW_MS`
twice in a row; and that of the member that is asked, if it does not offer itself because of it
(`own_clock`). A status that is dated before farm time comes from a clock that is behind. One that farm time
has not reached when the member posts the next one comes from a clock that is ahead.

All but keys and the asked node's own publishers are found while the log is folded. They are not part of the
fold's state: after a restore from a snapshot they are found anew. There time passes by the members' statuses,
so an election, a hand-over and a farm that was stopped for a night are no troubles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from garlicfarm.publishing import forgetting, outside
from garlicfarm.publishing.documents import MetaStatus
from garlicfarm.publishing.farm_queries import FarmQueries
from garlicfarm.publishing.fold_state import ScoredStatus
from garlicfarm.publishing.own_clock import rough_time
from garlicfarm.publishing.publication import expiry_problem
from garlicfarm.trouble import Trouble

PATIENCE_RS = 3
MOST_SKEW_MS = 60_000
STARTING_MS = 150_000
"""More than a first attempt to publish takes, in which a member reports that it publishes."""
_SHOW = "`garlicfarm publish show` on its machine says why"


class Troubles:
    """The troubles of one farm."""

    def __init__(self) -> None:
        self._unpublished: dict[
            int, int
        ] = {}  # statuses of each member since one last said that it publishes
        self._dates: dict[int, int] = {}  # of each member's previous status
        self._skews: dict[int, int] = {}  # by the newest status of each member, 0: none
        self._confirmed: dict[int, int] = {}  # the same, where the status before it agreed
        self._lasting: dict[int, tuple[int, int]] = {}  # what each published last: its date, and its end
        self._outdated: dict[
            int, int
        ] = {}  # since which of its dates each says that it publishes what is over

    def on_status(self, author: int, scored: ScoredStatus, farm: FarmQueries) -> None:
        """A status of ``author`` has been folded in."""
        if scored.publishing:
            self._unpublished.clear()
        else:
            self._unpublished[author] = self._unpublished.get(author, 0) + 1
        date_ms, farm_time_ms = scored.document.date, farm.farm_time_ms
        late_ms, early_ms = date_ms - farm_time_ms, self._dates.get(author, 0) - farm_time_ms
        self._dates[author] = date_ms
        skew = late_ms if late_ms < -MOST_SKEW_MS else early_ms if early_ms > MOST_SKEW_MS else 0
        skew = skew if len(farm.recent()) >= 3 else 0
        before, self._skews[author] = self._skews.get(author, 0), skew
        self._confirmed[author] = skew if before * skew > 0 else 0

        meta = scored.document.meta or MetaStatus()
        published_ms = meta.last_published_time
        is_named = meta.last_published_ls is not None or scored.node.lease_set is not None
        if not scored.publishing or published_ms is None or not is_named:
            self._outdated.pop(author, None)
            return
        if self._lasting.get(author, (None, 0))[0] != published_ms:
            self._lasting[author] = published_ms, published_ms + farm.policy.lifetime_ms
        if self._lasting[author][1] < farm_time_ms:
            self._outdated.setdefault(author, date_ms)
        else:
            self._outdated.pop(author, None)

    def found(
        self,
        farm: FarmQueries,
        now_ms: int,
        own_until_ms: Mapping[int, int] = MappingProxyType({}),
        own_clock: Mapping[int, str] = MappingProxyType({}),
    ) -> list[Trouble]:
        """The troubles. ``now_ms``: wall clock, ms since 1970. For the member that is asked:
        ``own_until_ms``, if it publishes and knows until when that lasts; ``own_clock``, if its clock is off,
        how far and what to do, as the rest of a sentence."""
        return [
            *self._publication(farm),
            *_unreached(farm),
            *_differing(farm),
            *_silent(farm),
            *self._expired(farm, now_ms, own_until_ms),
            *_keys(farm, now_ms),
            *self._clocks(farm, own_clock),
        ]

    def _publication(self, farm: FarmQueries) -> Iterator[Trouble]:
        configured = [one for one in farm.members if _is_configured(farm, one)]
        waited = max((self._unpublished.get(one, 0) for one in farm.members), default=0)
        recent = [one for one in configured if farm.is_recent(one)]
        able = [one for one in recent if farm.statuses[one].publishing is not None]
        if (
            not configured
            or waited < PATIENCE_RS * farm.R
            or any(farm.statuses[one].publishing for one in recent)
        ):
            return
        publisher = farm.publisher
        if not recent:
            ids = ", ".join(map(str, configured))
            why = (
                f"only member {ids} could, which is silent"
                if len(configured) == 1
                else f"members {ids} are silent"
            )
        elif not able:
            one, ids = len(recent) == 1, ", ".join(map(str, recent))
            who = f"member {ids} is not ready" if one else f"members {ids} are not ready"
            why = f"{who}; `garlicfarm publish show` on {'its machine' if one else 'their machines'} says why"
        elif publisher is None:
            why = "no member is eligible; `garlicfarm farm show` says why"
        elif farm.due_since is None:
            others = ", ".join(str(holder) for holder in farm.holders if holder != publisher)
            why = f"member {publisher} waits until member {others} has let go"
        elif publisher not in recent:
            why = f"member {publisher} is named, and has no [[farm.publisher]]"
        else:
            why = f"member {publisher} is named and fails; {_SHOW}"
        yield Trouble("publisher", "unpublished", f"no member publishes: {why}")

    def _expired(self, farm: FarmQueries, now_ms: int, own_until_ms: Mapping[int, int]) -> Iterator[Trouble]:
        for member in farm.members:
            since_ms = self._outdated.get(member)
            own_ms = own_until_ms.get(member, now_ms)
            if own_ms + MOST_SKEW_MS <= now_ms:
                ago_ms = now_ms - own_ms
            elif (
                since_ms is not None
                and farm.is_recent(member)
                and self._dates[member] - since_ms >= STARTING_MS
            ):
                ago_ms = farm.farm_time_ms - self._lasting[member][1]
            else:
                continue
            text = f"what member {member} publishes expired {rough_time(ago_ms)} ago; {_SHOW}"
            yield Trouble("publisher", f"expired {member}", text, since_ms is None)

    def _clocks(self, farm: FarmQueries, own_clock: Mapping[int, str]) -> Iterator[Trouble]:
        for member in farm.members:
            skew_ms = self._confirmed.get(member, 0)
            if member in own_clock:
                how, _, remedy = own_clock[member].partition(": ")
                offers = ", so it does not offer itself to publish" * _is_configured(farm, member)
                text = f"the clock of member {member} {how}{offers}: {remedy}"
                yield Trouble("health", f"clock {member}", text, not skew_ms)
            elif skew_ms and farm.is_recent(member):
                how = f"{rough_time(abs(skew_ms))} {'ahead of' if skew_ms > 0 else 'behind'}"
                text = f"the clock of member {member} is {how} the farm's: correct it"
                yield Trouble("health", f"clock {member}", text)


def _unreached(farm: FarmQueries) -> Iterator[Trouble]:
    """The role moves, unless nobody else may be named."""
    failing = sum(map(outside.fails, outside.reports(farm, farm.members).values()))
    if outside.are_most(failing, len(farm.members)):
        text = (
            f"most other members do not reach what member {farm.publisher} publishes, and no other member "
            "can take over; `garlicfarm farm show` says why"
        )
        yield Trouble("publisher", "unreached", text)


def _differing(farm: FarmQueries) -> Iterator[Trouble]:
    for member in farm.members:
        if (found := farm.contradicted(member)) is not None:
            bars = "publishes nor leads" if found.what == "state" else "publishes, leads nor votes"
            yield Trouble(
                "damage",
                f"contradicted {member}",
                f"the {found.what} of member {member} at index {found.index} is not that of most others, so "
                f"it neither {bars}: run `garlicfarm member repair` on its machine",
            )
    if groups := farm.disagreeing:
        told = " and ".join(", ".join(map(str, group)) for group in groups)
        yield Trouble(
            "damage",
            "disagreeing",
            f"members {told} hold different states, and no majority says which is right: compare what they "
            "show, then run `garlicfarm member repair` on the machine of a wrong one, while a right one "
            "leads",
        )


def _silent(farm: FarmQueries) -> Iterator[Trouble]:
    for silence in forgetting.silences(farm):
        member = silence.member
        yield Trouble("health", f"silent {member}", f"member {member} is {silence.told}")


def _keys(farm: FarmQueries, now_ms: int) -> Iterator[Trouble]:
    for member, expires_ms in farm.key_expiries().items():
        if problem := expiry_problem(expires_ms, now_ms):
            yield Trouble("keys", f"keys {member}", f"keys of member {member} {problem}")


def _is_configured(farm: FarmQueries, member: int) -> bool:
    """Whether a current member says that it has a publisher, ready or not."""
    scored = farm.statuses.get(member)
    if scored is None:
        return False
    meta = scored.document.meta or MetaStatus()
    return scored.publishing is not None or meta.last_published_time is not None
