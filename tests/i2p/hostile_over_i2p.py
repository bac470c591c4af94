"""A service that the publisher `i2cp` publishes at a real router, attacked by clients of another, while
honest ones of a third ask: some that were served before, some for the first time, near and far. How far is
decided here: each packet of a client waits for half of its round trip. Prints what came of each attack, a
JSON document per line. In a network namespace: python -m tests.i2p.hostile_over_i2p DIRECTORY [ATTACK ...]"""

from __future__ import annotations

import math
import random
import resource
import statistics
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import count, cycle
from pathlib import Path

import trio

from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.errors import PublisherError
from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm.i2p.session_options import session_options
from garlicfarm.lab.i2pd import I2pdNetwork, I2pdRouter, i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan
from garlicfarm.lab.service import i2cp_table
from garlicfarm.plugins import make_publisher
from garlicfarm.publisher import Publisher, PublisherSite, PublishOrder
from garlicfarm.service_keys import ServiceKeys
from garlicfarm_plugin_i2cp.connection import parse_address
from garlicfarm_plugin_i2cp.service_keeper import ServiceKeeper
from garlicfarm_plugin_i2cp.service_session import DEFAULT
from garlicfarm_plugin_i2cp.streaming.packet import (
    CLOSE,
    FROM_INCLUDED,
    NO_ACK,
    SYNCHRONIZE,
    Packet,
    decode_packet,
)
from garlicfarm_plugin_i2cp.streaming.payload import decode_payload
from garlicfarm_plugin_i2cp.streaming.stream import Keys
from tests.i2p.script import tell
from tests.publishers.i2cp_keys import long_term_keys, now_ms
from tests.publishers.streaming.initiator import Initiator
from tests.publishers.streaming.siege import ANSWER, I2PD_RESENDS_S, REQUEST, encoded, syn_of

DEADLINE_S = 1200.0
READY_S = 120.0
OPEN_FILES = 1024
"""Of the service's process: 256 streams."""
SERVER, CLIENTS, ATTACKERS = 1, 2, 3
PLANS = (
    *[RouterPlan(is_floodfill=False, has_leaf=False, has_i2cp=True)] * 3,
    *[RouterPlan(has_leaf=False)] * 2,
)
ROUND_TRIPS_S = (1.0, 5.0)
REQUESTS = 10
"""Of each kind of client, one in `EACH_S` on average."""
EACH_S = 1.0
PATIENCE_S = 25.0
TAKES_PLACES_S = 20.0
TURN_S = 0.02
MOST_ATTACKERS = 256
MOST_ON_THE_WAY = 10_000


def ignore(payload: bytes) -> None: ...


