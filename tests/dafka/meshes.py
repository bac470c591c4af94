"""Nodes and towers on loopback, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import zmq

from garlicfarm.transport import Endpoint
from garlicfarm_plugin_dafka.codec import WELCOME, Beacon, encode_tower_beacon
from garlicfarm_plugin_dafka.config import MeshConfig, TowerConfig
from garlicfarm_plugin_dafka.keys import KeyPair, create_key
from garlicfarm_plugin_dafka.mesh import Mesh, open_mesh
from garlicfarm_plugin_dafka.network import Received
from garlicfarm_plugin_dafka.sockets import Context, Socket
from garlicfarm_plugin_dafka.tower import Tower, open_tower


class ForeignSocket(Socket):
    """One of a program that is none of ours: ZeroMQ listens and connects itself."""

    def __init__(self, context: Context, kind: int, **options: Any) -> None:
        super().__init__(context, kind, **{"max_message_bytes": 1 << 20, "high_water_mark": 1000, **options})

    def bind(self, host: str, port: int) -> int:
        self._socket.bind(f"tcp://{host}:{port}")
        return int(self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    def connect(self, host: str, port: int) -> None:
        self._socket.connect(f"tcp://{host}:{port}")
        self._look()


class ForeignTower:
    """One that announces whatever it is told to, be it true or not."""

    def __init__(self, context: Context, keys: KeyPair | None = None) -> None:
        incoming, self._outgoing = ForeignSocket(context, zmq.XSUB), ForeignSocket(context, zmq.XPUB)
        self._outgoing.set(zmq.XPUB_WELCOME_MSG, WELCOME)
        if keys is not None:
            incoming.be_curve_server(keys)
            self._outgoing.be_curve_server(keys)
        out = self._outgoing.bind("127.0.0.1", 0)
        self.endpoint = Endpoint("tcp", "127.0.0.1", incoming.bind("127.0.0.1", 0), {"out": str(out)})

    async def wait_heard(self) -> None:
        """Wait until a node hears it."""
        await self._outgoing.receive()

    def announce(self, *beacons: Beacon) -> None:
        self._outgoing.send_all(encode_tower_beacon(each) for each in beacons)


class KeyRing:
    """A key per name in ``NAME.key``, and ``peers.toml``, which knows them all, each in one role."""

    def __init__(self, directory: Path, **roles: str) -> None:
        self.directory = directory
        known = ""
        for name, role in {"tower": "tower", **roles}.items():
            key = create_key(directory / f"{name}.key").public
            known += f'[{name}]\nkey = "{key}"\nroles = ["{role}"]\n'
        (directory / "peers.toml").write_text(known)

    def files(self, name: str) -> Any:
        """The keys of a configuration."""
        return {"key_file": f"{name}.key", "peers_file": "peers.toml"}

    @asynccontextmanager
    async def tower(self) -> AsyncIterator[Tower]:
        config = TowerConfig(listen="tcp://127.0.0.1:0", **self.files("tower"))
        async with open_tower(config, self.directory) as tower:
            yield tower

    @asynccontextmanager
    async def mesh(self, name: str, *towers: Tower | ForeignTower) -> AsyncIterator[Mesh]:
        named = tuple(f"{each.endpoint}&peer=tower" for each in towers)
        config = MeshConfig(towers=named, **self.files(name))
        async with open_mesh(config, self.directory) as mesh:
            yield mesh


@asynccontextmanager
async def plain_tower() -> AsyncIterator[Tower]:
    async with open_tower(TowerConfig(listen="tcp://127.0.0.1:0")) as tower:
        yield tower


async def received(mesh: Mesh, count: int) -> list[Received]:
    """The next commands that a node receives, exactly so many."""
    batch: list[Received] = []
    while len(batch) < count:
        batch += await mesh.receive()
    assert len(batch) == count
    return batch


async def subscribed(mesh: Mesh, *wanted: object) -> None:
    """Wait until peers have subscribed to all these commands, or peers of all these names."""
    seen: set[object] = set()
    while not seen.issuperset(wanted):
        for each in await mesh.subscriptions():
            seen |= {each.command, each.name}
