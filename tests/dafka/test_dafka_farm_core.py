"""A farm as a producer, sans-I/O: what its members say, and to whom."""

from __future__ import annotations

import pytest

from garlicfarm_plugin_dafka.codec import (
    Ack,
    Command,
    DirectHead,
    DirectTail,
    Fetch,
    GetHeads,
    Head,
    Record,
    subscription_prefix,
)
from garlicfarm_plugin_dafka.farm_core import FarmProducerCore, partition_of

FARM_ID = bytes(range(16))
P = [partition_of(FARM_ID, epoch) for epoch in range(8)]


def core(first: int = 0, count: int = 0, length: int = 10) -> FarmProducerCore:
    made = FarmProducerCore("farm", FARM_ID, length)
    made.on_log(first, count)
    return made


def answers(farm: FarmProducerCore, *commands: Command) -> list[Command]:
    for command in commands:
        farm.receive(command)
    return farm.answers()


def asked(farm: FarmProducerCore) -> list[tuple[str, str, int, int]]:
    """The ranges that are to be read."""
    found = []
    while (turn := farm.fetches.turn()) is not None:
        found.append((turn.requester, turn.partition, turn.first, turn.end))
        farm.fetches.advance(turn, turn.first, turn.end)
    return found


def test_address_of_a_partition_is_that_of_every_member_for_ever() -> None:
    assert partition_of(FARM_ID, 0) == "D095B7CE709A5AD249988CF6593E833F"
    assert len({*P, partition_of(bytes(16), 0)}) == 9
    assert all(len(address) == 32 and set(address) <= set("0123456789ABCDEF") for address in P)


def test_entry_has_its_place_in_its_epoch() -> None:
    farm = core()
    places = [(P[0], 0), (P[0], 9), (P[1], 0), (P[2], 5)]
    assert [farm.record(n, b"x") for n in (0, 9, 10, 25)] == [Record("farm", *each, b"x") for each in places]
    farm.on_log(5, 26)
    assert [farm.number(P[epoch], 5) for epoch in (0, 1, 2, 3)] == [5, 15, 25, None]


def test_heads_are_sent_by_the_leader_alone_each_second_and_by_a_new_one_at_once() -> None:
    farm = core(0, 25)
    assert farm.tick(100.0) == []
    farm.lead(True)
    heads = [Head("farm", P[1], 9), Head("farm", P[2], 4)]
    assert farm.tick(100.0) == [*heads, Head("farm", P[0], 9)]
    assert farm.tick(100.9) == []
    assert farm.tick(101.0)[:2] == heads
    farm.lead(False)
    assert farm.tick(200.0) == []
    farm.lead(True)
    assert farm.tick(200.1)[:2] == heads
    farm.lead(True)
    assert farm.tick(200.2) == []


def test_heads_of_older_epochs_take_turns() -> None:
    farm = core(0, 55)
    farm.lead(True)
    seen = [farm.tick(float(second))[2:] for second in range(1, 9)]
    assert {head for heads in seen for head in heads} == {Head("farm", P[epoch], 9) for epoch in range(4)}
    assert all(len(heads) == 1 for heads in seen)


def test_farm_without_entries_has_no_heads() -> None:
    farm = core()
    farm.lead(True)
    assert farm.tick(1.0) == []
    farm.on_log(0, 1)
    assert farm.tick(1.1) == [Head("farm", P[0], 0)]
    farm = core()
    assert answers(farm, GetHeads("farm", "c")) == []
    assert farm.subscriptions() == (subscription_prefix(GetHeads, "farm"), subscription_prefix(Fetch, P[0]))


def test_get_heads_is_answered_with_all_epochs_that_are_here() -> None:
    farm = core(3, 25)
    expected = [
        DirectHead("c", "farm", P[0], 9),
        DirectHead("c", "farm", P[1], 9),
        DirectHead("c", "farm", P[2], 4),
    ]
    assert answers(farm, GetHeads("farm", "c"), GetHeads("farm", "c")) == expected
    farm.on_log(12, 30)
    assert answers(farm, GetHeads("farm", "d")) == [
        DirectHead("d", "farm", P[0], 9),  # gone
        DirectHead("d", "farm", P[1], 9),
        DirectHead("d", "farm", P[2], 9),
    ]
    assert answers(farm, GetHeads("farm2", "c")) == []
    assert farm.dropped == {"another topic": 1}


def test_fetch_is_answered_as_far_as_there_are_records() -> None:
    farm = core(0, 25)
    assert answers(farm, Fetch(P[1], "farm", "c", 7, 2**32 - 1)) == []
    farm.receive(Fetch(P[2], "farm", "s", 0, 2))
    farm.receive(Fetch(P[2], "farm", "s", 2, 9))  # continues it
    assert asked(farm) == [("c", P[1], 7, 10), ("s", P[2], 0, 5)]
    assert not farm.has_answers
    assert not farm.dropped


