"""`garlicfarm dafka tower` and `garlicfarm dafka keys`."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from garlicfarm.cli import run
from garlicfarm.cli.exits import Exit
from garlicfarm_plugin_dafka.config import MeshConfig
from garlicfarm_plugin_dafka.keys import PeerRole, read_key, read_known_peers
from garlicfarm_plugin_dafka.mesh import open_mesh
from tests.dafka.meshes import KeyRing
from tests.running import running, wait_until

Capture = pytest.CaptureFixture[str]


@contextmanager
def tower_process(directory: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A tower of its own, and the line that it prints."""
    command = [sys.executable, "-m", "garlicfarm", "dafka", "tower", "--listen", "tcp://127.0.0.1:0"]
    command += arguments
    with running(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().decode().strip()


def test_create_prints_the_table_of_a_known_peer(tmp_path, monkeypatch, capsys: Capture):
    monkeypatch.chdir(tmp_path)
    assert run(["dafka", "keys", "create", "store-1.key", "--role", "store", "--role", "consumer"]) == 0
    table = capsys.readouterr().out
    key = read_key(Path("store-1.key"))
    assert key.secret not in table
    assert tomllib.loads(table) == {"store-1": {"key": key.public, "roles": ["store", "consumer"]}}
    assert run(["dafka", "keys", "create", "b.key", "--role", "tower", "--name", "tower-1"]) == 0
    Path("peers.toml").write_text(table + capsys.readouterr().out)
    assert [peer.name for peer in read_known_peers(Path("peers.toml")).values()] == ["store-1", "tower-1"]
    assert run(["dafka", "keys", "show", "store-1.key"]) == 0
    assert capsys.readouterr().out == f"{key.public}\n"
    assert run(["dafka", "keys", "create", "store-1.key", "--role", "store"]) == Exit.USAGE
    assert "never overwritten" in capsys.readouterr().err


def test_create_knows_the_roles_and_refuses_a_name_that_is_no_word(tmp_path, monkeypatch, capsys: Capture):
    monkeypatch.chdir(tmp_path)
    for role in PeerRole:
        assert run(["dafka", "keys", "create", f"{role}.key", "--role", role.value]) == 0
    assert run(["dafka", "keys", "create", "a b.key", "--role", "store"]) == Exit.USAGE
    assert "give another with --name" in capsys.readouterr().err
    assert not Path("a b.key").exists()
    assert run(["dafka", "keys", "create", "c.key", "--role", "storage"]) == Exit.USAGE
    assert run(["dafka", "keys", "create", "c.key"]) == Exit.USAGE


def test_tower_without_keys_stays_on_loopback(capfd: pytest.CaptureFixture[str]):
    assert run(["dafka", "tower", "--listen", "tcp://0.0.0.0:0"]) == Exit.USAGE
    assert "garlicfarm dafka keys create" in capfd.readouterr().err


def test_without_the_extra_the_command_says_how_to_get_it(monkeypatch, capsys: Capture):
    for module in [each for each in sys.modules if each.startswith("garlicfarm_plugin_dafka")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "zmq", None)
    assert run(["dafka", "tower"]) == Exit.USAGE
    assert "pip install 'garlicfarm[dafka]'" in capsys.readouterr().err


async def test_tower_prints_its_address_and_ends_by_signal(tmp_path):
    with tower_process(tmp_path) as (process, url):
        config = MeshConfig(towers=(url,))
        async with open_mesh(config) as one, open_mesh(config) as other:
            await wait_until(lambda: one.peers and other.peers)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (Exit.OK, b"")


async def test_tower_with_keys_tells_of_a_stranger(tmp_path):
    ring = KeyRing(tmp_path, producer="producer", consumer="consumer")
    stranger = KeyRing(tmp_path / "elsewhere", tower="tower", stranger="producer")
    (tmp_path / "elsewhere" / "peers.toml").write_text((tmp_path / "peers.toml").read_text())
    keys = ["--key-file", "tower.key", "--peers-file", "peers.toml"]
    with tower_process(tmp_path, *keys) as (process, url):
        towers = (f"{url}&peer=tower",)
        producer = MeshConfig(towers=towers, **ring.files("producer"))
        consumer = MeshConfig(towers=towers, **ring.files("consumer"))
        async with open_mesh(producer, tmp_path) as one, open_mesh(consumer, tmp_path) as other:
            await wait_until(lambda: one.peers and other.peers)
            assert [peer.name for peer in one.peers] == ["consumer"]
            strange = MeshConfig(towers=towers, **stranger.files("stranger"))
            async with open_mesh(strange, tmp_path / "elsewhere"):
                assert process.stderr is not None
                line = (await trio.to_thread.run_sync(process.stderr.readline)).decode()
    public = read_key(tmp_path / "elsewhere" / "stranger.key").public
    assert "event=connection-refused" in line
    assert f"key={public}" in line or public in line.replace("\\", "")
