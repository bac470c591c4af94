"""Which commit a program says that it was made from: in a checkout of any kind, and without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from garlicfarm import __version__
from garlicfarm.levels import Program, parse_program
from tests.project.pages import ROOT

ASK = "import garlicfarm; print(garlicfarm.__file__); print(garlicfarm.revision())"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit, and the package in it."""
    path = tmp_path / "checkout"
    (path / "garlicfarm").mkdir(parents=True)
    for name in ("__init__.py", "_version.py"):
        (path / "garlicfarm" / name).write_bytes((ROOT / "garlicfarm" / name).read_bytes())
    git(path, "init", "--quiet", "--initial-branch=main")
    git(path, "add", "garlicfarm")
    git(path, "commit", "--quiet", "--message=first")
    return path


def git(path: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example"]
    done = subprocess.run(["git", *who, *arguments], cwd=path, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def revision_of(path: Path) -> str:
    done = subprocess.run([sys.executable, "-c", ASK], cwd=path, capture_output=True, text=True, check=True)
    module, revision = done.stdout.splitlines()
    assert Path(module).is_relative_to(path)
    return revision


def head_of(path: Path) -> str:
    return git(path, "rev-parse", "HEAD")[:12]


def test_revision_of_a_checkout_is_what_git_says(checkout: Path) -> None:
    assert revision_of(checkout) == head_of(checkout)
    git(checkout, "commit", "--quiet", "--allow-empty", "--message=second")
    assert revision_of(checkout) == head_of(checkout)


def test_revision_of_a_detached_head_and_of_packed_refs_is_what_git_says(checkout: Path) -> None:
    git(checkout, "tag", "other")
    git(checkout, "commit", "--quiet", "--allow-empty", "--message=second")
    git(checkout, "pack-refs", "--all")
    assert not (checkout / ".git" / "refs" / "heads" / "main").exists()
    assert revision_of(checkout) == head_of(checkout)
    git(checkout, "checkout", "--quiet", "other")
    assert revision_of(checkout) == head_of(checkout)


@pytest.mark.parametrize("packed", [False, True])
def test_revision_of_a_worktree_is_that_of_its_branch(checkout: Path, packed: bool) -> None:
    other = checkout.parent / "other"
    git(checkout, "worktree", "add", "--quiet", "-b", "topic/other", str(other))
    git(other, "commit", "--quiet", "--allow-empty", "--message=second")
    if packed:
        git(checkout, "pack-refs", "--all")
    assert (other / ".git").is_file()
    assert revision_of(other) == head_of(other) != head_of(checkout)


@pytest.mark.parametrize(
    ("name", "contents"),
    [("HEAD", "ref: refs/heads/none"), ("HEAD", "nonsense"), ("HEAD", ""), ("packed-refs", None)],
)
def test_revision_of_a_checkout_that_cannot_be_read_is_not_known(
    checkout: Path, name: str, contents: str | None
) -> None:
    if contents is None:
        (checkout / ".git" / "refs" / "heads" / "main").unlink()
    else:
        (checkout / ".git" / name).write_text(contents + "\n")
    assert revision_of(checkout) == ""


def test_revision_without_a_checkout_is_not_known(checkout: Path) -> None:
    (checkout / ".git").rename(checkout / "git")
    assert revision_of(checkout) == ""


def test_revision_that_a_wheel_brings_counts_before_a_checkout_around_it(checkout: Path) -> None:
    (checkout / "garlicfarm" / "_revision.txt").write_text("debian-1\n")
    assert revision_of(checkout) == "debian-1"


def test_revision_and_version_are_words_of_the_handshake() -> None:
    program = Program(version=__version__, revision="0.3+debian~1_a-b", highest=1)
    assert parse_program(program.header()) == program


def test_command_says_its_version_and_the_commit() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "garlicfarm", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    commit = revision_of(ROOT)
    assert done.stdout == f"garlicfarm {__version__}" + (f" ({commit})" if commit else "") + "\n"
