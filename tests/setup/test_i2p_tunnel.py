"""`i2p setup`: the tunnel in the router's configuration, its address in the node's; and what `node init` says
where there is a router."""

from __future__ import annotations

import socket
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from garlicfarm.cli import run
from garlicfarm.config import load
from garlicfarm.setup.i2p_tunnel import b32_address

Capture = pytest.CaptureFixture[str]

# As a router stores them: a destination of Ed25519 (391 bytes), then the private keys.
SIGNING_KEY = bytes.fromhex("03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8")
KEYS = bytes(range(32)) * 11 + SIGNING_KEY + bytes.fromhex("05000400070000") + bytes(range(32)) * 9
ADDRESS = "5wglh6tgecmnszusgys3ibbqx3w2apbk6adfbq2ctlpiwqiy6yba.b32.i2p"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that no configuration of this machine is found from."""
    (tmp_path / "tunnels").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("GARLICFARM_CONFIG", raising=False)
    monkeypatch.setattr("garlicfarm.cli.node.I2P_PROXY_PORT", 1)  # nobody listens there
    (tmp_path / "garlicfarm-farm.dat").write_bytes(KEYS)
    return tmp_path


def setup(*more: str) -> int:
    return run(["i2p", "setup", "--tunnels-dir", "tunnels", "--keys", "garlicfarm-farm.dat", *more])


def test_address_is_that_of_the_destination_alone(here: Path) -> None:
    assert b32_address(here / "garlicfarm-farm.dat") == ADDRESS


def test_setup_without_a_node_writes_the_tunnel_and_prints_the_endpoint(here: Path, capsys: Capture) -> None:
    assert setup() == 0
    output = capsys.readouterr()
    assert output.out == f"i2p://{ADDRESS}:27150\n"
    assert "systemctl reload i2pd" in output.err
    assert f"garlicfarm node init --endpoint i2p://{ADDRESS}:27150" in output.err
    lines = (here / "tunnels/garlicfarm-farm.conf").read_text().splitlines()
    assert "[garlicfarm-farm]" in lines
    for line in (
        "type = server",
        "host = 127.0.0.1",
        "port = 27150",
        "inport = 27150",
        "keys = garlicfarm-farm.dat",
    ):
        assert line in lines
    assert setup() == 0
    assert "reload" not in capsys.readouterr().err  # nothing changed


def test_node_init_with_the_endpoint_listens_on_loopback_and_takes_the_preset(
    here: Path, capsys: Capture
) -> None:
    assert run(["node", "init", "--endpoint", f"i2p://{ADDRESS}:27150"]) == 0
    assert "warning" not in capsys.readouterr().err
    config = load(here / "garlicfarm.toml", {})
    assert config.node.preset == "i2p"
    assert config.farm[0].raft.election_timeout_min_s == 20.0
    assert [each.url for each in config.listener] == ["i2p://127.0.0.1:27150"]
    before = (here / "garlicfarm.toml").read_bytes()
    assert setup() == 0
    assert (here / "garlicfarm.toml").read_bytes() == before
    assert "member set" not in capsys.readouterr().err


def test_setup_of_an_ssl_node_puts_endpoint_and_listener_into_its_configuration(
    here: Path, capsys: Capture
) -> None:
    assert run(["node", "init", "--id", "3", "--host", "a.example", "--port", "27150"]) == 0
    before = tomllib.loads((here / "garlicfarm.toml").read_text())
    assert setup() == 0
    after = tomllib.loads((here / "garlicfarm.toml").read_text())
    assert after["farm"][0]["endpoint"] == f"i2p://{ADDRESS}:27150"
    assert after["listener"] == [*before["listener"], {"url": "i2p://127.0.0.1:27151"}]
    after["farm"][0]["endpoint"], after["listener"] = before["farm"][0]["endpoint"], before["listener"]
    assert after == before
    assert "port = 27151\n" in (here / "tunnels/garlicfarm-farm.conf").read_text()
    assert f"garlicfarm member set 3 i2p://{ADDRESS}:27150" in capsys.readouterr().err


def test_setup_of_one_of_two_farms_leaves_the_other_alone(here: Path, capsys: Capture) -> None:
    assert run(["node", "init", "--host", "a.example"]) == 0
    file = here / "garlicfarm.toml"
    file.write_text(file.read_text() + '\n[[farm]]\nname = "two"\nendpoint = "ssl://a.example:27150"\n')
    assert setup() == 2
    assert "--farm: farm, two" in capsys.readouterr().err
    assert setup("--farm", "two") == 0
    farms = {farm.name: farm.endpoint for farm in load(file, {}).farm}
    assert farms["two"] == f"i2p://{ADDRESS}:27150"
    assert farms["farm"].startswith("ssl://a.example:27150?pin=")


def test_setup_waits_for_the_keys_and_gives_up_at_its_deadline(here: Path, capsys: Capture) -> None:
    (here / "garlicfarm-farm.dat").unlink()
    assert setup("--timeout", "0.3") == 124
    assert "has not made garlicfarm-farm.dat within 0.3 s" in capsys.readouterr().err


@pytest.mark.parametrize("contents", [b"", b"x" * 100, KEYS[:391], bytes(387)])
def test_setup_refuses_what_holds_no_keys(contents: bytes, here: Path, capsys: Capture) -> None:
    (here / "garlicfarm-farm.dat").write_bytes(contents)
    assert setup() == 2
    assert "holds no keys of an I2P destination" in capsys.readouterr().err


def test_setup_that_cannot_write_says_what_to_do(here: Path, capsys: Capture) -> None:
    assert run(["i2p", "setup", "--tunnels-dir", "missing", "--keys", "garlicfarm-farm.dat"]) == 2
    assert "cannot write missing/garlicfarm-farm.conf" in capsys.readouterr().err


def test_setup_for_java_prints_the_tunnel_and_writes_none(here: Path, capsys: Capture) -> None:
    assert run(["i2p", "setup", "--java"]) == 0
    output = capsys.readouterr()
    lines = dict(line.split("=", 1) for line in output.out.splitlines())
    assert lines["type"] == "server"
    assert (lines["targetHost"], lines["targetPort"]) == ("127.0.0.1", "27150")
    assert lines["privKeyFile"] == "garlicfarm-farm.dat"
    assert lines["option.i2p.streaming.limitsManuallySet"] == "true"
    assert "--keys" in output.err
    assert run(["i2p", "setup", "--java", "--keys", "garlicfarm-farm.dat"]) == 0
    assert capsys.readouterr().out.endswith(f"\ni2p://{ADDRESS}:27150\n")
    assert not list((here / "tunnels").iterdir())


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch, here: Path) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setattr("garlicfarm.cli.node.I2P_PROXY_PORT", proxy.getsockname()[1])
        yield


def test_node_init_beside_a_router_proposes_i2p_and_warns_of_ssl(
    router: None, here: Path, capsys: Capture
) -> None:
    assert run(["node", "init", "one", "--host", "a.example"]) == 0
    told = capsys.readouterr().err
    assert "warning: members, and observers" in told
    assert "garlicfarm i2p setup" in told
    assert run(["node", "init", "two", "--endpoint", f"i2p://{ADDRESS}:27150"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_node_init_with_the_preset_for_i2p_warns_of_ssl(here: Path, capsys: Capture) -> None:
    assert run(["node", "init", "--host", "a.example", "--preset", "i2p"]) == 0
    assert "garlicfarm i2p setup" in capsys.readouterr().err
