"""The doors between the rooms: who may import what. House rules, checked on the syntax tree.

`wire`, `http`, `raft`, `i2p` and `publishing` (and the errors that they raise) are pure: no I/O, no clock, no
randomness, so what they may import is a list of what is harmless, not of what is harmful. For each other room
there is a list of the rooms that it may import. No modules import each other in a circle. Only its own rooms
know the application `publisher`. Imports inside functions and under TYPE_CHECKING count.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.project.pages import ROOT

HARMLESS = {
    "__future__",
    "abc",
    "base64",
    "binascii",
    "bisect",
    "collections",
    "collections.abc",
    "dataclasses",
    "difflib",
    "enum",
    "functools",
    "hashlib",
    "heapq",
    "hmac",
    "http",  # HTTPStatus; its modules are named with it, and are not in this list
    "itertools",
    "json",
    "math",
    "operator",
    "re",
    "string",
    "struct",
    "types",
    "typing",
    "zlib",
    "msgspec",
    "msgspec.inspect",
    "msgspec.json",
    "msgspec.structs",
}
PURE_GROUND = {
    *("garlicfarm.errors", "garlicfarm.extensions", "garlicfarm.names", "garlicfarm.refusals"),
    *("garlicfarm.agreed", "garlicfarm.digests", "garlicfarm.levels", "garlicfarm.trouble"),
}
"""Pure modules without a room, which every room may import."""
DOORS: dict[str, set[str]] = {
    "agreed": set(),
    "errors": {"garlicfarm.refusals"},
    "extensions": set(),
    "leases": {"garlicfarm.wire.messages"},
    "digests": {"garlicfarm.levels"},
    "levels": {"garlicfarm._version"},
    "names": set(),
    "refusals": set(),
    "round_trips": set(),
    "trouble": set(),
    "wire": PURE_GROUND,
    "http": PURE_GROUND | {"h11"},
    "raft": PURE_GROUND | {"garlicfarm.wire", "garlicfarm.wire.messages"},
    "i2p": PURE_GROUND
    | {
        "cryptography.exceptions",
        # what makes keys takes their private keys
        "cryptography.hazmat.primitives.asymmetric.ec",
        "cryptography.hazmat.primitives.asymmetric.ed25519",
        "cryptography.hazmat.primitives.asymmetric.utils",
        "cryptography.hazmat.primitives.hashes",
    },
    "publishing": PURE_GROUND
    | {
        *("garlicfarm.wire", "garlicfarm.wire.messages"),
        *("garlicfarm.i2p.destination", "garlicfarm.i2p.encoding", "garlicfarm.i2p.lease_set"),
        "garlicfarm.i2p.router_kind",
        *("garlicfarm.leases", "garlicfarm.round_trips"),
    },
}
GROUND = {
    *(
        "_version",
        "agreed",
        "descriptors",
        "disk_space",
        "durable_files",
        "durations",
        "errors",
        "digests",
        "extensions",
        "leases",
        "levels",
        "logs",
        "metrics",
        "names",
    ),
    *("lazy_names", "printable", "refusals", "regular_files", "request_body", "round_trips", "trouble"),
}
ROOMS: dict[str, set[str]] = {
    "_version": set(),
    "__main__": {"cli"},
    "admin": {
        *("application", "config", "credentials", "feed", "http", "net", "publishing", "raft", "transport"),
        "wire",
    },
    "application": {"config", "credentials", "raft", "router", "wire"},
    "cli": {
        *("admin", "application", "client", "config", "credentials", "feed", "http", "i2p", "lab", "net"),
        *("node", "plugins", "publishing", "router", "setup", "storage", "transport", "wire"),
    },
    "client": {"config", "credentials", "feed", "http", "net", "plugins", "raft", "transport", "wire"},
    "config": {"i2p", "transport"},
    "credentials": {"config", "http", "i2p", "transport"},
    "descriptors": set(),
    "disk_space": set(),
    "durable_files": set(),
    "durations": set(),
    "feed": {"raft", "wire"},
    "lab": {"client", "credentials", "i2p", "setup"},
    "lazy_names": set(),
    "log_application": {"application"},
    "logs": set(),
    "metrics": set(),
    "net": {"credentials", "http", "i2p", "transport", "wire"},
    "node": {
        *("admin", "application", "config", "credentials", "feed", "http", "i2p", "log_application"),
        *("net", "plugins", "publisher", "publishing", "raft", "router", "storage", "transport", "wire"),
    },
    "plugin_settings": set(),
    "plugins": {"feed", "publisher", "router", "transport"},
    "printable": set(),
    "publisher": {"i2p", "publishing"},
    "regular_files": set(),
    "request_body": set(),
    "router": {"publishing"},
    "service_keys": {"credentials", "i2p", "publisher", "transport"},
    "setup": {
        *("application", "config", "credentials", "http", "i2p", "publishing", "raft", "storage"),
        *("transport", "wire"),
    },
    "storage": {"raft", "wire"},
    "testing": {
        *("application", "config", "credentials", "feed", "http", "i2p", "lab", "log_application"),
        *(
            "net",
            "node",
            "publisher",
            "publishing",
            "raft",
            "router",
            "setup",
            "storage",
            "transport",
            "wire",
        ),
    },
    "transport": set(),
}
"""Room → the rooms that it may import, beside `GROUND`."""
PUBLISHER_ROOMS = ("garlicfarm.publishing", "garlicfarm.node.publisher", "garlicfarm.testing.simulator")
TABLE_OF_APPLICATIONS = "garlicfarm.node.applications"
IMPURE_BUILTINS = {"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint"}
SILENCERS = re.compile(r"type:\s*ignore|noqa|(mypy|ruff|pyright)\s*:|pragma", re.IGNORECASE)


@cache
def module_file(module: str) -> Path | None:
    """The file of one of the project's own modules."""
    stem = ROOT.joinpath(*module.split("."))
    for path in (stem / "__init__.py", stem.with_suffix(".py")):
        if path.is_file():
            return path
    return None


