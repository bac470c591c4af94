"""Statuses: repeated until their outcome is known, with sequences that rise over restarts."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from garlicfarm.application import ApplicationContext
from garlicfarm.errors import EntryRefused, GarlicFarmError, NoQuorum, OutcomeUnknown, ProposalDropped
from garlicfarm.i2p.destination import destination_hash
from garlicfarm.i2p.encoding import decode, encode
from garlicfarm.node.publisher import PublisherApplication, boot_clock, status_reporter
from garlicfarm.node.publisher.remote_sensing import MIN_PERIOD_S
from garlicfarm.node.publisher.status_reporter import StatusReporter
from garlicfarm.publisher import KeyReport
from garlicfarm.publishing.documents import DestinationStatus, RemoteStatus, RouterStatus
from garlicfarm.publishing.entries import encode_admin, encode_status
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.lease import Lease
from garlicfarm.refusals import Refusal
from garlicfarm.router import STATUS_TIMEOUT_S, Router
from tests.node.support.cluster import Cluster, cluster
from tests.publishing.scripted_log import T0, configuration, destination, status
from tests.running import background

Clock = trio.testing.MockClock
INTERVAL_S = 30.0  # of a farm that was told nothing else


class FakeContext:
    """Commits what it is given, unless ``trouble`` says otherwise."""

    def __init__(self, application: PublisherFold) -> None:
        self.farm = "farm"
        self.node_id = 1
        self.application = application
        self.section = SimpleNamespace(
            meta=SimpleNamespace(destination="", publish="auto"), leaf=(), router={}
        )
        self.raft_status = lambda: SimpleNamespace(term=1, role=SimpleNamespace(value="leader"), commit=1)
        self.router: Router | None = None
        self.admin_url: str | None = None
        self.log = SimpleNamespace(warning=self._note, error=self._note)
        self.handshakes: dict[int, tuple[float, bool]] = {}
        self.now: dict[int, tuple[float, bool]] = {}  # how it is where it is tried anew
        self.tried: list[set[int]] = []
        self.peers = SimpleNamespace(
            handshake=self.handshakes.get, try_handshakes=self._try, is_connected=lambda member: True
        )
        self.applied_index = 1
        self.posted: list[bytes] = []
        self.is_outstanding = False
        self.times: list[float] = []
        self.trouble: list[GarlicFarmError] = []
        self.notes: list[str] = []
        self.metrics: Any = None

    def _note(self, event: str, **fields: object) -> None:
        self.notes.append(event)

    async def _try(self, members: Collection[int]) -> None:
        self.tried.append(set(members))
        await trio.sleep(1)
        self.handshakes |= {member: self.now[member] for member in members if member in self.now}

    async def post(self, entry: bytes) -> tuple[int, int]:
        assert not self.is_outstanding, "two documents at once"
        self.is_outstanding = True
        self.posted.append(entry)
        self.times.append(trio.current_time())
        await trio.sleep(0.1)
        self.is_outstanding = False
        if self.trouble:
            raise self.trouble.pop(0)
        self.applied_index += 1
        self.application.apply(self.applied_index, 1, entry)
        return self.applied_index, 1

    async def wait_applied(self, beyond: int) -> None:
        while self.applied_index <= beyond:  # noqa: ASYNC110 - a fake
            await trio.sleep(0.05)

    def sequences(self) -> list[int]:
        return [json.loads(entry)["sequence"] for entry in self.posted]


class FakePublishers:
    """What a status says of publishers."""

    def __init__(self) -> None:
        self.publishing_to_report: bool | None = None
        self.last_published_ms: int | None = None
        self.last_published_ls: bytes | None = None
        self.lease_set: bytes | None = None
        self.news: frozenset[tuple[str, int]] = frozenset()
        self.served: list[DestinationStatus] = []
        self.down: set[bytes] = set()
        self.reports: list[KeyReport] = []
        self.confirmed = trio.Event()
        self.confirmed.set()

    def leaves(self) -> list[DestinationStatus]:
        return self.served

    def keys(self) -> list[KeyReport]:
        return self.reports

    def is_backend_up(self, destination: bytes) -> bool:
        return destination not in self.down

    async def wait_confirmed(self) -> None:
        await self.confirmed.wait()

    async def wait_news(self) -> None:
        await trio.sleep(0.05)


def made() -> tuple[FakeContext, Lease, StatusReporter]:
    application = PublisherFold("farm")
    application.configure(0, configuration(1, 2, 3))
    farm, lease = FakeContext(application), Lease()
    return farm, lease, StatusReporter(cast(ApplicationContext, farm), application, FakePublishers(), lease)


async def run_for(seconds: float, reporter: StatusReporter) -> None:
    with trio.move_on_after(seconds):
        await reporter.run()


async def test_status_of_unknown_outcome_is_repeated_byte_for_byte(autojump_clock: Clock) -> None:
    farm, lease, reporter = made()
    farm.trouble = [OutcomeUnknown("x"), NoQuorum("x"), ProposalDropped(Refusal.REFUSED), OutcomeUnknown("x")]
    await run_for(20, reporter)
    assert len(farm.posted) == 5
    assert len(set(farm.posted)) == 1
    assert farm.notes == ["status-not-posted"] * 4
    assert lease.expires_ms is not None
    await run_for(20, reporter)
    assert len(set(farm.posted)) == 2
    assert farm.sequences()[-1] > farm.sequences()[0]


async def test_statuses_come_an_interval_apart_and_never_closer_after_trouble(autojump_clock: Clock) -> None:
    farm, _, reporter = made()
    await run_for(3 * INTERVAL_S + 1, reporter)
    assert farm.times == pytest.approx([0, INTERVAL_S, 2 * INTERVAL_S, 3 * INTERVAL_S])
    farm, _, reporter = made()
    farm.trouble = [OutcomeUnknown("x")] * 100  # more than an interval long
    await run_for(200, reporter)
    good = farm.times[100:]
    assert len(good) > 3
    assert farm.posted[100] == farm.posted[0]
    assert good[2] - good[1] == pytest.approx(INTERVAL_S, abs=0.2)


async def test_interval_that_is_made_longer_or_shorter_leaves_no_gap_between_leases(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot_clock, "boot_ms", lambda: int(trio.current_time() * 1000))
    farm, lease, reporter = made()

    def set_interval(ms: int) -> None:
        farm.applied_index += 1
        order = encode_admin("farm", T0, 2, None, "interval", "alice", {"ms": ms})
        farm.application.apply(farm.applied_index, 1, order)

    async with background(lambda: run_for(20_000, reporter)):
        await trio.sleep(INTERVAL_S + 10)
        set_interval(3_600_000)  # the last status named 30 s: its lease is 45 s long
        await trio.sleep(40)
        assert farm.times == pytest.approx([0, INTERVAL_S, 2 * INTERVAL_S])
        assert lease.expires_ms == pytest.approx(2000 * INTERVAL_S + 5_400_000, abs=1000)
        await trio.sleep(3600)
        assert farm.times[3:] == pytest.approx([2 * INTERVAL_S + 3600])
        set_interval(1_000)
        await trio.sleep(10)
        assert len(farm.times) in (14, 15)


@pytest.mark.parametrize(("answers_after_s", "first_at_s"), [(7, 7), (10_000, 45)])
async def test_first_status_waits_until_the_router_publishes_nothing_of_an_earlier_process(
    answers_after_s: float, first_at_s: float, autojump_clock: Clock
) -> None:
    farm, lease, _ = made()
    publishers = FakePublishers()
    publishers.confirmed = trio.Event()
    reporter = StatusReporter(cast(ApplicationContext, farm), farm.application, publishers, lease)

    async def clear() -> None:
        await trio.sleep(answers_after_s)
        publishers.confirmed.set()

    async with background(clear):
        await run_for(60, reporter)
    assert farm.times[0] == pytest.approx(first_at_s)  # at the latest when a lease of before is over


def handshakes_in(farm: FakeContext) -> list[dict[int, int] | None]:
    """The handshakes that each status reports: member → ms, −1: failed."""
    nodes = [json.loads(entry)["config"]["node"] for entry in farm.posted]
    return [dict(node["tests"]) if "tests" in node else None for node in nodes]


async def test_status_says_how_the_handshakes_with_the_other_members_went(autojump_clock: Clock) -> None:
    farm, _, reporter = made()
    for index, member in enumerate((2, 3), 1):
        farm.application.apply(index, 1, encode_status(status(member, T0)))
    await run_for(1, reporter)
    farm.handshakes[2] = (0.0125, True)
    await run_for(1, reporter)
    farm.handshakes |= {2: (5.0, False), 3: (0.02, True)}
    await run_for(1, reporter)
    assert handshakes_in(farm) == [None, {2: 12}, {2: -1, 3: 20}]


async def test_status_is_at_most_30_bytes_longer_for_each_handshake(autojump_clock: Clock) -> None:
    """Even where ids and times have as many digits as they can have."""
    sizes = []
    for count in (1, 100):
        farm, _, reporter = made()
        others = range(2**31 - count, 2**31)
        farm.application.configure(0, configuration(1, *others))
        for index, member in enumerate(others, 1):
            farm.application.apply(index, 1, encode_status(status(member, T0)))
        farm.handshakes |= {member: (600.0, member % 2 == 0) for member in others}
        await run_for(1, reporter)
        assert [len(each or ()) for each in handshakes_in(farm)] == [count]
        sizes.append(len(farm.posted[0]))
    assert 0 < sizes[1] - sizes[0] <= 99 * 30


@pytest.mark.parametrize("reached", [True, False])
async def test_status_says_of_a_silent_member_only_how_handshakes_since_then_went(
    reached: bool, autojump_clock: Clock
) -> None:
    """And where it is reached, handshakes with all others are made anew as well."""
    farm, _, reporter = made()
    farm.application.apply(1, 1, encode_status(status(2, T0)))
    farm.handshakes |= {2: (0.01, True), 3: (0.02, True)}  # member 3 never posted; its connection is idle
    farm.now = {2: (0.03, False), 3: (0.04, reached)}
    with trio.move_on_after(INTERVAL_S + 1):
        await reporter.run()
    assert handshakes_in(farm) == [{2: 10}, {2: -1, 3: 40} if reached else {2: 10, 3: -1}]
    assert farm.tried[:2] == ([{3}, {2}] if reached else [{3}, {3}])


async def test_trial_that_failed_is_repeated_while_the_connection_is_up(autojump_clock: Clock) -> None:
    farm, _, reporter = made()
    for member in (2, 3):
        farm.application.apply(member - 1, 1, encode_status(status(member, T0)))
    farm.handshakes |= {2: (0.01, True), 3: (5.0, False)}
    farm.now = {3: (0.02, True)}
    with trio.move_on_after(INTERVAL_S + 1):
        await reporter.run()
    assert handshakes_in(farm) == [{2: 10, 3: -1}, {2: 10, 3: 20}]
    assert farm.tried == [{3}, set()]


class HangingRouter:
    def __getattr__(self, name: str) -> Any:
        async def hang(*args: object) -> None:
            await trio.sleep_forever()

        return hang


async def test_router_that_hangs_delays_a_status_once_however_many_leaves_it_has(
    autojump_clock: Clock,
) -> None:
    farm, _, _ = made()
    farm.section.leaf = [SimpleNamespace(destination=destination(seed)) for seed in range(20)]
    farm.metrics = SimpleNamespace(count_router_request=lambda plugin, outcome: None)
    farm.router = cast(Router, HangingRouter())
    reporter = StatusReporter(cast(ApplicationContext, farm), farm.application, FakePublishers(), Lease())
    await run_for(6, reporter)
    assert farm.times == [STATUS_TIMEOUT_S]
    assert len(json.loads(farm.posted[0])["destinations"]) == 20


async def test_refused_status_is_told_and_replaced_by_the_next_one(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its date: the wall clock moves with the clock that jumps, or both could be of one millisecond."""
    farm, lease, reporter = made()
    begun_ns = time.time_ns()
    clock = SimpleNamespace(time_ns=lambda: begun_ns + round(trio.current_time() * 1e9), time=time.time)
    monkeypatch.setattr(status_reporter, "time", clock)
    farm.trouble = [EntryRefused("date", "x")]
    await run_for(1, reporter)
    assert farm.notes == ["status-refused"]
    assert lease.expires_ms is None
    await run_for(INTERVAL_S, reporter)
    assert farm.posted[1] != farm.posted[0]
    assert lease.expires_ms is not None


