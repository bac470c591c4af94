"""`config export` and `config import`: one template, many nodes; and what `config check` warns of."""

from __future__ import annotations

import resource
import tomllib
from pathlib import Path

import pytest

from garlicfarm.cli import run
from garlicfarm.config import load
from garlicfarm.i2p.encoding import encode
from garlicfarm.lab.destinations import simulated_destination
from garlicfarm.setup.provision import FarmPlan, MemberPlan, create_farm

Capture = pytest.CaptureFixture[str]
MASTER, LEAF, OTHER = (encode(simulated_destination(number)) for number in (1, 2, 3))


def make_nodes(directory: Path, *endpoints: str, **plan: str) -> list[Path]:
    """The configuration files of the nodes of a new farm."""
    members = {
        node_id: MemberPlan(endpoint=endpoint, router={"plugin": "simulated", "seed": 1}, leaves=(LEAF,))
        for node_id, endpoint in enumerate(endpoints, 1)
    }
    made = create_farm(directory / "farm", members, FarmPlan(raft={"priority": 3}, **plan))  # type: ignore[arg-type]
    return [path / "garlicfarm.toml" for path in made.directories.values()]


def test_template_of_one_node_makes_the_others(tmp_path, capsys, monkeypatch):
    one, two = make_nodes(tmp_path, "ssl://a.example:27150", "ssl://b.example:27151", master=MASTER)
    assert run(["config", "export", "--config", str(one)]) == 0
    told = capsys.readouterr()
    own = ["node.id", "farm[0].endpoint", "farm[0].raft.priority", "farm[0].leaf[0].destination"]
    assert told.err == f"left out: {', '.join(own)}\n"
    for secret in ("a.example", "pin=", LEAF, str(tmp_path)):
        assert secret not in told.out
    template = tmp_path / "template.toml"
    template.write_text(told.out)
    directory = tmp_path / "new"
    directory.mkdir()
    monkeypatch.chdir(directory)
    asked = load(two, {})
    values = {
        "node.id": "2",
        "farm[0].endpoint": asked.farm[0].endpoint,
        "farm.farm.leaf.0.destination": OTHER,
        "listener[0].url": "ssl://0.0.0.0:27151",
        "farm.FARM.raft.priority": "3",
        "transport.ssl.ca": "ca.pem",
    }
    settings = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    assert run(["config", "import", str(template), *settings]) == 0
    made = tomllib.loads((directory / "garlicfarm.toml").read_text())
    expected = tomllib.loads(two.read_text())
    expected["farm"][0]["leaf"] = [{"destination": OTHER}]
    expected["transport"]["ssl"]["ca"] = "ca.pem"
    assert made == expected
    assert run(["config", "import", str(template), *settings]) == 2
    assert "garlicfarm.toml exists already" in capsys.readouterr().err


def test_import_without_what_is_a_nodes_own_says_what_is_missing(tmp_path, capsys, monkeypatch):
    (one,) = make_nodes(tmp_path, "ssl://a.example:27150")
    monkeypatch.chdir(tmp_path)
    assert run(["config", "export", "--config", str(one)]) == 0
    (tmp_path / "template.toml").write_text(capsys.readouterr().out)
    assert run(["config", "import", "template.toml"]) == 2
    told = capsys.readouterr().err
    for key in ("node.id", "farm[0].endpoint", "farm[0].leaf[0].destination"):
        assert f"{key}: missing" in told
    assert not (tmp_path / "garlicfarm.toml").exists()


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("node.idd=3", "--set node.idd: node.idd: no such key; did you mean 'id'?"),
        ("farm[1].endpoint=ssl://a.example:1", "1 names none of the 1 tables [[farm]]"),
        ("farm.barn.endpoint=ssl://a.example:1", "BARN names none"),
        ("node=3", "node is a table; name a key of it"),
        ("node.id=0", "node.id: 0 is not allowed"),
        ("node.id", "must be KEY=VALUE"),
    ],
)
def test_setting_that_is_none_is_named(tmp_path, capsys, monkeypatch, setting, told):
    (one,) = make_nodes(tmp_path, "ssl://a.example:27150")
    monkeypatch.chdir(tmp_path)
    assert run(["config", "import", str(one), "--set", setting, "--out", "-"]) == 2
    shown = capsys.readouterr()
    assert told in shown.err
    assert shown.out == ""


def test_template_that_is_no_text_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "template.toml").write_bytes(b"version = 1\xff")
    assert run(["config", "import", "template.toml"]) == 2
    assert capsys.readouterr().err == "error: the template is not UTF-8 at byte 11\n"