def test_fetch_of_what_is_deleted_is_told_where_the_partition_begins() -> None:
    farm = core(3, 25)
    fetches = (Fetch(P[0], "farm", "c", 2, 5), Fetch(P[0], "farm", "c", 0, 5), Fetch(P[1], "farm", "c", 0, 1))
    assert answers(farm, *fetches) == [DirectTail("c", "farm", P[0], 3)]
    assert asked(farm) == [("c", P[1], 0, 1)]


def test_fetch_of_an_epoch_that_is_gone_is_told_its_end() -> None:
    farm = core(23, 45)
    fetches = (Fetch(P[0], "farm", "c", 0, 9), Fetch(P[1], "farm", "c", 9, 1), Fetch(P[2], "farm", "c", 0, 1))
    assert answers(farm, *fetches) == [
        DirectTail("c", "farm", P[0], 10),
        DirectTail("c", "farm", P[1], 10),
        DirectTail("c", "farm", P[2], 3),
    ]
    assert answers(farm, Fetch(P[0], "farm", "c", 10, 1)) == []
    farm.on_log(45, 45)  # a snapshot, and nothing behind it
    assert answers(farm, Fetch(P[4], "farm", "c", 2, 1)) == [DirectTail("c", "farm", P[4], 5)]
    assert asked(farm) == []


def test_few_of_the_epochs_that_are_gone_are_spoken_of() -> None:
    farm = core(10_000, 10_005)
    found = answers(farm, GetHeads("farm", "c"))
    partitions = [partition_of(FARM_ID, epoch) for epoch in range(984, 1001)]
    assert found == [
        *(DirectHead("c", "farm", each, 9) for each in partitions[:-1]),
        DirectHead("c", "farm", partitions[-1], 4),
    ]
    assert answers(farm, Fetch(partition_of(FARM_ID, 983), "farm", "c", 0, 1)) == []
    assert farm.dropped == {"another partition": 1}


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (Fetch(P[4], "farm", "c", 0, 1), "another partition"),
        (Fetch(P[3], "farm2", "c", 0, 1), "another partition"),
        (Fetch(P[3], "farm", "c", 0, 1), "FETCH of what is not there"),
        (Fetch("elsewhere", "farm", "c", 0, 1), "another partition"),
        (Fetch(P[1], "farm2", "c", 0, 1), "another partition"),
        (Fetch(P[2], "farm", "c", 5, 1), "FETCH of what is not there"),
        (Fetch(P[1], "farm", "c", 10, 1), "FETCH of what is not there"),
        (Fetch(P[1], "farm", "c", 2**64 - 1, 2**32 - 1), "FETCH of what is not there"),
        (Ack(P[1], "farm", 3), "not for a farm"),
        (Record("farm", P[1], 3, b"x"), "not for a farm"),
    ],
)
def test_command_that_is_of_no_use_is_dropped_and_counted(command: Command, reason: str) -> None:
    farm = core(0, 25)
    assert answers(farm, command) == []
    assert asked(farm) == []
    assert farm.dropped == {reason: 1}


def test_requests_are_bounded() -> None:
    farm = core(3, 25)
    for number in range(10_000):
        farm.receive(GetHeads("farm", f"c{number}"))
        farm.receive(Fetch(P[0], "farm", f"c{number}", 0, 1))
        farm.receive(Fetch(P[1], "farm", f"c{number}", 0, 1))
    assert len(farm.answers()) <= 4 * 4096
    assert len(asked(farm)) <= 1024
    assert farm.dropped["too many requests"] > 10_000


def test_subscriptions_follow_the_log_one_epoch_ahead() -> None:
    """What is fetched before a subscription gets to its sender is lost."""
    farm = core(0, 5)
    heads = subscription_prefix(GetHeads, "farm")
    fetches = [subscription_prefix(Fetch, partition_of(FARM_ID, epoch)) for epoch in range(30)]
    assert farm.subscriptions() == (heads, *fetches[:2])
    farm.on_log(0, 10)
    assert farm.subscriptions() == (heads, *fetches[:2])
    farm.on_log(0, 11)
    assert farm.subscriptions() == (heads, *fetches[:3])
    farm.on_log(12, 35)
    assert farm.subscriptions() == (heads, *fetches[:5])
    farm.on_log(277, 277)  # a snapshot, and nothing behind it
    assert farm.subscriptions() == (heads, *fetches[11:29])
    farm.on_log(277, 281)
    assert farm.subscriptions() == (heads, *fetches[11:30])
