"""A publisher looks its own destination up as a stranger at its real router would: while nobody publishes it,
while it does, and once the same keys are published elsewhere. Prints what came about, a JSON document per
line. In a network namespace: python -m tests.i2p.own_look_up_over_i2p DIRECTORY"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path

import trio

from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.errors import RouterError
from garlicfarm.lab.i2pd import I2pdNetwork, i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.publisher import Publisher
from garlicfarm.router import Router
from tests.i2p.measured_over_i2p import is_reached, plugin
from tests.i2p.outside_over_i2p import serve
from tests.i2p.script import tell
from tests.i2p.service_over_i2cp import publish, publisher_at, standby

DEADLINE_S = 480.0
A, B = 1, 2
PLANS = (
    *[RouterPlan(is_floodfill=False, has_leaf=False, has_i2cp=True, has_sam=True)] * 2,
    *[RouterPlan(has_leaf=False)] * 2,
)
Seen = tuple[bool, bool | None]
"""Whether the stranger was answered, and whether the publisher says that it has come."""


async def look_up(
    router: Router, service: bytes, publisher: Publisher, is_wanted: Callable[[Seen], bool]
) -> Seen:
    """What the first look-up sees that is as wanted: LeaseSets are published some seconds later."""
    while True:
        try:
            found = await router.look_up_own(service)
        except RouterError as error:  # it has no tunnels yet
            tell("not-measured", problem=str(error))
            await trio.sleep(1)
            continue
        seen = is_reached(found.status), publisher.has_met(found.client)
        if is_wanted(seen):
            return seen


async def run(directory: Path, network: I2pdNetwork, nursery: trio.Nursery) -> None:
    keys = create_keys(directory / "site.key")
    service = sha256(keys.destination).digest()
    asked: Counter[int] = Counter()
    at = {id_: await nursery.start(partial(serve, asked, id_)) for id_ in (A, B)}
    a, b = (publisher_at(directory, keys, network[id_ - 1], at[id_]) for id_ in (A, B))
    router = plugin(network[A - 1])
    async with a, b:
        for each in (a, b):
            await standby(each)
        tell("nobody publishes", seen=await look_up(router, service, a, lambda seen: True))
        asked.clear()  # by the publishers, which see whether it listens
        await publish(a, 1)
        tell("published", seen=await look_up(router, service, a, lambda seen: seen[0]), asked=dict(asked))
        await publish(b, 2)
        elsewhere = await look_up(router, service, a, lambda seen: seen[0] and not seen[1])
        tell("elsewhere", seen=elsewhere, asked=asked[B] > 0)
        nursery.cancel_scope.cancel()


async def main(directory: Path) -> None:
    with trio.fail_after(DEADLINE_S):
        async with i2pd_network(directory / "routers", PLANS) as network, trio.open_nursery() as nursery:
            await run(directory, network, nursery)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
