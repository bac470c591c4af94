"""`Admission` by itself: which connection is cut for a new one, and whose share is kept."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import pytest
import trio
import trio.testing

from garlicfarm.net import admission as module
from garlicfarm.net.admission import Admission
from garlicfarm.transport import AdmissionSlot, Peer, Stage, network_of

TUNNEL = Peer("127.0.0.1", False, None)


class Doors(ExitStack):
    """Opens connections, each by a name, and notes in which order they are cut."""

    def __init__(self, **limits: object) -> None:
        super().__init__()
        self.admission = Admission(**limits)  # type: ignore[arg-type]
        self.cut: list[str] = []
        self.slots: dict[str, AdmissionSlot] = {}

    def open(self, name: str, address: str = "192.0.2.1", stage: Stage = Stage.OPEN) -> AdmissionSlot:
        return self.open_peer(name, Peer(address, True, None), stage)

    def open_peer(self, name: str, peer: Peer, stage: Stage = Stage.OPEN) -> AdmissionSlot:
        slot = self.enter_context(self.admission.admit(peer, lambda peer: self.cut.append(name)))
        self.slots[name] = slot
        slot.advance(stage)
        return slot


async def test_oldest_of_the_least_advanced_stage_is_cut() -> None:
    with Doors(per_address=8) as doors:
        for name in "ab":
            doors.open(name, stage=Stage.REQUEST)
        for name in "cd":
            doors.open(name, stage=Stage.STREAM)
        for name in "efgh":
            doors.open(name)
        for name in "ij":
            doors.open(name, stage=Stage.REQUEST)
        assert doors.cut == ["e", "f"]


async def test_age_counts_from_when_a_stage_was_reached() -> None:
    with Doors(per_address=3) as doors:
        for name in "abc":
            doors.open(name)
        doors.slots["b"].advance(Stage.STREAM)
        doors.slots["a"].advance(Stage.STREAM)
        doors.slots["c"].advance(Stage.STREAM)
        doors.open("d")
        assert doors.cut == ["b"]


async def test_stage_with_no_more_than_its_share_is_spared_so_that_newcomers_live() -> None:
    with Doors(per_address=12) as doors:
        for name in "abcdefghijkl":
            doors.open(name, stage=Stage.REQUEST)
        for name in ("honest", "m", "n"):
            doors.open(name)
        assert doors.cut == ["a", "b", "c"]
        doors.open("o")
        assert doors.cut == ["a", "b", "c", "honest"]


async def test_limit_holds_where_all_stages_hold_the_same() -> None:
    with Doors(per_address=10) as doors:
        for stage in (*Stage, *Stage):
            doors.open(stage.name.lower(), stage=stage)
        doors.open("a")
        assert doors.cut == []  # one that closes: it was told of when it was refused
        assert doors.admission.taken == 10
        doors.open("b")
        assert doors.cut == ["open"]
        assert doors.admission.taken == 10


async def test_cut_context_is_cancelled_and_one_that_was_left_is_not() -> None:
    admission = Admission(per_address=1)
    here = Peer("192.0.2.1", True, None)
    ended: list[str] = []

    async def connection(name: str, *, logs_in: bool) -> None:
        with admission.admit(here) as slot:
            if logs_in:
                slot.leave()
            await trio.sleep_forever()
        ended.append(name)

    async with trio.open_nursery() as nursery:
        for name, logs_in in (("member", True), ("silent", False), ("last", False)):
            nursery.start_soon(partial(connection, name, logs_in=logs_in))
            await trio.testing.wait_all_tasks_blocked()
        assert ended == ["silent"]
        assert admission.taken == 1
        nursery.cancel_scope.cancel()
    assert admission.taken == 0


async def test_quarter_is_kept_for_addresses_of_members() -> None:
    with Doors(per_address=4, total=16, named=lambda: {network_of("198.51.100.1")}) as doors:
        doors.admission.welcome(Peer("198.51.100.2", True, None))
        for number in range(20):
            doors.open(f"stranger {number}", f"192.0.2.{number}")
        assert doors.cut == [f"stranger {number}" for number in range(8)]
        doors.cut.clear()
        for number in range(4):
            doors.open(f"member {number}", f"198.51.100.{1 + number % 2}")
        assert doors.cut == []
        assert doors.admission.taken == 16
        for number in range(20, 60):
            doors.open(f"stranger {number}", f"192.0.2.{number}")
        assert not [name for name in doors.cut if name.startswith("member")]
        doors.cut.clear()
        for number in range(4):
            doors.open(f"more {number}", f"198.51.100.{1 + number % 2}")
        assert [name.partition(" ")[0] for name in doors.cut] == ["stranger"] * 4


async def test_peers_of_a_tunnel_are_strangers_bounded_in_all() -> None:
    with Doors(per_address=2, total=8, named=lambda: {"127.0.0.1"}) as doors:
        doors.admission.welcome(TUNNEL)
        for number in range(8):
            doors.open_peer(str(number), TUNNEL)
        assert doors.cut == ["0", "1"]
        assert all(slot.begin() for slot in doors.slots.values())


async def test_address_of_a_member_is_known_for_an_hour(autojump_clock: trio.testing.MockClock) -> None:
    with Doors(total=4) as doors:
        member = Peer("198.51.100.2", True, None)
        doors.admission.welcome(member)
        for number in range(3):
            doors.open(f"stranger {number}", f"192.0.2.{number}")
        await trio.sleep(3599)
        doors.open_peer("member", member).leave()
        assert doors.cut == []
        await trio.sleep(2)
        doors.open_peer("late", member)
        assert doors.cut == ["stranger 0"]


async def test_what_is_remembered_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    admission = Admission()

    def begin(peer: Peer) -> bool:
        with admission.admit(peer) as slot:
            return slot.begin()

    def is_known(peer: Peer) -> bool:
        with admission.admit(peer) as slot:
            return slot.known

    first, *others = [Peer(f"10.0.{n >> 8}.{n & 255}", True, None) for n in range(module.MAX_REMEMBERED + 1)]
    while begin(first):
        pass
    for peer in others[:-1]:
        assert begin(peer)
    assert not begin(first)
    for peer in others:
        assert begin(peer)
    assert begin(first), "what it has spent is forgotten"
    for peer in (first, *others):
        admission.welcome(peer)
    assert [is_known(peer) for peer in (first, *others)] == [False] + [True] * module.MAX_REMEMBERED
    assert admission.taken == 0


async def test_handshakes_of_an_address_are_limited_and_members_have_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    admission = Admission()

    def begun(address: str, tries: int) -> int:
        number = 0
        for _ in range(tries):
            with admission.admit(Peer(address, True, None)) as slot:
                number += slot.begin()
        return number

    assert begun("192.0.2.1", 1000) == module.BURST
    assert begun("192.0.2.2", 1) == 1
    await trio.sleep(2)
    assert begun("192.0.2.1", 1000) == 2 * module.PER_SECOND
    admission.welcome(Peer("198.51.100.2", True, None))
    assert begun("198.51.100.2", 2000) == module.KNOWN_TIMES * module.BURST
    await trio.sleep(3599)
    assert begun("192.0.2.1", 1000) == module.BURST


async def test_sixteen_members_behind_one_address_all_come_back_at_once_after_a_restart() -> None:
    """Each of them begins a login on up to three streams, and needs two for a new challenge."""
    with Doors() as doors:
        slots = [doors.open(str(number)) for number in range(16 * 3)]
        assert all(slot.begin() for slot in slots)
        for slot in slots:
            slot.advance(Stage.CLOSING)
        assert all(doors.open(f"again {number}").begin() for number in range(16 * 3))


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("192.0.2.1", "192.0.2.2", False),
        ("memory", "memory", True),
        ("::1", "::2", False),
    ],
)
async def test_limit_is_shared_by_one_address_or_one_64(one: str, other: str, shared: bool) -> None:
    admission = Admission(per_address=1)
    cut: list[object] = []
    with admission.admit(Peer(one, True, None), cut.append), admission.admit(Peer(other, True, None)):
        assert bool(cut) == shared