def test_import_that_cannot_write_leaves_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("garlicfarm.config.template.fill", lambda template, settings: "x" * 100)
    (tmp_path / "template.toml").touch()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        assert run(["config", "import", "template.toml"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert capsys.readouterr().err == "error: cannot write garlicfarm.toml: File too large\n"
    assert not (tmp_path / "garlicfarm.toml").exists()


def test_export_leaves_secrets_of_plugins_out_and_takes_the_environment_in(tmp_path, capsys, monkeypatch):
    (one,) = make_nodes(tmp_path, "ssl://a.example:27150")
    with one.open("a") as file:
        file.write(
            '[transport."x+y"]\nApiToken = "t0ps"\npassword_file = "p"\nodd = [1.5, true, "\\u007f\\n"]\n'
            '[[farm.feed]]\nplugin = "queue"\nsecret = "b0ttom"\naddress = "a"\n'
        )
    monkeypatch.setenv("GARLICFARM_FARM__0__ROUTER__PASSWORD", "secr3t")
    monkeypatch.setenv("GARLICFARM_LOG__LEVEL", "debug")
    assert run(["config", "export", "--config", str(one)]) == 0
    told = capsys.readouterr()
    assert "t0ps" not in told.out + told.err
    assert "secr3t" not in told.out + told.err
    assert "b0ttom" not in told.out + told.err
    assert "farm[0].router.password" in told.err
    assert "farm[0].feed[0].secret" in told.err
    raw = tomllib.loads(told.out)
    assert raw["transport"]["x+y"] == {"password_file": "p", "odd": [1.5, True, "\x7f\n"]}
    assert raw["farm"][0]["feed"] == [{"plugin": "queue", "address": "a"}]
    assert raw["log"] == {"level": "debug"}


def test_text_that_no_terminal_shows_is_kept_by_a_printed_template(tmp_path, capsys):
    shown_as_escapes = "\x85\u2028\U000e0001\U000f0000é🙂"
    (one,) = make_nodes(tmp_path, "ssl://a.example:27150")
    with one.open("a") as file:
        file.write(f'[transport.x]\nodd = "\\u0001\\u007f{shown_as_escapes}"\n"token\\nid = 7" = "t0ps"\n')
    assert run(["config", "export", "--config", str(one)]) == 0
    template = capsys.readouterr().out
    expected = {"odd": f"\x01\x7f{shown_as_escapes}"}
    assert tomllib.loads(template)["transport"]["x"] == expected
    assert "id" not in tomllib.loads(template)
    settings = ("node.id=1", "farm[0].endpoint=ssl://a.example:27150", f"farm[0].leaf[0].destination={LEAF}")
    (tmp_path / "template.toml").write_text(template)
    words = [word for setting in settings for word in ("--set", setting)]
    assert run(["config", "import", str(tmp_path / "template.toml"), "--out", "-", *words]) == 0
    assert tomllib.loads(capsys.readouterr().out)["transport"]["x"] == expected


@pytest.mark.parametrize(
    ("endpoints", "master", "tied"),
    [
        (["ssl://a.example:27150", "ssl://192.0.2.7:27150"], MASTER, ["a.example", "192.0.2.7"]),
        (["ssl://127.0.0.1:27150", "ssl://a.example:27150"], "", ["a.example"]),
        (["i2p://aaaa.b32.i2p:1", "ssl://a.example:27150"], "", ["a.example"]),
        (["i2p://aaaa.b32.i2p:1", "i2p://bbbb.b32.i2p:1"], MASTER, []),
        (["ssl://127.0.0.1:27150", "ssl://localhost:27151"], MASTER, []),
    ],
)
def test_check_warns_of_clearnet_hosts_that_the_farm_ties_to_destinations(
    tmp_path: Path, capsys: Capture, endpoints: list[str], master: str, tied: list[str]
) -> None:
    one, *_ = make_nodes(tmp_path, *endpoints, master=master)
    run(["config", "check", "--config", str(one)])
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == len(tied)
    for line, host in zip(warnings, tied, strict=True):
        assert f"the clearnet host {host} of member" in line
        assert '"Privacy" in the documentation' in line
    page = Path(__file__).parents[2] / "docs/explanation/privacy.md"
    assert page.read_text(encoding="utf-8").startswith("# Privacy")


def test_check_does_not_warn_where_nothing_is_served_inside_i2p(tmp_path: Path, capsys: Capture) -> None:
    made = create_farm(tmp_path / "farm", {1: MemberPlan(endpoint="ssl://a.example:27150")})
    assert run(["config", "check", "--config", str(made.directories[1] / "garlicfarm.toml")]) == 0
    assert "warning" not in capsys.readouterr().err
