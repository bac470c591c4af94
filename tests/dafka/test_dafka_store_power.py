"""A store whose power is cut has all that it acknowledged; one that acknowledges too early is found out."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.dafka.store_mutant import MUTANTS


@pytest.mark.slow
@pytest.mark.fuse
@pytest.mark.parametrize("mutant", [None, *MUTANTS])
def test_a_power_cut_loses_nothing_acknowledged(tmp_path, mutant):
    command = ["unshare", "-rm", sys.executable, "-m", "tests.dafka.store_power", str(tmp_path)]
    done = subprocess.run(
        [*command, "3" if mutant is None else "2", *([mutant] if mutant else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=280,
    )
    output = done.stdout.decode()
    if mutant is None:
        assert done.returncode == 0, output
        acked, unsynced = map(int, output.splitlines()[-1].split())
        assert acked >= 900
        assert unsynced > 0
    else:
        assert done.returncode == 1, output
        assert "is missing" in output
