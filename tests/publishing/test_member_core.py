"""A member's part in publishing: what it orders, reports, keeps and announces, and how it lets go."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from garlicfarm.errors import PublisherError
from garlicfarm.i2p.encoding import decode, encode
from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm.i2p.lease_set import MetaLease
from garlicfarm.publishing.documents import MAX_LEASE_SET_BYTES, DestinationStatus, MetaStatus, NodeReport
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.member_core import Figures, MemberCore
from garlicfarm.publishing.member_standing import MemberSetup, Now
from garlicfarm.publishing.orders import ClockReading, KeyReport, Published, PublisherStatus
from garlicfarm.publishing.publisher_core import PublisherCore, Traits
from garlicfarm.wire.messages import Grant
from tests.i2p.encodings import lease_set_2, long_term
from tests.publishing.scripted_log import T0

NOW_S = T0 // 1000
LEAVES = (MetaLease(b"a" * 32, 0, NOW_S + 3600), MetaLease(b"b" * 32, 3, NOW_S + 1800))
SERVICE, OTHER = long_term(b"\7" * 32), long_term(b"\6" * 32)
MASTER = b"master"
KEY = KeyReport(transient="00" * 8, expires_ms=T0 + 1_000_000)


class Farm:
    """A fold that is set by hand: node 1, named or not, with the leaves above. ``able``: the other members
    that offer to publish."""

    farm, interval_ms, R, publish_index = "farm", 30_000, 3, 0
    lease_lasts_ms = lease_waits_ms = 45_000
    level = 0
    policy = SimpleNamespace(lifetime_ms=3_600_000)

    def __init__(self) -> None:
        self.publisher, self.due_since = 1, 7
        self.able = [2]
        self.statuses: dict[int, tuple[int, int]] = {}  # index and date, of those that are known
        self.publishes: set[int] = set()
        self.reports: dict[int, NodeReport] = {}
        self.draining: set[int] = set()
        self.taken: int | None = None
        self.is_shared = False
        self.clock = ""
        self.known_ms = 0
        self.sequence = 0
        self.entry: Callable[[], bytes] = bytes
        self.has_leases = False  # on heartbeats
        self.state = SimpleNamespace(since=5)
        self.boots = 0
        self.lost: int | None = None

    @property
    def members(self) -> list[int]:
        return self.recent()

    def boot(self, member: int) -> int:
        return self.boots

    def lost_index(self, member: int) -> int | None:
        return self.lost

    def leases(self) -> tuple[MetaLease, ...]:
        return LEAVES

    def published_ms(self, own_ms: int) -> int:
        return max(own_ms, self.known_ms)

    def eligible(self) -> list[int]:
        return self.able

    def recent(self) -> list[int]:
        return [1, *self.able]

    def newest(self, member: int) -> tuple[int, Any] | None:
        meta = MetaStatus(publishing=member in self.publishes)
        index, date_ms = self.statuses.get(member, (1, T0))
        is_known = member in (*self.able, *self.statuses)
        return (index, SimpleNamespace(meta=meta, date=date_ms)) if is_known else None

    def report(self, member: int) -> NodeReport:
        return self.reports.get(member, NodeReport())

    def taken_index(self, member: int) -> int | None:
        return self.taken

    def is_draining(self, member: int) -> bool:
        return member in self.draining

    def has_duplicate_transients(self, member: int) -> bool:
        return self.is_shared

    def clock_problem(self, date_ms: int) -> str:
        return self.clock

    def last_sequence(self, member: int) -> int:
        return self.sequence

    def newest_entry(self, member: int) -> bytes:
        return self.entry()


class Bench:
    """The core of node 1, whose publishers do at once what they should, and whose statuses are committed."""

    def __init__(self, *publishers: Traits, keys: bool = False, **setup: Any) -> None:
        self.farm = Farm()
        self.now = Now(0, T0)
        self.figures_ = Figures()
        self.logins: dict[int, ClockReading] = {}
        self.applied = 9
        self.cannot = ""  # get ready, or publish
        self.hangs = ""  # a call that is not answered
        self.orders: list[Any] = []
        self.said: list[dict[str, Any]] = []
        self.tasks: list[str] = []
        self.successors: list[bytes | None] = []
        self.logged: list[str] = []
        self.lease_set: bytes | None = None  # of a service
        self.core = MemberCore(
            cast(PublisherFold, self.farm),
            MemberSetup(node_id=1, signs_for=MASTER if keys else None, **setup),
            publishers,
            self,
            self.now,
        )
        self.farm.entry = lambda: self.core.turns.entry
        self._done: set[tuple[int, int]] = set()
        self.posted = 0

    def figures(self) -> Figures:
        return self.figures_

    def can_test(self, hash_: bytes) -> bool:
        return True

    def clocks(self) -> dict[int, ClockReading]:
        return self.logins

    def sleep(self, seconds: float) -> None:
        end_ms = self.now.boot_ms + round(1000 * seconds)
        while True:
            self.settle()
            if self.now.boot_ms == end_ms:
                return
            self.at(min(self.core.wake_ms(), end_ms))

    def at(self, boot_ms: int) -> None:
        self.now = Now(boot_ms, self.now.wall_ms + boot_ms - self.now.boot_ms)

    def settle(self) -> None:
        core = self.core
        while True:
            core.step(self.now, self.applied)
            self.logged += [note.event for _, note in core.take_notes()]
            for own in core.publishers:
                call = own.call
                if call is not None and (id(own), call.number) not in self._done:
                    self._done.add((id(own), call.number))
                    self._carry_out(own)
                    break
            else:
                turns = core.turns
                if turns.number == self.posted or turns.state not in ("measuring", "posting"):
                    return
                if turns.state == "measuring":
                    core.on_measured(turns.number, self.now)
                    continue
                self.posted = turns.number
                self.said.append(json.loads(turns.entry))
                self.farm.sequence = turns.sequence
                self.applied += 1
                assert turns.begun is not None
                self.farm.statuses[1] = (self.applied, turns.begun.date_ms)
                core.on_committed(turns.number, self.applied, self.now)

    def _carry_out(self, own: PublisherCore) -> None:
        call, core = own.call, self.core
        assert call is not None
        self.tasks.append(call.task)
        published = None
        if call.task == "leave":
            core.on_left(own, self.now)
            return
        if call.task == self.hangs:
            return
        if call.task in ("standby", "publish") and self.cannot:
            core.on_refused(own, call.number, self.now, self.cannot)
            return
        if call.order is not None:
            self.orders.append((call.order, call.leases))
            published = Published(published_ms=call.order.published_ms, lease_set=self.lease_set)
        if call.task == "announce":
            self.successors.append(call.successor)
        core.on_done(own, call.number, self.now, published)

    def say(self, number: int = 0, key: KeyReport | None = None, **status: Any) -> None:
        own = self.core.publishers[number]
        said = {"is_publishing": own.state in ("publishing", "renewing"), **status}
        self.core.on_status(own, own.changes, PublisherStatus(**said), key, self.now)
        self.settle()

    @property
    def states(self) -> list[str]:
        return [own.state for own in self.core.publishers]


def traits(**given: Any) -> Traits:
    return Traits(**{"name": "fake", "retire_timeout_ms": 5000, **given})


def service() -> Traits:
    return traits(destination=SERVICE.destination)


def publishing(*publishers: Traits, **setup: Any) -> Bench:
    bench = Bench(*(publishers or (traits(),)), **setup)
    if any(each.destination == SERVICE.destination for each in publishers):
        bench.lease_set = lease_set_2(SERVICE, NOW_S, 90, ())
    bench.sleep(1)
    assert set(bench.states) == {"publishing"}
    return bench


# What is ordered


@pytest.mark.parametrize("keys", [True, False])
def test_order_has_the_date_of_the_farm_and_the_leaves_if_it_can_be_signed(keys: bool) -> None:
    bench = Bench(traits(), keys=keys)
    bench.farm.known_ms = T0 + 5000
    bench.sleep(1)
    ((order, leases),) = bench.orders
    assert leases == (LEAVES if keys else ())
    assert (order.due_index, order.published_ms, order.expires_ms) == (7, T0 + 5000, T0 + 3_600_000)
    assert order.lease_set is None  # which the node signs


def test_order_after_the_last_date_of_a_lease_set_says_so() -> None:
    bench = publishing()
    bench.core.step(Now(1000, 2**32 * 1000))
    with pytest.raises(PublisherError, match="this node's clock shows a date after 2106-02-07"):
        bench.core.order()


def test_publishes_only_as_the_only_holder_within_the_lease() -> None:
    bench = Bench(traits())
    bench.farm.due_since = None  # another one has not let go
    bench.sleep(1)
    assert (bench.states, bench.core.publishing) == (["standby"], False)
    bench.farm.due_since = 7
    bench.sleep(0)
    assert bench.states == ["publishing"]
    bench.farm.publisher = 2
    bench.sleep(0)
    assert bench.states == ["standby"]


def test_first_publication_waits_for_a_lease_that_a_status_began() -> None:
    bench = Bench(traits())
    bench.farm.sequence = T0 + 10**6  # the status will be skipped
    bench.core.step(bench.now, 9)
    own = bench.core.publishers[0]
    assert own.call is not None
    bench.core.on_done(own, own.call.number, bench.now)
    assert own.call is not None
    bench.core.on_done(own, own.call.number, bench.now)
    assert own.state == "standby"
    bench.sleep(1)
    assert own.state == "publishing"


@pytest.mark.parametrize("trouble", ["key", "shared", "clock"])
def test_publishes_nothing_with_a_key_or_clock_that_it_must_not_use_though_it_is_named(trouble: str) -> None:
    """The farm names such a member where no other can publish either."""
    bench = publishing(traits(key=KEY))
    bench.say(key=KEY)
    assert bench.core.keys() == [KEY]
    if trouble == "key":
        bench.now = Now(bench.now.boot_ms, KEY.expires_ms)
    bench.farm.is_shared, bench.farm.clock = trouble == "shared", "is 9 days behind" * (trouble == "clock")
    bench.sleep(0)
    assert (bench.states, bench.core.publishing) == (["standby"], None)
    bench.farm.is_shared, bench.farm.clock = False, ""
    bench.say(key=KeyReport(transient="00" * 8, expires_ms=T0 * 2))
    bench.sleep(90)  # it had withdrawn
    assert (bench.states, bench.core.publishing) == (["publishing"], True)


# The wall clock


def beside_two_others() -> Bench:
    bench = publishing(traits(retire_timeout_ms=1000))
    bench.farm.able = [2, 3]
    hear(bench)
    return bench


def hear(bench: Bench, ahead_ms: int = 0) -> None:
    """The others post, by clocks that are ahead of this node's."""
    bench.applied += 1
    bench.farm.reports = dict.fromkeys(bench.farm.able, NodeReport(applied=bench.applied))
    date_ms = bench.now.wall_ms + ahead_ms
    bench.farm.statuses |= dict.fromkeys(bench.farm.able, (bench.applied + 1, date_ms))
    bench.applied += 1
    bench.settle()


