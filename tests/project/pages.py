"""The pages of the documentation, what is in them, and how their commands are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n]*)\n(?P<body>.*?)^ *```$", re.MULTILINE | re.DOTALL)


def page(path: str) -> str:
    """The text of a page, or of another file, by its path from the root of the repository."""
    return (ROOT / path).read_text(encoding="utf-8")


def blocks(path: str, info: str) -> list[str]:
    """The fenced blocks of a page with this info string."""
    return [found["body"] for found in FENCE.finditer(page(path)) if found["info"] == info]


def table(text: str, first: str = "") -> list[list[str]]:
    """The cells below the header of the first table, or of the first whose header begins so."""
    found = re.search(rf"^\| {first}.*\n\|[-|]*\n((?:^\|.*\n)+)", text, re.MULTILINE)
    assert found is not None, f"no table {first}"
    lines = found[1].splitlines()
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def environment(directory: Path) -> dict[str, str]:
    """For the commands of a page: as a reader has it, but for ports and timeouts."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GARLICFARM_")}
    # Quicker than the preset; but a second election, on a machine that the commands keep busy, would take an
    # index that the pages give to the first entry.
    raft = {"ELECTION_TIMEOUT_MIN_S": "1.5", "ELECTION_TIMEOUT_MAX_S": "2.0", "HEARTBEAT_S": "0.15"}
    return {
        **kept,
        **{f"GARLICFARM_FARM__FARM__RAFT__{key}": value for key, value in raft.items()},
        "GARLICFARM_ADMIN__URL": "https://127.0.0.1:0",
        "HOME": str(directory),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "REPO": str(ROOT),
    }


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=environment(cwd), capture_output=True, text=True, timeout=240, check=False
    )
