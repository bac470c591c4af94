"""The commands of the page "From log to chart in ten minutes", run as they stand there on a lab."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

import pyarrow.parquet

from tests.project.pages import blocks

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PAGE = "docs/howto/log-to-chart.md"
START_S = 120.0
PAGE_S = 480.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    """The directory of the first node of a running lab."""
    (tmp_path / "lab").mkdir()
    environ = {**os.environ, "TMPDIR": str(tmp_path / "lab")}
    command = [sys.executable, "-m", "garlicfarm", "lab"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environ) as lab:
        try:
            deadline = time.monotonic() + START_S
            while not (found := list((tmp_path / "lab").glob("garlicfarm-lab-*/farm/node-1/data/admin.url"))):
                assert lab.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield found[0].parents[1]
        finally:
            lab.send_signal(signal.SIGINT)
            lab.wait(60)


def test_commands_of_the_page_lead_from_the_log_to_a_chart(node: Path, tmp_path: Path) -> None:
    bin_ = Path(sys.executable).parent
    script = "\n".join(["set -eu", "garlicfarm wait --for publisher", *blocks(PAGE, "sh")])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=node,
        env={**os.environ, "HOME": str(tmp_path), "PATH": f"{bin_}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PAGE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    rows = pyarrow.parquet.read_table(tmp_path / "chart" / "rankings").to_pylist()
    assert len({row["publisher"] for row in rows} - {None}) > 1
    assert any(len(row["holders"]) == 2 for row in rows), "a hand-over"
    assert any("policy" in row["changed"] for row in rows)
    assert re.search(r"^ *log_index +farm_time_ms +changed +publisher +holders$", done.stdout, re.MULTILINE)
    page = (tmp_path / "chart" / "farm.html").read_text(encoding="utf-8")
    assert all(f"member {member}" in page for member in (1, 2, 3))
    assert "<svg" in page
