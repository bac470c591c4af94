"""Honest clients are served while the service is attacked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, cycle
from random import Random

import pytest

from garlicfarm_plugin_i2cp.streaming.packet import CLOSE, FROM_INCLUDED, NO_ACK, SYNCHRONIZE, Packet
from tests.publishers.i2cp_keys import long_term_keys
from tests.publishers.streaming.network import PEERS
from tests.publishers.streaming.siege import Attacker, Siege, Visitor, encoded, storm, syn_of

REQUESTS = 10
"""Of each kind of client: two in a second, on average."""
PATIENCE_S = 20.0
TAKES_PLACES_S = 11.0
ATTACK_S = TAKES_PLACES_S + 2 * REQUESTS / 2 + PATIENCE_S
ROUND_TRIPS_S = (1, 5)
ANSWERED_AT_LEAST = 0.95

Attack = Callable[[Siege], None]


def idle(destinations: int, streams_each: int, data: bytes = b"") -> Attack:
    return lambda siege: Attacker(siege, streams_each, data).begin(destinations)


def syns(per_s: int, data: bytes = b"") -> Attack:
    """Each from a destination of its own, which nobody has."""
    payloads = (syn_of(long_term_keys(10_000 + number), 7, data=data) for number in count())
    return lambda siege: storm(siege, per_s, payloads, ATTACK_S)


def false_syns(per_s: int, *, signed: bool) -> Attack:
    def payloads() -> Iterator[bytes]:
        for number in count():
            keys = long_term_keys(10_000 + number)
            if signed:
                yield syn_of(keys, 7, signed_by=PEERS[0])
            else:
                flags = SYNCHRONIZE | FROM_INCLUDED | NO_ACK
                yield encoded(Packet(0, 7, 0, 0, flags=flags, destination=keys.destination))

    return lambda siege: storm(siege, per_s, payloads(), ATTACK_S)


def closes(per_s: int) -> Attack:
    """CLOSE, signed well and badly, again and again for streams that were opened for it, and data for those
    that have ended."""

    def attack(siege: Siege) -> None:
        attacker = Attacker(siege, 8)
        attacker.begin(1)
        siege.run(2.0)
        keys = [long_term_keys(3000), PEERS[0]]
        payloads = [
            encoded(Packet(*ids, 1 + at % 2, at % 2, flags=CLOSE), keys[at % 2])
            for at, ids in enumerate(attacker.open)
        ]
        payloads += [encoded(Packet(*ids, 1, 1, data=bytes(1000))) for ids in attacker.open]
        storm(siege, per_s, cycle(payloads), ATTACK_S)

    return attack


def data(per_s: int) -> Attack:
    """For streams that there never were, with an id of the service or without."""
    payloads = (
        encoded(Packet(number % 2 * number, number, 1, 0, data=bytes(1000))) for number in count(1_000_000)
    )
    return lambda siege: storm(siege, per_s, payloads, ATTACK_S)


ATTACKS = {
    "256 idle, one of each destination": idle(256, 1),
    "4 x 64 idle": idle(4, 64),
    "256 idle in the middle of a request": idle(256, 1, b"as"),
    "50 SYN/s": syns(50),
    "50 SYN/s with data": syns(50, b"ask\n"),
    "300 SYN/s": syns(300),
    "300 SYN/s unsigned": false_syns(300, signed=False),
    "300 SYN/s signed badly": false_syns(300, signed=True),
    "close": closes(1000),
    "data": data(1000),
}


LONG = {"300 SYN/s", "300 SYN/s signed badly"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in ATTACKS]
)
def test_honest_clients_are_served_during_an_attack(name: str) -> None:
    """Those that were served before, and those that come for the first time, near and far. All that happens
    until the last one is tired of waiting happens during the attack."""
    siege, random = Siege(), Random(3)
    visitors = {
        f"regular, {round_trip_s} s": [Visitor(siege, long_term_keys(2000 + round_trip_s), round_trip_s)]
        for round_trip_s in ROUND_TRIPS_S
    }
    for (visitor,) in visitors.values():
        visitor.ask()
    siege.run(20.0)
    ATTACKS[name](siege)
    siege.run(TAKES_PLACES_S if "idle" in name else 1.0)
    for number in range(REQUESTS):
        for round_trip_s in ROUND_TRIPS_S:
            siege.run(random.random())
            visitors[f"regular, {round_trip_s} s"][0].ask()
            newcomer = Visitor(siege, long_term_keys(5000 + 10 * number + round_trip_s), round_trip_s)
            visitors.setdefault(f"new, {round_trip_s} s", []).append(newcomer)
            newcomer.ask()
    siege.run(PATIENCE_S)
    shares = {}
    for who, each in visitors.items():
        waited_s = [seconds for visitor in each for seconds in visitor.waited_s.values()]
        shares[who] = sum(seconds <= PATIENCE_S for seconds in waited_s) / len(waited_s)
    print(name, shares, siege.streams.refused)
    assert min(shares.values()) >= ANSWERED_AT_LEAST
