"""The Makefile on strange machines: one sentence of what is missing, and no dead targets."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.project.pages import ROOT
from tests.running import Terminal, running

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
OUTSIDE = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
"""The environment as if no `make test` ran these tests: make behaves differently inside make."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with our Makefile, an empty PATH directory `bin`, and no .venv."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "bin").mkdir()
    return tmp_path


def make(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [shutil.which("make") or "make", *arguments]
    # Of this machine, only the project's own `bin` is found.
    environment = {"PATH": str(project / "bin"), "LC_ALL": "C"}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


def install(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def complaint(result: subprocess.CompletedProcess[str]) -> str:
    """What make wrote on stderr, without make's own line about the failed recipe."""
    assert result.returncode != 0
    (line,) = [line for line in result.stderr.splitlines() if not line.startswith("make: ***")]
    return line


def test_make_without_python_says_what_to_install(project: Path) -> None:
    for name in ("python3", "python3.12"):
        install(project / "bin" / name, "exit 1")  # too old, by its own word
    assert complaint(make(project, "test")) == (
        "No Python 3.11 or later was found; install one (Debian: apt install python3 python3-venv) "
        "or name it with PYTHON=."
    )
    assert not (project / ".venv").exists()


def test_make_python_without_venv_says_what_to_install(project: Path) -> None:
    install(project / "bin" / "python3.13", 'case "$2" in *ensurepip*) exit 1;; esac')
    assert complaint(make(project, "lab")) == (
        f"{project}/bin/python3.13 cannot make a virtual environment; "
        "install what it lacks (Debian: apt install python3-venv)."
    )
    assert not (project / ".venv").exists()


def test_make_named_python_too_old_is_refused(project: Path) -> None:
    install(project / "old", "exit 1")
    assert (
        complaint(make(project, "test", "PYTHON=./old"))
        == "./old is no Python 3.11 or later; name one with PYTHON=."
    )


def test_make_takes_the_first_python_that_is_new_enough(project: Path) -> None:
    install(project / "bin" / "python3", "exit 1")
    install(project / "bin" / "python3.12", '[ "$1" = -c ] || echo "twelve $@"')
    install(project / "bin" / "python3.11", '[ "$1" = -c ] || echo "eleven $@"')
    result = make(project, ".venv/bin/python")
    assert result.stdout.splitlines()[-1] == "twelve -m venv .venv"


def ready(project: Path) -> None:
    """Set-up is done, and the command `garlicfarm` says what it was asked."""
    install(project / ".venv/bin/garlicfarm", 'echo "asked: $@"')
    (project / ".venv/bin/python").touch()
    (project / ".venv/base").touch()
    (project / ".venv/spark").touch()


def test_make_lab_without_terminal_ends_when_spark_ranks(project: Path) -> None:
    ready(project)
    result = make(project, "lab", "LAB=--nodes 5")
    assert (result.returncode, result.stdout) == (0, "asked: lab --until ranked --nodes 5\n")


def test_make_lab_on_a_terminal_runs_on(project: Path) -> None:
    ready(project)
    ours, theirs = os.openpty()
    try:
        subprocess.run(["make", "lab"], cwd=project, env=OUTSIDE, stdin=theirs, stdout=theirs, check=True)
        assert os.read(ours, 1000).decode().strip() == "asked: lab --rank --prepare make .venv/spark"
    finally:
        os.close(ours)
        os.close(theirs)


def test_make_lab_ended_by_ctrl_c_reports_no_error(project: Path) -> None:
    ready(project)
    install(
        project / ".venv/bin/garlicfarm",
        "trap 'echo interrupted; exit 130' INT; echo shown; while :; do sleep 0.1; done",
    )
    command = ["setsid", "--ctty", "make", "lab"]
    with Terminal() as terminal:
        theirs = terminal.theirs
        with running(command, cwd=project, env=OUTSIDE, stdin=theirs, stdout=theirs, stderr=theirs):
            terminal.close_theirs()
            terminal.read_until(b"shown")
            terminal.write(b"\x03")
            said = b""
            while more := terminal.read():
                said += more
    assert b"interrupted" in said
    assert b"make: ***" not in said


def test_make_lab_says_the_size_of_the_download_before_it_starts(project: Path) -> None:
    ready(project)
    (project / ".venv/spark").unlink()
    install(project / ".venv/bin/python", 'echo "asked: $@" >&2')
    size, told, asked, *_ = make(project, "lab").stderr.splitlines()
    assert size == "Spark and a Java are about 560 MiB to download; this takes minutes."
    assert told == "Installing garlicfarm[spark,java] into .venv"
    assert asked.endswith("--editable .[spark,java]")


@pytest.mark.parametrize(("broken", "code"), [(1, 0), (2, 2)], ids=["once", "twice"])
@pytest.mark.parametrize(
    ("target", "what"),
    [
        ("base", "."),
        ("test", ".[test]"),
        ("bench", ".[bench]"),
        ("dafka", ".[dafka]"),
        ("release", ".[test,release]"),
        ("spark", ".[spark,java]"),
        ("connect", ".[spark,java,connect]"),
    ],
)
def test_make_installs_once_more_where_a_download_broke_off(
    project: Path, target: str, what: str, broken: int, code: int
) -> None:
    ready(project)
    made = project / ".venv" / target
    made.unlink(missing_ok=True)
    install(project / "bin/touch", ': >"$1"')
    install(
        project / ".venv/bin/python",
        f"""echo "$*" >>asked
        while read -r _; do tries=x$tries; done <asked
        case "$*" in *" {what}") [ ${{#tries}} -gt {broken} ];; esac""",
    )
    assert make(project, f".venv/{target}").returncode == code
    assert made.exists() == (code == 0)
    asked = (project / "asked").read_text().splitlines()
    assert [line.endswith(f"--editable {what}") for line in asked] == [True, True]


@pytest.mark.parametrize("installable", [True, False])
def test_make_fuzz_goes_on_where_atheris_cannot_be_installed(project: Path, installable: bool) -> None:
    ready(project)
    install(project / "bin/touch", ': >"$1"')
    install(
        project / ".venv/bin/python",
        f"""case "$*" in *" .[fuzz]") exit {int(not installable)};; esac
        case "$*" in "-m tests"*) echo "asked: $@";; esac""",
    )
    result = make(project, "fuzz", "MINUTES=3")
    assert (result.returncode, result.stdout.splitlines()[-1]) == (0, "asked: -m tests.fuzz.run --minutes 3")
    assert (project / ".venv/fuzz").exists() == installable
    assert ("Hypothesis takes its place" in result.stderr) == (not installable)


def test_make_test_python_uses_an_environment_of_its_own(project: Path) -> None:
    script = """case "$1" in -c) echo 3.12;; esac
        case "$*" in "-m venv .venv-3.12") mkdir -p .venv-3.12/bin; cp "$0" .venv-3.12/bin/python;; esac
        echo "$0 $*" >>asked"""
    install(project / "bin" / "python3.12", script)
    for program in ("cp", "mkdir"):
        (project / "bin" / program).symlink_to(shutil.which(program) or program)
    assert make(project, "test-python", "PYTHON=python3.12").returncode == 0
    *_, installed, tested = (project / "asked").read_text().splitlines()
    assert re.fullmatch(r"\.venv-3\.12/bin/python -m pip .* --editable \.\[test\]", installed)
    assert re.fullmatch(r"\.venv-3\.12/bin/python -m pytest .* -m not slow and .*", tested)
    assert not (project / ".venv").exists()


def test_help_lists_every_target() -> None:
    result = subprocess.run(
        ["make", "help"], cwd=ROOT, env=OUTSIDE, capture_output=True, text=True, check=True
    )
    listed = re.findall(r"^make ([a-z0-9-]+) ", result.stdout, re.MULTILINE)
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert phony is not None
    assert sorted(listed) == sorted(phony[1].split())


def test_targets_run_what_exists() -> None:
    scripts = re.findall(r"\b[a-z_]+(?:/[a-z_]+)+\.(?:py|sh)\b", MAKEFILE)
    assert [script for script in scripts if not (ROOT / script).is_file()] == []
    benchmarks = re.search(r"for each in ([a-z_\" -]+); do .*\n.*-m benchmarks\.\$\$each ", MAKEFILE)
    assert benchmarks is not None
    modules = re.findall(r"python -m ((?:garlicfarm|tests|tools|benchmarks)\.[a-z0-9_.]+)", MAKEFILE)
    modules = [name for name in modules if name != "benchmarks."]
    modules += [f"benchmarks.{name}" for name in re.findall(r"(?<![a-z-])[a-z_]+", benchmarks[1])]
    assert len(modules) > 20
    assert [name for name in modules if find_spec(name) is None] == []


def test_make_test_dafka_without_the_c_programs_says_so_and_skips(project: Path) -> None:
    install(project / "bin" / "unshare", "exit 1")
    result = make(project, "--assume-old=.venv/test", "test-dafka")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("skipped: DAFKA_C= must name a directory with dafka_towerd")
    install(project / "programs" / "dafka_towerd", "")
    assert make(project, "--assume-old=.venv/test", "test-dafka", "DAFKA_C=programs").returncode != 0


def test_make_test_java_without_java_i2p_says_so_and_skips(project: Path) -> None:
    result = make(project, "--assume-old=.venv/test", "test-java")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("skipped: JAVA_I2P= must name a directory")
    install(project / "java" / "lib" / "router.jar", "")
    assert make(project, "--assume-old=.venv/test", "test-java", "JAVA_I2P=java").returncode != 0
