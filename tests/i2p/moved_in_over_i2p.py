"""Services that another program made with a router, by the type of their signing key, and that a farm
publishes now: with `i2cp`, with `i2cp` and a bundle, with `sam`. Prints which was fetched, a JSON document
per line. In a network namespace: python -m tests.i2p.moved_in_over_i2p DIRECTORY"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from garlicfarm.credentials.destination_keys import read_keys
from garlicfarm.i2p.signing import NAMES
from garlicfarm.lab.i2pd import I2pdNetwork, I2pdRouter, i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.lab.service import i2cp_table
from garlicfarm.lab.site import serve_site
from garlicfarm.plugins import make_publisher
from garlicfarm.publisher import Publisher, PublisherSite
from tests.i2p.sam_over_i2p import PAGE, fetch
from tests.i2p.script import tell
from tests.i2p.service_over_i2cp import publish, standby

DEADLINE_S = 600.0
P256, ED25519, REDDSA = 1, 7, 11
CASES = (
    ("i2cp", P256, "bundle"),
    ("i2cp", P256, "key"),
    ("i2cp", ED25519, "key"),
    ("sam", P256, "key"),
    ("sam", REDDSA, "key"),
)
PLANS = (
    *[RouterPlan(is_floodfill=False, has_leaf=False, has_i2cp=True, has_sam=True)] * len(CASES),
    RouterPlan(is_floodfill=False, has_leaf=False, has_proxy=True),
    *[RouterPlan(has_leaf=False)] * 2,
)


async def make_key(router: I2pdRouter, type_: int, path: Path) -> Path:
    """Have the router make a key, and write it as its users have it."""
    host, _, port = router.sam.rpartition(":")
    async with await trio.open_tcp_stream(host, int(port)) as sam:
        for command in ("HELLO VERSION", f"DEST GENERATE SIGNATURE_TYPE={NAMES[type_]}"):
            await sam.send_all(f"{command}\n".encode())
            answer = b""
            while not answer.endswith(b"\n"):
                answer += await sam.receive_some()
    return write_private(path, answer.partition(b" PRIV=")[2])


def write_private(path: Path, data: bytes) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(data)
    return path


def publisher_at(directory: Path, router: I2pdRouter, case: tuple[str, int, str], port: int) -> Publisher:
    plugin, type_, form = case
    path = directory / f"{type_}.key"
    if form == "bundle":
        table = i2cp_table(directory, read_keys(path), router.id, router.i2cp, f"127.0.0.1:{port}")
    else:
        table = {"plugin": plugin, "target": f"127.0.0.1:{port}", "keys": str(path), "hops": 0}
        table |= {"sam": {"address": router.sam}, "i2cp": {"address": router.i2cp, "mode": "service"}}[plugin]
    site = PublisherSite(farm="farm", node_id=router.id, directory=directory)
    return make_publisher(table.pop("plugin"), table, directory, site)


async def run(directory: Path, network: I2pdNetwork, nursery: trio.Nursery) -> None:
    port = await nursery.start(serve_site, PAGE)
    client = network[len(CASES)]
    for case, router in zip(CASES, network, strict=False):
        plugin, type_, form = case
        path = await make_key(router, type_, directory / f"{type_}.key")
        async with publisher_at(directory, router, case, port) as publisher:
            await standby(publisher)
            await publish(publisher, 1)
            seconds = await fetch(client, read_keys(path).destination)
        path.unlink()
        tell("fetched", plugin=plugin, type=type_, form=form, seconds=seconds)


async def main(directory: Path) -> None:
    with trio.fail_after(DEADLINE_S):
        async with i2pd_network(directory / "routers", PLANS) as network, trio.open_nursery() as nursery:
            await run(directory, network, nursery)
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
