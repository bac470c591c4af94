"""`node init`, `farm create`, `user` and `config check`: what they make, and what they leave alone."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

import garlicfarm.setup.provision
from garlicfarm.cli import run
from garlicfarm.client.trust import node_address
from garlicfarm.config import load
from garlicfarm.credentials.certificates import pin_of_file
from garlicfarm.credentials.member_credentials import read_secret_file
from garlicfarm.credentials.private_files import write_private_file
from garlicfarm.credentials.users import UserStore
from garlicfarm.errors import ConfigError, StorageError, StorageInUse
from garlicfarm.i2p.encoding import encode
from garlicfarm.lab.destinations import simulated_destination
from garlicfarm.node.applications import BUILT_IN
from garlicfarm.setup.provision import FarmPlan, MemberPlan, create_farm, create_node
from garlicfarm.storage import DataDirectory, LogStore, read_genesis
from tests.cli.served import Cli

Capture = pytest.CaptureFixture[str]


def everything_in(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def test_node_init_result_opens_with_storage(here: Path) -> None:
    assert (
        run(["node", "init", "--id", "3", "--farm", "f.1", "--host", "a.example", "--application", "log"])
        == 0
    )
    config = load(here / "garlicfarm.toml", {})
    assert config.node.id == 3
    assert config.farm[0].application == "log"
    assert config.listener[0].url == "ssl://0.0.0.0:27150"
    with DataDirectory.open(config.node.data_dir) as data:
        assert data.node_id == 3
        store = LogStore.open(data.farm_directory("f.1"), farm="f.1")
        try:
            assert store.genesis.application == "log"
            assert len(store.genesis.farm_id) == 16
            configuration = store.initial_state()[1]
        finally:
            store.close()
    assert configuration.log_index == 0
    (server,) = configuration.servers
    assert server.id == 3
    assert server.endpoint == config.farm[0].endpoint
    pin = pin_of_file(here / "data/tls/node.crt")
    assert server.endpoint == f"ssl://a.example:27150?pin={pin}"


def test_node_init_makes_one_secret_and_the_local_user(here: Path) -> None:
    assert run(["node", "init", "--host", "a.example"]) == 0
    data = here / "data"
    assert len(read_secret_file(data / "secrets/farm.secret")) == 1
    assert UserStore(data / "users").list() == [("local", "admin")]
    assert re.fullmatch(r"[\w-]{43}\n", (data / "local.password").read_text())
    assert not list(here.glob(".garlicfarm-*"))


def test_node_init_without_endpoint_warns_on_stderr(here: Path, cli: Cli) -> None:
    output = cli("node", "init")
    assert output.out == "garlicfarm.toml\n"
    assert "warning: other machines cannot reach ssl://127.0.0.1:27150" in output.err
    assert load(here / "garlicfarm.toml", {}).listener[0].url == "ssl://127.0.0.1:27150"


def test_node_init_listens_where_it_is_told(here: Path) -> None:
    listen = ["--listen", "ssl://127.0.0.1:7000"]
    assert run(["node", "init", "one", "--host", "a.example", *listen]) == 0
    config = load(here / "one/garlicfarm.toml", {})
    assert config.listener[0].url == "ssl://127.0.0.1:7000"
    assert config.farm[0].endpoint.startswith("ssl://a.example:27150?pin=")
    assert config.admin.url == "https://127.0.0.1:27151"
    assert run(["node", "init", "two", "--listen", "ssl://:7000"]) == 2
    assert not (here / "two").exists()


def test_node_init_tells_no_secret(here: Path, cli: Cli) -> None:
    output = "".join(cli("node", "init"))
    for name in ("local.password", "secrets/farm.secret"):
        assert (here / "data" / name).read_text().strip() not in output


@pytest.mark.parametrize("present", ["garlicfarm.toml", "data"])
def test_node_init_overwrites_nothing(here: Path, cli: Cli, present: str) -> None:
    (here / present).write_text("mine")
    assert f"{present} exists already; nothing was overwritten" in cli("node", "init", exits=2).err
    assert everything_in(here) == {present: b"mine"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--farm", "a b"], "farm[0].name"),
        (["--endpoint", "ssl://0.0.0.0:1"], "not what others can dial"),
        (["--endpoint", "ssl://a..b:1"], "not what others can dial"),
        (["--endpoint", "a.example"], "not of the form scheme://host:port"),
        (["--master", "abc"], "farm[0].meta.destination"),
        (["--admin-url", "http://127.0.0.1:1"], "admin.url"),
    ],
)
def test_node_init_refused_leaves_nothing_behind(here, cli, arguments, expected):
    (here / "other").write_text("mine")
    cli("node", "init", *arguments, exits=2)
    assert expected in cli("node", "init", "new", *arguments, exits=2).err
    assert everything_in(here) == {"other": b"mine"}
    assert [path.name for path in here.iterdir()] == ["other"]


def test_create_node_failing_on_the_way_leaves_nothing(tmp_path, monkeypatch):
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("garlicfarm.setup.provision.create_store", full)
    plan = MemberPlan(endpoint="ssl://a.example:1")
    with pytest.raises(StorageError, match="No space left on device"):
        create_node(tmp_path / "new", 1, plan)
    with pytest.raises(StorageError):
        create_node(tmp_path, 1, plan)
    assert list(tmp_path.iterdir()) == []


def test_create_node_losing_a_race_overwrites_nothing(tmp_path, monkeypatch):
    def meanwhile(*arguments: object) -> None:
        (tmp_path / "garlicfarm.toml").write_text("theirs")

    monkeypatch.setattr("garlicfarm.setup.provision.create_store", meanwhile)
    with pytest.raises(ConfigError, match=r"garlicfarm\.toml exists already"):
        create_node(tmp_path, 1, MemberPlan(endpoint="ssl://a.example:1"))
    assert everything_in(tmp_path) == {"garlicfarm.toml": b"theirs"}


KILLED = """
import os, signal, sys
import garlicfarm.cli, garlicfarm.setup.provision
garlicfarm.setup.provision.create_store = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
garlicfarm.cli.run(sys.argv[1:])
"""
CREATE = [
    "farm",
    "create",
    "--out",
    "out",
    "--member",
    "1=ssl://a.example:1",
    "--member",
    "2=ssl://b.example:1",
]


@pytest.mark.parametrize(
    ("arguments", "made"),
    [(["node", "init", "--host", "a.example"], {"garlicfarm.toml", "data"}), (CREATE, {"node-1", "node-2"})],
    ids=["node init", "farm create"],
)
def test_command_that_was_killed_leaves_nothing_once_it_is_repeated(here, arguments, made):
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
    assert killed.returncode == -signal.SIGKILL
    there = here / "out" if arguments is CREATE else here
    assert list(there.rglob("*.secret"))
    assert run(arguments) == 0
    assert {path.name for path in there.iterdir()} == made


def test_farm_of_which_a_killed_command_put_some_nodes_in_place_is_left_as_it_is(tmp_path: Path) -> None:
    members = {i: MemberPlan(endpoint=f"ssl://{i}.example:1") for i in (1, 2)}
    out, staging = tmp_path / "out", tmp_path / "out" / garlicfarm.setup.provision.STAGING
    create_farm(out, members)
    staging.mkdir()
    (out / "node-2").rename(staging / "node-2")  # killed between the two
    before = everything_in(tmp_path)
    with pytest.raises(ConfigError, match="out exists already"):
        create_farm(out, members)
    assert everything_in(tmp_path) == before


def test_command_leaves_alone_what_another_process_makes_there(tmp_path, monkeypatch):
    plan = MemberPlan(endpoint="ssl://a.example:1")
    make = vars(garlicfarm.setup.provision)["create_store"]

    def meanwhile(*arguments: Any) -> None:
        before = everything_in(tmp_path)
        with pytest.raises(StorageInUse, match="another process"):
            create_node(tmp_path / "new", 2, plan)
        assert everything_in(tmp_path) == before
        make(*arguments)

    monkeypatch.setattr("garlicfarm.setup.provision.create_store", meanwhile)
    create_node(tmp_path / "new", 1, plan)
    assert load(tmp_path / "new/garlicfarm.toml", {}).node.id == 1


def test_farm_create_stores_share_genesis_and_secret(here: Path, cli: Cli) -> None:
    members = [
        "--member",
        "1=ssl://a.example:1",
        "--member",
        "2=ssl://b.example:1",
        "--member",
        "9=ssl://[::1]:5",
    ]
    body = json.loads(cli("farm", "create", *members, "--out", "out", "-o", "json").out)
    assert body["schema"] == "garlicfarm.farm-create/1"
    assert [row["directory"] for row in body["rows"]] == ["out/node-1", "out/node-2", "out/node-9"]
    genesis, found = set(), set()
    for row in body["rows"]:
        directory = Path(row["directory"])
        config = load(directory / "garlicfarm.toml", {})
        assert config.node.id == row["id"]
        assert config.farm[0].endpoint == row["endpoint"]
        assert row["endpoint"].endswith("?pin=" + pin_of_file(directory / "data/tls/node.crt"))
        store = LogStore.open(directory / "data/farms/farm", farm="farm")
        configuration = store.initial_state()[1]
        genesis.add((store.genesis.farm_id, configuration.servers))
        store.close()
        found.add(read_secret_file(directory / "data/secrets/farm.secret"))
    assert len(genesis) == 1
    assert len(found) == 1
    (_, servers) = genesis.pop()
    assert [(server.id, server.endpoint) for server in servers] == [
        (row["id"], row["endpoint"]) for row in body["rows"]
    ]
    passwords = {Path(row["directory"], "data/local.password").read_text() for row in body["rows"]}
    assert len(passwords) == 3


def test_farm_create_out_exists_is_refused(here: Path, cli: Cli) -> None:
    (here / "out").mkdir()
    assert (
        "out exists already"
        in cli("farm", "create", "--member", "1=ssl://a.example:1", "--out", "out", exits=2).err
    )
    assert list((here / "out").iterdir()) == []


def test_farm_create_same_machine_gets_an_admin_port_each(here: Path) -> None:
    members = [f"--member={number}=ssl://127.0.0.1:{number}" for number in (1, 2)]
    assert run(["farm", "create", *members, "--out", "out"]) == 0
    urls = [load(here / f"out/node-{number}/garlicfarm.toml", {}).admin.url for number in (1, 2)]
    assert urls == ["https://127.0.0.1:27151", "https://127.0.0.1:27152"]


def test_create_farm_plans_reach_the_configuration(tmp_path: Path) -> None:
    destination = "A" * 516
    plan = FarmPlan(
        name="x", preset="i2p", master=destination, raft={"heartbeat_s": 0.5}, retention={"keep_entries": 7}
    )
    member = MemberPlan(
        endpoint="ssl://127.0.0.1:1",
        listen="ssl://127.0.0.1:0",
        admin_url="https://127.0.0.1:0",
        router={"plugin": "simulated", "seed": 3, "odd": 'a"\x7fb'},
        leaves=(destination, destination),
        feeds=({"plugin": "dafka", "topic": "orders", "towers": ["tcp://tower.example:5556"]},),
    )
    made = create_farm(tmp_path / "out", {5: member}, plan)
    config = load(made.directories[5] / "garlicfarm.toml", {})
    (farm,) = config.farm
    assert (farm.raft.heartbeat_s, farm.raft.rpc_timeout_s) == (0.5, 12.0)
    assert farm.retention.keep_entries == 7
    assert farm.router == {"plugin": "simulated", "seed": 3, "odd": 'a"\x7fb'}
    assert farm.meta.destination == destination
    assert len(farm.leaf) == 2
    (feed,) = farm.feed
    assert feed.plugin == "dafka"
    assert feed.options == {"topic": "orders", "towers": ["tcp://tower.example:5556"]}
    assert config.listener[0].url == "ssl://127.0.0.1:0"
    assert config.admin.url == "https://127.0.0.1:0"


def test_create_farm_copies_the_master_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"\0\xff")
    made = create_farm(
        tmp_path / "out",
        {1: MemberPlan(endpoint="ssl://a.example:1"), 2: MemberPlan(endpoint="ssl://b.example:1")},
        FarmPlan(name="x", master="A" * 516, master_key_file=tmp_path / "key"),
    )
    for directory in made.directories.values():
        key_file = load(directory / "garlicfarm.toml", {}).farm[0].meta.key_file
        assert key_file == directory / "data/secrets/x.master.key"
        assert key_file.read_bytes() == b"\0\xff"
        assert stat.S_IMODE(key_file.stat().st_mode) == 0o600


def test_create_farm_without_its_master_key_makes_nothing(tmp_path: Path) -> None:
    plan = FarmPlan(master="A" * 516, master_key_file=tmp_path / "absent")
    with pytest.raises(StorageError, match=r"No such file.*absent"):
        create_node(tmp_path / "node", 1, MemberPlan(endpoint="ssl://a.example:1"), plan)
    assert list(tmp_path.iterdir()) == []


def test_create_farm_same_endpoint_twice_is_refused(tmp_path: Path) -> None:
    member = MemberPlan(endpoint="ssl://a.example:1")
    with pytest.raises(ConfigError, match="two members have the same endpoint"):
        create_farm(tmp_path / "out", {1: member, 2: member})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("endpoint", "listen"),
    [
        ("ssl://a.example:5", "ssl://0.0.0.0:5"),
        ("ssl://192.0.2.1:5", "ssl://0.0.0.0:5"),
        ("ssl://[2001:db8::1]:5", "ssl://[::]:5"),
        ("ssl://127.0.0.1:5", "ssl://127.0.0.1:5"),
        ("ssl://[::1]:5", "ssl://[::1]:5"),
        ("ssl://localhost:5", "ssl://127.0.0.1:5"),
        ("i2p://abc.b32.i2p:5", "i2p://127.0.0.1:5"),
    ],
)
def test_create_node_listens_where_it_is_dialled(tmp_path: Path, endpoint: str, listen: str) -> None:
    create_node(tmp_path / "node", 1, MemberPlan(endpoint=endpoint))
    assert load(tmp_path / "node/garlicfarm.toml", {}).listener[0].url == listen


@pytest.mark.parametrize(
    "command",
    [
        ["node", "init", "node"],
        ["farm", "create", "--member", "1=ssl://a:1", "--out", "f"],
        ["farm", "add", "barn"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_application_of_a_new_farm_is_one_that_node_start_runs(here, cli, command):
    choices = ", ".join(repr(name) for name in BUILT_IN)
    for name, close in (("publsher", "; did you mean 'publisher'?"), ("tally", "")):
        said = cli(*command, "--application", name, exits=2).err.splitlines()[-1].rstrip(".")
        assert said == (f"error: Invalid value for '--application': {name!r} is not one of {choices}{close}")
    assert everything_in(here) == {}


def test_config_check_warns_of_an_application_that_node_start_does_not_run(here, capsys):
    create_node(here, 1, MemberPlan(endpoint="ssl://127.0.0.1:1"), FarmPlan(application="logs"))
    assert run(["config", "check"]) == 0
    unknown = "farm farm: no application 'logs'; did you mean 'log'?; there are: publisher, log"
    assert capsys.readouterr().err == f"warning: {unknown}; `node start` runs no other\n"


def test_config_check_warns_of_a_directory_of_backups_that_is_not_there(here, capsys):
    create_node(here, 1, MemberPlan(endpoint="ssl://127.0.0.1:1"), FarmPlan())
    with (here / "garlicfarm.toml").open("a") as file:
        file.write('\n[farm.backup]\ndirectory = "backups"\n')
    assert run(["config", "check"]) == 0
    told = f"warning: farm farm: there are no backups while {here / 'backups'} is no directory\n"
    assert capsys.readouterr().err == told
    (here / "backups").mkdir()
    assert run(["config", "check"]) == 0
    assert capsys.readouterr().err == ""


def test_user_add_list_remove(here: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("node", "init")
    monkeypatch.setattr("sys.stdin", io.StringIO("from stdin\n"))
    cli("user", "add", "ann", "--role", "writer")
    write_private_file(here / "password", b"from a file\n")
    cli("user", "add", "bob", "--password-file", "password")
    assert cli("user", "list").out == "NAME   ROLE\nann    writer\nbob    reader\nlocal  admin\n"
    store = UserStore(here / "data/users")
    first = store.lookup("bob")
    store.add("bob", "reader", "from a file")
    assert store.lookup("bob") == first, "the line's end is no part of a password"
    cli("user", "remove", "ann")
    assert "there is no user 'ann'" in cli("user", "remove", "ann", exits=2).err


def test_user_remove_keeps_the_one_that_the_commands_here_are(here: Path, cli: Cli) -> None:
    cli("node", "init")
    assert "the commands on this machine log in as local" in cli("user", "remove", "local", exits=2).err
    assert UserStore(here / "data/users").list() == [("local", "admin")]


def test_user_add_refuses_readable_password_file_and_digits(here, cli, monkeypatch):
    cli("node", "init")
    (here / "password").write_text("x")
    (here / "password").chmod(0o644)
    assert "chmod 600" in cli("user", "add", "bob", "--password-file", "password", exits=2).err
    monkeypatch.setattr("sys.stdin", io.StringIO("x\n"))
    cli("user", "add", "12", exits=2)
    assert UserStore(here / "data/users").list() == [("local", "admin")]


def test_user_without_data_directory_exits_7(here: Path) -> None:
    assert run(["node", "init"]) == 0
    (here / "data").rename(here / "gone")
    assert run(["user", "list"]) == 7


@pytest.mark.parametrize("lost", ["data", "data/node.json", "data/farms/farm"])
def test_member_that_lost_its_store_is_never_told_to_make_a_new_one(here: Path, lost: str) -> None:
    assert run(["node", "init", "--admin-url", "https://127.0.0.1:0"]) == 0
    (here / lost).rename(here / "gone")
    for command in (["node", "start"], ["status"], ["user", "list"], ["member", "token", "--out", "t"]):
        done = subprocess.run(
            [sys.executable, "-m", "garlicfarm", *command], capture_output=True, text=True, check=False
        )
        assert "node init" not in done.stderr
        if command == ["node", "start"]:
            assert (done.returncode, "store is missing" in done.stderr) == (7, True)
            assert "garlicfarm member remove ID" in done.stderr
        elif lost == "data":
            assert (done.returncode, "Is its disk mounted" in done.stderr) == (7, True)


@pytest.mark.parametrize(
    ("bound", "address"),
    [
        ("https://127.0.0.1:27151", "https://127.0.0.1:27151"),
        ("https://0.0.0.0:27151", "https://a.example:27151"),
        ("https://[::]:27151", "https://a.example:27151"),
        ("https://[2001:db8::1]:27151", "https://[2001:db8::1]:27151"),
    ],
)
def test_address_of_a_node_is_its_admin_url_and_pin_for_other_machines(here, cli, bound, address):
    cli("node", "init", "--host", "a.example", "--admin-url", bound)
    pin = pin_of_file(here / "data/tls/node.crt")
    told = cli("node", "address")
    assert told.out == f"{address}?pin={pin}\n"
    assert node_address(told.out.strip()) == (address, pin), "as --node takes it"
    assert ("only this machine can reach it" in told.err.replace(address, "it")) == ("127.0.0.1" in bound)
    assert json.loads(cli("node", "address", "--output", "json").out) == {
        "schema": "garlicfarm.node-address/1",
        "url": address,
        "pin": pin,
    }


def test_address_with_any_port_is_known_while_the_node_runs(here: Path, cli: Cli) -> None:
    cli("node", "init", "--admin-url", "https://127.0.0.1:0")
    assert "start it: garlicfarm node start" in cli("node", "address", exits=3).err
    (here / "data/admin.url").write_text("https://127.0.0.1:4711\n")
    assert cli("node", "address").out.startswith("https://127.0.0.1:4711?pin=sha256-")


def test_directory_without_a_node_is_told_how_one_is_made(here: Path, cli: Cli) -> None:
    assert "`garlicfarm node init` makes a new farm" in cli("node", "start", exits=2).err


def test_config_check_effective_prints_sources(here, cli, monkeypatch):
    cli("node", "init", "--host", "a.example")
    monkeypatch.setenv("GARLICFARM_LOG__LEVEL", "debug")
    rows = {row["key"]: row for row in json.loads(cli("config", "check", "-o", "json").out)["rows"]}
    assert rows["log.level"]["value"] == "debug"
    assert rows["log.level"]["source"] == "environment GARLICFARM_LOG__LEVEL"
    assert rows["node.id"] == {"key": "node.id", "value": 1, "source": "file"}
    assert rows["node.data_dir"]["value"] == str(here / "data")
    assert rows["farm[0].raft.heartbeat_s"]["source"] == "preset clearnet"
    assert rows["admin.metrics_token_file"] == {
        "key": "admin.metrics_token_file",
        "value": "",
        "source": "default",
    }
    printed = cli("config", "check", "--effective")
    assert printed.err == f"{here / 'garlicfarm.toml'}: ok\n"
    lines = [line.split(maxsplit=2) for line in printed.out.splitlines()]
    assert ["listener[0].farms", "default", "[]"] in lines
    assert ["farm[0].algorithms", "default", '["MD5", "SHA-256"]'] in lines


def test_config_check_of_a_store_that_cannot_be_looked_at_is_no_defect(here, cli):
    cli("node", "init", "--host", "a.example", "--master", encode(simulated_destination(1)))
    store = here / "data/farms/farm/log"
    rmtree(store)
    store.symlink_to("x" * 300)  # looking at it fails, as in somebody else's directory
    assert cli("config", "check").out == f"{here / 'garlicfarm.toml'}: ok\n"


def test_configuration_in_somebody_elses_directory_cannot_be_read(here, capsys, monkeypatch):
    stat = Path.stat

    def refused(path: Path, **options: bool) -> os.stat_result:
        if path.name == "garlicfarm.toml":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refused)
    for arguments in (["status"], ["user", "list", "--config", "garlicfarm.toml"]):
        assert run(arguments) == 2
        expected = f"cannot read {here / 'garlicfarm.toml'}: Permission denied; is this the node's user?"
        assert capsys.readouterr().err == f"error: {expected}\n"


@pytest.mark.usefixtures("logging_restored")
def test_node_that_cannot_say_where_it_is_ends_with_7(here, capfd, monkeypatch):
    assert run(["node", "init", "--host", "127.0.0.1", "--admin-url", "https://127.0.0.1:0"]) == 0
    monkeypatch.setenv("GARLICFARM_LISTENER__0__URL", "ssl://127.0.0.1:0")
    (here / "data/admin.url.part").mkdir()
    capfd.readouterr()
    assert run(["node", "start"]) == 7
    assert capfd.readouterr().err.endswith(f"cannot write {here / 'data/admin.url.part'}: Is a directory\n")


def test_config_check_reports_plugins_and_files_at_once(here: Path, cli: Cli) -> None:
    cli("node", "init", "--host", "a.example")
    (here / "data/secrets/farm.secret").chmod(0o644)
    with (here / "garlicfarm.toml").open("a") as file:
        file.write('[transport.pigeon]\n[farm.router]\nplugin = "simulated"\nsed = 1\n')
    output = cli("config", "check", exits=2)
    assert output.out == ""
    lines = output.err.splitlines()
    assert len(lines) == 3
    assert "'pigeon'" in lines[0]
    assert "0644" in lines[1]
    assert "'sed'" in lines[2]


def test_epoch_length_of_a_new_farm_is_the_one_that_was_given(tmp_path: Path, capsys: Capture) -> None:
    length = ["--epoch-length", "70", "--application", "log"]
    member = ["--member", "1=ssl://a.example:27150"]
    assert run(["farm", "create", *length, *member, "--out", str(tmp_path / "created")]) == 0
    assert run(["node", "init", str(tmp_path / "init"), *length, "--host", "a.example"]) == 0
    config = ["--config", str(tmp_path / "init" / "garlicfarm.toml")]
    assert run(["farm", "add", "second", *length, *config]) == 0
    assert run(["farm", "add", "third", *config]) == 0
    for farms, lengths in {
        "created/node-1/data/farms": {"farm": 70},
        "init/data/farms": {"farm": 70, "second": 70, "third": 100_000},
    }.items():
        assert {name: read_genesis(tmp_path / farms / name).epoch_length for name in lengths} == lengths
    assert run(["node", "init", str(tmp_path / "none"), "--epoch-length", "0"]) == 2


def test_commands_that_a_configuration_names_do_what_it_says_of_them(tmp_path, cli):
    cli("node", "init", str(tmp_path / "node"))
    file = tmp_path / "node" / "garlicfarm.toml"
    comment = " ".join(line for line in file.read_text().splitlines() if line.startswith("#"))
    check, effective = (line.split()[1:] for line in re.findall(r"`(garlicfarm [^`]+)`", comment))
    assert cli(*check, "--config", str(file)).out == f"{file}: ok\n"
    rows = [line.split() for line in cli(*effective, "--config", str(file)).out.splitlines()]
    assert {"default", "file", "preset"} <= {row[1] for row in rows if len(row) > 1}
    assert "node.shutdown_timeout_s" in {row[0] for row in rows}
