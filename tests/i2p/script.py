"""A script that prints a JSON document per line, run in a network namespace of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NAMESPACE

ROOT = Path(__file__).parents[2]


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
