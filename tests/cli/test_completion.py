"""Completion: what the guide says works in a shell, and a Tab imports nothing heavy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.pages import blocks

PAGE = "docs/howto/administer.md"
ENVIRON = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("mem", "member"),
        ("member rem", "remove"),
        ("node a", "address"),
        ("status --wa", "--watch"),
        ("wait --for pub", "publisher"),
        ("user li", "list"),
    ],
)
def test_tab_in_bash_completes_as_the_guide_sets_it_up(typed: str, completed: str) -> None:
    (setup,) = blocks(PAGE, "sh bash")
    words = ["garlicfarm", *typed.split()]
    script = (
        f"{setup}\nCOMP_WORDS=({' '.join(words)}) COMP_CWORD={len(words) - 1}\n"
        '_garlicfarm_completion garlicfarm\necho "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "-ec", script], env=ENVIRON, capture_output=True, text=True, check=True, timeout=240
    )
    assert (done.stdout, done.stderr) == (f"{completed}\n", "")


@pytest.mark.parametrize(
    ("shell", "first"), [("zsh", "#compdef garlicfarm"), ("fish", "function _garlicfarm_completion")]
)
def test_set_up_of_other_shells_is_printed(shell: str, first: str) -> None:
    (setup,) = blocks(PAGE, f"sh {shell}")
    assert f"_GARLICFARM_COMPLETE={shell}_source garlicfarm" in setup
    done = subprocess.run(
        ["garlicfarm"],
        env={**ENVIRON, "_GARLICFARM_COMPLETE": f"{shell}_source"},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    assert done.stdout.startswith(first)
