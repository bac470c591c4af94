"""A script that prints a JSON document per line, run in a network namespace of its own."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from garlicfarm.lab.i2pd_files import RouterPlan
from tests.conftest import NAMESPACE
from tests.java.java_router import JavaPlan

ROOT = Path(__file__).parents[2]
KINDS: dict[str, type[RouterPlan]] = {"i2pd": RouterPlan, "java": JavaPlan}


class Options(NamedTuple):
    """What a script is told: where its network has its files, of which kind the plans of the routers are that
    serve, or have clients, the hops of each tunnel, how many more routers carry tunnels, and whether Spark
    ranks."""

    directory: Path
    servers: type[RouterPlan]
    clients: type[RouterPlan]
    hops: int
    carriers: int
    rank: bool

    def carrying(self) -> list[RouterPlan]:
        """The plans of routers that do nothing but carry tunnels: of both kinds by turns, if there are any of
        Java I2P."""
        kinds = (RouterPlan, JavaPlan if JavaPlan in (self.servers, self.clients) else RouterPlan)
        return [kinds[i % 2](is_floodfill=False, has_leaf=False) for i in range(self.carriers)]


def over_i2p(timeout_s: float, *more: pytest.MarkDecorator) -> list[pytest.MarkDecorator]:
    """The marks of tests over a private network of real routers (make test-i2p)."""
    mark = pytest.mark
    return [mark.i2p, mark.i2pd, mark.netns, mark.slow, mark.timeout(timeout_s), *more]


class ScriptError(AssertionError):
    """A program ended with ``code``; the text is all that it printed."""

    def __init__(self, code: int, printed: str) -> None:
        super().__init__(f"ended with {code}:\n{printed}")
        self.code = code


def run_script(script: str, *arguments: str | Path, timeout_s: float) -> list[dict[str, Any]]:
    """What ``tests.i2p.SCRIPT`` reports, in order; raises `ScriptError` where it fails."""
    command = [*NAMESPACE, sys.executable, "-m", f"tests.i2p.{script}", *map(str, arguments)]
    return [json.loads(line) for line in output_of(command, timeout_s).splitlines()]


def options() -> Options:
    """Those of a script's command line. Three hops take some twenty routers: ``--carriers 12``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    for each in ("--servers", "--clients"):
        parser.add_argument(each, choices=KINDS, default="i2pd")
    parser.add_argument("--hops", type=int, default=0)
    parser.add_argument("--carriers", type=int, default=0)
    parser.add_argument("--rank", action="store_true")
    told = parser.parse_args()
    servers, clients = KINDS[told.servers], KINDS[told.clients]
    return Options(told.directory, servers, clients, told.hops, told.carriers, told.rank)


def tell(what: str, **facts: object) -> None:
    """Print, in a script, what has come about."""
    print(json.dumps({"what": what} | facts), flush=True)


def output_of(command: list[str], timeout_s: float) -> str:
    """What ``command`` prints, which pytest shows too; raises `ScriptError` where it fails."""
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    print(ended.stdout)
    if ended.returncode:
        raise ScriptError(ended.returncode, ended.stdout + ended.stderr)
    return ended.stdout