def set_clock(bench: Bench, by_ms: int) -> None:
    bench.now = Now(bench.now.boot_ms, bench.now.wall_ms + by_ms)
    bench.settle()


@pytest.mark.parametrize("by_ms", [180_000, -180_000, 7 * 3_600_000, -7 * 3_600_000])
def test_member_whose_clock_is_set_wrong_withdraws_at_once_and_says_so(by_ms: int) -> None:
    """It is named until another one is, and goes on: where no other can publish, it may be right."""
    bench = beside_two_others()
    bench.said.clear()
    set_clock(bench, by_ms)
    assert (bench.states, bench.core.can_publish, bench.core.publishing) == (["publishing"], False, None)
    assert [said["meta"].get("publishing") for said in bench.said] == [None]
    assert bench.logged[-1] == "cannot-publish"
    assert "the farm's: correct it" in bench.core.clock_problem
    bench.farm.publisher = 2
    bench.settle()
    assert (bench.states, bench.core.publishing) == (["standby"], None)
    set_clock(bench, -by_ms)
    assert (bench.core.clock_problem, bench.core.publishing) == ("", None)
    bench.sleep(90)
    assert bench.core.publishing is False
    assert bench.logged[-1] == "can-publish"


def test_new_process_with_a_wrong_clock_finds_that_with_the_first_status_of_others_after_its_own() -> None:
    bench = Bench(traits())
    bench.farm.able = [2, 3]
    bench.farm.statuses = dict.fromkeys((2, 3), (8, T0 - 180_000))
    bench.sleep(1)
    assert (bench.core.clock.farm_ms, bench.core.publishing) == (0, True)  # they may have come late
    hear(bench, ahead_ms=-180_000)
    assert (bench.core.clock.farm_ms, bench.core.publishing) == (179_000, None)  # it began one a second ago


