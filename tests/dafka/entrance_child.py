"""A node that may have 256 descriptors only; see `test_dafka_entrance`.

Arguments: a directory with keys, a tower. Prints its port, the name of each peer that subscribes, and for
each line of its input how many of 100 files it could open at once.
"""

from __future__ import annotations

import resource
import sys
from contextlib import ExitStack
from pathlib import Path

import trio

from garlicfarm_plugin_dafka.config import MeshConfig
from garlicfarm_plugin_dafka.mesh import open_mesh


async def main(directory: str, tower: str) -> None:
    config = MeshConfig(towers=(tower,), key_file="producer.key", peers_file="peers.toml")
    async with open_mesh(config, Path(directory)) as mesh, trio.open_nursery() as nursery:
        print(mesh.endpoint.port, flush=True)

        async def tell() -> None:
            while True:
                for each in await mesh.subscriptions():
                    print(each.name, flush=True)

        nursery.start_soon(tell)
        async for _ in trio.lowlevel.FdStream(0):
            print(open_files(), flush=True)
        nursery.cancel_scope.cancel()


def open_files() -> int:
    with ExitStack() as stack:
        for number in range(100):
            try:
                stack.enter_context(Path("/dev/null").open("rb"))
            except OSError:
                return number
        return 100


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    trio.run(main, sys.argv[1], sys.argv[2])
