"""Programs that are this tree with something changed: a release to come, and releases with a mistake."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path

from garlicfarm.levels import HIGHEST
from tests.upgrade.programs import ROOT, TREE, Program

Edits = Mapping[str, Mapping[str, str]]
"""File of the tree → what stands there once, and is replaced → by what."""

FUTURE_VERSION = "9.0.0"
FUTURE_LEVEL = HIGHEST + 1
BROUGHT = "members can leave marks in the log"
FUTURE: Edits = {
    "garlicfarm/_version.py": {f'"{TREE.version}"': f'"{FUTURE_VERSION}"'},
    "garlicfarm/levels.py": {
        f"\nHIGHEST = {HIGHEST}\n": f"\nHIGHEST = {FUTURE_LEVEL}\n",
        '\n}\n"""What each level above': f'\n    {FUTURE_LEVEL}: "{BROUGHT}",\n}}\n"""What each level above',
    },
    "garlicfarm/publishing/administration.py": {
        "\nclass _Staleness(": "\nclass _Mark(msgspec.Struct):\n    text: str\n\n\nclass _Staleness(",
        '\n    "level": _Level,\n': '\n    "level": _Level,\n    "mark": _Mark,\n',
        '\nSINCE = {"level": 1,': f'\nSINCE = {{"mark": {FUTURE_LEVEL}, "level": 1,',
    },
}
"""A program that can level `FUTURE_LEVEL`, which brings the action ``mark`` with ``{"text": …}``."""


def edited_copy(directory: Path, edits: Edits, version: str = TREE.version) -> Program:
    """This tree's packages in ``directory``, which must not exist, with edits.

    Raises `ValueError`: what is to be replaced is not in its file, or not once. Then this tree has changed,
    and the edit has to change with it.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    directory.mkdir()
    moved: dict[Path, Path] = {}
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        source = ROOT / package
        moved[source] = directory / source.name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, moved[source])
    for name, replaced in edits.items():
        (package,) = (each for each in moved if (ROOT / name).is_relative_to(each))
        file = moved[package] / (ROOT / name).relative_to(package)
        text = file.read_text(encoding="utf-8")
        for old, new in replaced.items():
            if text.count(old) != 1:
                raise ValueError(f"{name} has {old!r} {text.count(old)} times")
            text = text.replace(old, new)
        file.write_text(text, encoding="utf-8")
    return Program(version, directory)


def program_to_come(directory: Path) -> Program:
    """The program `FUTURE`, in ``directory``, which must not exist."""
    return edited_copy(directory, FUTURE, FUTURE_VERSION)
