"""Dafka (ZeroMQ RFC 46): a distributed log of records over ZeroMQ.

::

    config = MeshConfig(towers=("tcp://127.0.0.1:5556",))
    async with open_producer(config, "readings") as producer:
        await producer.send(b"21.5")
        await producer.wait_acked()

    async with open_consumer(config, ["readings"], offsets_file=Path("offsets.json")) as consumer:
        async for record in consumer:
            print(record.topic, record.partition, record.sequence, record.content)
            await consumer.save_offsets()

`codec` is the wire, `mesh` a node among others, `tower` how nodes find each other. The roles are state
machines without I/O (`producer_core`, `consumer_core`, `store_core`), which `producer`, `consumer` and
`store` run on Trio. They share how partitions are read (`reading_core`) and served (`serving_core`), and how
a role runs on a node (`network`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garlicfarm.lazy_names import lazy_names

if TYPE_CHECKING:
    from garlicfarm_plugin_dafka.config import MeshConfig
    from garlicfarm_plugin_dafka.consumer import DafkaConsumer, open_consumer
    from garlicfarm_plugin_dafka.consumer_core import ReceivedRecord
    from garlicfarm_plugin_dafka.farm_log import FarmLog
    from garlicfarm_plugin_dafka.producer import DafkaProducer, open_producer
    from garlicfarm_plugin_dafka.store import DafkaStore, Retention, open_store

__all__ = [
    "DafkaConsumer",
    "DafkaProducer",
    "DafkaStore",
    "FarmLog",
    "MeshConfig",
    "ReceivedRecord",
    "Retention",
    "open_consumer",
    "open_producer",
    "open_store",
]

__getattr__ = lazy_names(
    __name__,
    {
        "garlicfarm_plugin_dafka.config": ("MeshConfig",),
        "garlicfarm_plugin_dafka.consumer": ("DafkaConsumer", "open_consumer"),
        "garlicfarm_plugin_dafka.consumer_core": ("ReceivedRecord",),
        "garlicfarm_plugin_dafka.farm_log": ("FarmLog",),
        "garlicfarm_plugin_dafka.producer": ("DafkaProducer", "open_producer"),
        "garlicfarm_plugin_dafka.store": ("DafkaStore", "Retention", "open_store"),
    },
)
