"""A node moves between transports by one line of its configuration; what is wrong is told by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from garlicfarm.cli import run
from garlicfarm.errors import PluginError
from garlicfarm.feed import Feed
from garlicfarm.lab.processes import free_ports
from garlicfarm.plugins import FEEDS, load_plugin
from garlicfarm.raft import Change, ConfChange
from garlicfarm.wire.messages import ClusterServer
from tests.node.support.cluster import Cluster, cluster, member
from tests.running import wait_until
from tests.transports.connect_proxy import B32, connect_proxy
from tests.transports.nginx import nginx

MOVED = 3


async def move(farm: Cluster, listen: str, endpoint: str) -> None:
    """Change the one line of node 3, restart it, and let the farm dial it at ``endpoint``."""
    await farm.stop(MOVED)
    file = farm.directories[MOVED] / "garlicfarm.toml"
    lines = file.read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines) if line.startswith("url = ") and "https://" not in line]
    lines[number] = f'url = "{listen}"'
    file.write_text("\n".join([*lines, ""]))
    await farm.start(MOVED)
    leader = await farm.leader(1, 2)
    change = ConfChange(Change.SET, ClusterServer(MOVED, endpoint))
    index, _ = await farm.replica(leader).membership.change(change)
    await farm.applied(index)
    await wait_until(lambda: farm.replica(leader).peers.is_connected(MOVED))
    index, _ = await farm.node(MOVED).farms["farm"].post(endpoint.encode(), "alice")
    await farm.applied(index)


@pytest.mark.nginx
@pytest.mark.slow
async def test_node_moves_from_ssl_to_i2p_to_wss_and_back_by_one_line(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with nginx(tmp_path / "nginx", {"/farm": f"http://127.0.0.1:{port}"}) as (front, pin):
        async with connect_proxy() as proxy, cluster(tmp_path, 3, start=False) as farm:
            farm.environ["GARLICFARM_TRANSPORT__I2P__PROXY"] = proxy.url
            proxy.names[B32[MOVED]] = port
            await farm.start()
            await farm.leader()
            first = farm.endpoint(MOVED)
            await move(farm, f"i2p://127.0.0.1:{port}", f"i2p://{B32[MOVED]}:27150")
            assert proxy.heads
            await move(farm, f"wss://127.0.0.1:{port}", f"wss://127.0.0.1:{front}?path=%2Ffarm&pin={pin}")
            await move(farm, f"ssl://{first.host}:{first.port}", str(first))


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ("i3p", ["no plugin 'i3p'", "did you mean 'i2p'?", "installed: i2p, jraft, ssl, wss"]),
        ("nothing", ["no plugin 'nothing'", "installed: i2p, jraft, ssl, wss"]),
    ],
)
@pytest.mark.usefixtures("logging_restored")
def test_listener_of_an_unknown_scheme_is_a_configuration_error(
    scheme: str, words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["node", "init", str(tmp_path), "--host", "a.example"]) == 0
    file = tmp_path / "garlicfarm.toml"
    file.write_text(file.read_text().replace('url = "ssl://0.0.0.0', f'url = "{scheme}://127.0.0.1'))
    capfd.readouterr()
    for command in (["config", "check"], ["node", "start"]):
        assert run([*command, "--config", str(file)]) == 2
        told = capfd.readouterr().err
        assert all(word in told for word in words), told


NO_TLS = "without TLS, only loopback is allowed; listen on "
CERTIFICATE = 'certificate = "data/tls/node.crt"\nprivate_key = "data/tls/node.key"\n'
NO_HANDSHAKE = "has no handshake; it may listen on loopback only"


@pytest.mark.parametrize(
    ("lines", "become", "problem"),
    [
        ('url = "ssl://', 'url = "i2p://', f"{NO_TLS}i2p://127.0.0.1:27150, behind a server tunnel"),
        ('url = "ssl://', 'url = "wss://', f"{NO_TLS}wss://127.0.0.1:27150, behind a reverse proxy"),
        ('url = "ssl://', 'url = "jraft://', f"jraft://0.0.0.0:27150: jraft {NO_HANDSHAKE}"),
        (CERTIFICATE, "", "cannot listen on ssl://0.0.0.0:27150 without a certificate; set it in"),
    ],
)
@pytest.mark.usefixtures("logging_restored")
def test_listener_that_cannot_start_is_refused_by_the_check_in_the_same_words(
    lines: str, become: str, problem: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["node", "init", str(tmp_path), "--host", "a.example"]) == 0
    file = tmp_path / "garlicfarm.toml"
    text = file.read_text()
    assert lines in text
    file.write_text(text.replace(lines, become, 1))
    capfd.readouterr()
    told = []
    for command in (["config", "check"], ["node", "start"]):
        assert run([*command, "--config", str(file)]) == 2
        told.append(capfd.readouterr().err)
        assert problem in told[-1]
    assert told[0] == told[1]


def test_plugin_whose_extra_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith(("garlicfarm_plugin_dafka", "zmq"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(PluginError, match=r"pip install 'garlicfarm\[dafka\]'") as caught:
        load_plugin(FEEDS, "dafka", Feed)  # type: ignore[type-abstract]
    assert caught.value.distribution == "garlicfarm"


async def test_member_of_a_scheme_that_is_not_installed_is_told_of_and_the_others_do_without(
    tmp_path: Path,
) -> None:
    members = {1: member(), 2: member(), 3: member("nothing")}
    async with cluster(tmp_path, 3, members=members, start=False) as farm:
        await farm.start(1, 2)
        leader = await farm.leader()
        await wait_until(lambda: "no plugin 'nothing'" in str(farm.replica(leader).peers.error(3)))
        index, _ = await farm.node(leader).farms["farm"].post(b"one", "alice")
        await farm.applied(index)
