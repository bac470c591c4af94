"""The roles on ZeroMQ: a tower, a store, producers and consumers on loopback, in the clear and with keys."""

from __future__ import annotations

import pytest

from garlicfarm.errors import ConfigError
from garlicfarm_plugin_dafka.config import MeshConfig
from garlicfarm_plugin_dafka.consumer import open_consumer
from garlicfarm_plugin_dafka.producer import open_producer
from garlicfarm_plugin_dafka.store import open_store
from tests.dafka.meshes import KeyRing


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"record %d" % number for number in range(first, first + count)]


async def test_records_pass_between_keys_whose_roles_allow_it(tmp_path):
    keys = KeyRing(tmp_path, p="producer", s="store", c="consumer")
    async with keys.tower() as tower:

        def config(name: str) -> MeshConfig:
            return MeshConfig(towers=(f"{tower.endpoint}&peer=tower",), **keys.files(name))

        async with (
            open_store(config("s"), tmp_path / "store", base_dir=tmp_path),
            open_producer(config("p"), "t", base_dir=tmp_path) as producer,
            open_consumer(config("c"), ["t"], base_dir=tmp_path) as consumer,
            open_producer(config("c"), "t", base_dir=tmp_path) as impostor,  # with the key of a consumer
        ):
            await impostor.send(b"lies")
            await producer.send_many(numbered(10))
            assert [(await anext(consumer)).content for _ in range(10)] == numbered(10)
            await producer.wait_acked()
            assert impostor.acked == 0


async def test_a_configuration_that_cannot_be_is_refused_before_anything_is_made(tmp_path):
    config = MeshConfig(listen="tcp://0.0.0.0:0")
    for opened in (
        open_store(config, tmp_path / "store"),
        open_consumer(config, ["t"]),
        open_producer(config, "t"),
    ):
        with pytest.raises(ConfigError, match="listen: without keys"):
            await opened.__aenter__()
    assert not (tmp_path / "store").exists()