def is_module(name: str) -> bool:
    if name.startswith("garlicfarm."):
        return module_file(name) is not None
    parent = name.rpartition(".")[0]
    if parent not in HARMLESS:  # refused as it is; and looking inside would import it
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the parent is no package
        return False


def imports(module: str, tree: ast.Module, *, package: bool = False) -> Iterator[tuple[str, str]]:
    """(module, name) of everything imported; name is "" where the module itself is, "*" for all."""
    for found in ast.walk(tree):
        if isinstance(found, ast.Import):
            for alias in found.names:
                yield alias.name, ""
        elif isinstance(found, ast.ImportFrom):
            origin = found.module or ""
            if found.level:
                parents = module.split(".")
                parents = parents[: len(parents) - found.level + package]
                origin = ".".join([*parents, *([origin] if origin else [])])
            for alias in found.names:
                inner = f"{origin}.{alias.name}"
                yield (inner, "") if alias.name != "*" and is_module(inner) else (origin, alias.name)


def comments(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def violations(module: str, source: str, *, package: bool = False) -> list[str]:
    """What is wrong with a module of the project, one sentence each."""
    tree = ast.parse(source)
    found: list[str] = []
    top, _, rest = module.partition(".")
    room = rest.partition(".")[0] if top == "garlicfarm" else ""
    inside = f"garlicfarm.{room}"
    for origin, name in imports(module, tree, package=package):
        what = f"{origin}.{name}" if name else origin
        own = origin == inside or origin.startswith(f"{inside}.")
        if room in DOORS and not own and origin not in HARMLESS | DOORS[room]:
            found.append(f"{room} imports {what}")
        if top == "garlicfarm" and room not in DOORS and not own:
            other = origin.split(".")[1] if origin.startswith("garlicfarm.") else ""
            if other and other not in GROUND | ROOMS.get(room, set()):
                found.append(f"{room} imports {what}")
        if _is_in(origin, "garlicfarm.node.publisher") and not (
            _is_in(module, "garlicfarm.node.publisher") or module == TABLE_OF_APPLICATIONS
        ):
            found.append(f"{module} imports {what}: only the table of applications names that room")
        if top == "garlicfarm" and re.match(r"garlicfarm_(transport|plugin)_", origin):
            found.append(f"{module} imports the plugin {what}")
    for each in ast.walk(tree):
        if _is_publisher_check(each) and not any(_is_in(module, room) for room in PUBLISHER_ROOMS):
            found.append(f"{module} asks whether an application is the publisher")
    if room in DOORS:
        for each in ast.walk(tree):
            if isinstance(each, ast.Name) and each.id in IMPURE_BUILTINS:
                found.append(f"{room} uses {each.id}")
        found += [f"{room} silences a checker: {text}" for text in comments(source) if SILENCERS.search(text)]
    return found


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _is_publisher_check(node: ast.AST) -> bool:
    """``isinstance(…, PublisherFold)``, or the same of what a node makes of it."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"):
        return False
    named = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    named |= {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return bool(named & {"PublisherFold", "PublisherApplication"})


def own_modules() -> dict[str, Path]:
    modules = {}
    for base, pattern in ((ROOT, "garlicfarm"), (ROOT / "transports", "*"), (ROOT / "plugins", "*")):
        for path in base.glob(f"{pattern}/**/*.py"):
            parts = path.relative_to(base).with_suffix("").parts
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


MODULES = own_modules()


def test_every_room_is_looked_into() -> None:
    assert {"garlicfarm.errors", "garlicfarm.wire.codec", "garlicfarm_transport_ssl"} <= set(MODULES)
    rooms = {name.split(".")[1] for name in MODULES if name.startswith("garlicfarm.")}
    assert rooms == {*DOORS, *ROOMS}
    for room in PUBLISHER_ROOMS:
        assert room in MODULES


def test_map_of_rooms_has_each_one_once_and_tells_the_pure_ones() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/]+)` \| ([\w]+) \|", page, re.M)
    tree = {
        f"{path.name}/" if path.is_dir() else path.stem
        for path in (ROOT / "garlicfarm").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    rooms = [room for room, _ in rows if "/" not in room.rstrip("/")]
    assert sorted(rooms) == sorted({*tree, "transports/", "plugins/"} - {"__init__"})
    for room, _ in rows:
        assert room in rooms or (ROOT / "garlicfarm" / room).is_dir()
    assert {room.rstrip("/") for room, kind in rows if kind == "pure"} == set(DOORS)


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {}
    for module, path in MODULES.items():
        is_package = path.name == "__init__.py"
        imported = {origin for origin, _ in imports(module, ast.parse(path.read_text()), package=is_package)}
        graph[module] = imported & MODULES.keys()
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_no_rooms_import_each_other_in_a_circle() -> None:
    pure = {
        room: {origin.split(".")[1] for origin in may if origin.startswith("garlicfarm.")}
        for room, may in DOORS.items()
    }
    TopologicalSorter({**pure, **ROOMS}).prepare()  # raises CycleError


@pytest.mark.parametrize("module", sorted(MODULES))
def test_module_keeps_the_doors(module: str) -> None:
    path = MODULES[module]
    assert violations(module, path.read_text(), package=path.name == "__init__.py") == []


def test_pyproject_loosens_no_checker_in_the_pure_rooms() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    loosened = [
        *tool["ruff"]["lint"].get("per-file-ignores", {}),
        *(str(each["module"]) for each in tool["mypy"].get("overrides", [])),
    ]
    assert tool["mypy"]["strict"] is True
    for room in DOORS:
        assert not [each for each in loosened if re.search(rf"\b{room}\b|garlicfarm[./]\*", each)], room


@pytest.mark.parametrize(
    "line",
    [
        "import socket, struct",
        "from os import urandom",
        "from http import client",
        "def f() -> None:\n    import secrets",
        "if TYPE_CHECKING:\n    import datetime",
        "import garlicfarm.storage",
        "from garlicfarm import storage",
        "from .. import transport",
        "import garlicfarm_transport_ssl",
        "value = open('x')",
        "x = 1  # type: ignore[assignment]",
        "# ruff: noqa",
    ],
)
def test_door_of_a_pure_room_forced_is_noticed(line: str) -> None:
    assert violations("garlicfarm.wire.synthetic", line) != []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("garlicfarm.wire.synthetic", "from garlicfarm.raft.types import Entry"),
        ("garlicfarm.raft.synthetic", "from garlicfarm.wire.codec import Reader"),
        ("garlicfarm.raft.synthetic", "from ..wire.codec import Reader"),
        ("garlicfarm.publishing.synthetic", "from garlicfarm.i2p.keys import DestinationKeys"),
        ("garlicfarm.admin.synthetic", "from garlicfarm.node.replica import Replica"),
        (
            "garlicfarm.net.synthetic",
            "if TYPE_CHECKING:\n    from garlicfarm.node.core_inbox import CoreInbox",
        ),
        ("garlicfarm.client.synthetic", "def f() -> None:\n    import garlicfarm.storage"),
        ("garlicfarm.unheard_of", "from garlicfarm.wire import Limits"),
        ("garlicfarm.node.core_inbox", "from garlicfarm.node.publisher import PublisherApplication"),
        ("garlicfarm.node.core_inbox", "isinstance(application, PublisherFold)"),
        ("garlicfarm.cli.synthetic", "assert isinstance(x, (int, application.PublisherApplication))"),
        ("garlicfarm.node.synthetic", "from garlicfarm_transport_ssl import SslTransport"),
    ],
)
def test_door_between_rooms_forced_is_noticed(module: str, line: str) -> None:
    assert violations(module, line) != []


PUBLIC_UNDERSCORES = {"_asdict", "_exit", "_fields", "_replace"}
"""Names of the standard library that are public all the same."""
PRIED = {
    # It asks a router for totals, which no node does: the client has no public call for that.
    "benchmarks/cost.py": ["client._authenticate", "client._call"],
    # It makes millions of states, each of which is a granter's or a holder's as it was left.
    "tests/raft/lease_model.py": [
        *(
            f"granter.{name}"
            for name in ("_asked", "_elected_ms", "_heard", "_lasts_ms", "_lost", "_node_id")
        ),
        *(f"granter.{name}" for name in ("_number", "_reached_ms", "_samples", "_since_ms", "_waits_ms")),
        *(f"holder.{name}" for name in ("_arrived_ms", "_end_ms", "_index", "_newest", "_term")),
    ],
}
"""What remains of private attributes that are read, with the reason."""


def shortcuts(source: str) -> list[str]:
    """How a module of the tests, tools or benchmarks reaches code past the doors, one sentence each."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module or ''}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and node.attr == "path" and _is_name(node.value, "sys"):
            found.append("uses sys.path")
        elif _is_pried(node):
            found.append(f"reads the private {ast.unparse(node)}")
        found += [f"imports {name}" for name in names if name.split(".")[0] == "runpy" or name == "sys.path"]
        found += [f"imports the private {name}" for name in names if is_private(name)]
    return found


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_pried(node: ast.AST) -> bool:
    """Whether it is a private attribute of something other than ``self``, ``cls`` or ``super()``."""
    if not isinstance(node, ast.Attribute) or not is_private(node.attr) or node.attr in PUBLIC_UNDERSCORES:
        return False
    own = node.value.func if isinstance(node.value, ast.Call) else node.value
    return not (isinstance(own, ast.Name) and own.id in ("self", "cls", "super"))


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


@pytest.mark.parametrize("folder", ["tests", "tools", "benchmarks"])
def test_tests_tools_and_benchmarks_take_no_shortcuts(folder: str) -> None:
    found = {
        str(path.relative_to(ROOT)): sorted({*taken})
        for path in (ROOT / folder).rglob("*.py")
        if (taken := shortcuts(path.read_text(encoding="utf-8")))
    }
    remaining = {file: [f"reads the private {name}" for name in names] for file, names in PRIED.items()}
    assert found == {file: names for file, names in remaining.items() if file.startswith(folder)}


@pytest.mark.parametrize(
    "line",
    [
        "import sys\nsys.path.insert(0, 'x')",
        "from runpy import run_path",
        "def f() -> None:\n    from garlicfarm.admin.dashboard import _private",
        "node._farms.clear()",
        "def f(self) -> None:\n    self.node._farms = {}",
    ],
)
def test_shortcut_is_noticed(line: str) -> None:
    assert shortcuts(line) != []


@pytest.mark.parametrize("line", ["self._x", "super()._x()", "cls._x", "row._replace(x=1)", "f.__name__"])
def test_what_is_ones_own_or_public_is_no_shortcut(line: str) -> None:
    assert shortcuts(line) == []
