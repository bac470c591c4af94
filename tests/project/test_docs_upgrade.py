"""The guide to the upgrade: its commands, run as they stand there on a node that version 0.1 made."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from garlicfarm.renamed import APPLICATIONS, ROLES
from tests.node.support.stored_by_0_1 import unpacked

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "upgrade.md").read_text(encoding="utf-8")
TIMEOUT_S = 240


def blocks(info: str) -> list[str]:
    """The fenced blocks with this info string, without their indentation."""
    found = re.findall(rf"^( *)```{info}\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)
    return [re.sub(f"^{indent}", "", body, flags=re.MULTILINE) for indent, body in found]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GARLICFARM_")}
    return {
        **kept,
        "GARLICFARM_ADMIN__URL": "https://127.0.0.1:0",
        "GARLICFARM_LISTENER__0__URL": "ssl://127.0.0.1:0",
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


@pytest.mark.slow
def test_every_command_of_the_guide_works_on_a_node_of_0_1(tmp_path: Path, environ: dict[str, str]) -> None:
    def follow(block: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    unpacked(tmp_path)
    copy, edit, look = blocks("sh")
    (check,), (start,), (message,) = blocks("sh check"), blocks("sh start"), blocks("text")
    assert follow(copy).returncode == 0
    checked = follow(check)
    assert (checked.returncode, checked.stderr) == (2, message)
    edited = follow(edit)
    assert (edited.returncode, edited.stdout.endswith("garlicfarm.toml: ok\n")) == (0, True), edited
    with (tmp_path / "log").open("wb") as log:
        node = subprocess.Popen(start.split(), cwd=tmp_path, env=environ, stdout=log, stderr=log)
    try:
        looked = follow(look)
    finally:
        node.send_signal(signal.SIGTERM)
        assert node.wait(TIMEOUT_S) == 0, (tmp_path / "log").read_text()
    assert looked.returncode == 0, looked
    assert "farm farm: leader 1, publisher none" in looked.stdout
    assert re.search(r"^the-poster +writer$", looked.stdout, re.MULTILINE)


def test_guide_has_each_word_that_changed() -> None:
    rows = re.findall(r"^\| .* \| `(\w+)` \| `(\w+)` \|$", PAGE, re.MULTILINE)
    assert rows == [*APPLICATIONS.items(), *ROLES.items()]
