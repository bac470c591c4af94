"""Run inside a network namespace: the publisher `i2cp` beside real i2pd routers, of which two are floodfills.

Prints what came about, a line of JSON each; `test_meta_over_i2cp.py` judges them. With ``--servers java`` the
publisher's router is Java I2P.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from garlicfarm.errors import PublisherError
from garlicfarm.i2p.destination import DESTINATION_BYTES
from garlicfarm.i2p.encoding import b32_address
from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm.lab.i2pd import I2pdRouter, i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.publisher import PublisherSite, PublishOrder
from garlicfarm_plugin_i2cp import I2cpConfig, I2cpPublisher
from tests.i2p.script import Options, options, tell
from tests.publishers.i2cp_keys import bundle, long_term_keys, now_ms, publication

DEADLINE_S = 400.0
STORED_S = 120.0
FLOODFILLS = 2
ROUTER = FLOODFILLS + 1


class Floodfills:
    """How often each floodfill, one of ``routers``, has stored a newer LeaseSet of a destination."""

    def __init__(self, routers: Sequence[I2pdRouter], destination: bytes) -> None:
        assert len(destination) == DESTINATION_BYTES
        self._logs = [trio.Path(router.data_dir / "i2pd.log") for router in routers]
        self._line = f"LeaseSet2 updated: {b32_address(destination).removesuffix('.b32.i2p')}"

    async def counts(self) -> list[int]:
        return [(await log.read_text()).count(self._line) for log in self._logs]

    async def all_stored(self, count: int) -> list[int]:
        """The counts, once each is at least ``count``."""
        with trio.fail_after(STORED_S):
            while min(counts := await self.counts()) < count:  # noqa: ASYNC110 - of another process
                await trio.sleep(0.2)
        return counts

    async def all_newer(self, before: list[int]) -> None:
        """Wait until each has stored one since these counts."""
        with trio.fail_after(STORED_S):
            while not all(now > then for now, then in zip(await self.counts(), before, strict=True)):  # noqa: ASYNC110
                await trio.sleep(0.2)


def publisher_at(address: str, keys: DestinationKeys, hops: int) -> I2cpPublisher:
    site = PublisherSite(farm="farm", node_id=1, directory=Path("nowhere"), master=keys)
    return I2cpPublisher(I2cpConfig(address=address, hops=hops), Path(), site)


async def publish(publisher: I2cpPublisher, order: PublishOrder) -> None:
    """As a node does: again, until the router takes it."""
    while True:
        try:
            await publisher.publish(order)
        except PublisherError as error:
            print(error, file=sys.stderr)
        else:
            return


async def error_of(publisher: I2cpPublisher, order: PublishOrder) -> str:
    try:
        await publisher.publish(order)
    except PublisherError as error:
        return str(error)
    return ""


async def main(told: Options) -> None:
    keys, hops = long_term_keys(), told.hops
    plans = [
        *[RouterPlan(has_leaf=False)] * FLOODFILLS,
        told.servers(is_floodfill=False, has_leaf=False, has_i2cp=True),
        *told.carrying(),
    ]
    async with i2pd_network(told.directory, plans, hops=hops) as network:
        address = network[ROUTER - 1].i2cp
        floodfills = Floodfills(network[:FLOODFILLS], keys.destination)
        with trio.fail_after(DEADLINE_S):
            async with publisher_at(address, keys, hops) as publisher:
                await publisher.standby()
                for number in (1, 2):
                    order = publication(keys, 7, now_ms())
                    await publish(publisher, order)
                    tell("taken", number=number)
                    tell("stored", counts=await floodfills.all_stored(number))

                async with publisher_at(address, keys, hops) as another:
                    tell("another", error=await error_of(another, order))

                network.kill(ROUTER)
                while (status := await publisher.status()).is_publishing:  # noqa: ASYNC110
                    await trio.sleep(0.05)
                tell("killed", problems=status.problems)
                await network.start(ROUTER)
                while not (await publisher.status()).is_publishing:  # noqa: ASYNC110
                    await trio.sleep(0.05)
                tell("taken again")
                await publish(publisher, publication(keys, 7, now_ms()))
                tell("taken", number=3)
                tell("stored", counts=await floodfills.all_stored(3))

            keys = bundle(now_ms(), hops=hops)
            async with publisher_at(address, keys, hops) as publisher:
                await publisher.standby()
                await publish(publisher, publication(keys, 8, now_ms()))
                tell("taken", number=4)
                tell("stored", counts=await floodfills.all_stored(4))
                await publisher.retire(None)
                tell("retired", is_publishing=(await publisher.status()).is_publishing)


if __name__ == "__main__":
    trio.run(main, options())
