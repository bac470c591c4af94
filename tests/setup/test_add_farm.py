"""A further farm for a node that is there: `farm add`, and `node join` where a node is already."""

from __future__ import annotations

import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from garlicfarm.cli import run
from garlicfarm.config import Config, load
from garlicfarm.config.model import PRESETS
from garlicfarm.credentials.join_token import JoinToken, encode_token
from garlicfarm.credentials.member_credentials import read_secret_file
from garlicfarm.credentials.private_files import write_private_file
from garlicfarm.errors import ConfigError, StorageInUse
from garlicfarm.lab.processes import FAST, free_ports, process_farm
from garlicfarm.node import serve
from garlicfarm.setup.add_farm import add_joining_farm, remove_farm
from garlicfarm.setup.provision import FarmPlan, MemberPlan, create_node
from garlicfarm.storage import DataDirectory, LogStore

Capture = pytest.CaptureFixture[str]

TOKEN = JoinToken(
    farm="barn",
    farm_id=bytes(range(16)),
    farm_secret=b"s" * 32,
    application="log",
    algorithm=2,
    id=1,
    endpoints={5: "ssl://127.0.0.1:1"},
    expires_s=2**37,
)

SHORT = {
    "heartbeat_s": 0.05,
    "election_timeout_min_s": 0.1,
    "election_timeout_max_s": 0.2,
    "rpc_timeout_s": 0.2,
}


def make(directory: Path, port: int = 27150) -> Config:
    member = MemberPlan(endpoint=f"ssl://127.0.0.1:{port}", admin_url="https://127.0.0.1:0")
    create_node(directory, 1, member)
    return load(directory / "garlicfarm.toml", {})


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "lock"
    }


@pytest.fixture
def node(tmp_path: Path) -> Config:
    return make(tmp_path / "node")


def add(config: Config, *more: str) -> int:
    return run(["farm", "add", *more, "--config", str(config.path)])


def test_added_farm_has_its_own_secret_and_store_and_shares_the_rest(node: Config) -> None:
    before = contents(node.base_dir)
    assert add(node, "barn", "--application", "log") == 0
    config = load(node.path, {})
    assert [section.name for section in config.farm] == ["farm", "barn"]
    old, new = config.farm
    assert (new.application, new.endpoint) == ("log", old.endpoint)
    assert "?pin=sha256-" in new.endpoint
    assert read_secret_file(new.secret_file) != read_secret_file(old.secret_file)
    assert stat.S_IMODE(new.secret_file.stat().st_mode) == 0o600
    with DataDirectory.open(config.node.data_dir) as data:
        stores = [LogStore.open(data.farm_directory(name), farm=name) for name in ("farm", "barn")]
        for store in stores:
            store.close()
    first, second = (store.genesis for store in stores)
    assert first.farm_id != second.farm_id
    assert second.configuration is not None
    assert [(server.id, server.endpoint) for server in second.configuration.servers] == [(1, new.endpoint)]
    after = contents(node.base_dir)
    assert {name: after[name] for name in before if name != "garlicfarm.toml"} == {
        name: data for name, data in before.items() if name != "garlicfarm.toml"
    }
    assert after["garlicfarm.toml"].startswith(before["garlicfarm.toml"].rstrip())


def test_added_farm_at_another_endpoint_gets_the_pin_of_the_nodes_certificate(node: Config) -> None:
    assert add(node, "barn", "--endpoint", "ssl://b.example:5") == 0
    old, new = load(node.path, {}).farm
    assert new.endpoint == f"ssl://b.example:5?{old.endpoint.partition('?')[2]}"
    assert add(node, "loft", "--endpoint", "i2p://" + "a" * 52 + ".b32.i2p:5") == 0
    assert load(node.path, {}).farm[2].default_transport == "i2p"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["farm"], "has a farm farm already"),
        (["../barn"], "must be 1 to 64 of A-Z"),
        (["barn", "--endpoint", "b.example"], "not of the form scheme://host:port"),
        (["barn", "--endpoint", "ssl://0.0.0.0:5"], "not what others can dial"),
        (["barn", "--master", "AAAA"], "meta.destination"),
    ],
)
def test_farm_that_cannot_be_added_changes_nothing(
    node: Config, arguments: list[str], word: str, capsys: Capture
) -> None:
    before = contents(node.base_dir)
    assert add(node, *arguments) == 2
    assert word in capsys.readouterr().err
    assert contents(node.base_dir) == before


def test_files_of_an_earlier_farm_are_not_overwritten(node: Config, capsys: Capture) -> None:
    (node.node.data_dir / "farms" / "barn").mkdir()
    before = contents(node.base_dir)
    assert add(node, "barn") == 2
    assert "of an earlier farm? Move it away first" in capsys.readouterr().err
    assert contents(node.base_dir) == before
    assert (node.node.data_dir / "farms" / "barn").is_dir()


