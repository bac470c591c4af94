"""Every rule of the log on disk is tested: a store that breaks it fails the test that is named for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.storage.mutants import MUTANTS, NONE, SURVIVED, Mutant

DEADLINE_S = 300.0  # ends what hangs


def run(name: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.storage.mutants", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.returncode, done.stdout.decode()


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_killed_by_its_test(mutant: Mutant) -> None:
    code, output = run(mutant.name)
    assert code == 0, output


@pytest.mark.slow
def test_store_without_a_mutant_survives() -> None:
    code, output = run(NONE)
    assert code == SURVIVED, output
    assert "1 passed" in output


def test_each_mutant_changes_a_text_that_is_there_and_has_a_name_of_its_own() -> None:
    for mutant in MUTANTS:
        compile(mutant.source(), mutant.name, "exec")
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
