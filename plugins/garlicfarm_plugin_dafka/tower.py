"""A Dafka tower: it passes on the beacons of nodes, so that they find each other. It never sees a record.

Nodes publish their beacons to one socket of the tower and subscribe to the other one, which first sends each
a welcome. A beacon is passed on only if it is exactly one, and with keys, only if it names the key of its
sender. A node that names no host has the address that it is connected from.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio
import zmq

from garlicfarm.errors import RemoteProtocolError
from garlicfarm.logs import EventLogger
from garlicfarm.transport import Endpoint
from garlicfarm_plugin_dafka.codec import (
    BEACON,
    WELCOME,
    Beacon,
    decode_node_beacon,
    encode_tower_beacon,
)
from garlicfarm_plugin_dafka.config import TowerConfig, TowerPlan
from garlicfarm_plugin_dafka.entrance import Entrance, Guest, open_entrances
from garlicfarm_plugin_dafka.sockets import Socket

MAX_MESSAGE_BYTES: Final = 1024
HIGH_WATER_MARK: Final = 10_000


@asynccontextmanager
async def open_tower(config: TowerConfig, base_dir: Path = Path()) -> AsyncIterator[Tower]:
    """A tower for the block.

    :param base_dir: what file names in the configuration are relative to.
    :raises ConfigError: with every problem of the configuration; or the tower cannot listen there.
    """
    plan = config.check(base_dir)
    make = partial(Socket, max_message_bytes=MAX_MESSAGE_BYTES, high_water_mark=HIGH_WATER_MARK)
    incoming = plan.in_port, partial(make, kind=zmq.XSUB)
    outgoing = plan.out_port, partial(make, kind=zmq.XPUB)
    async with open_entrances(plan.keys, plan.host, incoming, outgoing) as (nursery, entrances):
        tower = Tower(plan, *entrances)
        nursery.start_soon(tower.pass_on)
        nursery.start_soon(tower.take_subscriptions)
        yield tower


class Tower:
    """See the module; `open_tower` makes one."""

    def __init__(self, plan: TowerPlan, incoming: Entrance, outgoing: Entrance) -> None:
        self.endpoint = Endpoint("tcp", plan.host, incoming.port, {"out": str(outgoing.port)})
        """Where it listens, as nodes take it: ``tcp://HOST:PORT?out=PORT``."""
        self.dropped = incoming.dropped
        """How many messages and connections were refused, by reason."""
        self._incoming = incoming
        self._outgoing = outgoing
        self._has_keys = plan.keys is not None
        self._log = EventLogger(logging.getLogger("garlicfarm.dafka"), clock=trio.current_time)
        outgoing.socket.set(zmq.XPUB_WELCOME_MSG, WELCOME)

    async def pass_on(self) -> None:
        """The task that passes beacons on, until cancelled."""
        self._incoming.socket.send([b"\x01" + BEACON])  # to the beacons of all nodes, also later ones
        while True:
            await self._incoming.socket.wait_readable()
            for guest, frames in self._incoming.messages():
                if guest is None:
                    continue
                try:
                    beacon = self._passed_on(guest, frames)
                except RemoteProtocolError as error:
                    self.dropped[error.what] += 1
                    self._log.warning("beacon-dropped", reason=error.what, host=guest.host)
                    continue
                self._outgoing.socket.send(encode_tower_beacon(beacon))

    async def take_subscriptions(self) -> None:
        """The task that takes the subscriptions of nodes, which ZeroMQ has seen to, until cancelled."""
        while True:
            await self._outgoing.socket.wait_readable()
            for guest, frames in self._outgoing.messages():
                if guest is not None:
                    change = frames[0].bytes
                    self._outgoing.subscribed(guest, change[1:], is_on=change[:1] == b"\x01")

    def _passed_on(self, guest: Guest, frames: list[zmq.Frame]) -> Beacon:
        """The beacon in a message, as the tower passes it on. Raises `RemoteProtocolError`."""
        beacon: Beacon = decode_node_beacon([frame.bytes for frame in frames])
        if self._has_keys and beacon.key != guest.key:
            raise RemoteProtocolError("a beacon without the key of its sender")
        host = beacon.host or guest.host
        if not host:
            raise RemoteProtocolError("a beacon without a host")
        return Beacon(beacon.address, host, beacon.port, beacon.key if self._has_keys else "")
