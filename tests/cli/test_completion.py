"""Completion: what the guide says works in a shell, and a Tab imports nothing heavy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.pages import ROOT, blocks
from tests.running import Terminal, running

PAGE = "docs/howto/administer.md"
SHARE = ROOT / "share"
ENVIRON = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("mem", "member"),
        ("member rem", "remove"),
        ("node a", "address"),
        ("status --wa", "--watch"),
        ("wait --for pub", "publisher"),
        ("status -o jsonl", "jsonl"),
        ("farm create --application l", "log"),
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


def test_file_of_bash_completes_values() -> None:
    script = (
        f". {SHARE}/bash-completion/completions/garlicfarm\n"
        "COMP_WORDS=(garlicfarm lab --until publ) COMP_CWORD=3\n"
        '_garlicfarm_completion garlicfarm\necho "${COMPREPLY[@]}"\ncomplete -p garlicfarm\n'
    )
    done = subprocess.run(
        ["bash", "-ec", script], env=ENVIRON, capture_output=True, text=True, check=True, timeout=240
    )
    completed, registered = done.stdout.splitlines()
    assert completed == "publisher"
    assert registered.endswith(" -F _garlicfarm_completion garlicfarm")


@pytest.mark.fish
def test_file_of_fish_is_found_and_completes_values(tmp_path: Path) -> None:
    done = subprocess.run(
        ["fish", "--command", 'complete --do-complete "garlicfarm lab --until publ"'],
        env=ENVIRON | {"XDG_DATA_DIRS": str(SHARE), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    assert done.stdout == "publisher\n"


@pytest.mark.zsh
def test_file_of_zsh_is_found_and_completes_at_the_first_tab(tmp_path: Path) -> None:
    setup = f"fpath=({SHARE}/zsh/site-functions $fpath); autoload -U compinit; compinit -u -D; PS1=rea''dy"
    environ = ENVIRON | {"TERM": "dumb", "HOME": str(tmp_path)}
    with Terminal() as terminal:
        theirs = terminal.theirs
        command = ["zsh", "--no-rcs", "--interactive"]
        with running(command, cwd=tmp_path, env=environ, stdin=theirs, stdout=theirs, stderr=theirs):
            terminal.close_theirs()
            terminal.write(f"{setup}\n".encode())
            terminal.read_until(b"ready")
            terminal.write(b"garlicfarm lab --until publ\t")
            terminal.read_until(b"publisher")
