"""What plans make of the routers of a private network."""

from __future__ import annotations

from pathlib import Path

import pytest

from garlicfarm.errors import ConfigError, RouterError
from garlicfarm.lab.i2pd import check_programs, make_i2pd
from garlicfarm.lab.i2pd_files import RouterPlan


@pytest.mark.i2pd
async def test_environment_names_the_program_that_runs_as_a_router(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the configuration that its plan makes."""
    program, called = tmp_path / "i2pd-of-mine", tmp_path / "called"
    program.write_text(f'#!/bin/sh\necho "$@" >{called}\nexit 7\n')
    program.chmod(0o700)
    monkeypatch.setenv("I2PD", str(program))
    check_programs()
    with pytest.raises(RouterError, match="status 7"):
        await make_i2pd(tmp_path / "routers", ["198.18.0.11"], [RouterPlan(carries_tunnels=False)])
    assert "\nnotransit = true\n" in (tmp_path / "routers" / "i2pd1" / "i2pd.conf").read_text()
    assert f"--datadir={tmp_path / 'routers' / 'i2pd1'}" in called.read_text()


@pytest.mark.parametrize(("caps", "is_floodfill"), [(b"X", False), (b"Xf", True)])
def test_router_is_introduced_once_it_says_whether_it_is_a_floodfill(
    tmp_path: Path, caps: bytes, is_floodfill: bool
) -> None:
    of_an_address = b"\4caps=\2BC;"
    (tmp_path / "router.info").write_bytes(of_an_address + b"\4caps=" + bytes([len(caps)]) + caps + b";")
    assert RouterPlan(is_floodfill=is_floodfill, has_leaf=False).has_keys(tmp_path)
    assert not RouterPlan(is_floodfill=not is_floodfill, has_leaf=False).has_keys(tmp_path)


def test_environment_that_names_no_program_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("I2PD", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=f"I2PD={tmp_path}/missing names no program"):
        check_programs()
