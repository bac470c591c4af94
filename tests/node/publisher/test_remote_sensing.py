"""Remote sensing: in turn, at a bounded rate, never stuck in a query."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import msgspec
import trio
import trio.testing

from garlicfarm.application import ApplicationContext
from garlicfarm.errors import NotSupported, RouterError
from garlicfarm.i2p.destination import destination_hash
from garlicfarm.i2p.encoding import encode
from garlicfarm.levels import OUTSIDE
from garlicfarm.node.publisher import remote_sensing
from garlicfarm.node.publisher.remote_sensing import MIN_PERIOD_S, RemoteSensing
from garlicfarm.publishing.documents import ConnectTest, DestinationStatus, RemoteStatus
from garlicfarm.publishing.entries import encode_admin, encode_status
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.router import MEASUREMENT_TIMEOUT_S
from tests.publishing.scripted_log import T0, configuration, destination, status

Clock = trio.testing.MockClock
MASTER = destination(9)
MASTER_HASH = destination_hash(MASTER)


class FakeRouter:
    """Answers at once, in the order asked, unless ``trouble`` says otherwise for a hash."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, bytes]] = []
        self.trouble: dict[bytes, RouterError | None] = {}  # None: it hangs
        self.now = 0

    async def get_remote_measured_status(self, hash_: bytes) -> RemoteStatus | None:
        self.now += 1
        self.asked.append((trio.current_time(), hash_))
        await trio.sleep(1)
        if hash_ in self.trouble:
            error = self.trouble[hash_]
            if error is not None:
                raise error
            await trio.sleep_forever()
        return RemoteStatus(
            hash=encode(hash_), fetch_time_ms=self.now, connect_test=ConnectTest(ms=self.now, ok=True)
        )


