"""The declared interface: the doors export what `docs/reference/api.md` lists, and plugins and examples
import only what that page allows."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.project.pages import ROOT
from tests.project.test_doors import imports, is_private

PAGE = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
STABLE, _, OURS = PAGE.partition("## For plugins of this repository")


def rows(text: str) -> dict[str, set[str]]:
    """The tables' first column → the names in the second one."""
    lines = re.findall(r"^\| `([\w.]+)` \| ([^|]*) \|", text, re.M)
    assert len(lines) == len({module for module, _ in lines})
    return {module: set(re.findall(r"[\w-]+", names)) for module, names in lines}


DOORS, ROOMS_OF_PLUGINS = rows(STABLE), rows(OURS)


def strays(module: str, source: str) -> tuple[list[str], set[str]]:
    """What a module imports past the doors of the program, one sentence each; and what it imports by the list
    for plugins of this repository."""
    owner, found, reached = module.split(".")[0], [], set()
    for origin, name in imports(module, ast.parse(source)):
        if origin.split(".")[0] != "garlicfarm" and (
            owner == origin.split(".")[0] or not origin.startswith("garlicfarm_")
        ):
            continue
        if origin in DOORS and (not name or name in DOORS[origin]):
            continue
        if _short(owner) in ROOMS_OF_PLUGINS.get(origin, set()) and not is_private(name) and name != "*":
            reached.add(origin)
        else:
            found.append(f"{module} imports {name or 'all'} of {origin}, past the doors of api.md")
    return found, reached


def _short(package: str) -> str:
    return re.sub(r"garlicfarm_(plugin|transport)_", "", package)


def modules() -> dict[str, Path]:
    found = {}
    for folder in ("plugins", "transports", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            found[".".join(path.relative_to(ROOT / folder).with_suffix("").parts)] = path
    return found


def test_plugins_and_examples_import_by_the_doors_and_the_list_for_plugins_has_no_more() -> None:
    found: list[str] = []
    users: dict[str, set[str]] = defaultdict(set)
    for module, path in modules().items():
        past, reached = strays(module, path.read_text(encoding="utf-8"))
        found += past
        for origin in reached:
            users[origin].add(_short(module.split(".")[0]))
    assert found == []
    assert users == ROOMS_OF_PLUGINS


def test_names_are_listed_by_the_doors_and_by_packages_alone() -> None:
    """Elsewhere an underscore says what is private."""
    doors = {Path(spec.origin) for door in DOORS if (spec := find_spec(door)) is not None and spec.origin}
    listing = {
        path
        for folder in ("garlicfarm", "plugins", "transports")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__init__.py" and re.search("^__all__ =", path.read_text(encoding="utf-8"), re.M)
    }
    assert listing - doors == {ROOT / "plugins" / "pyspark_garlicfarm.py"}  # it lends Spark a name


@pytest.mark.parametrize("door", DOORS)
def test_door_exports_what_the_page_lists(door: str) -> None:
    assert set(import_module(door).__all__) == DOORS[door]
    if door != "garlicfarm_plugin_spark":  # its names need Spark
        for name in DOORS[door]:
            assert getattr(import_module(door), name) is not None


def test_packages_that_are_doors_import_nothing_until_a_name_is_asked_for() -> None:
    packages = [door for door in DOORS if "lazy_names(" in Path(find_spec(door).origin).read_text()]
    assert len(packages) >= 5
    program = f"import sys, {', '.join(packages)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    third_party = {"trio", "msgspec", "httpcore", "httpx", "pytest", "zmq", "pyspark", "cryptography"}
    assert third_party & set(done.stdout.split()) == set()


def test_each_example_is_a_first_file_of_the_documentation() -> None:
    page = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| [^|]+ \| `examples/(\w+)\.py` \|", page, re.M)
    assert sorted(named) == sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("file_feed", "from garlicfarm.raft import Entry"),
        ("file_feed", "from garlicfarm.feed import pages"),
        ("file_feed", "from garlicfarm.feed.contract import Feed"),
        ("follow", "from garlicfarm_plugin_dafka.farm_log import FarmLog"),
        ("garlicfarm_plugin_hooks", "from garlicfarm.raft import Entry"),
        ("garlicfarm_plugin_hooks", "from garlicfarm.plugins import load_plugin"),
        ("garlicfarm_plugin_hooks", "def late():\n    import garlicfarm.storage"),
        ("garlicfarm_plugin_hooks", "from garlicfarm_plugin_sam import SamPublisher"),
        ("garlicfarm_plugin_spark", "from garlicfarm.publishing.fold import _private"),
    ],
)
def test_import_past_the_doors_is_noticed(module: str, line: str) -> None:
    assert strays(module, line)[0] != []