def test_status_of_its_own_that_came_after_the_next_was_begun_is_not_taken_for_that() -> None:
    """One that was refused may be committed all the same: posts may be repeated on their way."""
    bench = publishing()
    bench.farm.able = [2, 3]
    bench.sleep(28)
    entry = bench.core.turns.entry
    bench.at(30_000)
    bench.core.step(bench.now)
    assert (bench.core.turns.state, bench.core.turns.entry) == ("measuring", entry)
    bench.applied += 1
    bench.farm.statuses[1] = (bench.applied, T0)
    bench.core.step(bench.now, bench.applied)
    bench.farm.reports = dict.fromkeys((2, 3), NodeReport(applied=bench.applied))
    bench.farm.statuses |= dict.fromkeys((2, 3), (bench.applied + 1, T0 - 40_000))
    bench.core.step(bench.now, bench.applied + 1)
    assert bench.core.clock.farm_ms == 40_000  # not 70_000


def test_router_with_another_date_keeps_the_member_from_being_offered() -> None:
    bench = publishing()
    now_ms = bench.now.wall_ms
    date = ClockReading(date_ms=now_ms + 61_000, asked_ms=now_ms, answered_ms=now_ms)
    bench.say(router_date=date)
    assert bench.core.publishing is None
    assert bench.core.clock_problem == "is at least 61 s behind its router's: correct the wrong one"
    bench.say(router_date=ClockReading(date_ms=now_ms, asked_ms=now_ms, answered_ms=now_ms))
    bench.sleep(90)
    assert bench.core.publishing is True


