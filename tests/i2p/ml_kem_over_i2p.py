"""A service that offers ML-KEM where its router has it, through real i2pd routers: a script.

One router serves, by the publisher `i2cp` in this process; two store LeaseSets. It publishes once it knows
that its router has ML-KEM, or so many seconds after it is on standby.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.errors import PublisherError
from garlicfarm.lab.i2pd import i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.plugins import make_publisher
from garlicfarm.publisher import PublisherSite, PublishOrder
from tests.i2p.script import tell
from tests.i2p.service_options import READY_S, Site
from tests.running import wait_until


async def main(directory: Path, wait_s: float) -> None:
    create_keys(directory / "site.key")
    plans = [
        RouterPlan(is_floodfill=False, has_leaf=False, has_i2cp=True),
        *[RouterPlan(has_leaf=False)] * 2,
    ]
    site = Site("site")
    async with (
        trio.open_nursery() as nursery,
        i2pd_network(directory / "routers", plans, ssu2=False) as routers,
    ):
        await nursery.start(site.run)
        table = {
            "mode": "service",
            "address": routers[0].i2cp,
            "keys": "site.key",
            "hops": 0,
            "target": f"127.0.0.1:{site.port}",
            "encryption": "auto",
        }
        where = PublisherSite(farm="farm", node_id=1, directory=directory / "publisher")
        async with make_publisher("i2cp", table, directory, where) as publisher:
            while True:
                with suppress(PublisherError), trio.move_on_after(READY_S):
                    await publisher.standby()
                    break
                await trio.sleep(1)

            async def has_ml_kem() -> bool:
                return "ML-KEM" in (await publisher.status()).encryption

            with trio.move_on_after(wait_s):
                await wait_until(has_ml_kem, every_s=1)
            while True:
                now_ms = time.time_ns() // 1_000_000
                order = PublishOrder(due_index=1, published_ms=now_ms, expires_ms=now_ms + 3_600_000)
                with suppress(PublisherError), trio.move_on_after(READY_S):
                    await publisher.publish(order)
                    break
                await trio.sleep(1)
            tell("encryption", text=(await publisher.status()).encryption)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(partial(main, Path(sys.argv[1]), float(sys.argv[2])))
