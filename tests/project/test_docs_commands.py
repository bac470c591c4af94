"""The commands in README, tutorial and guides, run as they stand there: one farm of three processes.

What cannot run here is marked on the page (``sh setup``) or belongs to other machines (ssh, scp, root).
Only ports and timeouts differ from what a reader has.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from garlicfarm.lab.destinations import simulated_destination
from garlicfarm.lab.processes import free_ports
from tests.project.pages import FENCE, ROOT, blocks, environment, run

PAGES = ("docs/tutorial.md", "docs/howto/users.md", "docs/howto/use-the-log.md", "README.md")
TIMEOUT_S = 240  # for some forty processes, one after another, on a machine that may have much else to do


def runnable(page: str) -> list[str]:
    if page == "README.md":
        return [block for block in blocks(page, "sh") if "log post" in block]
    return blocks(page, "sh")


class Told:
    """What the blocks of the pages wrote, and the directory in which they did."""

    def __init__(self, directory: Path, output: str) -> None:
        self.directory = directory
        parts = re.split(r"^@@@ (\S+)\n", output, flags=re.MULTILINE)
        self.output = dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """All pages were followed, in order, and the farm is still running."""
    directory = tmp_path_factory.mktemp("tutorial")
    script = ["set -eu -o pipefail"]
    for page in PAGES:
        for number, block in enumerate(runnable(page)):
            script += [f"echo '@@@ {page}:{number}'", block]
    text = "\n".join([*script, "echo '@@@ end'", ""])
    for port, free in zip((28150, 28160, 28170), free_ports(3), strict=True):
        text = text.replace(str(port), str(free))
    (directory / "script").write_text(text)
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(
            ["bash", "script"],
            cwd=directory,
            env=environment(directory),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            code = process.wait(TIMEOUT_S)
            said = (directory / "output").read_text()
            assert code == 0, said
            yield Told(directory, said)
        finally:
            process.kill()
            process.wait()
            end_processes(directory)


def end_processes(directory: Path) -> None:
    """Kill what the pages started and did not end, by the ids that they noted."""
    for file in directory.glob("trial/node-*/pid"):
        pid = int(file.read_text())
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # Ids come again; only a node of this very directory is ours.
            if str(directory).encode() in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_tutorial_makes_three_directories_and_elects_a_leader(told: Told) -> None:
    made = told.output["docs/tutorial.md:0"]
    assert [line.split()[:2] for line in made.splitlines()] == [
        ["ID", "DIRECTORY"],
        *([str(n), f"trial/node-{n}"] for n in (1, 2, 3)),
    ]
    assert "ok" in told.output["docs/tutorial.md:1"]
    assert "quorum, can lose 1 more" in told.output["docs/tutorial.md:3"]


@pytest.mark.slow
def test_tutorial_posts_before_and_after_the_kill_and_loses_nothing(told: Told) -> None:
    first, everywhere, after = (told.output[f"docs/tutorial.md:{number}"] for number in (4, 5, 7))
    assert first.splitlines()[0] == "2"
    assert '"value":"hello, farm\\n"' in everywhere
    lines = [line for line in after.splitlines() if line.startswith("{")]
    assert ["hello, farm" in lines[0], "still here" in lines[1], len(lines)] == [True, True, 2]
    assert "can lose 0 more" in after
    assert "unreachable" in after


@pytest.mark.slow
def test_tutorial_killed_node_catches_up(told: Told) -> None:
    assert "still here" in told.output["docs/tutorial.md:8"]
    assert "event=started" in told.output["docs/tutorial.md:9"]


@pytest.mark.slow
def test_users_page_lists_the_user_and_lets_it_in(told: Told) -> None:
    assert told.output["docs/howto/users.md:0"].split() == blocks("docs/howto/users.md", "text")[0].split()
    assert "leader" in told.output["docs/howto/users.md:2"]


@pytest.mark.slow
def test_replicated_log_example_prints_what_the_page_shows(told: Told) -> None:
    shown = blocks("docs/howto/use-the-log.md", "text")[0]
    said = told.output["docs/howto/use-the-log.md:0"]
    without_numbers = [re.sub(r"\d+", "N", text).split() for text in (said, shown)]
    assert without_numbers[0] == without_numbers[1]


@pytest.mark.slow
def test_lines_posted_from_a_shell_are_answered_as_the_page_shows(told: Told) -> None:
    shown = blocks("docs/howto/use-the-log.md", "text")[1]
    said = told.output["docs/howto/use-the-log.md:1"]
    without_places = [re.sub(r"index \d+, term \d+", "at", text) for text in (said, shown)]
    assert without_places[0] == without_places[1]


@pytest.mark.slow
def test_readme_posts_and_reads_in_a_nodes_directory(told: Told) -> None:
    index, *lines = told.output["README.md:0"].splitlines()
    assert index.isdigit()
    assert "hello, farm" in lines[-1]


def test_three_machines_are_made_by_the_same_commands_on_both_pages() -> None:
    """`tests/machines` runs them as the README has them."""
    guide, block = (
        next(each for each in blocks(page, "sh") if "farm create" in each)
        for page in ("docs/howto/three-machines.md", "README.md")
    )
    assert block.startswith(guide)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/howto/three-machines.md", "docs/howto/i2pd.md"])
def test_tables_for_the_end_of_the_configuration_are_valid_there(page: str, tmp_path: Path) -> None:
    member = "--member 1=ssl://a.example:27150 --out farm"
    assert run("bash", "-c", f"garlicfarm farm create {member}", cwd=tmp_path).returncode == 0
    file = tmp_path / "farm" / "node-1" / "garlicfarm.toml"
    (table,) = blocks(page, "toml")
    leaf = b64encode(simulated_destination(1), altchars=b"-~").decode()
    file.write_text(f"{file.read_text()}\n{table.replace('…', leaf)}")
    password = file.with_name("i2pcontrol.password")
    password.write_text("itoopie\n")
    password.chmod(0o600)
    done = run("bash", "-c", f"garlicfarm config check --config {file}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # A leaf beside a host on clearnet is told of; nothing else is.
    assert all('"Privacy" in the documentation' in line for line in done.stderr.splitlines())


@pytest.mark.slow
def test_tutorial_end_lets_every_node_exit_with_0(told: Told) -> None:
    """Runs last: it ends the farm."""
    (end,) = blocks("docs/tutorial.md", "sh end")
    pids = [int((told.directory / f"trial/node-{n}/pid").read_text()) for n in (1, 2, 3)]
    done = run("bash", "-euc", end, cwd=told.directory)
    assert done.returncode == 0, done.stderr
    for n, pid in zip((1, 2, 3), pids, strict=True):
        wait_for_end(pid)
        assert "event=stopping" in (told.directory / f"trial/node-{n}/node.log").read_text()


def wait_for_end(pid: int) -> None:
    """The processes are init's children now: what they end with is seen by nobody but their log."""
    done = run("timeout", "15", "tail", f"--pid={pid}", "-f", "/dev/null", cwd=ROOT)
    assert done.returncode == 0, f"{pid} did not end"


def test_make_targets_on_the_pages_exist() -> None:
    named = set()
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        typed = FENCE.sub(lambda block: "" if block["info"] == "text" else block[0], path.read_text("utf-8"))
        named |= set(re.findall(r"(?:^|`|sudo )make ([a-z0-9-]+)", typed, re.MULTILINE))
    assert {"lab", "test"} <= named
    assert named <= set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
