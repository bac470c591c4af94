"""What `make bench-i2p` says on a machine that cannot run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_benchmark_without_i2pd_says_so_and_breaks_no_limit(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.i2p"],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.startswith("bench-i2p: skipped: i2pd, ip, unshare, setpriv not found: as root, make")
    assert (ended.returncode, ended.stderr) == (0, "")
