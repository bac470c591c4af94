"""A service that the publisher `i2cp` publishes sends and takes much: in one stream, and in many at once.

All is compared with what was sent. Prints a JSON document per line. In a network namespace:
python -m tests.i2p.transfers_over_i2cp DIRECTORY [--servers java] [--clients java]
[--hops 3 --carriers 14]"""

from __future__ import annotations

import trio

from benchmarks.throughput_i2p import MANY, MB, TARGET_PORT, Transfer, carry, serve
from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.i2p.encoding import b32_address
from garlicfarm.lab.i2pd import i2pd_network
from garlicfarm.lab.i2pd_files import ClientTunnel, RouterPlan
from tests.i2p.script import Options, options, tell
from tests.i2p.service_over_i2cp import publish, publisher_at, standby
from tests.running import wait_until

CLIENT_PORT = 7001
FLOODFILLS = 4
SIZE = 100 * MB
READY_S, TRY_S, TRANSFER_S = 300.0, 20.0, 1200.0
TRANSFERS = (Transfer("down", SIZE, 1), Transfer("up", SIZE, 1), Transfer("many", 2 * MB, MANY))


async def main(told: Options) -> None:
    keys = create_keys(told.directory / "site.key")
    client = ClientTunnel(b32_address(keys.destination), CLIENT_PORT, "client.dat")
    plans = [
        told.servers(is_floodfill=False, has_leaf=False, has_i2cp=True),
        told.clients(is_floodfill=False, has_leaf=False, tunnels=(client,)),
        *told.carrying(),
        *[RouterPlan(has_leaf=False)] * FLOODFILLS,
    ]

    async def is_reached() -> bool:
        _, failed = await carry(CLIENT_PORT, Transfer("down", 1), TRY_S)
        return not failed

    # Java I2P found no router for its inbound tunnels where those of i2pd had TCP only.
    has_ssu2 = told.servers is not RouterPlan
    network = i2pd_network(told.directory / "routers", plans, hops=told.hops, ssu2=has_ssu2)
    async with network as routers, trio.open_nursery() as nursery:
        await nursery.start(serve, SIZE)
        made = publisher_at(told.directory, keys, routers[0], TARGET_PORT, told.hops)
        async with made:
            with trio.fail_after(READY_S):
                await standby(made)
                await publish(made, 1)
            await wait_until(is_reached, 1)
            for transfer in TRANSFERS:
                seconds, failed = await carry(CLIENT_PORT, transfer, TRANSFER_S)
                megabytes = transfer.size * transfer.streams / MB
                tell(transfer.name, failed=failed, mb_per_s=round(megabytes / seconds, 2))
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, options())