def test_login_shows_a_wrong_clock_before_any_status_does() -> None:
    bench = publishing()
    bench.farm.able = [2, 3]
    now_ms = bench.now.wall_ms
    told = ClockReading(date_ms=now_ms - 61_000, asked_ms=now_ms - 500, answered_ms=now_ms)
    bench.logins[2] = told
    bench.settle()
    assert bench.core.publishing is True
    bench.logins[3] = told
    bench.settle()
    assert (bench.core.clock.farm_ms, bench.core.publishing) == (60_500, None)


def test_limit_is_that_of_the_setup() -> None:
    for limit_ms, expected in ((119_000, None), (121_000, True)):
        bench = publishing(max_clock_offset_ms=limit_ms)
        now_ms = bench.now.wall_ms
        bench.say(router_date=ClockReading(date_ms=now_ms + 120_000, asked_ms=now_ms, answered_ms=now_ms))
        assert bench.core.publishing is expected


# What is reported


def test_reports_what_its_publisher_does_from_standby_to_retirement() -> None:
    bench = Bench(traits())
    bench.farm.publisher = 2
    assert bench.core.publishing is True  # something of an earlier process may be published
    bench.sleep(1)
    assert bench.said[-1]["meta"]["publishing"] is False
    bench.farm.publisher = 1
    bench.sleep(1)
    assert bench.core.publishing is True
    bench.farm.is_shared = True  # another member signs with the same transient key
    assert bench.core.publishing is None
    bench.farm.publisher = 2
    assert bench.core.publishing is True  # until it has retired
    bench.settle()
    assert bench.core.publishing is None
    assert bench.tasks == ["enter", "standby", "publish", "retire", "standby"]


def test_named_member_reports_that_it_publishes_while_it_publishes_anew_or_stops() -> None:
    """Its lease may run out while it is named; the router may have it until the plugin has confirmed."""
    bench = publishing()
    bench.hangs = "publish"
    bench.farm.publish_index = 12
    bench.sleep(20)
    assert (bench.states, bench.core.publishing) == (["renewing"], True)
    bench.hangs, bench.farm.due_since = "retire", None
    bench.settle()
    assert (bench.states, bench.core.publishing) == (["retiring"], True)
    assert bench.core.news() == frozenset()