async def test_sequence_of_a_clock_that_was_wrong_goes_with_the_status_that_was_refused(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sequence decades ahead is refused where it is posted: it must not be gone on from."""
    farm, _, reporter = made()
    ahead_ns = 20 * 366 * 86_400 * 10**9
    clock = SimpleNamespace(time_ns=lambda: time.time_ns() + ahead_ns, time=time.time)
    monkeypatch.setattr(status_reporter, "time", clock)
    farm.trouble = [EntryRefused("sequence", "years ahead")]
    await run_for(1, reporter)
    monkeypatch.undo()
    await run_for(1, reporter)
    wrong, right = farm.sequences()
    assert wrong - right > 10 * 366 * 86_400_000


async def test_status_that_the_fold_skips_begins_no_lease(autojump_clock: Clock) -> None:
    """The clock was set back, and the log goes further than this process has read so far."""
    farm, lease, reporter = made()
    ahead = time.time_ns() // 1_000_000 + 3_600_000
    post = farm.post

    async def after_an_older_one(entry: bytes) -> tuple[int, int]:
        older = json.loads(entry) | {"sequence": ahead, "date": ahead}
        farm.applied_index += 1
        farm.application.apply(farm.applied_index, 1, json.dumps(older).encode())
        farm.post = post  # type: ignore[method-assign]
        return await post(entry)

    farm.post = after_an_older_one  # type: ignore[method-assign]
    await run_for(1, reporter)
    assert len(farm.posted) == 1
    assert lease.expires_ms is None
    await run_for(INTERVAL_S, reporter)
    assert farm.sequences()[1] == ahead + 1
    assert lease.expires_ms is not None


async def statuses(nodes: Cluster, count: int) -> list[dict[str, Any]]:
    """The newest statuses in the log of node 1, once it holds so many."""
    farm = nodes.replica()
    with trio.fail_after(240):
        while True:
            entries = farm.store.entries(1, farm.applied_index + 1, 1 << 30)
            found = [json.loads(entry.value) for entry in entries if entry.value_type == 1]
            found = [document for document in found if "node" in document["config"]]
            if len(found) >= count:
                return found
            await farm.wait_applied(farm.applied_index)


async def test_restarted_node_continues_its_sequence_although_its_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, application="publisher") as nodes:
        await nodes.leader()
        farm = nodes.replica()
        entry = encode_admin("farm", 1, 1, None, "interval", "alice", {"ms": 1000})
        await farm.post(entry)
        before = await statuses(nodes, 2)
        await nodes.stop()
        hour_ns = 3600 * 10**9
        clock = SimpleNamespace(time_ns=lambda: time.time_ns() - hour_ns, time=time.time)
        monkeypatch.setattr(status_reporter, "time", clock)
        await nodes.start()
        after = await statuses(nodes, len(before) + 3)
        assert after[: len(before)] == before
        newest = [document["sequence"] for document in after]
        assert newest[-1] > before[-1]["sequence"]
        assert after[-1]["date"] < before[-1]["date"]
        application = nodes.replica().application
        assert isinstance(application, PublisherApplication)
        assert application.fold.last_sequence(1) == newest[-1]


class MeasuringRouter:
    """Fetches in 5 ms whatever it is asked for."""

    def __init__(self) -> None:
        self.measured: list[bytes] = []
        self.asked_at: list[float] = []  # for its own figures

    async def get_local_router_status(self) -> RouterStatus:
        self.asked_at.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        return RouterStatus(uptime=1)

    async def get_local_leaf_hash(self, master_hash: bytes) -> bytes | None:
        await trio.lowlevel.checkpoint()
        return None

    async def get_local_leaf_status(self, leaf: bytes) -> DestinationStatus:
        await trio.lowlevel.checkpoint()
        return DestinationStatus(destination=encode(leaf), uptime=2)

    async def get_remote_measured_status(self, master_or_leaf: bytes) -> RemoteStatus | None:
        await trio.lowlevel.checkpoint()
        self.measured.append(master_or_leaf)
        return RemoteStatus(hash=encode(master_or_leaf), fetch_time_ms=5)


def with_publishers() -> tuple[FakeContext, FakePublishers, MeasuringRouter, StatusReporter]:
    """Member 1 lists leaf 11 and serves leaf 12; member 2 reports the leaves 12 and 13."""
    farm, lease, _ = made()
    farm.section.leaf = [SimpleNamespace(destination=destination(11))]
    farm.section.meta.destination = destination(10)
    farm.metrics = SimpleNamespace(count_router_request=lambda plugin, outcome: None)
    farm.application.apply(1, 1, encode_status(status(2, T0, leaves=(12, 13))))
    publishers, router = FakePublishers(), MeasuringRouter()
    publishers.served = [DestinationStatus(destination=destination(12), lease_set_expires=10**12)]
    farm.router = cast(Router, router)
    context = cast(ApplicationContext, farm)
    return farm, publishers, router, StatusReporter(context, farm.application, publishers, lease)


async def test_status_has_the_leaves_and_what_was_really_published(autojump_clock: Clock) -> None:
    farm, publishers, _, reporter = with_publishers()
    publishers.publishing_to_report, publishers.last_published_ms = True, T0
    publishers.last_published_ls = b"a Meta LeaseSet"
    await run_for(1, reporter)
    (posted,) = map(json.loads, farm.posted)
    assert posted["destinations"] == [
        {"destination": destination(11), "uptime": 2},
        {"destination": destination(12), "uptime": 2, "leaseSetExpires": 10**12},
    ]
    assert posted["meta"]["publishing"] is True
    assert posted["meta"]["lastPublishedTime"] == T0
    assert decode(posted["meta"]["lastPublishedLS"]) == b"a Meta LeaseSet"


@pytest.mark.parametrize("is_publishing", [True, False])
async def test_status_has_what_this_node_measured_of_the_others(
    is_publishing: bool, autojump_clock: Clock
) -> None:
    """Its own router would fetch from itself what this node publishes."""
    farm, publishers, router, reporter = with_publishers()
    publishers.publishing_to_report = is_publishing
    measured = [destination(13)] if is_publishing else [destination(seed) for seed in (10, 12, 13)]
    hashes = sorted(map(destination_hash, measured))
    await run_for(len(hashes) * MIN_PERIOD_S + INTERVAL_S, reporter)
    assert router.measured[: len(hashes)] == hashes
    posted = json.loads(farm.posted[-1])
    master = destination_hash(destination(10))
    leaves = [{"hash": encode(each), "fetchTimeMs": 5} for each in hashes if each != master]
    assert posted["remoteDestinations"] == leaves
    assert ("remoteMeta" in posted) is not is_publishing


async def test_status_names_the_offline_keys_and_when_the_first_of_them_expires(
    autojump_clock: Clock,
) -> None:
    farm, publishers, _, reporter = with_publishers()
    await run_for(1, reporter)
    publishers.reports = [
        KeyReport(transient="0123456789abcdef", expires_ms=T0 + 2),
        KeyReport(transient="fedcba9876543210", expires_ms=T0 + 1),
    ]
    await run_for(1, reporter)
    before, after = (json.loads(entry)["config"]["node"] for entry in farm.posted)
    assert not before.keys() & {"transients", "keyExpires"}
    assert after["transients"] == ["0123456789abcdef", "fedcba9876543210"]
    assert after["keyExpires"] == T0 + 1


# News: out of turn (D22)


async def test_news_are_posted_at_once_and_once_and_leave_the_turns_alone(autojump_clock: Clock) -> None:
    farm, publishers, router, reporter = with_publishers()
    async with background(reporter.run):
        await trio.sleep(10)
        publishers.news = frozenset({("withdrawn", 1)})
        await trio.sleep(5)
        publishers.news |= {("released", 1)}
        await trio.sleep(2 * INTERVAL_S)
    assert farm.times == pytest.approx([0, 10, 15, INTERVAL_S, 2 * INTERVAL_S], abs=0.11)
    first, *others = (json.loads(entry) for entry in farm.posted)
    assert [each["destinations"] for each in others[:2]] == [first["destinations"]] * 2  # not asked again
    assert router.asked_at == pytest.approx([0, INTERVAL_S, 2 * INTERVAL_S], abs=0.11)


async def test_router_that_hangs_does_not_delay_news(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock
) -> None:
    monkeypatch.setattr(boot_clock, "boot_ms", lambda: round(trio.current_time() * 1000))
    farm, lease, _ = made()
    farm.section.leaf = [SimpleNamespace(destination=destination(1))]
    farm.metrics = SimpleNamespace(count_router_request=lambda plugin, outcome: None)
    farm.router = cast(Router, HangingRouter())
    publishers = FakePublishers()
    reporter = StatusReporter(cast(ApplicationContext, farm), farm.application, publishers, lease)
    async with background(reporter.run):
        await trio.sleep(1)
        publishers.news = frozenset({("withdrawn", 1)})
        await trio.sleep(1)
    assert farm.times == pytest.approx([1], abs=0.06)
    # What it says of time is of the moment at which it was begun anew.
    assert lease.expires_ms == pytest.approx(1000 + 45_000, abs=60)


async def test_news_wait_for_the_outcome_of_the_status_before(autojump_clock: Clock) -> None:
    farm, publishers, _, reporter = with_publishers()
    farm.trouble = [OutcomeUnknown("x")] * 10
    async with background(reporter.run):
        await trio.sleep(1)
        publishers.publishing_to_report, publishers.news = False, frozenset({("withdrawn", 1)})
        await trio.sleep(20)
    assert len(set(farm.posted)) == 2
    assert farm.posted[:11] == [farm.posted[0]] * 11
    assert json.loads(farm.posted[11])["meta"]["publishing"] is False


async def test_news_in_the_last_tenth_of_an_interval_take_the_place_of_the_next_status(
    autojump_clock: Clock,
) -> None:
    farm, publishers, _, reporter = with_publishers()
    async with background(reporter.run):
        await trio.sleep(0.95 * INTERVAL_S)
        publishers.news = frozenset({("withdrawn", 1)})
        await trio.sleep(1.5 * INTERVAL_S)
    assert farm.times == pytest.approx([0, 0.95 * INTERVAL_S, 2 * INTERVAL_S], abs=0.11)


async def test_status_has_the_lease_set_of_the_service_that_the_node_publishes(autojump_clock: Clock) -> None:
    farm, publishers, _, reporter = with_publishers()
    publishers.lease_set = b"a LeaseSet2"
    await run_for(1, reporter)
    (posted,) = map(json.loads, farm.posted)
    assert decode(posted["config"]["node"]["leaseSet"]) == b"a LeaseSet2"
