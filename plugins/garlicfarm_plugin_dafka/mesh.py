"""One Dafka node among the others: `open_mesh`.

A node publishes on one socket, to which the others subscribe, and subscribes to each of the others, which it
finds through towers. Commands get lost: while a connection is being made, where a queue is full, when a node
dies. So every role asks again for what it misses.

What is not exactly a command, a beacon or a subscription is dropped and counted, and so is what the roles of
its sender do not cover. It disconnects nobody.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import trio
import zmq

from garlicfarm.logs import EventLogger
from garlicfarm.transport import Endpoint
from garlicfarm_plugin_dafka.beacons import MAX_BEACON_BYTES, MAX_NODES, Beacons
from garlicfarm_plugin_dafka.codec import Beacon
from garlicfarm_plugin_dafka.config import MeshConfig, MeshPlan
from garlicfarm_plugin_dafka.entrance import Entrance, open_entrances, share_of_descriptors
from garlicfarm_plugin_dafka.hosts import keep_connected
from garlicfarm_plugin_dafka.inbox import Inbox
from garlicfarm_plugin_dafka.network import Peer
from garlicfarm_plugin_dafka.outbox import Outbox
from garlicfarm_plugin_dafka.relay import Allowance
from garlicfarm_plugin_dafka.sockets import Socket

MAX_MESSAGE_BYTES: Final = 16 << 20
"""Of a frame."""
MAX_UNTAKEN_BYTES: Final = 32 << 20
"""Of all nodes with one key."""
MAX_UNTAKEN_BEACON_BYTES: Final = 1 << 20
MAX_SUBSCRIPTION_BYTES: Final = 1024
MAX_NODES_OF_KEY: Final = 16
MAX_TOWER_RETRY_S: Final = 2.0
MAX_LOOK_UPS: Final = 4
LINGER_MS: Final = 500
"""For so long a node that ends still sends what is queued."""


@asynccontextmanager
async def open_mesh(config: MeshConfig, base_dir: Path = Path()) -> AsyncIterator[Mesh]:
    """A node for the block: its tasks live in it, and its end disconnects the node.

    :param base_dir: what file names in the configuration are relative to.
    :raises ConfigError: with every problem of the configuration; or the node cannot listen there.
    """
    plan = config.check(base_dir)
    make = partial(
        Socket,
        kind=zmq.XPUB,
        max_message_bytes=MAX_SUBSCRIPTION_BYTES,
        high_water_mark=plan.high_water_mark,
        linger_ms=LINGER_MS,
    )
    place = plan.listen.port, make
    async with open_entrances(plan.keys, plan.listen.host, place) as (nursery, (entrance,)):
        yield Mesh(plan, entrance, nursery)


class Mesh:
    """See the module; `open_mesh` makes one. One task at a time calls `receive`, and one `subscriptions`."""

    def __init__(self, plan: MeshPlan, entrance: Entrance, nursery: trio.Nursery) -> None:
        self.address = uuid.uuid4().hex.upper()
        """The identity in this node's beacons, by which nodes know their own."""
        self.endpoint = Endpoint("tcp", plan.listen.host, entrance.port)
        """Where this node listens."""
        self.dropped = entrance.dropped
        """How many messages, beacons, subscriptions and connections were refused, by reason."""
        self._plan = plan
        self._context = entrance.context
        self._log = EventLogger(logging.getLogger("garlicfarm.dafka"), clock=trio.current_time)
        self._inbox = inbox = Inbox(nursery, self._on_dropped)
        self.subscribe, self.unsubscribe, self.receive = inbox.subscribe, inbox.unsubscribe, inbox.receive
        known = plan.keys.known if plan.keys is not None else None
        outbox = Outbox(entrance, known, self._on_dropped)
        self.send_all, self.subscriptions = outbox.send_all, outbox.subscriptions
        nursery.start_soon(outbox.admit)
        self._peers: dict[Beacon, tuple[Peer, trio.CancelScope]] = {}
        self._max_peers = share_of_descriptors(MAX_NODES, 16)
        self._allowances = WeakValueDictionary[str, Allowance]()
        self._nursery = nursery
        self._limiter = trio.CapacityLimiter(MAX_LOOK_UPS)
        key = plan.keys.own.public if plan.keys is not None else ""
        own = Beacon(self.address, plan.advertise_host, plan.advertise_port or entrance.port, key)
        self._beacons = beacons = Beacons(own, self._on_found, self._on_lost, self._on_dropped)
        nursery.start_soon(beacons.expire)
        for tower in plan.towers:
            sender = self._client(zmq.XPUB, tower.key, MAX_BEACON_BYTES)
            receiver = self._client(zmq.SUB, tower.key, MAX_BEACON_BYTES)
            for socket, port in (sender, tower.in_port), (receiver, tower.out_port):
                nursery.start_soon(
                    partial(
                        keep_connected,
                        socket,
                        tower.host,
                        port,
                        limiter=self._limiter,
                        allowance=Allowance(MAX_UNTAKEN_BEACON_BYTES),
                        on_stuck=partial(self._on_stuck, tower.host),
                        max_retry_s=MAX_TOWER_RETRY_S,
                    )
                )
            nursery.start_soon(beacons.send, sender)
            nursery.start_soon(beacons.receive, receiver)

    @property
    def peers(self) -> tuple[Peer, ...]:
        """The nodes that a tower has named within the last four seconds, but for this one."""
        return tuple(peer for peer, _ in self._peers.values())

    @property
    def has_tower(self) -> bool:
        """Whether a tower has answered within the last four seconds; true for the first four."""
        return self._beacons.has_tower

    def _client(self, kind: int, server_key: str, max_message_bytes: int) -> Socket:
        mark, keys = self._plan.high_water_mark, self._plan.keys
        socket = Socket(self._context, kind, max_message_bytes=max_message_bytes, high_water_mark=mark)
        if keys is not None:
            socket.be_curve_client(keys.own, server_key)
        return socket

    def _on_found(self, beacon: Beacon) -> bool:
        """Subscribe to a node, unless it is none of ours."""
        peer, allowed = Peer(beacon.address, beacon.endpoint), None
        if self._plan.keys is not None:
            known = self._plan.keys.known.get(beacon.key)
            if known is None:
                self._on_dropped("a node without a known key", beacon.endpoint)
                return False
            peer, allowed = Peer(beacon.address, beacon.endpoint, known.name), known.may_send
            if len([each for each in self._peers if each.key == beacon.key]) >= MAX_NODES_OF_KEY:
                self._on_dropped("too many nodes of one key", known.name)
                return False
        elif beacon.key or not Endpoint("tcp", beacon.host, beacon.port).is_loopback:
            self._on_dropped("a node with a key or beyond loopback, and no keys here", beacon.endpoint)
            return False
        try:
            if len(self._peers) >= self._max_peers:
                raise OSError
            socket = self._client(zmq.SUB, beacon.key, MAX_MESSAGE_BYTES)
        except OSError:  # no descriptor is left; the next beacon tries again
            self._on_dropped("too many nodes", beacon.endpoint)
            return False
        self._inbox.add(peer, socket, allowed)
        scope = trio.CancelScope()
        self._nursery.start_soon(self._connect, beacon, peer, socket, scope)
        self._peers[beacon] = peer, scope
        self._log.info("node-found", endpoint=peer.endpoint, name=peer.name, address=peer.address)
        return True

    async def _connect(self, beacon: Beacon, peer: Peer, socket: Socket, scope: trio.CancelScope) -> None:
        # That of the node's key, which all nodes with it share; without keys, of its endpoint.
        whose = beacon.key or beacon.endpoint
        allowance = self._allowances.setdefault(whose, Allowance(MAX_UNTAKEN_BYTES))
        with scope:
            await keep_connected(
                socket,
                beacon.host,
                beacon.port,
                limiter=self._limiter,
                allowance=allowance,
                on_stuck=partial(self._on_stuck, peer.name or peer.endpoint),
            )

    def _on_stuck(self, sender: str) -> None:
        self._on_dropped("a message without an end", sender)

    def _on_lost(self, beacon: Beacon) -> None:
        peer, scope = self._peers.pop(beacon)
        scope.cancel()
        self._inbox.remove(peer)
        self._log.info("node-lost", endpoint=peer.endpoint, name=peer.name, address=peer.address)

    def _on_dropped(self, reason: str, sender: str = "") -> None:
        self.dropped[reason] += 1
        self._log.warning("message-dropped", reason=reason, sender=sender)