def test_new_keys_of_the_master_destination_publish_anew_after_a_minute() -> None:
    """What the old ones have signed ends with them."""
    bench = publishing(traits(), master_key=KEY)
    bench.hangs = "publish"
    bench.sleep(100)
    assert bench.states == ["publishing"]
    bench.core.master_key = KeyReport(transient="0123456789abcdef", expires_ms=KEY.expires_ms + 1)
    bench.sleep(1)
    assert bench.states == ["renewing"]


def test_named_member_whose_attempts_fail_goes_on_and_reports_that_it_does_not_publish() -> None:
    """The farm passes it over after R such statuses; it can publish all the same."""
    bench = Bench(traits())
    bench.hangs = "publish"
    bench.settle()
    assert (bench.states, bench.core.publishing) == (["starting"], True)
    own = bench.core.publishers[0]
    assert own.call is not None
    bench.core.on_refused(own, own.call.number, bench.now, "no tunnels")
    assert (bench.states, bench.core.publishing) == (["failed"], False)
    bench.sleep(5)
    assert (bench.states, bench.core.publishing) == (["retrying"], False)
    assert bench.core.news() == frozenset()


def test_member_whose_plugin_is_not_ready_withdraws_before_that_has_stopped() -> None:
    bench = publishing()
    bench.hangs = "retire"
    bench.say(is_publishing=False, is_ready=False)
    assert (bench.states, bench.core.publishing) == (["withdrawing"], None)
    assert bench.core.news() == {("withdrawn", 1)}
    bench.farm.publisher, bench.farm.taken = 2, 10
    bench.settle()
    assert bench.core.publishing is True
    assert bench.core.news() == {("withdrawn", 1)}  # it has not let go


def test_node_without_publishers_reports_none_and_nothing_published() -> None:
    bench = Bench()
    bench.sleep(1)
    (said,) = bench.said
    assert not said["meta"].keys() & {"publishing", "lastPublishedTime", "lastPublishedLS"}


@pytest.mark.parametrize(("is_required", "expected"), [(True, None), (False, False)])
def test_required_publisher_that_is_not_ready_keeps_the_node_from_publishing(
    is_required: bool, expected: bool | None
) -> None:
    bench = Bench(traits(is_required=is_required))
    bench.farm.publisher, bench.cannot = 2, "no router"
    bench.sleep(60)
    assert bench.core.publishing is expected
    assert "draining" not in bench.said[-1]["config"]


def test_service_that_is_down_keeps_the_node_from_publishing_even_if_it_is_not_required() -> None:
    bench = Bench(service(), traits(is_required=False))
    bench.farm.publisher = 2
    bench.sleep(1)
    assert bench.core.publishing is False
    for own in bench.core.publishers:
        bench.core.on_check(own, bench.now, is_up=False, problem="it is down")
        assert bench.core.publishing is None
        assert own.problems() == ["it is down"]
        assert bench.core.is_backend_up(SERVICE.destination) is (own is bench.core.publishers[1])
        bench.core.on_check(own, bench.now, is_up=True, problem=None)
        bench.sleep(90)


def test_first_status_waits_at_most_a_lease_for_a_publisher_in_doubt() -> None:
    bench = Bench(traits())
    bench.farm.publisher, bench.cannot = 2, "no router"
    bench.sleep(44)
    assert bench.said == []
    bench.sleep(1)
    assert [said["date"] for said in bench.said] == [T0 + 45_000]
    bench = Bench(traits())
    bench.cannot = "no router"
    bench.sleep(7)
    bench.cannot = ""
    bench.sleep(60)
    assert bench.said[0]["date"] == T0 + 10_000


def test_status_has_the_keys_leaves_figures_and_what_was_published() -> None:
    master_key = KeyReport(transient="0123456789abcdef", expires_ms=T0 + 1)
    last = Published(published_ms=T0 - 7, lease_set=b"a Meta LeaseSet")
    bench = Bench(
        traits(destination=SERVICE.destination, key=KEY), master_key=master_key, last_published=last
    )
    leaf = DestinationStatus(destination=encode(SERVICE.destination), uptime=7)
    bench.figures_ = Figures(node=NodeReport(version="1"), destinations=(leaf,), program={"version": "1"})
    bench.sleep(1)
    said = bench.said[0]
    node, meta = said["config"]["node"], said["meta"]
    assert (node["version"], node["applied"], node["interval_ms"], node["R"]) == ("1", 9, 30_000, 3)
    assert (node["transients"], node["keyExpires"]) == (["00" * 8, "0123456789abcdef"], T0 + 1)
    assert said["config"]["program"] == {"version": "1"}
    assert said["destinations"] == [{"destination": encode(SERVICE.destination), "uptime": 7}]
    assert (decode(meta["lastPublishedLS"]), meta["lastPublishedTime"]) == (b"a Meta LeaseSet", T0 - 7)
    assert bench.core.leaves() == [DestinationStatus(destination=encode(SERVICE.destination))]


