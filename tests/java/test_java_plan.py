"""What a plan makes of a Java I2P router, before it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from garlicfarm.lab.i2pd_files import ClientTunnel
from garlicfarm.setup.i2p_tunnel import Tunnel
from tests.java.java_router import JavaPlan, why_unavailable


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    plan = JavaPlan(
        is_floodfill=False,
        has_proxy=True,
        has_sam=True,
        tunnels=(
            Tunnel("web", "127.0.0.1", 8080, 80, "web.dat"),
            ClientTunnel("abc.b32.i2p", 7001, "client.dat", to_port=80),
        ),
    )
    plan.configure(tmp_path / "router", "198.18.0.12", 1, 0, False)
    return tmp_path / "router"


def test_programs_of_a_router_are_numbered_without_a_gap(directory: Path) -> None:
    """It starts none behind a gap."""
    lines = (directory / "clients.config").read_text().splitlines()
    assert [line for line in lines if ".main=" in line] == [
        "clientApp.0.main=net.i2p.sam.SAMBridge",
        "clientApp.1.main=net.i2p.i2ptunnel.TunnelControllerGroup",
    ]


def test_tunnels_lead_where_the_plan_says(directory: Path) -> None:
    lines = set((directory / "i2ptunnel.config").read_text().splitlines())
    assert {"tunnel.0.type=httpclient", "tunnel.0.listenPort=4445", "tunnel.1.name=leaf"} <= lines
    assert {"tunnel.2.targetPort=8080", "tunnel.2.privKeyFile=web.dat"} <= lines
    assert {"tunnel.3.listenPort=7001", "tunnel.3.targetDestination=abc.b32.i2p:80"} <= lines
    assert "tunnel.4.name=" not in "".join(lines)


def test_router_that_was_killed_does_not_wait_for_another_process(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_I2P", str(directory))
    (directory / "router.ping").touch()
    command = JavaPlan().command(directory)
    assert not (directory / "router.ping").exists()
    assert "-Dgarlicfarm.address=198.18.0.12" in command


def test_directory_without_java_i2p_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_I2P", str(tmp_path))
    assert f"JAVA_I2P={tmp_path} has no lib/router.jar" in (why_unavailable() or "")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "router.jar").touch()
    assert f"JAVA_I2P={tmp_path} has no lib/own-address.jar" in (why_unavailable() or "")
