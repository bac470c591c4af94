"""Cores of the roles, and what they send."""

from __future__ import annotations

from garlicfarm_plugin_dafka.codec import Command
from garlicfarm_plugin_dafka.consumer_core import ConsumerCore
from garlicfarm_plugin_dafka.producer_core import ProducerCore
from garlicfarm_plugin_dafka.store_core import StoreCore

NOW = 100.0


def producer(records: int = 0, partition: str = "p", **options) -> ProducerCore:
    limits = {"acks": 1, "limit_records": 1000, "limit_bytes": 1 << 20}
    core = ProducerCore("t", partition, **limits | options)
    for sequence in range(records):
        core.append(b"%d" % sequence, NOW)
    return core


def consumer(**options) -> ConsumerCore:
    core = ConsumerCore("me", ["t"], **options)
    core.tick(NOW)
    core.take_commands(NOW)
    return core


def told(core: ConsumerCore | StoreCore, *commands: Command, now: float = NOW) -> list[Command]:
    """What a core sends after these."""
    for command in commands:
        core.receive(command, now)
    return core.take_commands(now)


def sequences(core: ConsumerCore) -> list[int]:
    return [record.sequence for record in core.take_records()]


def all_answers(core: ProducerCore) -> list[Command]:
    found = []
    while core.has_answers:
        found += core.answers()
    return found
