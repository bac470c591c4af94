"""`garlicfarm router show` with the plugin: i2pd, Java I2P, and a router that does not answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from garlicfarm.cli import run
from garlicfarm_plugin_i2pcontrol import I2PControlRouter

Capture = pytest.CaptureFixture[str]

CONFIGURATION = """
version = 1
[node]
id = 1
[[listener]]
url = "ssl://127.0.0.1:27150"
[[farm]]
name = "farm"
endpoint = "ssl://127.0.0.1:27150"
[farm.router]
plugin = "i2pcontrol"
url = "{url}"
password_file = "{password_file}"
"""


@pytest.fixture
def show(tmp_path: Path, password_file: Path) -> Callable[..., Any]:
    """Run the command, which has a Trio of its own, while the server of the test answers."""

    async def show(url: str, *arguments: str) -> int:
        path = tmp_path / "garlicfarm.toml"
        path.write_text(CONFIGURATION.format(url=url, password_file=password_file))
        command = ["router", "show", "--config", str(path), *arguments]
        return await trio.to_thread.run_sync(run, command)

    return show


def rows(capsys: Capture) -> list[tuple[str, Any, str]]:
    body = json.loads(capsys.readouterr().out)
    return [(row["key"], row["value"], row["origin"]) for row in body["rows"]]


async def test_i2pd_is_shown_with_the_question_behind_each_figure(control_server, show, capsys):
    assert await show(control_server.url, "-o", "json") == 0
    assert rows(capsys) == [
        ("router.lastPublishedRI", None, "not reported"),
        ("router.uptime", 214_000, "RouterInfo i2p.router.uptime"),
        ("router.jobLag", None, "not reported"),
        ("router.exploratoryTunnels", None, "not reported"),
        ("router.participatingTunnels", 23, "RouterInfo i2p.router.net.tunnels.participating"),
        ("router.configuredBandwidth.in", 1_024_000_000, "NetworkSetting i2p.router.net.bw.in"),
        ("router.configuredBandwidth.out", 1_024_000_000, "NetworkSetting i2p.router.net.bw.out"),
        ("router.currentBandwidth.in", 3540, "RouterInfo i2p.router.net.bw.inbound.15s"),
        ("router.currentBandwidth.out", 4534, "RouterInfo i2p.router.net.bw.outbound.15s"),
    ]


async def test_java_is_shown_with_its_job_lag(java_server, show, capsys: Capture) -> None:
    assert await show(java_server.url, "-o", "json") == 0
    assert ("router.jobLag", 2, "GetRate jobQueue.jobLag") in rows(capsys)


async def test_origins_are_questions_that_are_asked_or_the_file(java_server, show, make) -> None:
    assert await show(java_server.url) == 0
    await make(url=java_server.url).get_local_leaf_status(bytes(391))
    asked = {
        f"{request['method']} {name}"
        for request in java_server.requests
        for name in [*request["params"], request["params"].get("Stat")]
    }
    assert set(I2PControlRouter.origins.values()) <= asked | {"the file router_info"}


async def test_router_down_shows_nothing_reported_and_exits_1(show, closed_port, capsys):
    assert await show(f"https://127.0.0.1:{closed_port}") == 1
    output = capsys.readouterr()
    assert len(output.out.splitlines()) == 8
    assert all(line.endswith("not reported") for line in output.out.splitlines()[1:])
    told = f"error: farm farm: I2PControl at 127.0.0.1:{closed_port} cannot be reached: Connection refused\n"
    assert output.err == told


async def test_wrong_password_is_told_in_one_sentence(control_server, show, wrong_password, capsys):
    assert await show(control_server.url) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: farm farm: I2PControl at 127.0.0.1")
    assert "(in i2pd.conf: password of [i2pcontrol]; Java I2P's is itoopie until" in line
    assert line.endswith(") into password_file, and start again")


async def stay_silent(stream: trio.abc.Stream) -> None:
    await trio.sleep_forever()


async def test_silent_router_is_given_up_after_the_nodes_own_time(control_server, show, capsys, monkeypatch):
    monkeypatch.setattr("garlicfarm.router.STATUS_TIMEOUT_S", 0.2)
    control_server.raw = stay_silent
    assert await show(control_server.url) == 1
    assert "did not answer within 0 s" in capsys.readouterr().err


async def test_silent_router_is_given_up_after_timeout_with_124(control_server, show, capsys):
    control_server.raw = stay_silent
    assert await show(control_server.url, "--timeout", "0.2") == 124
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "error: --timeout of 0.2 s passed: the router has not answered every question\n"
