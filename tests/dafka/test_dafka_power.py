"""Files whose power is cut hold all that was reported saved, and a store's all that it acknowledged; what
reports too early is found out."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.dafka import record_child, store_mutant


@pytest.mark.slow
@pytest.mark.fuse
@pytest.mark.parametrize(
    ("program", "rounds", "mutant"),
    [
        ("record_power", 12, ""),
        *[("record_power", 12, mutant) for mutant in record_child.MUTANTS],
        ("store_power", 3, ""),
        *[("store_power", 2, mutant) for mutant in store_mutant.MUTANTS],
    ],
)
def test_a_power_cut_loses_nothing_reported_and_each_mutant_is_found_out(tmp_path, program, rounds, mutant):
    command = ["unshare", "-rm", sys.executable, "-m", f"tests.dafka.{program}", str(tmp_path), str(rounds)]
    done = subprocess.run(
        [*command, *filter(None, [mutant])],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=280,
    )
    output = done.stdout.decode()
    assert done.returncode == bool(mutant), output
    assert ("is missing" in output) == bool(mutant), output
