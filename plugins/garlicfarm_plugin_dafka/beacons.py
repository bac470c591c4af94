"""How nodes find each other: beacons, which towers pass on.

A node sends a beacon to each of its towers every second, and at once when it learns of a new node. It knows
the nodes that some tower has named within the last four seconds. Beacons have tasks of their own, which
nothing else holds up: whoever is silent for four seconds is disconnected by all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio
import zmq

from garlicfarm.errors import RemoteProtocolError
from garlicfarm_plugin_dafka.codec import (
    BEACON,
    WELCOME,
    Beacon,
    decode_tower_beacon,
    encode_node_beacon,
)
from garlicfarm_plugin_dafka.sockets import Socket

BEACON_S: Final = 1.0
EXPIRY_S: Final = 4.0
MAX_NODES: Final = 256
MAX_BEACON_BYTES: Final = 1024


class Beacons:
    """The beacons of this node and of the others.

    ``on_found`` gets the beacon of each new node, and says whether to keep it. If so, ``on_lost`` gets the
    beacon once the node is silent. ``on_dropped`` gets the reason why a beacon was ignored.
    """

    def __init__(
        self,
        own: Beacon,
        on_found: Callable[[Beacon], bool],
        on_lost: Callable[[Beacon], None],
        on_dropped: Callable[[str], None],
    ) -> None:
        self._address = own.address
        self._frames = encode_node_beacon(own)
        self._on_found = on_found
        self._on_lost = on_lost
        self._on_dropped = on_dropped
        self._expiries: dict[Beacon, float] = {}
        self._hurry = trio.Event()
        self._tower_expiry = trio.current_time() + EXPIRY_S

    @property
    def has_tower(self) -> bool:
        """Whether a tower has passed on a beacon within the last four seconds: each passes on our own, too.
        True for the first four seconds."""
        return trio.current_time() < self._tower_expiry

    async def send(self, socket: Socket) -> None:
        """Send beacons to a tower, over an XPUB socket that is connected to it, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hurry_when_subscribed, socket)
            while True:
                socket.send(self._frames)
                with trio.move_on_after(BEACON_S):
                    await self._hurry.wait()

    async def receive(self, socket: Socket) -> None:
        """Receive those of a tower, over a subscribing socket that is connected to it, until cancelled."""
        socket.set(zmq.SUBSCRIBE, WELCOME)
        socket.set(zmq.SUBSCRIBE, BEACON)
        while True:
            for frames in await socket.receive():
                self._tower_expiry = trio.current_time() + EXPIRY_S
                if frames == [WELCOME]:
                    self._send_now()
                    continue
                try:
                    self._on_beacon(decode_tower_beacon(frames))
                except RemoteProtocolError as error:
                    self._on_dropped(error.what)

    async def expire(self) -> None:
        """Forget the nodes that are silent, until cancelled."""
        while True:
            await trio.sleep(BEACON_S)
            now = trio.current_time()
            for beacon in [beacon for beacon, expiry in self._expiries.items() if expiry < now]:
                del self._expiries[beacon]
                self._on_lost(beacon)

    def _on_beacon(self, beacon: Beacon) -> None:
        if beacon.address == self._address:
            return
        if beacon not in self._expiries:
            if len(self._expiries) >= MAX_NODES:
                self._on_dropped("too many nodes")
                return
            if not self._on_found(beacon):
                return
            self._send_now()
        self._expiries[beacon] = trio.current_time() + EXPIRY_S

    async def _hurry_when_subscribed(self, socket: Socket) -> None:
        """A tower that has just been connected subscribes to beacons: earlier ones did not reach it."""
        while True:
            await socket.receive()
            self._send_now()

    def _send_now(self) -> None:
        self._hurry.set()
        self._hurry = trio.Event()
