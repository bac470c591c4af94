"""The project's own wheel: what it installs, and nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement

from garlicfarm import __version__, revision
from tests.project.pages import ROOT

REVISION = "garlicfarm/_revision.txt"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Built as pip would build it, but without an isolated environment, which would be downloaded."""
    with zipfile.ZipFile(build(ROOT, tmp_path_factory.mktemp("dist"), "wheel")) as opened:
        yield opened


def build(source: Path, target: Path, kind: str, revision: str = "") -> Path:
    """What is built of ``source``: a wheel, or an sdist."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    environ = {**os.environ, "GARLICFARM_REVISION": revision}
    done = subprocess.run(command, cwd=source, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = target.iterdir()
    return path


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
    assert top - {info, info.replace(".dist-info", ".data")} == {"garlicfarm", found_by_spark} | folders
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


def test_wheel_installs_manual_pages_and_completion(wheel: zipfile.ZipFile) -> None:
    installed = {name.partition(".data/data/")[2] for name in wheel.namelist() if ".data/" in name}
    assert installed == {
        str(path.relative_to(ROOT)) for path in (ROOT / "share").rglob("*") if path.is_file()
    }
    assert installed >= {"share/man/man1/garlicfarm.1", "share/zsh/site-functions/_garlicfarm"}


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


def test_wheel_says_which_commit_it_was_made_from(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    made_from = wheel.read(REVISION).decode().strip() if REVISION in wheel.namelist() else ""
    assert made_from == revision()
    assert not (ROOT / REVISION).exists()
    wheel.extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "garlicfarm", "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    assert done.stdout == f"garlicfarm {__version__}" + (f" ({made_from})" if made_from else "") + "\n"


@pytest.mark.slow
def test_wheel_of_a_source_distribution_is_that_of_the_tree_byte_for_byte(tmp_path: Path) -> None:
    for name in ("direct", "sdist", "unpacked", "wheel"):
        (tmp_path / name).mkdir()
    sdist = build(ROOT, tmp_path / "sdist", "sdist", "packaged-1")
    shutil.unpack_archive(sdist, tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    built = build(unpacked, tmp_path / "wheel", "wheel")
    with zipfile.ZipFile(built) as wheel:
        assert wheel.namelist().count(REVISION) == 1
        assert wheel.read(REVISION) == b"packaged-1\n"
    direct = build(ROOT, tmp_path / "direct", "wheel", "packaged-1")
    assert hashlib.sha256(built.read_bytes()).digest() == hashlib.sha256(direct.read_bytes()).digest()


def test_wheel_is_not_built_with_a_commit_that_no_handshake_can_carry(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="GARLICFARM_REVISION is 'a, b'"):
        build(ROOT, tmp_path, "wheel", "a, b")


@pytest.mark.parametrize("kind", ["wheel", pytest.param("sdist", marks=pytest.mark.slow)])
def test_distribution_built_twice_is_the_same_byte_for_byte(kind: str, tmp_path: Path) -> None:
    digests = set()
    for number, changed_s in enumerate((1, 2_000_000_000)):
        copy = tmp_path / f"copy-{number}"
        unneeded = shutil.ignore_patterns(".*", "__pycache__", "dist", "build", "lab")
        shutil.copytree(ROOT, copy, ignore=unneeded, copy_function=shutil.copyfile)
        shutil.copyfile(ROOT / ".gitignore", copy / ".gitignore")
        for path in [copy, *copy.rglob("*")]:
            path.chmod(0o700 if path.is_dir() else (0o644, 0o600)[number])
            os.utime(path, (changed_s, changed_s))
        target = tmp_path / f"dist-{number}"
        target.mkdir()
        built = build(copy, target, kind, "commit-1")
        digests.add((built.name, hashlib.sha256(built.read_bytes()).hexdigest()))
    assert len(digests) == 1


def test_wheel_has_a_bill_of_materials_that_is_valid_and_says_what_is_needed(wheel: zipfile.ZipFile) -> None:
    text = metadata(wheel, "sboms/garlicfarm.cdx.json")
    assert JsonStrictValidator(SchemaVersion.V1_7).validate_str(text) is None
    bill = json.loads(text)
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/garlicfarm@{__version__}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    developers = {"bench", "fuzz", "release", "test"}
    optional = [
        each
        for extra, needed in project["optional-dependencies"].items()
        if extra not in developers
        for each in needed
    ]
    declared = {(Requirement(each), "optional") for each in optional}
    declared |= {(Requirement(each), "required") for each in project["dependencies"]}
    rows = [(Requirement(each["bom-ref"]), each["scope"]) for each in bill["components"]]
    assert (len(rows), set(rows)) == (len(declared), declared)
    assert all(each["isExternal"] for each in bill["components"])  # the wheel bundles none of them
    (spark,) = {each["versionRange"] for each in bill["components"] if each["name"] == "pyspark"}
    assert spark == "vers:pypi/>=4.2|<5"
    (ours,) = bill["dependencies"]
    assert set(ours["dependsOn"]) == {each["bom-ref"] for each in bill["components"]}


@pytest.mark.parametrize("page", ["README.md", "docs/howto/three-machines.md"])
def test_page_installs_the_wheel_of_this_version(page: str) -> None:
    wheels = set(re.findall(r"garlicfarm-([\d.]+)-py3", (ROOT / page).read_text(encoding="utf-8")))
    assert wheels == {__version__}