def test_date_of_what_a_service_has_published_again_by_itself_is_reported() -> None:
    """So that its successor dates what it publishes later, whichever clocks are right."""
    bench = publishing(service())
    assert bench.core.last_published_ms == T0
    bench.say(published_ms=2 * T0)
    assert bench.core.last_published_ms == 2 * T0


def test_meta_lease_set_is_kept_before_anything_else() -> None:
    bench = publishing()
    assert bench.core.last_published == Published(published_ms=T0)
    own = bench.core.publishers[0]

    def publish(published: Published, meta: bytes | None) -> None:
        bench.farm.due_since = None
        bench.settle()
        bench.farm.due_since = 7
        bench.core.step(bench.now)
        assert own.call is not None
        assert own.call.task == "publish"
        bench.core.on_done(own, own.call.number, bench.now, published, meta)

    publish(Published(published_ms=2, lease_set=b"service"), None)
    assert bench.core.last_published == Published(published_ms=2)
    meta = Published(published_ms=3, lease_set=b"meta")
    publish(meta, b"meta")
    publish(Published(published_ms=4), None)
    assert bench.core.last_published == meta
    assert bench.core.last_published_ms == 3


# A member that can no longer publish (D22)


def test_member_whose_router_is_gone_withdraws_and_reports_it_as_news() -> None:
    bench = publishing()
    assert bench.core.news() == {("published", 7)}
    bench.cannot = "no router"
    bench.say(is_publishing=False, is_ready=False)
    assert bench.core.news() == {("withdrawn", 1)}
    assert "publishing" not in bench.said[-1]["meta"]
    assert bench.logged[-3:] == ["publication-lost", "cannot-publish", "publisher-not-ready"]
    bench.farm.publisher, bench.farm.taken = 2, 10
    bench.settle()
    assert bench.core.news() == {("withdrawn", 1), ("released", 10)}
    assert bench.core.turns.told == bench.core.news()
    assert len(bench.said) == 4  # in turn, and out of turn: published, withdrawn, released


def test_withdrawn_member_offers_itself_after_r_intervals_with_its_router() -> None:
    bench = Bench(traits())
    bench.farm.publisher = 2
    bench.sleep(1)
    bench.cannot = "no router"
    bench.say(is_ready=False)
    bench.sleep(60)
    assert bench.core.publishing is None
    bench.cannot = ""
    bench.sleep(5)
    assert bench.states == ["standby"]
    bench.sleep(84)
    assert bench.core.publishing is None
    bench.sleep(6)
    assert bench.core.publishing is False
    assert bench.logged[-1] == "can-publish"


def test_only_member_that_can_publish_offers_itself_as_soon_as_its_router_is_back() -> None:
    bench = publishing()
    bench.farm.able = []
    bench.cannot = "no router"
    bench.say(is_publishing=False, is_ready=False)
    assert bench.core.publishing is None
    bench.cannot = ""
    bench.sleep(5)
    assert bench.core.publishing is True


def test_role_is_released_once_every_publisher_has_stopped() -> None:
    bench = publishing(traits(), traits())
    bench.hangs = "retire"
    bench.farm.publisher, bench.farm.taken = 2, 10
    bench.sleep(1)
    assert bench.states == ["retiring", "retiring"]
    for own in bench.core.publishers:
        assert (bench.core.publishing, bench.core.news()) == (True, frozenset())
        assert own.call is not None
        bench.core.on_done(own, own.call.number, bench.now)
    assert (bench.core.publishing, bench.core.news()) == (False, {("released", 10)})


# The LeaseSet of the next publisher (D22)


