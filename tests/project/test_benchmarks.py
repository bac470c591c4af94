"""The benchmarks start in a clone that has only what `make bench` installs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"

IMPORT = """
import runpy, sys
missing, *paths = sys.argv[1:]
for name in missing.split():
    sys.modules[name] = None  # as if it was not installed
for path in paths:
    runpy.run_path(path, run_name="imported")
"""


def test_benchmarks_need_nothing_of_the_tests_but_those_of_spark() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    missing = [re.split(r"[<>=~! \[;]", each)[0].replace("-", "_") for each in extras["test"]]
    assert {"pytest", "hypothesis"} <= set(missing)
    makefile = (ROOT / "Makefile").read_text()
    assert re.findall(r"^(bench\S*):.*\.venv/test", makefile, re.MULTILINE) == ["bench-spark"]
    scripts = sorted(str(path) for path in BENCHMARKS.glob("*.py") if path.name != "spark.py")
    assert len(scripts) > 10
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, " ".join(missing), *scripts],
        env={"PYTHONPATH": str(BENCHMARKS)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
