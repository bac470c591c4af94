"""Configuration files: what is read, what is refused, and with which words."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.config import Config, find_config, load
from garlicfarm.config.template import fill
from garlicfarm.errors import ConfigError

DESTINATION = "A" * 516

SMALLEST = """
version = 1
[node]
id = 1
[[listener]]
url = "ssl://0.0.0.0:27150"
[[farm]]
name = "farm"
endpoint = "ssl://a.example:27150"
"""

FULL = f"""
version = 1
[node]
id = 2147483647
data_dir = "data"
preset = "i2p"
shutdown_timeout_s = 10
[log]
level = "debug"
format = "json"
[admin]
url = "https://[::1]:27151"
metrics_token_file = "token"
[[listener]]
url = "ssl://0.0.0.0:0"
farms = ["my-farm"]
[[listener]]
url = "i2p://127.0.0.1:27152"
[transport.ssl]
certificate = "data/tls/node.crt"
[transport.i2p]
proxy = "http://127.0.0.1:4444"
[[farm]]
name = "my-farm"
application = "publisher"
default_transport = "i2p"
endpoint = "tcp://a.example:27150?pin=sha256-AAAA"
secret_file = "/etc/secret"
algorithms = ["SHA-256"]
[farm.raft]
heartbeat_s = 4
priority = 2
[farm.retention]
keep_entries = 5
[farm.router]
plugin = "i2pcontrol"
url = "https://127.0.0.1:7650"
[farm.meta]
destination = "{DESTINATION}"
key_file = "meta.key"
publish = "on"
[[farm.leaf]]
destination = "{DESTINATION}"
[[farm]]
name = "logs"
application = "log"
endpoint = "ssl://a.example:27150"
"""


def load_text(tmp_path: Path, text: str, **environ: str) -> Config:
    path = tmp_path / "garlicfarm.toml"
    path.write_text(text)
    return load(path, environ)


def problems(tmp_path: Path, text: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, text, **environ)
    return [problem.removeprefix("garlicfarm.toml: ") for problem in caught.value.problems]


def source(config: Config, key: str) -> str:
    (origin,) = [origin for origin in config.effective() if origin.key == key]
    return origin.source


def test_load_smallest_file_fills_defaults(tmp_path: Path) -> None:
    config = load_text(tmp_path, SMALLEST)
    assert config.path == tmp_path / "garlicfarm.toml"
    assert config.base_dir == tmp_path
    assert config.node.data_dir == tmp_path / "data"
    assert config.admin.url == "https://127.0.0.1:27151"
    assert config.admin.metrics_token_file is None
    assert config.listener[0].farms == ()
    (farm,) = config.farm
    assert farm.secret_file == tmp_path / "data/secrets/farm.secret"
    assert farm.application == "publisher"
    assert farm.algorithms == ("MD5", "SHA-256")
    assert (farm.raft.election_timeout_min_s, farm.raft.election_timeout_max_s) == (1.0, 1.5)
    assert (farm.raft.heartbeat_s, farm.raft.rpc_timeout_s) == (0.3, 3.0)
    assert farm.router == {}
    assert farm.meta.publish == "auto"


def test_load_full_file_keeps_every_value(tmp_path: Path) -> None:
    config = load_text(tmp_path, FULL)
    assert config.node.id == 2**31 - 1
    assert config.admin.metrics_token_file == tmp_path / "token"
    assert config.listener[0].farms == ("my-farm",)
    assert config.transport == {
        "ssl": {"certificate": "data/tls/node.crt"},
        "i2p": {"proxy": "http://127.0.0.1:4444"},
    }
    farm, logs = config.farm
    assert farm.secret_file == Path("/etc/secret")
    assert farm.router == {"plugin": "i2pcontrol", "url": "https://127.0.0.1:7650"}
    assert farm.leaf[0].destination == DESTINATION
    assert farm.retention.keep_entries == 5
    assert logs.application == "log"


def test_load_preset_i2p_sets_what_the_file_leaves_open(tmp_path: Path) -> None:
    raft = load_text(tmp_path, FULL).farm[0].raft
    assert (raft.election_timeout_min_s, raft.election_timeout_max_s) == (20.0, 40.0)
    assert raft.heartbeat_s == 4.0
    assert raft.rpc_timeout_s == 12.0
    assert load_text(tmp_path, FULL).farm[1].raft.heartbeat_s == 5.0


def bad_values() -> Iterator[tuple[str, str, str]]:
    """What is replaced in `SMALLEST` (nothing: it is added), by what, and what is said of it."""
    lines = Path(__file__).with_name("bad_values.txt").read_text().splitlines()
    for change, sentence in zip(lines[::2], lines[1::2], strict=True):
        old, _, new = change.replace(" ; ", "\n").partition("->")
        yield old.strip(), new.strip(), sentence


@pytest.mark.parametrize(("old", "new", "sentence"), [*bad_values()])
def test_load_bad_value_gives_one_sentence(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert old in SMALLEST
    text = SMALLEST.replace(old, new, 1) if old else SMALLEST + new
    assert problems(tmp_path, text) == [sentence]


@pytest.mark.parametrize("name", ["tally", "a.b_c-1", "Farm", "x" * 64])
def test_load_takes_the_name_of_any_application(tmp_path: Path, name: str) -> None:
    assert load_text(tmp_path, SMALLEST + f'application = "{name}"').farm[0].application == name


@pytest.mark.parametrize("name", ["", "..", "a b", "x" * 65, "tally\\n"])
def test_load_refuses_what_is_no_name_of_an_application(tmp_path: Path, name: str) -> None:
    (problem,) = problems(tmp_path, SMALLEST + f'application = "{name}"')
    assert problem.startswith("farm[0].application: ")
    assert problem.endswith(" is not allowed; it must be 1 to 64 of A-Z a-z 0-9 . _ -, not . or ..")


def test_load_many_bad_values_reports_all_at_once(tmp_path: Path) -> None:
    text = """
    versoin = 1
    [node]
    id = 0
    [admin]
    url = 5
    [[listener]]
    url = "nowhere"
    farms = ["elsewhere"]
    [[farm]]
    name = ""
    endpoint = "ssl://h:1"
    [farm.raft]
    heartbeat_s = 30
    [[farm]]
    application = "chat room"
    """
    keys = [problem.split(":")[0] for problem in problems(tmp_path, text, GARLICFARM_NODE__PRESET="x")]
    assert sorted(keys) == [
        "admin.url",
        "farm[0].name",
        "farm[0].raft.heartbeat_s",
        "farm[1].application",
        "farm[1].endpoint",
        "farm[1].name",
        "listener[0].farms",
        "listener[0].url",
        "node.id",
        "node.preset (from the environment GARLICFARM_NODE__PRESET)",
        "version",
        "versoin",
    ]


def test_load_empty_file_names_what_is_missing(tmp_path: Path) -> None:
    assert [problem.split(":")[0] for problem in problems(tmp_path, "")] == [
        "version",
        "node.id",
        "listener",
        "farm",
    ]


DEEP = 2_000


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * DEEP + "]" * DEEP,
        "x = " + "{a=" * DEEP + "1" + "}" * DEEP,
        "version" + ".a" * DEEP + " = 1",
        "[transport.ssl" + ".a" * DEEP + "]",
        "[transport.wss]\nx = " + "[" * 100 + "]" * 100,
    ],
    ids=lambda text: text[:16],
)
def test_document_that_is_nested_too_deep_is_no_toml_of_ours(tmp_path: Path, text: str) -> None:
    (problem,) = problems(tmp_path, text)
    assert problem.endswith("garlicfarm.toml: not TOML: nested more than 32 deep")
    with pytest.raises(ConfigError, match="the template: not TOML: nested more than 32 deep"):
        fill(text, [])


def test_number_that_is_too_long_is_no_toml_of_ours(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "version = " + "1" * 5000)
    assert "garlicfarm.toml: not TOML: " in problem


def test_nested_text_in_the_environment_is_a_text(tmp_path: Path) -> None:
    for text in ("[" * DEEP + "]" * DEEP, "{x" + ".a" * DEEP + " = 1}"):
        config = load_text(tmp_path, SMALLEST, GARLICFARM_TRANSPORT__WSS__CA=text)
        assert config.transport["wss"]["ca"] == text


def test_load_not_toml_names_file_and_line(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "version = \n")
    assert "garlicfarm.toml: not TOML: Invalid value (at line 1" in problem
    (tmp_path / "latin.toml").write_bytes(b"# \xe4")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 2"):
        load(tmp_path / "latin.toml", {})
    with pytest.raises(ConfigError, match=r"cannot read .*absent\.toml: No such file"):
        load(tmp_path / "absent.toml", {})


PUBLISHER = """
[[farm.publisher]]
plugin = "sam"
required = false
address = "127.0.0.1:7656"
"""


def test_publisher_gets_the_keys_that_are_not_the_nodes(tmp_path: Path) -> None:
    variables = {"GARLICFARM_FARM__0__PUBLISHER__0__TARGET": "127.0.0.1:80"}
    config = load_text(tmp_path, SMALLEST + PUBLISHER, **variables)
    (publisher,) = config.farm[0].publisher
    assert (publisher.plugin, publisher.required, publisher.check_threshold) == ("sam", False, 3)
    assert publisher.options == {"address": "127.0.0.1:7656", "target": "127.0.0.1:80"}
    assert source(config, "farm[0].publisher[0].address") == "file"
    assert source(config, "farm[0].publisher[0].target").endswith("__TARGET")


def test_publisher_named_options_is_a_key_of_the_plugin(tmp_path: Path) -> None:
    config = load_text(tmp_path, SMALLEST + PUBLISHER + "options = { a = 1 }\n")
    assert config.farm[0].publisher[0].options["options"] == {"a": 1}


def test_environment_overrides_file(tmp_path: Path) -> None:
    config = load_text(
        tmp_path,
        FULL,
        GARLICFARM_NODE__ID="3",
        GARLICFARM_NODE__DATA_DIR="7",
        GARLICFARM_LOG__LEVEL="warning",
        GARLICFARM_LISTENER__1__URL="i2p://127.0.0.1:1",
        GARLICFARM_FARM__MY_FARM__RAFT__HEARTBEAT_S="2.5",
        GARLICFARM_FARM__1__ALGORITHMS='["MD5"]',
        GARLICFARM_FARM__0__ROUTER__TIMEOUT_S="4",
        GARLICFARM_FARM__0__LEAF__0__DESTINATION="~" + "A" * 515,
        GARLICFARM_TRANSPORT__SSL__CA="ca.pem",
        GARLICFARM_TRANSPORT__WSS__DEEP__KEY="true",
        GARLICFARM_CONFIG="ignored",
        GARLICFARMER__X="ignored",
    )
    assert config.node.id == 3
    assert config.node.data_dir == tmp_path / "7"
    assert config.log.level == "warning"
    assert config.listener[1].url == "i2p://127.0.0.1:1"
    assert config.farm[0].raft.heartbeat_s == 2.5
    assert config.farm[1].algorithms == ("MD5",)
    assert config.farm[0].router["timeout_s"] == 4
    assert config.farm[0].leaf[0].destination == "~" + "A" * 515
    assert config.transport["ssl"]["ca"] == "ca.pem"
    assert config.transport["wss"] == {"deep": {"key": True}}
    assert source(config, "node.id") == "environment GARLICFARM_NODE__ID"
    assert source(config, "transport.wss.deep.key") == "environment GARLICFARM_TRANSPORT__WSS__DEEP__KEY"
    assert source(config, "transport.ssl.certificate") == "file"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("GARLICFARM_NODEE__ID", "nodee: no such key; did you mean 'node'?"),
        (
            "GARLICFARM_NODE__",
            "node.: no such key; allowed here: id, data_dir, preset, shutdown_timeout_s, scrub_every",
        ),
        ("GARLICFARM_NODE__ID__X", "node.id is a value, not a table"),
        ("GARLICFARM_FARM__0", "farm[0] is a table; name a key of it"),
        ("GARLICFARM_FARM__0__META", "farm[0].meta is a table; name a key of it"),
        ("GARLICFARM_FARM__0__ROUTER", "farm[0].router is a table; name a key of it"),
        ("GARLICFARM_FARM__2__NAME", "2 names none of the 1 tables [[farm]] in the file"),
        ("GARLICFARM_FARM__OTHER__NAME", "OTHER names none of the 1 tables [[farm]] in the file"),
        ("GARLICFARM_FARM__NAME", "NAME names none of the 1 tables [[farm]] in the file"),
        ("GARLICFARM_VERSION__X", "version is a value, not a table"),
    ],
)
def test_environment_names_nothing_is_refused(tmp_path: Path, name: str, expected: str) -> None:
    found = problems(tmp_path, SMALLEST, **{name: "1"})
    assert found == [f"{name} in the environment: {expected}"]


def test_environment_name_of_two_farms_is_ambiguous(tmp_path: Path) -> None:
    text = SMALLEST + '[[farm]]\nname = "a.b"\nendpoint = "ssl://h:1"\n' * 1
    text += '[[farm]]\nname = "a-b"\nendpoint = "ssl://h:1"\n'
    found = problems(tmp_path, text, GARLICFARM_FARM__A_B__APPLICATION="log")
    assert "A_B names more than one of the 3 tables [[farm]]" in found[0]


def test_environment_bad_value_names_the_variable(tmp_path: Path) -> None:
    found = problems(tmp_path, SMALLEST, GARLICFARM_NODE__ID="three")
    assert found == [
        'node.id (from the environment GARLICFARM_NODE__ID): "three" is not allowed; '
        "it must be a whole number from 1 to 2147483647"
    ]


def test_effective_lists_every_value_with_its_source(tmp_path: Path) -> None:
    config = load_text(tmp_path, FULL, GARLICFARM_LOG__FORMAT="text")
    expected = {
        "version": "file",
        "node.data_dir": "file",
        "log.format": "environment GARLICFARM_LOG__FORMAT",
        "farm[0].raft.heartbeat_s": "file",
        "farm[0].raft.rpc_timeout_s": "preset i2p",
        "farm[0].router.url": "file",
        "farm[0].raft.max_entry_bytes": "default",
        "farm[1].secret_file": "default",
        "farm[1].meta.key_file": "default",
    }
    assert {key: source(config, key) for key in expected} == expected
    keys = [origin.key for origin in config.effective()]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("", 5.0),
        ("election_timeout_max_s = 9", 9.0),
        ("election_timeout_min_s = 0.5\nelection_timeout_max_s = 1\nheartbeat_s = 0.1", 5.0),
        ("disk_timeout_s = 0.5", 0.5),
    ],
)
def test_load_disk_timeout_is_by_default_not_below_the_election_timeout(tmp_path, table, expected):
    config = load_text(tmp_path, f"{SMALLEST}[farm.raft]\n{table}\n")
    assert config.farm[0].raft.disk_timeout_s == expected
    assert source(config, "farm[0].raft.disk_timeout_s") == ("file" if "disk" in table else "default")


@pytest.mark.parametrize(
    ("preset", "table", "expected", "origin"),
    [
        ("clearnet", "", 1.5, "default"),
        ("clearnet", "election_timeout_max_s = 9", 9.0, "default"),
        ("i2p", "", 20.0, "preset i2p"),
        ("i2p", "election_timeout_max_s = 30", 20.0, "preset i2p"),
        ("i2p", "election_timeout_min_s = 15\nelection_timeout_max_s = 18", 18.0, "default"),
        ("i2p", "heartbeat_s = 5.1", 40.0, "default"),  # less than two in the lower election timeout
        ("i2p", "least_election_timeout_s = 10.5", 10.5, "file"),
        ("clearnet", "least_election_timeout_s = 3600", 3600.0, "file"),
    ],
)
def test_load_least_election_timeout_is_by_default_that_of_the_preset_where_heartbeats_allow(
    tmp_path: Path, preset: str, table: str, expected: float, origin: str
) -> None:
    text = f"{SMALLEST}[farm.raft]\n{table}\n".replace("id = 1\n", f'id = 1\npreset = "{preset}"\n')
    config = load_text(tmp_path, text)
    assert config.farm[0].raft.least_election_timeout_s == expected
    assert source(config, "farm[0].raft.least_election_timeout_s") == origin


def test_load_election_timeout_that_is_not_allowed_is_one_problem(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, f"{SMALLEST}[farm.raft]\nelection_timeout_max_s = 4000\n")
    assert problem.startswith("farm[0].raft.election_timeout_max_s: 4000 is not allowed")


@given(st.floats() | st.integers() | st.booleans())
def test_load_any_heartbeat_is_taken_or_explained(value: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        taken = isinstance(value, int | float) and not isinstance(value, bool) and 0.01 <= value < 1
        text = f"{SMALLEST}[farm.raft]\nheartbeat_s = {str(value).lower()}\n"
        if taken:
            assert math.isclose(load_text(Path(directory), text).farm[0].raft.heartbeat_s, value)
        else:
            (problem,) = problems(Path(directory), text)
            assert problem.startswith("farm[0].raft.heartbeat_s: ")
            assert "it must be" in problem


def test_find_config_takes_the_first_that_exists(tmp_path: Path) -> None:
    home, here, given_path = tmp_path / "home", tmp_path / "here", tmp_path / "given.toml"
    in_home = home / ".config/garlicfarm/garlicfarm.toml"
    in_home.parent.mkdir(parents=True)
    here.mkdir()
    environ = {"HOME": str(home)}
    with pytest.raises(ConfigError) as caught:
        find_config(None, environ, here)
    assert caught.value.problems == (
        f"no configuration found (looked for {here / 'garlicfarm.toml'}, {in_home}, "
        "/etc/garlicfarm/garlicfarm.toml); run this in a node's directory, or name the file with --config or "
        "$GARLICFARM_CONFIG. `garlicfarm node init` makes a new farm, `garlicfarm node join` a new member of "
        "a farm",
    )
    in_home.touch()
    assert find_config(None, environ, here) == in_home
    (here / "garlicfarm.toml").touch()
    assert find_config(None, environ, here) == here / "garlicfarm.toml"
    given_path.touch()
    assert (
        find_config(None, {**environ, "GARLICFARM_CONFIG": "../given.toml"}, here) == here / "../given.toml"
    )
    assert find_config(in_home, {**environ, "GARLICFARM_CONFIG": str(given_path)}, here) == in_home


def test_find_config_given_file_absent_looks_no_further(tmp_path: Path) -> None:
    (tmp_path / "garlicfarm.toml").touch()
    with pytest.raises(ConfigError, match=r"no configuration file .*x\.toml \(given by --config\)"):
        find_config(Path("x.toml"), {}, tmp_path)
    with pytest.raises(
        ConfigError, match=r"no configuration file .*x\.toml \(given by \$GARLICFARM_CONFIG\)"
    ):
        find_config(None, {"GARLICFARM_CONFIG": "x.toml"}, tmp_path)
