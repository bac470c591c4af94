"""The programs that the nodes of one farm run: releases of garlicfarm side by side on one machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import trio

from garlicfarm import __version__

ROOT = Path(__file__).parents[2]


class Done(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


class Program(NamedTuple):
    """A garlicfarm in ``directory``, with the dependencies of this environment; None: this tree's."""

    version: str
    directory: Path | None = None

    @property
    def python(self) -> tuple[str, ...]:
        """A Python that imports this garlicfarm and no other: not that of the working directory either."""
        path = "" if self.directory is None else str(self.directory)
        return ("env", f"PYTHONPATH={path}", sys.executable, "-P")

    @property
    def command(self) -> tuple[str, ...]:
        """The command ``garlicfarm``."""
        return (*self.python, "-m", "garlicfarm")

    async def run(self, *arguments: object) -> Done:
        """What this command does, and writes."""
        return await _run([*self.command, *arguments])

    async def execute(self, code: str, *arguments: object) -> list[str]:
        """The lines that Python code writes which imports this garlicfarm, in this tree's directory."""
        done = await _run([*self.python, "-c", code, *arguments])
        assert done.code == 0, done.err
        return done.out.splitlines()


async def _run(command: Sequence[object]) -> Done:
    done = await trio.run_process(
        [*map(str, command)], capture_stdout=True, capture_stderr=True, check=False, cwd=ROOT
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


TREE = Program(__version__)
