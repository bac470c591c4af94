"""The systemd unit: the file, what the command makes of it, the page and the exit codes agree."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from garlicfarm.cli.exits import NOT_TO_RESTART, Exit
from tests.cli.served import Cli

ROOT = Path(__file__).parents[2]
SHIPPED = files("garlicfarm.cli").joinpath("garlicfarm.service").read_text(encoding="utf-8")


@pytest.fixture
def printed(tmp_path: Path, cli: Cli) -> str:
    """The unit of a node in ``tmp_path / "node"``."""
    cli("node", "init", str(tmp_path / "node"))
    return str(cli("node", "unit", "--config", str(tmp_path / "node" / "garlicfarm.toml")).out)


def values(unit: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit, re.MULTILINE)


def test_unit_restarts_a_node_but_for_what_a_restart_cannot_mend() -> None:
    assert values(SHIPPED, "Restart") == ["always"]
    assert values(SHIPPED, "RestartPreventExitStatus") == [
        " ".join(str(int(code)) for code in NOT_TO_RESTART)
    ]
    assert set(NOT_TO_RESTART) == {Exit.USAGE, Exit.STORAGE, Exit.REMOVED}
    errors = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    assert f"RestartPreventExitStatus={values(SHIPPED, 'RestartPreventExitStatus')[0]}`" in errors


def test_unit_has_the_node_say_when_it_serves_and_can_reach_the_socket_for_that() -> None:
    assert values(SHIPPED, "Type") == ["notify"]
    assert values(SHIPPED, "NotifyAccess") == ["main"]
    assert values(SHIPPED, "TimeoutStartSec") == ["infinity"]  # a store may take long to open
    assert "AF_UNIX" in values(SHIPPED, "RestrictAddressFamilies")[0].split()


def test_unit_restarts_a_killed_node_within_half_a_second_and_never_gives_up() -> None:
    assert values(SHIPPED, "RestartSec") == ["500ms"]
    assert values(SHIPPED, "StartLimitIntervalSec") == ["0"]
    unit, _, service = SHIPPED.partition("[Service]")
    assert "StartLimitIntervalSec" in unit
    assert "StartLimitIntervalSec" not in service  # where systemd would ignore it


def test_guide_shows_the_unit_that_is_shipped() -> None:
    guide = (ROOT / "docs/howto/three-machines.md").read_text(encoding="utf-8")
    assert f"```ini\n{SHIPPED}```\n" in guide


def test_unit_that_is_printed_names_this_program_and_the_node(printed: str, tmp_path: Path) -> None:
    node = tmp_path / "node"
    program = Path(sys.executable).with_name("garlicfarm")
    assert values(printed, "ExecStart") == [f"{program} node start --config {node / 'garlicfarm.toml'}"]
    for key in ("WorkingDirectory", "ReadWritePaths", "RequiresMountsFor"):
        assert values(printed, key) == [str(node)]
    assert values(printed, "User") == [node.owner()]
    assert "/var/lib/garlicfarm" not in printed
    assert len(printed.splitlines()) == len(SHIPPED.splitlines())


@pytest.mark.parametrize("name", ["a node", "100%", 'the "node"'])
def test_path_that_systemd_would_read_otherwise_is_refused(name, tmp_path, cli):
    cli("node", "init", str(tmp_path / name))
    assert (
        "systemd needs a path without blanks"
        in cli("node", "unit", "--config", str(tmp_path / name / "garlicfarm.toml"), exits=2).err
    )


@pytest.mark.systemd
def test_unit_passes_systemds_own_check(printed: str, tmp_path: Path) -> None:
    unit = tmp_path / "garlicfarm.service"
    unit.write_text(printed)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.systemd
def test_unit_exposes_little_by_systemds_own_judgement(tmp_path: Path) -> None:
    unit = tmp_path / "garlicfarm.service"
    unit.write_text(SHIPPED)  # that of a node whose user is not root
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=16", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def installed(cli: Cli, node: Path, root: Path, name: str = "garlicfarm", exits: int = 0) -> Any:
    config = node / "garlicfarm.toml"
    return cli(
        *("systemd", "install", "--root", str(root), "--name", name, "--config", str(config)), exits=exits
    )


@pytest.mark.systemd
def test_unit_is_installed_into_a_system_and_starts_at_its_next_boot(
    printed: str, tmp_path: Path, cli: Cli
) -> None:
    (root := tmp_path / "root").mkdir()
    units = root / "etc/systemd/system"
    assert installed(cli, tmp_path / "node", root).out == f"{units}/garlicfarm.service\n"
    assert (units / "garlicfarm.service").read_text() == printed
    assert (units / "multi-user.target.wants/garlicfarm.service").is_symlink()
    installed(cli, tmp_path / "node", root)  # as after an upgrade


@pytest.mark.systemd
def test_unit_of_another_node_is_left_as_it_is(printed: str, tmp_path: Path, cli: Cli) -> None:
    (root := tmp_path / "root").mkdir()
    cli("node", "init", str(tmp_path / "other"))
    installed(cli, tmp_path / "node", root)
    assert "runs something else" in installed(cli, tmp_path / "other", root, exits=2).err
    assert (root / "etc/systemd/system/garlicfarm.service").read_text() == printed
    installed(cli, tmp_path / "other", root, name="garlicfarm-other")


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a b", "../x"])
def test_name_that_is_none_of_a_unit_is_refused(name: str, tmp_path: Path, cli: Cli) -> None:
    cli("node", "init", str(tmp_path / "node"))
    assert "a unit's name has" in installed(cli, tmp_path / "node", tmp_path, name=name, exits=2).err
    assert not (tmp_path / "etc").exists()
