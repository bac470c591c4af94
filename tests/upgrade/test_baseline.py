"""The release that upgrades begin with: what is built, kept and run is 0.2.0 and nothing else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from garlicfarm.plugins import CONTRACTS
from tests.upgrade import baseline as built
from tests.upgrade.programs import ROOT, Program

pytestmark = [pytest.mark.upgrade, pytest.mark.history]


async def test_baseline_run_beside_this_tree_is_that_release_with_its_own_plugins(baseline: Program) -> None:
    assert (await baseline.run("--version")).out == f"garlicfarm, version {built.VERSION}\n"
    program = (
        "import sys; from importlib.metadata import entry_points\n"
        "for group in sys.argv[1:]:\n"
        "    for found in entry_points(group=group):\n"
        "        if found.dist.name == 'garlicfarm':\n"
        "            print(found.dist.version, sys.modules[found.load().__module__].__file__)"
    )
    groups = [group for group, _ in CONTRACTS.values()]
    found = await baseline.execute(program, *groups)
    assert len(found) > len(groups)
    for line in found:
        version, file = line.split(maxsplit=1)
        assert (version, Path(file).is_relative_to(baseline.directory or "")) == (built.VERSION, True)


async def test_wheel_that_is_damaged_is_built_anew_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = built.baseline_wheel(tmp_path)
    assert "is built: no wheel of it is kept here yet" in capsys.readouterr().out
    assert built.baseline_wheel(tmp_path) == wheel
    assert capsys.readouterr().out == ""
    for damage, reason in (
        (lambda: wheel.write_bytes(wheel.read_bytes()[:-1]), "is damaged: its SHA-256 is"),
        (lambda: wheel.with_suffix(".sha256").write_text(""), "is damaged: its SHA-256 is"),
        (lambda: wheel.with_suffix(".sha256").unlink(), "has no checksum beside it"),
        (wheel.unlink, "no wheel of it is kept here yet"),
    ):
        damage()
        assert built.baseline_wheel(tmp_path) == wheel
        assert reason in capsys.readouterr().out
        assert sorted(os.listdir(tmp_path)) == [built.BASELINE, "lock"]
    installed = built.install(wheel, tmp_path / "program")
    assert (await installed.run("--version")).out.endswith(f"{built.VERSION}\n")


def test_checkout_without_the_baseline_in_its_history_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = ["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", str(tmp_path / "shallow")]
    subprocess.run(clone, check=True, capture_output=True)
    for place in (tmp_path, tmp_path / "shallow"):
        monkeypatch.setattr(built, "ROOT", place)
        sentence = f"{built.BASELINE[:12]} (0.2.0) is not in git's history here: git fetch --unshallow"
        assert sentence in (built.why_unavailable() or "")
