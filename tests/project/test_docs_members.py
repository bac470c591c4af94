"""The guide to the members: its rotation makes the files that it says, its commands and messages exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import click
import pytest

from garlicfarm.cli import cli
from garlicfarm.credentials.member_credentials import read_secret_file, write_secret_file
from tests.project.pages import ROOT

PAGE = (ROOT / "docs" / "howto" / "members.md").read_text(encoding="utf-8")


def block(info: str) -> str:
    (found,) = re.findall(rf"^```{info}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def test_rotation_makes_the_files_of_each_round(tmp_path: Path) -> None:
    secret_file = tmp_path / "data" / "secrets" / "farm.secret"
    write_secret_file(secret_file, bytes(32))

    def follow(text: str) -> tuple[bytes, ...]:
        subprocess.run(["bash", "-euc", text], cwd=tmp_path, check=True)
        return read_secret_file(secret_file)

    (mint,) = re.findall(r"^```sh\n(.*new\.secret\)\n)^```$", PAGE, re.MULTILINE)
    assert follow(mint) == (bytes(32),)
    (new,) = read_secret_file(tmp_path / "new.secret")
    assert follow(block("sh round-1")) == (bytes(32), new)
    assert follow(block("sh round-2")) == (new, bytes(32))
    assert follow(block("sh round-3")) == (new,)
    assert [path.name for path in secret_file.parent.iterdir()] == ["farm.secret"]


@pytest.mark.parametrize("line", re.findall(r"garlicfarm ((?:member|leader|node) [^`\n]*)", PAGE))
def test_command_of_the_guide_exists_with_its_options(line: str) -> None:
    words = line.split()
    command: click.Command = cli
    for word in words[:2]:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None, line
        command = found
    known = {name for option in command.params for name in option.opts}
    assert {word for word in words if word.startswith("--")} <= known


SAID = re.findall(r"^\| ([^|]+) \| \d \|", PAGE.partition("it removes what it made:")[2], re.MULTILINE)


@pytest.mark.parametrize("message", SAID)
def test_message_of_the_guide_is_one_of_the_code(message: str) -> None:
    names = ("credentials/join_token.py", "client/joining.py", "cli/node_join.py", "setup/add_farm.py")
    said = "\n".join((ROOT / "garlicfarm" / name).read_text(encoding="utf-8") for name in names)
    said = re.sub(r'"\s*\n\s*f?"', "", said)
    said = re.sub(r"\{[^{}\n]*\}", "…", said)
    for part in re.split(r" … |, ", message.strip("… ")):
        assert part.strip() in said, part
    assert len(SAID) == 11