class Peer:
    """A destination at a router. ``receive`` gets the packets that come for it."""

    def __init__(self, directory: Path, router: I2pdRouter, number: int) -> None:
        path = directory / f"peer-{number}.key"
        self.keys = create_keys(path)
        site = PublisherSite(farm="farm", node_id=1, directory=directory)
        self.keeper = ServiceKeeper(
            parse_address(router.i2cp),
            ServiceKeys(path, site),
            DEFAULT,
            self,
            configuration=lambda purpose, now_ms, kind: self.keys.session_configuration(
                session_options(purpose, 0, 1), now_ms, purpose
            ),
            now_ms=now_ms,
        )
        self.receive: Callable[[bytes], None] = ignore

    async def run(self, *, task_status: trio.TaskStatus[Peer]) -> None:
        """Tells itself, once packets can be sent and come."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.keeper.run)
            await until_done(partial(self.keeper.publish, order()))
            task_status.started(self)

    def send(self, service: bytes, payload: bytes) -> None:
        self.keeper.send(service, payload)

    # of `garlicfarm_plugin_i2cp.service_keeper.Clients`

    def on_payload(self, payload: bytes) -> None:
        self.receive(payload)

    def use_keys(self, keys: Keys) -> None: ...
    def on_room(self) -> None: ...
    def address_peers(self) -> None: ...
    def hand_over(self) -> None: ...
    def take_back(self) -> None: ...
    def reset_all(self) -> None: ...


class Delay:
    """Passes payloads on, in order, each as late."""

    def __init__(self, seconds: float, act: Callable[[bytes], None], nursery: trio.Nursery) -> None:
        self._seconds = seconds
        self._act = act
        self._give, self._take = trio.open_memory_channel[tuple[float, bytes]](MOST_ON_THE_WAY)
        nursery.start_soon(self._run)

    def give(self, payload: bytes) -> None:
        self._give.send_nowait((trio.current_time() + self._seconds, payload))

    async def _run(self) -> None:
        async for due_s, payload in self._take:
            await trio.sleep_until(due_s)
            self._act(payload)


class Visitor:
    """An honest client. One that is near sends its request along with SYN, as i2pd's HTTP proxy does; one
    that is far only when SYN is answered, as its tunnels do. ``waited_s``: for each answer; None: there was
    none in time."""

    _ids = count(1)

    def __init__(self, peer: Peer, service: bytes, round_trip_s: float, nursery: trio.Nursery) -> None:
        self._keys = peer.keys
        self._service = service
        self._window = 2 if round_trip_s == min(ROUND_TRIPS_S) else 1
        self._requests: dict[int, Initiator] = {}
        self._changed = trio.Event()
        self._way = Delay(round_trip_s / 2, partial(peer.send, service), nursery)
        peer.receive = Delay(round_trip_s / 2, self._receive, nursery).give
        self.waited_s: list[float | None] = []

    async def ask(self) -> None:
        begun_s, id_ = trio.current_time(), next(self._ids)
        request = self._requests[id_] = Initiator(
            self._keys,
            self._service,
            stream=id_,
            to_send=REQUEST,
            closes=False,
            window=self._window,
            now_ms=now_ms(),
            resend_s=I2PD_RESENDS_S,
        )
        with trio.move_on_after(PATIENCE_S):
            while request.received != ANSWER and not request.failure:
                self._send_of(request)
                with trio.move_on_at(request.wake_s or math.inf):
                    await self._changed.wait()
        self._send_of(request)
        is_answered = request.received == ANSWER
        self.waited_s.append(trio.current_time() - begun_s if is_answered else None)

    def _send_of(self, request: Initiator) -> None:
        for payload in request.take_payloads(trio.current_time()):
            self._way.give(payload)

    def _receive(self, payload: bytes) -> None:
        request = self._requests.get(decode_packet(decode_payload(payload).data).to_stream)
        if request is not None:
            request.receive(payload, trio.current_time())
            self._changed.set()
            self._changed = trio.Event()


class Holder:
    """An attacker that opens streams and keeps them. ``open``: the ids of each that it has had."""

    def __init__(self, peer: Peer, service: bytes) -> None:
        self._peer = peer
        self._service = service
        self.open: dict[int, int] = {}
        peer.receive = self._receive

    def _receive(self, payload: bytes) -> None:
        packet = decode_packet(decode_payload(payload).data)
        if packet.flags & SYNCHRONIZE:
            self.open[packet.to_stream] = packet.from_stream
            self._peer.send(self._service, encoded(Packet(packet.from_stream, packet.to_stream, 0, 0)))

    async def hold(self, streams: int) -> None:
        """Ask again where nothing is answered."""
        while len(self.open) < streams:
            for id_ in range(1, streams + 1):
                if id_ not in self.open:
                    self._peer.send(self._service, syn_of(self._peer.keys, id_, service=self._service))
                    await trio.sleep(TURN_S)
            await trio.sleep(3)


class Place:
    """Where an attack happens: ``attackers`` reach ``service``."""

    def __init__(
        self, network: I2pdNetwork, service: bytes, attackers: Sequence[Peer], nursery: trio.Nursery
    ) -> None:
        self.network = network
        self.service = service
        self.attackers = attackers
        self.nursery = nursery


Attack = Callable[[Place], Awaitable[None]]


async def storm(place: Place, per_s: float, payloads: Iterator[bytes]) -> None:
    """Without end, evenly."""
    begun_s, sent = trio.current_time(), 0
    while True:
        while sent < (trio.current_time() - begun_s) * per_s:
            place.attackers[0].send(place.service, next(payloads))
            sent += 1
        await trio.sleep(TURN_S)


def syns(place: Place, data: bytes = b"") -> Iterator[bytes]:
    """Each from a destination that nobody has."""
    for number in count(256):
        yield syn_of(long_term_keys(number), 7, service=place.service, data=data)


def false_syns(place: Place, liar: DestinationKeys | None) -> Iterator[bytes]:
    for number in count(256):
        keys = long_term_keys(number)
        if liar is not None:
            yield syn_of(keys, 7, signed_by=liar, service=place.service)
        else:
            flags = SYNCHRONIZE | FROM_INCLUDED | NO_ACK
            yield encoded(Packet(0, 7, 0, 0, flags=flags, destination=keys.destination))


def data(place: Place) -> Iterator[bytes]:
    """For streams that there never were, with an id of the service or without."""
    for number in count(1_000_000):
        yield encoded(Packet(number % 2 * number, number, 1, 0, data=bytes(1000)))


def storming(per_s: float, payloads: Callable[[Place], Iterator[bytes]]) -> Attack:
    async def attack(place: Place) -> None:
        with trio.fail_after(READY_S):
            await Holder(place.attackers[0], place.service).hold(1)
        place.nursery.start_soon(storm, place, per_s, payloads(place))

    return attack


async def closes(place: Place) -> None:
    """CLOSE, signed well and badly, again and again for streams that were opened for it, and data for those
    that have ended."""
    holder = Holder(place.attackers[0], place.service)
    with trio.fail_after(READY_S):
        await holder.hold(8)
    keys = [place.attackers[0].keys, long_term_keys(1)]
    ids = [(ours, theirs) for theirs, ours in holder.open.items()]
    payloads = [
        encoded(Packet(*each, 1 + at % 2, at % 2, flags=CLOSE), keys[at % 2]) for at, each in enumerate(ids)
    ]
    payloads += [encoded(Packet(*each, 1, 1, data=bytes(1000))) for each in ids]
    place.nursery.start_soon(storm, place, 1000, cycle(payloads))


def idle(destinations: int, streams_each: int) -> Attack:
    async def attack(place: Place) -> None:
        holders = [Holder(peer, place.service) for peer in place.attackers[:destinations]]
        for holder in holders:
            place.nursery.start_soon(holder.hold, streams_each)
        with trio.move_on_after(TAKES_PLACES_S):
            while sum(len(holder.open) for holder in holders) < destinations * streams_each:  # noqa: ASYNC110
                await trio.sleep(0.1)
        tell("holds", streams=sum(len(holder.open) for holder in holders))

    return attack


async def vanish(place: Place) -> None:
    await idle(4, 64)(place)
    place.network.kill(ATTACKERS)


async def nothing(place: Place) -> None: ...


ATTACKS: dict[str, Attack] = {
    "none": nothing,
    "50 SYN/s": storming(50, syns),
    "50 SYN/s with data": storming(50, partial(syns, data=REQUEST)),
    "300 SYN/s": storming(300, syns),
    "300 SYN/s unsigned": storming(300, partial(false_syns, liar=None)),
    "300 SYN/s signed badly": storming(300, partial(false_syns, liar=long_term_keys(1))),
    "close": closes,
    "data": storming(1000, data),
    "256 idle, one of each destination": idle(256, 1),
    "4 x 64 idle, and gone": vanish,
}
"""The last one ends the attackers' router."""


