"""Every rule of the log on disk is tested: a store that breaks it fails the test that is named for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.mutants import Mutant, read_mutants

DEADLINE_S = 300.0  # ends what hangs


@pytest.mark.slow
@pytest.mark.parametrize("mutant", read_mutants("storage").values(), ids=lambda mutant: mutant.name)
def test_mutant_is_killed_by_its_test(mutant: Mutant) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutants", "storage", mutant.name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=DEADLINE_S,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stdout
