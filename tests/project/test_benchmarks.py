"""The benchmarks start in a clone that has only what `make bench` installs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence

import pytest
from trio.testing import MockClock

from benchmarks.bench_farm import RetryingClient, leader_of
from benchmarks.isolation import QUIET, two_farms
from benchmarks.reference_copy import reference_copy
from garlicfarm.errors import EntryRefused, NoQuorum, OutcomeUnknown, ProposalDropped
from garlicfarm.refusals import Refusal
from tests.project.pages import ROOT

BENCHMARKS = ROOT / "benchmarks"

IMPORT = """
import importlib, sys
missing, *modules = sys.argv[1:]
for name in missing.split():
    sys.modules[name] = None  # as if it was not installed
for module in modules:
    importlib.import_module(module)
"""


def test_benchmarks_need_nothing_of_the_tests_but_those_of_spark() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    missing = [
        re.split(r"[<>=~! \[;]", each)[0].replace("-", "_") for each in extras["test"] + extras["bench"]
    ]
    assert {"pytest", "hypothesis", "pysyncobj"} <= set(missing)
    makefile = (ROOT / "Makefile").read_text()
    assert re.findall(r"^(bench\S*):.*\.venv/test", makefile, re.MULTILINE) == ["bench-spark"]
    modules = sorted(f"benchmarks.{path.stem}" for path in BENCHMARKS.glob("*.py") if path.stem != "spark")
    assert len(modules) > 10
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, " ".join(missing), *modules],
        cwd=ROOT,
        env={},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


async def test_retrying_client_repeats_what_is_not_acknowledged_and_counts_unknown_outcomes(
    autojump_clock: MockClock,
) -> None:
    fates = [OutcomeUnknown("?"), NoQuorum("?"), OutcomeUnknown("?"), ProposalDropped(Refusal.REFUSED), None]
    fates.append(EntryRefused("", "?"))
    asked: list[Sequence[bytes]] = []

    async def post(entries: Sequence[bytes]) -> tuple[int, int]:
        asked.append(entries)
        if (error := fates.pop(0)) is not None:
            raise error
        return 7, 1

    retrying_client = RetryingClient(post)
    assert await retrying_client.post([b"x"]) == (7, 1)
    assert (asked, retrying_client.unknown) == ([[b"x"]] * 5, 2)
    with pytest.raises(EntryRefused):
        await retrying_client.post([b"y"])


async def test_reference_copy_makes_a_store_that_this_version_opens() -> None:
    assert await reference_copy(300, 100) > 0


@pytest.mark.slow
async def test_quiet_farm_beside_the_flooded_one_elects_a_leader() -> None:
    async with two_farms() as farm:
        assert await leader_of(farm.nodes[1], QUIET) in farm.nodes