def test_lease_set_of_a_service_is_news_while_it_is_published() -> None:
    bench = publishing(service())
    assert bench.core.lease_set == bench.lease_set
    assert decode(bench.said[-1]["config"]["node"]["leaseSet"]) == bench.lease_set
    assert "lastPublishedLS" not in bench.said[-1]["meta"]  # that is a Meta LeaseSet's
    assert bench.core.news() == {("published", 7), ("lease set", 7)}
    bench.farm.publisher = 2
    assert (bench.core.lease_set, bench.core.news()) == (None, frozenset())


@pytest.mark.parametrize("size", [MAX_LEASE_SET_BYTES, MAX_LEASE_SET_BYTES + 1])
def test_lease_set_that_is_too_large_for_a_status_is_left_out(size: int) -> None:
    bench = Bench(service())
    bench.lease_set = bytes(size)
    bench.sleep(1)
    assert bench.states == ["publishing"]
    assert (bench.core.lease_set is None) is (size > MAX_LEASE_SET_BYTES)


@pytest.mark.parametrize(
    ("keys", "ahead_s", "applied", "is_announced"),
    [
        (SERVICE, 60, 12, True),
        (SERVICE, 60, 11, False),  # of an earlier turn
        (SERVICE, -600, 12, False),  # expired, and older than what this node published
        (SERVICE, -10, 12, False),
        (OTHER, 60, 12, False),
    ],
    ids=["newer", "of-an-earlier-turn", "expired", "older", "of-another-destination"],
)
def test_lease_set_of_the_next_publisher_is_announced_once_if_it_is_a_newer_one_of_the_service(
    keys: DestinationKeys, ahead_s: int, applied: int, is_announced: bool
) -> None:
    bench = publishing(service())
    successor = lease_set_2(keys, NOW_S + ahead_s, 90, ())
    bench.farm.publisher, bench.farm.due_since = 2, None
    bench.settle()
    bench.farm.due_since = 12
    bench.farm.reports[2] = NodeReport(applied=applied, lease_set=encode(successor))
    bench.sleep(3)
    assert bench.successors == [successor] * is_announced
    assert ("successor-refused" in bench.logged) is (ahead_s == -600)
    assert bench.states == ["standby"]


def test_lease_set_that_is_forged_is_refused_and_told_once() -> None:
    bench = publishing(service())
    forged = bytearray(lease_set_2(SERVICE, NOW_S + 60, 90, ()))
    forged[-1] ^= 1
    bench.farm.publisher, bench.farm.due_since = 2, 12
    bench.farm.reports[2] = NodeReport(applied=12, lease_set=encode(bytes(forged)))
    bench.sleep(3)
    assert bench.logged.count("successor-refused") == 1
    assert bench.successors == []


# Letting go


def test_drained_member_stands_aside_is_released_and_takes_part_again() -> None:
    bench = publishing()
    bench.core.drain(True, bench.now)
    bench.settle()
    said = bench.said[-1]
    assert (said["config"]["draining"], said["meta"]["publishConfig"]) == (True, "off")
    assert "publishing" not in said["meta"]
    assert bench.states == ["publishing"]  # until another one has the role
    bench.farm.publisher, bench.farm.taken = 2, 20
    bench.settle()
    assert (bench.states, bench.core.publishing) == (["standby"], None)
    bench.core.drain(False, bench.now)
    bench.settle()
    assert "draining" not in bench.said[-1]["config"]
    assert bench.core.publishing is False


@pytest.mark.parametrize("others", ["none", "drained", "cannot"])
def test_drained_member_that_is_the_last_goes_on(others: str) -> None:
    bench = publishing()
    bench.farm.able = [] if others == "none" else [2]
    bench.farm.draining = {2} if others == "drained" else set()
    if others == "cannot":
        bench.farm.newest = lambda member: (1, SimpleNamespace(meta=MetaStatus(), date=T0))  # type: ignore[method-assign]
    bench.core.drain(True, bench.now)
    bench.settle()
    said = bench.said[-1]
    assert said["config"]["draining"] is True
    assert (said["meta"].get("publishConfig"), said["meta"]["publishing"]) == (None, True)