def test_farm_is_not_added_while_the_node_runs(node: Config) -> None:
    before = contents(node.base_dir)
    with DataDirectory.open(node.node.data_dir), pytest.raises(StorageInUse, match="stop it first"):
        add_joining_farm(node, "", TOKEN)
    assert contents(node.base_dir) == before


def test_joining_farm_keeps_the_times_of_its_preset(node: Config) -> None:
    add_joining_farm(node, "", replace(TOKEN, preset="i2p", raft={"heartbeat_s": 4.0}))
    old, new = load(node.path, {}).farm
    assert old.raft.rpc_timeout_s == PRESETS["clearnet"]["rpc_timeout_s"]
    assert (new.raft.rpc_timeout_s, new.raft.heartbeat_s) == (PRESETS["i2p"]["rpc_timeout_s"], 4.0)
    assert read_secret_file(new.secret_file) == (TOKEN.farm_secret,)
    with closing(LogStore.open(node.node.data_dir / "farms" / "barn", farm="barn")) as store:
        assert (store.genesis.farm_id, store.genesis.configuration) == (TOKEN.farm_id, None)


def test_removed_farm_leaves_the_node_as_it_was(node: Config) -> None:
    before, text = contents(node.base_dir), node.path.read_text()
    add_joining_farm(node, "", TOKEN)
    assert contents(node.base_dir) != before
    remove_farm(node, "barn", text)
    assert contents(node.base_dir) == before


def test_token_for_another_node_names_the_id_that_it_needs(node: Config) -> None:
    with pytest.raises(ConfigError, match=r"is for node 7, .* member token --farm barn --id 1"):
        add_joining_farm(node, "", replace(TOKEN, id=7))


def test_node_that_is_refused_by_the_further_farm_is_as_it_was(tmp_path: Path, capfd: Capture) -> None:
    """Nobody answers at the token's endpoint, and the node's own farm runs all the while."""
    (port,) = free_ports(1)
    node = make(tmp_path / "node", port)
    before = contents(node.base_dir)
    token = tmp_path / "token"
    write_private_file(token, encode_token(replace(TOKEN, raft=SHORT)).encode())
    arguments = ["node", "join", str(node.base_dir), "--token-file", str(token)]
    assert run([*arguments, "--listen", "ssl://127.0.0.1:1"]) == 2
    assert contents(node.base_dir) == before
    assert run(arguments) == 3
    assert "were removed" in capfd.readouterr().err
    left = contents(node.base_dir)
    assert [name for name in left if "barn" in name] == []
    assert left["garlicfarm.toml"] == before["garlicfarm.toml"]


async def test_node_serves_both_farms(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    config = make(tmp_path / "both", port)
    assert add(config, "barn", "--application", "log") == 0
    config = load(config.path, {})
    shutdown = trio.Event()
    with trio.fail_after(240):
        async with trio.open_nursery() as nursery:
            both = await nursery.start(lambda **more: serve(config, shutdown=shutdown, **more))
            index, _ = await both.farms["barn"].post(b"in the barn", "local")
            assert index > 1
            assert both.farms.keys() == {"farm", "barn"}
            shutdown.set()


@pytest.mark.slow
async def test_members_of_a_farm_get_a_further_one_that_both_serve(tmp_path: Path) -> None:
    async def cli(*arguments: object) -> str:
        command = [sys.executable, "-m", "garlicfarm", *map(str, arguments)]
        done = await trio.run_process(
            command, capture_stdout=True, stderr=subprocess.STDOUT, stdin=b"first", check=False
        )
        assert done.returncode == 0, done.stdout
        return done.stdout.decode()

    with trio.fail_after(240):
        async with process_farm(tmp_path / "farm", 2, FarmPlan(application="log", raft=FAST)) as farm:
            at = [["--config", farm.nodes[i].directory / "garlicfarm.toml"] for i in (1, 2)]
            await farm.stop(1)
            await cli("farm", "add", "barn", "--application", "log", *at[0])
            await farm.start(1)
            token = tmp_path / "token"
            await cli("member", "token", "--farm", "barn", "--id", 2, "--out", token, *at[0])
            await farm.stop(2)
            said = await cli("node", "join", farm.nodes[2].directory, "--token-file", token)
            assert "node 2 is a member of the farm barn" in said
            await farm.start(2)
            await cli("log", "post", "--farm", "barn", *at[1])
            for _, config in at:
                caught_up = ("--for", "caught-up", "--timeout", 240)
                await cli("wait", *caught_up, "--farm", "barn", "--config", config)
                assert '"first"' in await cli("log", "tail", "--farm", "barn", "--config", config)
                assert "first" not in await cli("log", "tail", "--farm", farm.name, "--config", config)
