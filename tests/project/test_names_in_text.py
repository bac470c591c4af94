"""What a text names by its path or module is there: files of this repository, and names of its packages."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.project.pages import ROOT

TOPS = ("benchmarks", "docs", "examples", "garlicfarm", "plugins", "tests", "tools", "transports")
PAGES = ("CONTRIBUTING.md", "README.md")
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
NO_MODULES = {"garlicfarm.toml", "garlicfarm.applications", *GROUPS}
SUFFIXES = {".md", ".py", ".sh", ".toml", ".yaml"}

_PATH = re.compile(rf"(?<![\w./-])((?:{'|'.join(TOPS)})(?:/[\w-]+)+\.(?:py|md))\b")
_NAME = re.compile(r"`(garlicfarm(?:\.\w+)+)[`(]")


def texts(top: str) -> Iterator[tuple[Path, str]]:
    path = ROOT / top
    for found in [path] if path.is_file() else sorted(path.rglob("*")):
        if found.suffix in SUFFIXES and "data" not in found.parts:
            yield found, found.read_text(encoding="utf-8")


def is_there(name: str) -> bool:
    """Whether a dotted name is a module, or what a module or a class in it holds."""
    parts = name.split(".")
    modules = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    module = next(each for each in modules if _is_module(each))
    found: object = import_module(module)
    for part in parts[module.count(".") + 1 :]:
        slots = getattr(found, "__annotations__", {})
        if not hasattr(found, part):
            return part in slots
        found = getattr(found, part)
    return True


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # what is before the last dot is no package
        return False


@pytest.mark.parametrize("top", [*TOPS, *PAGES])
def test_named_files_and_modules_are_there(top: str) -> None:
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in texts(top)
        for name in {*_PATH.findall(text), *_NAME.findall(text)} - NO_MODULES
        if not ((ROOT / name).exists() if "/" in name else is_there(name))
    ]
    assert missing == []


def test_what_is_not_there_is_found() -> None:
    named = ("farm.fold", "raft.RawNode.nothing", "raft.RawNode.step", "wire")
    assert [is_there(f"garlicfarm.{name}") for name in named] == [False, False, True, True]
    assert _PATH.findall(f"see {TOPS[0]}/gone.py, a/{TOPS[0]}/x.py") == [f"{TOPS[0]}/gone.py"]