class Sensing:
    """A farm of three; members 2 and 3 report the leaves given."""

    def __init__(self, *leaves: str, router: FakeRouter | None = None, master: str = MASTER) -> None:
        self.router = router or FakeRouter()
        self.served: frozenset[bytes] = frozenset()
        self.fold = PublisherFold("farm")
        self.fold.configure(0, configuration(1, 2, 3))
        self.index = 0
        self.counted: list[str] = []
        self.report(2, *leaves)
        self.report(3, *leaves[:1])
        context = SimpleNamespace(
            node_id=1,
            router=self.router,
            section=SimpleNamespace(meta=SimpleNamespace(destination=master), router={"plugin": "fake"}),
            log=SimpleNamespace(warning=lambda event, **fields: None),
            metrics=SimpleNamespace(
                count_router_request=lambda plugin, outcome: self.counted.append(outcome)
            ),
        )
        self.sensing = RemoteSensing(cast(ApplicationContext, context), self.fold, lambda: self.served)

    def report(self, member: int, *leaves: str) -> None:
        self.apply(
            encode_status(
                status(
                    member,
                    T0 + self.index * 30_000,
                    sequence=self.index + 1,
                    destinations=tuple(DestinationStatus(destination=leaf) for leaf in leaves),
                )
            )
        )

    def apply(self, entry: bytes) -> None:
        self.index += 1
        self.fold.apply(self.index, 1, entry)

    async def run_for(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self.sensing.run()

    @property
    def fetched(self) -> dict[str, int | None]:
        return {one.hash: one.fetch_time_ms for one in self.sensing.destinations}


LEAVES = [destination(seed) for seed in (20, 21, 22)]
HASHES = sorted(map(destination_hash, LEAVES))


async def test_destinations_are_measured_in_turn_once_a_minute(autojump_clock: Clock) -> None:
    farm = Sensing(*LEAVES)
    await farm.run_for(8 * MIN_PERIOD_S - 1)
    times, hashes = zip(*farm.router.asked, strict=True)
    assert list(times) == [turn * MIN_PERIOD_S for turn in range(8)]
    turn = sorted([*HASHES, MASTER_HASH])
    assert list(hashes) == turn * 2
    assert farm.counted == ["ok"] * 8
    assert farm.fetched == {encode(hash_): 5 + turn.index(hash_) for hash_ in HASHES}
    meta = farm.sensing.meta
    assert meta == RemoteStatus(hash=encode(MASTER_HASH), fetch_time_ms=5 + turn.index(MASTER_HASH))


async def test_since_level_3_each_measurement_says_when_it_was_taken(
    moved: SimpleNamespace, autojump_clock: Clock
) -> None:
    farm = Sensing(LEAVES[0])
    raised = msgspec.structs.replace(configuration(1, 2, 3, index=9), level=OUTSIDE)
    farm.fold.configure(9, raised)
    await farm.run_for(MIN_PERIOD_S + 2)
    (leaf,), meta = farm.sensing.destinations, farm.sensing.meta
    assert meta is not None
    assert leaf.date is not None
    assert meta.date is not None
    first, second = sorted((leaf.date, meta.date))
    assert second - first == MIN_PERIOD_S * 1000


async def test_interval_above_a_minute_is_the_time_between_two_measurements(autojump_clock: Clock) -> None:
    farm = Sensing(*LEAVES)
    farm.apply(encode_admin("farm", T0, 2, None, "interval", "alice", {"ms": 100_000}))
    await farm.run_for(250)
    assert [time for time, _ in farm.router.asked] == [0, 100, 200]


async def test_query_that_hangs_is_ended_before_the_next_one(autojump_clock: Clock) -> None:
    farm = Sensing(*LEAVES)
    first, second = sorted([*HASHES, MASTER_HASH])[:2]
    farm.router.trouble[first] = None
    await farm.run_for(2 * MIN_PERIOD_S - 1)
    assert farm.router.asked == [(0, first), (MIN_PERIOD_S, second)]
    assert farm.counted == ["error", "ok"]


async def test_query_that_fails_leaves_no_measurement_of_before(autojump_clock: Clock) -> None:
    farm = Sensing(LEAVES[0], master="")
    hash_ = destination_hash(LEAVES[0])
    await farm.run_for(2)
    assert farm.fetched == {encode(hash_): 1}
    for trouble in (RouterError("down"), None):
        farm.router.trouble = {hash_: trouble}
        await farm.run_for(MEASUREMENT_TIMEOUT_S + 1)
        assert farm.fetched == {}
        farm.router.trouble = {}
        await farm.run_for(2)
        assert list(farm.fetched) == [encode(hash_)]
    assert farm.counted == ["ok", "error", "ok", "error", "ok"]


async def test_router_that_measures_nothing_is_asked_once(autojump_clock: Clock) -> None:
    farm = Sensing(*LEAVES)
    farm.router.trouble = dict.fromkeys([*HASHES, MASTER_HASH], NotSupported("it never can"))
    await farm.sensing.run()
    assert len(farm.router.asked) == 1
    assert farm.counted == ["not-supported"]


async def test_destinations_that_this_node_serves_are_left_out(autojump_clock: Clock) -> None:
    farm = Sensing(*LEAVES)
    farm.served = frozenset([MASTER_HASH, destination_hash(LEAVES[0])])
    await farm.run_for(4 * MIN_PERIOD_S - 1)
    others = sorted(map(destination_hash, LEAVES[1:]))
    assert [hash_ for _, hash_ in farm.router.asked] == others * 2
    farm.served = frozenset([*HASHES, MASTER_HASH])
    await farm.run_for(MIN_PERIOD_S - 1)
    assert farm.sensing.destinations == ()  # what was measured of them before is not reported either


async def test_leaf_no_longer_reported_is_forgotten(autojump_clock: Clock) -> None:
    farm = Sensing(*LEAVES, master="")
    await farm.run_for(3 * MIN_PERIOD_S - 1)
    assert len(farm.fetched) == 3
    farm.report(2)
    await farm.run_for(MIN_PERIOD_S - 1)
    assert list(farm.fetched) == [encode(destination_hash(LEAVES[0]))]


async def test_leaves_of_a_new_publisher_are_measured_anew_and_first(autojump_clock: Clock) -> None:
    farm = Sensing(*LEAVES, master="")
    await farm.run_for(4 * MIN_PERIOD_S - 1)  # the turn is at the second of three
    assert len(farm.fetched) == 3
    assert farm.fold.publisher == 2
    farm.apply(encode_admin("farm", T0, 2, None, "override", "alice", {"member": 2, "mode": "off"}))
    assert farm.fold.publisher == 3
    shared = destination_hash(LEAVES[0])
    assert encode(shared) not in farm.fetched  # it was seen at the publisher before
    assert len(farm.fetched) == 2
    asked = len(farm.router.asked)
    await farm.run_for(2)
    assert farm.router.asked[asked][1] == shared
    assert encode(shared) in farm.fetched


async def test_measurement_during_which_the_publisher_changes_is_dropped(autojump_clock: Clock) -> None:
    farm = Sensing(LEAVES[0], master="")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(farm.run_for, 2)
        await trio.sleep(0.5)
        farm.apply(encode_admin("farm", T0, 2, None, "override", "alice", {"member": 2, "mode": "off"}))
    assert farm.counted == ["ok"]
    assert farm.fetched == {}


async def test_status_has_room_for_so_many_measurements_the_newest(
    autojump_clock: Clock, monkeypatch
) -> None:
    monkeypatch.setattr(remote_sensing, "MAX_REPORTED", 2)
    farm = Sensing(*LEAVES, master="")
    await farm.run_for(4 * MIN_PERIOD_S - 1)
    assert farm.fetched == {encode(HASHES[2]): 3, encode(HASHES[0]): 4}


async def test_leaves_are_not_measured_while_an_access_list_keeps_strangers_away(
    autojump_clock: Clock,
) -> None:
    sensing = Sensing(destination(2))
    sensing.fold.configure(0, msgspec.structs.replace(configuration(1, 2, 3), level=OUTSIDE))
    sensing.apply(encode_admin("farm", T0, 1, None, "allow", "alice", {"hash": encode(bytes(32))}))
    await sensing.run_for(3 * MIN_PERIOD_S)
    assert {hash_ for _, hash_ in sensing.router.asked} == {MASTER_HASH}
