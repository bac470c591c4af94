"""The project's own wheel: what it installs, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from typing import Any

import pytest

from garlicfarm import __version__
from tests.project.pages import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Built as pip would build it, but without an isolated environment, which would be downloaded."""
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = target.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = (each for each in wheel.namelist() if each.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


def test_wheel_top_level_is_the_package_and_every_plugin_folder(wheel: zipfile.ZipFile) -> None:
    top = {name.split("/")[0] for name in wheel.namelist()}
    (info,) = {name for name in top if name.endswith(".dist-info")}
    assert re.fullmatch(r"garlicfarm-[0-9.]+\.dist-info", info)
    folders = {
        each.parent.name for kind in ("transports", "plugins") for each in ROOT.glob(f"{kind}/*/__init__.py")
    }
    found_by_spark = "pyspark_garlicfarm.py"
    assert top - {info} == {"garlicfarm", found_by_spark} | folders
    assert folders >= {"garlicfarm_transport_ssl", "garlicfarm_plugin_i2pcontrol"}
    assert all(re.fullmatch(r"garlicfarm_(transport|plugin)_[a-z0-9]+", folder) for folder in folders)


def test_wheel_holds_every_module_the_typing_marker_and_the_dashboard(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert "garlicfarm/py.typed" in names
    modules = {str(path.relative_to(ROOT)) for path in ROOT.glob("garlicfarm/**/*.py")}
    page = {str(path.relative_to(ROOT)) for path in ROOT.glob("garlicfarm/admin/[a-z]*/*.[hcj]*")}
    assert len(page) >= 4
    assert (modules | page) - names == set()
    assert "garlicfarm/cli/garlicfarm.service" in names
    assert not [name for name in names if "tests/" in name or name.endswith(".pyc")]


def test_wheel_entry_points_lead_to_modules_inside_it(wheel: zipfile.ZipFile) -> None:
    points: Any = ConfigParser()
    points.optionxform = str
    points.read_string(metadata(wheel, "entry_points.txt"))
    groups = [group for group in points.sections() if group.startswith("garlicfarm.")]
    assert "garlicfarm.transports" in groups
    assert "garlicfarm.routers" in groups
    names = set(wheel.namelist())
    for group in [*groups, "console_scripts"]:
        for name, value in points[group].items():
            module = value.split(":")[0].replace(".", "/")
            assert {f"{module}.py", f"{module}/__init__.py"} & names, f"{group} {name} = {value}"


def test_wheel_metadata_is_that_of_the_project(wheel: zipfile.ZipFile) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = metadata(wheel, "METADATA")
    assert "\nName: garlicfarm\n" in text
    assert f"\nRequires-Python: {project['requires-python']}\n" in text
    required = set(re.findall(r"^Requires-Dist: ([a-z0-9-]+)(?:\[[a-z]+\])?[^;\n]*$", text, re.MULTILINE))
    assert required == {re.match(r"[a-z0-9-]+", each)[0] for each in project["dependencies"]}


@pytest.mark.parametrize("page", ["README.md", "docs/howto/three-machines.md"])
def test_page_installs_the_wheel_of_this_version(page: str) -> None:
    wheels = set(re.findall(r"garlicfarm-([\d.]+)-py3", (ROOT / page).read_text(encoding="utf-8")))
    assert wheels == {__version__}
