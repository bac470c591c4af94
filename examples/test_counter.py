"""A state machine of your own, tested on a whole farm in memory: pytest examples/test_counter.py"""

from collections.abc import AsyncIterator
from typing import cast

import pytest
from trio.testing import MockClock

from garlicfarm.application import Application, Origin
from garlicfarm.errors import EntryRefused
from garlicfarm.testing import Cluster, cluster


class Counter(Application):
    """The sum of all entries, each a whole number in ASCII. See `garlicfarm.application`."""

    def __init__(self) -> None:
        self.sum = 0

    def check(self, entry: bytes, origin: Origin) -> None:
        if not entry.isdigit() or len(entry) > 9:
            raise EntryRefused("", "not a whole number of 1 to 9 digits")

    def apply(self, index: int, term: int, entry: bytes) -> None:
        if entry.isdigit() and len(entry) <= 9:  # the same judgement on every node, and never an error
            self.sum += int(entry)

    def snapshot(self) -> bytes:
        return b"%d" % self.sum

    def restore(self, data: bytes) -> None:
        self.sum = int(data)


@pytest.fixture
async def farm() -> AsyncIterator[Cluster]:
    async with cluster(3, application=Counter) as running:
        yield running


async def test_counter_survives_its_leader(farm: Cluster, autojump_clock: MockClock) -> None:
    await farm.post(b"40")
    await farm.kill(await farm.leader())
    index, _ = await farm.post(b"2")
    await farm.applied(index)
    assert [cast(Counter, farm.application(node)).sum for node in farm.running] == [42, 42]


async def test_counter_refuses_what_is_no_number(farm: Cluster, autojump_clock: MockClock) -> None:
    with pytest.raises(EntryRefused):
        await farm.post(b"many")