def order() -> PublishOrder:
    return PublishOrder(due_index=1, published_ms=now_ms(), expires_ms=now_ms() + 3_600_000)


async def until_done(act: Callable[[], Awaitable[object]]) -> None:
    """As a node does: again, until it succeeds."""
    while True:
        try:
            await act()
        except PublisherError as error:
            print(error, file=sys.stderr)
            await trio.sleep(1)
        else:
            return


async def answer(stream: trio.SocketStream) -> None:
    """A line with a line."""
    try:
        async with stream:
            request = b""
            while not request.endswith(b"\n") and (piece := await stream.receive_some()):
                request += piece
            if request == REQUEST:
                await stream.send_all(ANSWER)
    except trio.BrokenResourceError:
        pass  # a stream that gives way is reset


def make_service(directory: Path, keys: DestinationKeys, router: I2pdRouter, port: int) -> Publisher:
    table = i2cp_table(directory, keys, 1, router.i2cp, f"127.0.0.1:{port}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard))
    try:
        site = PublisherSite(farm="farm", node_id=1, directory=directory)
        return make_publisher(table.pop("plugin"), table, directory, site)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Battlefield:
    """The routers, the peers at them, and the port where the service listens."""

    def __init__(
        self,
        directory: Path,
        network: I2pdNetwork,
        honest: Sequence[Peer],
        attackers: Sequence[Peer],
        port: int,
    ) -> None:
        self._directory = directory
        self._network = network
        self._honest = honest
        self._attackers = attackers
        self._port = port
        self._random = random.Random(1)

    async def see(self, name: str) -> None:
        """One attack on a service of its own: nobody was served there before."""
        directory = self._directory / name.replace("/", " ")
        directory.mkdir()
        keys = create_keys(directory / "service.key")
        publisher = make_service(directory, keys, self._network[SERVER - 1], self._port)
        async with publisher, trio.open_nursery() as nursery:
            await until_done(publisher.standby)
            await until_done(partial(publisher.publish, order()))
            peers = iter(self._honest)
            visitors = {
                f"{who}, {round_trip_s:g} s": [
                    Visitor(next(peers), keys.destination, round_trip_s, nursery) for _ in range(number)
                ]
                for who, number in (("regular", 1), ("new", REQUESTS))
                for round_trip_s in ROUND_TRIPS_S
            }
            regulars = [visitor for each in visitors.values() if len(each) == 1 for visitor in each]
            for visitor in regulars:
                while not any(visitor.waited_s):
                    await visitor.ask()
                visitor.waited_s.clear()
            await ATTACKS[name](Place(self._network, keys.destination, self._attackers, nursery))
            await trio.sleep(1)
            async with trio.open_nursery() as asking:
                for number in range(REQUESTS):
                    newcomers = [each[number] for each in visitors.values() if len(each) == REQUESTS]
                    for visitor in (*regulars, *newcomers):
                        asking.start_soon(visitor.ask)
                        await trio.sleep(self._random.uniform(0, EACH_S / 2))
            leaf = (await publisher.status()).leaf
            assert leaf is not None
            assert leaf.streams is not None
            tell(
                name,
                refused=leaf.streams.refused,
                clients={who: told(each) for who, each in visitors.items()},
            )
            for peer in (*self._honest, *self._attackers):
                peer.receive = ignore
            nursery.cancel_scope.cancel()


def told(visitors: Sequence[Visitor]) -> dict[str, float | None]:
    waited_s = [seconds for visitor in visitors for seconds in visitor.waited_s]
    answered_s = [seconds for seconds in waited_s if seconds is not None]
    return {
        "answered": len(answered_s) / len(waited_s),
        "p50_s": round(statistics.median(answered_s), 1) if answered_s else None,
        "longest_s": round(max(answered_s), 1) if answered_s else None,
    }


async def main(directory: Path, names: Sequence[str]) -> None:
    honest = len(ROUND_TRIPS_S) * (1 + REQUESTS)
    with trio.fail_after(DEADLINE_S):
        async with i2pd_network(directory / "routers", PLANS) as network, trio.open_nursery() as nursery:
            peers = [Peer(directory, network[CLIENTS - 1], number) for number in range(honest)]
            attackers = [
                Peer(directory, network[ATTACKERS - 1], honest + number) for number in range(MOST_ATTACKERS)
            ]
            async with trio.open_nursery() as starting:
                for peer in (*peers, *attackers):
                    starting.start_soon(nursery.start, peer.run)
            (listener,) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
            port = listener.socket.getsockname()[1]
            tell("ready", peers=len(peers), attackers=len(attackers))
            battlefield = Battlefield(directory, network, peers, attackers, port)
            for name in names or ATTACKS:
                await battlefield.see(name)
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), sys.argv[2:])
