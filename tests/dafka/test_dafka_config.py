"""The configuration of nodes and towers: plain on loopback only, every problem at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from garlicfarm.errors import ConfigError
from garlicfarm_plugin_dafka.config import MeshConfig, TowerAddress, TowerConfig
from garlicfarm_plugin_dafka.keys import create_key


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """With ``own.key``, and ``peers.toml`` that knows a tower, ``tower-1``, and a store."""
    create_key(tmp_path / "own.key")
    text = ""
    for name, role in ("tower-1", "tower"), ("store-1", "store"):
        text += f'[{name}]\nkey = "{create_key(tmp_path / name).public}"\nroles = ["{role}"]\n'
    (tmp_path / "peers.toml").write_text(text)
    return tmp_path


KEYS: Any = {"key_file": "own.key", "peers_file": "peers.toml"}


def problems_of(config: MeshConfig | TowerConfig, directory: Path = Path()) -> str:
    with pytest.raises(ConfigError) as caught:
        config.check(directory)
    return "\n".join(caught.value.problems)


def test_the_defaults_stay_on_this_machine():
    plan = MeshConfig().check(Path())
    assert plan.towers == (TowerAddress("127.0.0.1", 5556, 5557, ""),)
    assert (plan.listen.host, plan.advertise_host, plan.advertise_port) == ("127.0.0.1", "127.0.0.1", 0)
    assert plan.keys is None
    tower = TowerConfig().check(Path())
    assert (tower.host, tower.in_port, tower.out_port, tower.keys) == ("127.0.0.1", 5556, 5557, None)


@pytest.mark.parametrize(
    "config",
    [
        MeshConfig(listen="tcp://0.0.0.0:5000"),
        MeshConfig(listen="tcp://[::]:5000"),
        MeshConfig(listen="tcp://10.0.0.1:5000"),
        MeshConfig(advertise="tcp://10.0.0.1:5000"),
        MeshConfig(towers=("tcp://127.0.0.1:5556", "tcp://tower.example:5556")),
        TowerConfig(listen="tcp://0.0.0.0:5556"),
    ],
)
def test_without_keys_only_loopback_is_allowed(config):
    problems = problems_of(config)
    assert "only loopback addresses such as 127.0.0.1 are allowed" in problems


def test_with_keys_any_address_is_allowed(directory):
    config = MeshConfig(
        towers=("tcp://10.0.0.1:5556?peer=tower-1", "tcp://[fd00::1]:1?out=9&peer=tower-1"),
        listen="tcp://0.0.0.0:5000",
        **KEYS,
    )
    plan = config.check(directory)
    assert plan.keys is not None
    key = next(each.key for each in plan.keys.known.values() if each.name == "tower-1")
    assert plan.towers == (TowerAddress("10.0.0.1", 5556, 5557, key), TowerAddress("fd00::1", 1, 9, key))
    assert (plan.advertise_host, plan.advertise_port) == ("", 0)
    assert TowerConfig(listen="tcp://0.0.0.0:0", **KEYS).check(directory).out_port == 0


def test_the_advertised_address_is_that_of_the_listener_or_another_one(directory):
    def advertised(listen: str, advertise: str = "") -> tuple[str, int]:
        towers = ("tcp://10.0.0.1:5556?peer=tower-1",)
        plan = MeshConfig(towers=towers, listen=listen, advertise=advertise, **KEYS).check(directory)
        return plan.advertise_host, plan.advertise_port

    assert advertised("tcp://10.0.0.5:5000") == ("10.0.0.5", 0)
    assert advertised("tcp://0.0.0.0:5000", "tcp://store.example:6000") == ("store.example", 6000)
    assert advertised("tcp://10.0.0.5:5000", "tcp://store.example:0") == ("store.example", 0)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (MeshConfig(towers=()), "towers: name at least one"),
        (MeshConfig(towers=("127.0.0.1:5556",)), "not of the form scheme://host:port"),
        (MeshConfig(towers=("ssl://127.0.0.1:5556",)), "not of the form tcp://HOST:PORT?out=…&peer=…"),
        (MeshConfig(towers=("tcp://127.0.0.1:5556?in=1",)), "not of the form tcp://HOST:PORT?out=…&peer=…"),
        (MeshConfig(towers=("tcp://127.0.0.1:5556?out=65536",)), "65536 is not a port"),
        (MeshConfig(towers=("tcp://127.0.0.1:65535",)), "65536 is not a port"),
        (MeshConfig(towers=("tcp://127.0.0.1:0",)), "not an address that a node could connect to"),
        (MeshConfig(towers=("tcp://127.0.0.1:1?peer=x",)), "that needs key_file and peers_file"),
        (
            MeshConfig(listen="tcp://127.0.0.1:0?out=1"),
            "listen: 'tcp://127.0.0.1:0?out=1' is not of the form",
        ),
        (
            MeshConfig(advertise="tcp://0.0.0.0:1", **KEYS),
            "advertise: 0.0.0.0 is not the address of one machine",
        ),
        (MeshConfig(key_file="own.key"), "key_file and peers_file belong together"),
        (MeshConfig(key_file="none", peers_file="peers.toml"), "none cannot be read"),
        (MeshConfig(**KEYS), "does not name a known peer with the role tower"),
        (
            MeshConfig(towers=("tcp://127.0.0.1:1?peer=store-1",), **KEYS),
            "does not name a known peer with the role",
        ),
        (TowerConfig(listen="tcp://127.0.0.1:1?peer=x"), "not of the form tcp://HOST:PORT?out=…"),
        (TowerConfig(listen="nonsense"), "listen: "),
        (TowerConfig(peers_file="peers.toml"), "key_file and peers_file belong together"),
    ],
)
def test_what_is_wrong_is_named(directory, config, problem):
    assert problem in problems_of(config, directory)


def test_every_problem_is_named_at_once():
    problems = problems_of(MeshConfig(towers=(), listen="x", advertise="y", key_file="z"))
    assert len(problems.splitlines()) == 4