@pytest.mark.parametrize(("router", "lingers_s"), [("i2pd", 2), ("java", 12)])
def test_stop_ends_once_the_successor_publishes_and_the_clients_know(router: str, lingers_s: int) -> None:
    bench = publishing(service())
    bench.say(is_publishing=True, router_kind=router)
    bench.core.stop(bench.now, 60_000)
    bench.settle()
    assert bench.core.ending.state == "handing over"
    bench.farm.publisher, bench.farm.due_since, bench.farm.taken = 2, None, 20
    bench.sleep(1)
    assert (bench.states, bench.core.ending.state) == (["standby"], "handing over")
    assert ("released", 20) in bench.core.turns.told
    bench.farm.taken = None
    bench.sleep(1)
    assert bench.core.ending.state == "succeeding"
    bench.farm.due_since, bench.farm.publishes = 21, {2}
    successor = lease_set_2(SERVICE, NOW_S + 60, 90, ())
    bench.farm.reports[2] = NodeReport(applied=21, lease_set=encode(successor))
    bench.sleep(1)
    assert (bench.successors, bench.core.ending.state) == ([successor], "lingering")
    bench.sleep(lingers_s - 2)
    assert bench.core.ending.state == "lingering"
    bench.sleep(2)
    assert bench.core.ending.state == "over"


def test_stop_without_a_quorum_retires_and_ends_at_the_bound() -> None:
    bench = publishing()
    bench.core.stop(bench.now, 60_000)
    number = bench.core.turns.number
    assert bench.core.turns.state == "posting"
    bench.core.on_status_failed(number, bench.now, "no majority", has_quorum=False)
    assert bench.core.ending.state == "releasing"  # though another one could publish
    bench.posted = bench.core.turns.number  # nothing is committed any more
    bench.sleep(14)
    assert (bench.states, bench.core.ending.state) == (["standby"], "releasing")
    bench.sleep(1)
    assert bench.core.ending.state == "over"
    assert bench.logged[-2:] == ["status-not-posted", "not-publishing"]


# ---------------------------------------------------------------------- leases on heartbeats


def _leased(**farm: Any) -> Bench:
    """Node 1, named since 5, in a farm whose leases ride on heartbeats."""
    bench = Bench(traits())
    bench.farm.has_leases = True
    for name, value in farm.items():
        setattr(bench.farm, name, value)
    bench.settle()
    return bench


def _grant(bench: Bench, index: int, lasts_ms: int = 20_000) -> None:
    for number in (1, 2):
        grant = Grant(
            term=index,
            number=number,
            answered=number - 1,
            age_ms=0,
            lasts_ms=lasts_ms,
            index=index,
        )
        bench.core.on_grant(grant, bench.now)
    bench.settle()


def test_member_publishes_by_a_grant_once_the_farm_knows_its_process() -> None:
    bench = _leased()
    assert bench.said[-1]["config"]["node"]["boot"] == 1
    _grant(bench, 5)
    assert bench.states == ["standby"]
    bench.farm.boots = 1
    bench.settle()
    assert bench.states == ["publishing"]
    assert bench.core.lease_end_ms == 20_000  # and none by its statuses
    bench.sleep(21)
    assert bench.states == ["standby"]
    assert bench.tasks[-2:] == ["retire", "standby"]


def test_lease_of_an_earlier_naming_is_none_for_the_present_one() -> None:
    bench = _leased(state=SimpleNamespace(since=9))
    bench.farm.boots = 1
    _grant(bench, 5)
    assert bench.states == ["standby"]
    _grant(bench, 9)
    assert bench.states == ["publishing"]


def test_new_number_is_above_those_of_the_log_and_not_taken_while_something_stands() -> None:
    bench = _leased(boots=7)
    assert bench.said[-1]["config"]["node"]["boot"] == 8
    bench.farm.boots = 8
    _grant(bench, 5, 200_000)
    assert bench.states == ["publishing"]
    bench.farm.boots = 11  # of a former process, of which this member learns late
    bench.farm.lost = 4  # news: a status at once
    bench.settle()
    assert bench.said[-1]["config"]["node"]["boot"] == 8
    bench.sleep(31)  # it has retired: its own statuses are skipped, so it is not the one that is known
    assert bench.states == ["standby"]
    assert bench.said[-1]["config"]["node"]["boot"] == 12


def test_member_that_was_found_lost_says_once_that_it_knows() -> None:
    bench = _leased(boots=1)
    count = len(bench.said)
    bench.farm.lost = 12
    bench.sleep(5)
    assert len(bench.said) == count + 1
