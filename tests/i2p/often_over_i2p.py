"""A site behind a router's own tunnel, fetched more often than Java I2P by itself allows a client in a day.
Prints what came about, a JSON document per line. In a network namespace:
python -m tests.i2p.often_over_i2p DIRECTORY [--servers java] [--clients java]"""

from __future__ import annotations

from contextlib import suppress

import trio

from garlicfarm.errors import RemoteProtocolError, UnreachableError
from garlicfarm.lab import site
from garlicfarm.lab.i2pd import I2pdRouter, i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.setup.i2p_tunnel import Tunnel
from tests.i2p.script import Options, options, tell

OFTEN = 250  # Java I2P takes 30 in a minute, 80 in an hour, 200 in a day
HANG_GUARD_S = 600.0


async def is_answered(client: I2pdRouter, host: str) -> bool:
    with suppress(UnreachableError, RemoteProtocolError), trio.move_on_after(15):
        await site.fetch(client.proxy, host)
        return True
    return False


async def main(told: Options) -> None:
    async with trio.open_nursery() as nursery:
        port = await nursery.start(site.serve_site, "served", 0)
        tunnel = Tunnel("site", "127.0.0.1", port, 0, "site.dat")
        plans = [
            told.servers(has_leaf=False, is_floodfill=False, tunnels=(tunnel,)),
            told.clients(has_leaf=False, is_floodfill=False, has_proxy=True),
            *[RouterPlan(has_leaf=False)] * 3,
        ]
        async with i2pd_network(told.directory, plans) as (server, client, *_):
            host = server.address_of_tunnel
            with trio.fail_after(HANG_GUARD_S):
                while not await is_answered(client, host):  # noqa: ASYNC110 - as a client asks
                    await trio.sleep(0.5)
            answered = [await is_answered(client, host) for _ in range(OFTEN)]
            tell("fetched", answered=answered.count(True))
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, options())
